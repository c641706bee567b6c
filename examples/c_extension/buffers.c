/* buffers: a pool of aligned memory blocks that belong to C.
 *
 * An Arena knows the size of its blocks and counts what happens to them; it is the user data of the
 * C handlers. A Buffer is one block. Behind the part that Python sees lies a guard: eight bytes that
 * nobody may touch. Who writes too far changes them, and the pool throws that block away.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cenote.h"

#define ALIGNMENT 64 /* a cache line */
#define GUARD 8      /* bytes behind the block */

static const unsigned char guard[GUARD] = {0xCE, 0x70, 0x7E, 0xCE, 0x70, 0x7E, 0xCE, 0x70};

typedef struct {
    PyTypeObject *arena_type;
    PyTypeObject *buffer_type;
} State;

typedef struct {
    PyObject_HEAD PyTypeObject *buffer_type;
    Py_ssize_t size;              /* of each block */
    Py_ssize_t made, freed;       /* blocks */
    Py_ssize_t lent, returned;    /* by before_acquire, by before_release */
    Py_ssize_t checked, overruns; /* by the healthcheck; guards found broken */
} Arena;

typedef struct {
    PyObject_HEAD Arena *arena; /* owned: a Buffer may live longer than its pool */
    unsigned char *block;       /* NULL: freed */
    Py_ssize_t exports;         /* memoryviews on it */
    char lent;                  /* somebody may look at it */
    char dead;                  /* the destructor was here; the last memoryview frees it */
} Buffer;

/* -- blocks --------------------------------------------------------------------------------- */

/* A compiler may leave out a memset of memory that is freed next; it may not leave out this. */
static void
wipe(Buffer *self)
{
    volatile unsigned char *byte = self->block;
    for (Py_ssize_t i = 0; i < self->arena->size; i++) {
        byte[i] = 0;
    }
}

static int
guard_is_whole(Buffer *self)
{
    return memcmp(self->block + self->arena->size, guard, GUARD) == 0;
}

static void
free_block(Buffer *self)
{
    if (self->block != NULL) {
        wipe(self);
        free(self->block);
        self->block = NULL;
        self->arena->freed++;
    }
}

/* -- the five handlers ----------------------------------------------------------------------- */

static PyObject *
make_buffer(void *data)
{
    Arena *arena = data;
    Buffer *self = PyObject_New(Buffer, arena->buffer_type);
    if (self == NULL) {
        return NULL;
    }
    size_t room = (size_t)arena->size + GUARD;
    room = (room + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    self->arena = (Arena *)Py_NewRef(arena);
    self->exports = 0;
    self->lent = 1; /* a new one goes straight to the task that asked for it */
    self->dead = 0;
    self->block = aligned_alloc(ALIGNMENT, room);
    if (self->block == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memset(self->block, 0, room);
    memcpy(self->block + arena->size, guard, GUARD);
    arena->made++;
    return (PyObject *)self;
}

static int
destroy_buffer(PyObject *resource, void *Py_UNUSED(data))
{
    Buffer *self = (Buffer *)resource;
    self->lent = 0;
    self->dead = 1;
    if (self->exports == 0) {
        free_block(self);
    }
    return 0;
}

static int
check_buffer(PyObject *resource, void *data)
{
    Arena *arena = data;
    arena->checked++;
    if (!guard_is_whole((Buffer *)resource)) {
        arena->overruns++;
        return 0;
    }
    return 1;
}

static int
lend_buffer(PyObject *resource, void *data)
{
    Buffer *self = (Buffer *)resource;
    Arena *arena = data;
    if (!guard_is_whole(self)) { /* somebody wrote to it while it was idle */
        arena->overruns++;
        return 0;
    }
    self->lent = 1;
    arena->lent++;
    return 1;
}

static int
take_buffer_back(PyObject *resource, void *data)
{
    Buffer *self = (Buffer *)resource;
    Arena *arena = data;
    self->lent = 0;
    arena->returned++;
    if (self->exports > 0) {
        PyErr_Format(PyExc_BufferError, "a buffer came back with %zd memoryviews open", self->exports);
        return -1; /* logged by cenote; to the strategy it is the error of this failure */
    }
    wipe(self);
    if (!guard_is_whole(self)) {
        arena->overruns++;
        return 0;
    }
    return 1;
}

static void
drop_arena(void *data)
{
    Py_DECREF((Arena *)data);
}

static const Cenote_Handlers handlers = {
    .factory = make_buffer,
    .destructor = destroy_buffer,
    .healthcheck = check_buffer,
    .before_acquire = lend_buffer,
    .before_release = take_buffer_back,
};

/* -- Buffer ----------------------------------------------------------------------------------- */

static int
Buffer_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    Buffer *self = (Buffer *)object;
    if (!self->lent) {
        PyErr_SetString(PyExc_BufferError, "this buffer was given back");
        view->obj = NULL;
        return -1;
    }
    if (PyBuffer_FillInfo(view, object, self->block, self->arena->size, 0, flags) < 0) {
        return -1;
    }
    self->exports++;
    return 0;
}

static void
Buffer_releasebuffer(PyObject *object, Py_buffer *Py_UNUSED(view))
{
    Buffer *self = (Buffer *)object;
    self->exports--;
    if (self->exports == 0 && self->dead) {
        free_block(self);
    }
}

static Py_ssize_t
Buffer_length(PyObject *object)
{
    return ((Buffer *)object)->arena->size;
}

static void
Buffer_dealloc(PyObject *object)
{
    Buffer *self = (Buffer *)object;
    PyTypeObject *type = Py_TYPE(self);
    free_block(self); /* of a pool that nobody closed */
    Py_DECREF(self->arena);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, "A block of memory: memoryview(buffer) reads and writes it."},
    {Py_bf_getbuffer, Buffer_getbuffer},
    {Py_bf_releasebuffer, Buffer_releasebuffer},
    {Py_sq_length, Buffer_length},
    {Py_tp_dealloc, Buffer_dealloc},
    {0, NULL},
};

static PyType_Spec buffer_spec = {
    .name = "buffers.Buffer",
    .basicsize = sizeof(Buffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = buffer_slots,
};

/* -- Arena ------------------------------------------------------------------------------------ */

static PyObject *
Arena_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"size", NULL};
    Py_ssize_t size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:Arena", names, &size)) {
        return NULL;
    }
    if (size < 1 || size > PY_SSIZE_T_MAX - ALIGNMENT - GUARD) {
        PyErr_Format(PyExc_ValueError, "%zd is no size for a buffer", size);
        return NULL;
    }
    State *state = PyType_GetModuleState(type);
    Arena *self = (Arena *)type->tp_alloc(type, 0); /* all counters are 0 */
    if (self != NULL) {
        self->size = size;
        self->buffer_type = (PyTypeObject *)Py_NewRef(state->buffer_type);
    }
    return (PyObject *)self;
}

static void
Arena_dealloc(PyObject *object)
{
    Arena *self = (Arena *)object;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->buffer_type);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The pool owns one reference to the arena, which drop_arena() gives back. */
static PyObject *
Arena_pool(PyObject *self, PyObject *args, PyObject *options)
{
    if (!PyArg_ParseTuple(args, ":pool")) {
        return NULL;
    }
    return cenote->pool_new_c(&handlers, Py_NewRef(self), drop_arena, options);
}

static PyMethodDef arena_methods[] = {
    {"pool", (PyCFunction)(void (*)(void))Arena_pool, METH_VARARGS | METH_KEYWORDS,
     "pool(**options)\n--\n\nA cenote.Pool of buffers; options are those of Pool but its hooks."},
    {NULL, NULL, 0, NULL},
};

#define COUNTER(name, doc) {#name, T_PYSSIZET, offsetof(Arena, name), READONLY, doc}

static PyMemberDef arena_members[] = {
    COUNTER(size, "Bytes in each buffer."),
    COUNTER(made, "Blocks that were allocated."),
    COUNTER(freed, "Blocks that were wiped and freed."),
    COUNTER(lent, "Idle buffers that before_acquire has let out."),
    COUNTER(returned, "Buffers that before_release has looked at."),
    COUNTER(checked, "Idle buffers that the healthcheck has looked at."),
    COUNTER(overruns, "Guards that were found broken."),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot arena_slots[] = {
    {Py_tp_doc, "Arena(size): makes pools of buffers of this size, and counts."},
    {Py_tp_new, Arena_new},
    {Py_tp_dealloc, Arena_dealloc},
    {Py_tp_methods, arena_methods},
    {Py_tp_members, arena_members},
    {0, NULL},
};

static PyType_Spec arena_spec = {
    .name = "buffers.Arena",
    .basicsize = sizeof(Arena),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = arena_slots,
};

/* -- checksum: acquire_call --------------------------------------------------------------------- */

typedef struct {
    PyObject *pool, *bytes, *callback;
    PyTypeObject *buffer_type;
} Request;

static void
request_free(void *data)
{
    Request *request = data;
    Py_DECREF(request->pool);
    Py_DECREF(request->bytes);
    Py_DECREF(request->callback);
    Py_DECREF(request->buffer_type);
    PyMem_Free(request);
}

static uint32_t
crc32(uint32_t crc, const unsigned char *bytes, Py_ssize_t length)
{
    crc = ~crc;
    while (length-- > 0) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

static uint32_t
crc32_through(Buffer *buffer, PyObject *bytes)
{
    const unsigned char *from = (const unsigned char *)PyBytes_AS_STRING(bytes);
    Py_ssize_t left = PyBytes_GET_SIZE(bytes);
    uint32_t crc = 0;
    while (left > 0) {
        Py_ssize_t part = left < buffer->arena->size ? left : buffer->arena->size;
        memcpy(buffer->block, from, (size_t)part);
        crc = crc32(crc, buffer->block, part);
        from += part;
        left -= part;
    }
    return crc;
}

/* The event loop is here: we have a buffer, or will not get one. */
static int
request_done(PyObject *resource, PyObject *error, void *data)
{
    Request *request = data;
    PyObject *answer;
    if (resource == NULL) {
        answer = PyObject_CallFunctionObjArgs(request->callback, Py_None, error, NULL);
    }
    else if (!Py_IS_TYPE(resource, request->buffer_type)) {
        PyErr_SetString(PyExc_TypeError, "checksum() was given a pool of something else");
        answer = NULL;
    }
    else {
        unsigned long crc = crc32_through((Buffer *)resource, request->bytes);
        answer = PyObject_CallFunction(request->callback, "kO", crc, Py_None);
    }
    Py_XDECREF(answer);
    if (answer == NULL) { /* release() must not meet an exception */
        PyErr_WriteUnraisable(request->callback);
    }
    return resource == NULL ? 0 : cenote->release(request->pool, resource);
}

static PyObject *
checksum(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"pool", "bytes", "callback", "timeout", NULL};
    State *state = PyModule_GetState(module);
    PyObject *pool, *bytes, *callback;
    double timeout = -1.0; /* the pool's own */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OSO|d:checksum", names, &pool, &bytes, &callback,
                                     &timeout)) {
        return NULL;
    }
    Request *request = PyMem_New(Request, 1);
    if (request == NULL) {
        return PyErr_NoMemory();
    }
    request->pool = Py_NewRef(pool);
    request->bytes = Py_NewRef(bytes);
    request->callback = Py_NewRef(callback);
    request->buffer_type = (PyTypeObject *)Py_NewRef(state->buffer_type);
    /* From here on the request is cenote's to free, also if this fails. */
    return cenote->acquire_call(pool, timeout, request_done, request, request_free);
}

static PyObject *
cancel(PyObject *Py_UNUSED(module), PyObject *ticket)
{
    int cancelled = cenote->ticket_cancel(ticket);
    return cancelled < 0 ? NULL : PyBool_FromLong(cancelled);
}

/* -- overrun: what careless C code does ---------------------------------------------------------- */

static PyObject *
overrun(PyObject *module, PyObject *object)
{
    State *state = PyModule_GetState(module);
    if (!Py_IS_TYPE(object, state->buffer_type) || ((Buffer *)object)->block == NULL) {
        PyErr_SetString(PyExc_TypeError, "overrun() takes a living Buffer");
        return NULL;
    }
    Buffer *self = (Buffer *)object;
    memset(self->block, 'x', (size_t)self->arena->size + 1);
    Py_RETURN_NONE;
}

/* -- the module ----------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"checksum", (PyCFunction)(void (*)(void))checksum, METH_VARARGS | METH_KEYWORDS,
     "checksum(pool, bytes, callback, timeout=-1.0)\n--\n\n"
     "Later call callback(crc32, None), or callback(None, error). Gives a ticket for cancel()."},
    {"cancel", cancel, METH_O,
     "cancel(ticket)\n--\n\nGive up a checksum(); False if its callback was called already."},
    {"overrun", overrun, METH_O,
     "overrun(buffer)\n--\n\nWrite one byte too many, also into a buffer that was given back."},
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (cenote_import() < 0) {
        return -1;
    }
    state->buffer_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &buffer_spec, NULL);
    state->arena_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &arena_spec, NULL);
    if (state->buffer_type == NULL || state->arena_type == NULL) {
        return -1;
    }
    if (PyModule_AddType(module, state->buffer_type) < 0) {
        return -1;
    }
    return PyModule_AddType(module, state->arena_type);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->arena_type);
    Py_VISIT(state->buffer_type);
    return 0;
}

static int
module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->arena_type);
    Py_CLEAR(state->buffer_type);
    return 0;
}

static void
module_free(void *module)
{
    module_clear((PyObject *)module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "buffers",
    .m_doc = "Pools of aligned memory blocks that belong to C.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit_buffers(void)
{
    return PyModuleDef_Init(&module_def);
}
