/* FastPath: the base class of a pool, its face. */

static int
fastpath_ready(FastPath *pool)
{
    if (pool->engine == NULL || pool->engine->core == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was not initialized");
        return -1;
    }
    return 0;
}

/* Seconds, or NaN for no limit; -1.0 with an exception. */
static double
as_limit(State *st, const char *name, PyObject *value)
{
    if (value == Py_None) {
        return Py_NAN;
    }
    if (PyFloat_CheckExact(value) && PyFloat_AS_DOUBLE(value) >= 0.0 && isfinite(PyFloat_AS_DOUBLE(value))) {
        return PyFloat_AS_DOUBLE(value);
    }
    PyObject *checked = PyObject_CallFunction(st->check_timeout, "sO", name, value);
    if (checked == NULL) {
        return -1.0;
    }
    double limit = optional_seconds(checked);
    Py_DECREF(checked);
    return limit;
}

/* The arguments of acquire() by name. They are borrowed, and stay NULL if they are not given. */
static int
acquire_arguments(PyObject *const *args, Py_ssize_t nargs, PyObject *names, PyObject **timeout,
                  PyObject **wait_timeout, PyObject **scoped)
{
    *timeout = nargs > 0 ? args[0] : NULL;
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError, "acquire() takes one positional argument at most, timeout, not %zd",
                     nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (nargs == 0 && PyUnicode_CompareWithASCIIString(name, "timeout") == 0) {
            *timeout = args[i];
        }
        else if (PyUnicode_CompareWithASCIIString(name, "wait_timeout") == 0) {
            *wait_timeout = args[nargs + i];
        }
        else if (PyUnicode_CompareWithASCIIString(name, "scoped") == 0) {
            *scoped = args[nargs + i];
        }
        else {
            PyErr_Format(PyExc_TypeError, "acquire() takes timeout, wait_timeout and scoped, not %R%s", name,
                         nargs > 0 ? " as well" : "");
            return -1;
        }
    }
    return 0;
}

static PyObject *
FastPath_acquire(FastPath *pool, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *timeout = NULL, *wait_timeout = NULL, *scoped = NULL;
    if ((nargs > 0 || names != NULL) &&
        acquire_arguments(args, nargs, names, &timeout, &wait_timeout, &scoped) < 0) {
        return NULL;
    }
    if (fastpath_ready(pool) < 0) {
        return NULL;
    }
    Engine *engine = pool->engine;
    State *st = engine->core->st;
    double limit, in_queue = Py_NAN;
    int in_block = 0;
    if (timeout == NULL || timeout == st->unset) {
        limit = engine->acquire_timeout == Py_None ? Py_NAN : PyFloat_AS_DOUBLE(engine->acquire_timeout);
    }
    else {
        limit = as_limit(st, "timeout", timeout);
        if (limit == -1.0) {
            return NULL;
        }
    }
    if (names != NULL) {
        in_queue = wait_timeout == NULL ? Py_NAN : as_limit(st, "wait_timeout", wait_timeout);
        in_block = scoped == NULL ? 0 : PyObject_IsTrue(scoped);
        if (in_queue == -1.0 || in_block < 0) {
            return NULL;
        }
    }
    Claim *claim = acquire_new(pool);
    if (claim == NULL) {
        return NULL;
    }
    claim->timeout = limit;
    claim->wait_timeout = in_queue;
    claim->in_block = (char)in_block;
    if (claim_note_caller(claim) < 0) {
        Py_DECREF(claim);
        return NULL;
    }
    return (PyObject *)claim;
}

static PyObject *
try_acquire(FastPath *pool, Core *core)
{
    Engine *engine = pool->engine;
    PyObject *task = NULL;
    if (core->phase == OPEN && core->circuit == ACTIVE && core->idle > core->waiters.length &&
        (engine->before_acquire == Py_None || Py_IS_TYPE(engine->before_acquire, core->st->check_type)) &&
        engine->hold_warning == Py_None && PyTuple_GET_SIZE(engine->on_acquired) == 0) {
        task = engine_task(engine);
        if (task == NULL && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (task == NULL) {
        return PyObject_CallMethodNoArgs(slow_path(engine), core->st->s_try_acquire_slow);
    }
    double now = engine_now(engine);
    Claim *claim = now == -1.0 && PyErr_Occurred() ? NULL : acquire_new(pool);
    if (claim == NULL) {
        Py_DECREF(task);
        return NULL;
    }
    claim->task = task;
    acquire_end(claim); /* there is nothing to drive */
    claim->began = now;
    PyObject *resource = NULL;
    if (claim_note_caller(claim) == 0) {
        /* The clock and the collector may have run any code in between. */
        Slot *slot = NULL;
        if (core->idle > 0 && core->phase == OPEN && core->circuit == ACTIVE &&
            ring_at(core, core->lifo ? core->idle - 1 : 0)->expires_at > now) {
            slot = core_take(core, Py_HUGE_VAL);
        }
        if (slot == NULL) {
            resource = PyObject_CallMethodNoArgs(slow_path(engine), core->st->s_try_acquire_slow);
        }
        else {
            PyObject *answer = engine->before_acquire == Py_None
                                   ? Py_NewRef(Py_True)
                                   : ask(core, engine->before_acquire, slot->resource);
            if (answer == Py_True && core->phase == CLOSED) { /* by the hook */
                PyObject *settled =
                    PyObject_CallMethodOneArg(slow_path(engine), core->st->s_settle, (PyObject *)slot);
                resource = settled == NULL ? NULL : Py_NewRef(Py_None);
                Py_XDECREF(settled);
            }
            else if (answer == Py_True) {
                if (core_hold(core, claim, slot, now, 0.0) == 0) {
                    core->begun++; /* a try that gives nothing has not begun */
                    resource = Py_NewRef(slot->resource);
                }
            }
            else { /* rejected: destroyed there, and the slow path takes the next one */
                PyObject *error = answer == NULL ? PyErr_GetRaisedException() : Py_NewRef(Py_None);
                PyObject *refused =
                    PyObject_CallMethodObjArgs(slow_path(engine), core->st->s_refuse, slot, error, NULL);
                Py_DECREF(error);
                if (refused != NULL) {
                    Py_DECREF(refused);
                    resource = PyObject_CallMethodNoArgs(slow_path(engine), core->st->s_try_acquire_slow);
                }
            }
            Py_XDECREF(answer);
            Py_DECREF(slot);
        }
    }
    Py_DECREF(claim);
    return resource;
}

static PyObject *
FastPath_try_acquire(FastPath *pool, PyObject *Py_UNUSED(ignored))
{
    if (fastpath_ready(pool) < 0) {
        return NULL;
    }
    Engine *engine = pool->engine;
    if (engine->core->busy) {
        Py_RETURN_NONE; /* in the middle of another step: that would need waiting */
    }
    Core *core = step_begin(engine);
    PyObject *resource = try_acquire(pool, core);
    step_end(engine, core, resource == NULL);
    return resource;
}

static PyObject *
fastpath_release(FastPath *pool, PyObject *resource, int clean)
{
    if (fastpath_ready(pool) < 0 || engine_check_loop(pool->engine) < 0) {
        return NULL;
    }
    Engine *engine = pool->engine;
    Core *core = engine->core;
    State *st = core->st;
    Slot *slot = core->table == NULL ? NULL : core->table[table_find(core, resource)];
    if (slot == NULL || slot->same_resource != NULL) {
        PyObject *verb = PyUnicode_FromString("release");
        slot = verb == NULL ? NULL
                            : (Slot *)PyObject_CallMethodObjArgs(slow_path(engine), st->s_leased, resource,
                                                                 verb, NULL);
        Py_XDECREF(verb);
        if (slot == NULL) {
            return NULL;
        }
    }
    else {
        Py_INCREF(slot);
    }
    PyObject *result = engine_return(engine, slot, clean);
    Py_DECREF(slot);
    if (result == NULL || result == st->done) {
        return result;
    }
    PyObject *completed = PyObject_CallMethodOneArg(slow_path(engine), st->s_completed, result);
    Py_DECREF(result);
    return completed;
}

static PyObject *
FastPath_release(FastPath *pool, PyObject *resource)
{
    return fastpath_release(pool, resource, 0);
}

static PyObject *
FastPath_release_clean(FastPath *pool, PyObject *resource)
{
    return fastpath_release(pool, resource, 1);
}

/* The core, or NULL: before __init__, or while the pool is collected. */
static inline Core *
fastpath_core(FastPath *pool)
{
    return pool->engine == NULL ? NULL : pool->engine->core;
}

static Py_ssize_t
FastPath_length(FastPath *pool)
{
    Core *core = fastpath_core(pool);
    return core == NULL ? 0 : (Py_ssize_t)core->count;
}

static PyObject *
FastPath_get_count(FastPath *pool, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(FastPath_length(pool));
}

static PyObject *
FastPath_get_idle(FastPath *pool, void *Py_UNUSED(closure))
{
    Core *core = fastpath_core(pool);
    return PyLong_FromSsize_t(core == NULL ? 0 : core->idle);
}

static PyObject *
FastPath_get_active(FastPath *pool, void *Py_UNUSED(closure))
{
    Core *core = fastpath_core(pool);
    return PyLong_FromLongLong(core == NULL ? 0 : core->count - core->idle);
}

static PyObject *
FastPath_get_waiting(FastPath *pool, void *Py_UNUSED(closure))
{
    Core *core = fastpath_core(pool);
    return PyLong_FromLongLong(core == NULL ? 0 : core->waiters.length + core->parked);
}

static PyObject *
FastPath_get_engine(FastPath *pool, void *Py_UNUSED(closure))
{
    return newref_or_none((PyObject *)pool->engine);
}

static int
FastPath_set_engine(FastPath *pool, PyObject *value, void *Py_UNUSED(closure))
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(pool), &module_def);
    if (module == NULL) {
        return -1;
    }
    State *st = PyModule_GetState(module);
    if (value == NULL || !PyObject_TypeCheck(value, st->engine_type)) {
        PyErr_SetString(PyExc_TypeError, "_engine must be an EngineBase");
        return -1;
    }
    Py_XSETREF(pool->engine, (Engine *)Py_NewRef(value));
    return 0;
}

static PyGetSetDef fastpath_getset[] = {
    {"count", (getter)FastPath_get_count, NULL, "Idle and active resources.", NULL},
    {"idle_count", (getter)FastPath_get_idle, NULL, "Resources that nobody uses.", NULL},
    {"active_count", (getter)FastPath_get_active, NULL, "Resources leased, or being examined by a hook.",
     NULL},
    {"waiting_count", (getter)FastPath_get_waiting, NULL, "Acquires waiting for a resource.", NULL},
    {"_engine", (getter)FastPath_get_engine, (setter)FastPath_set_engine, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Those that do not begin with an underscore come first: see adopt. */
static PyMethodDef fastpath_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))FastPath_acquire, METH_FASTCALL | METH_KEYWORDS,
     "acquire($self, /, timeout=..., *, wait_timeout=None, scoped=False)\n--\n\n"
     "Acquire a resource: `async with pool.acquire() as resource:`, or `await pool.acquire()`.\n"
     "\n"
     "The call by itself does nothing. After `await`, hand the resource to `release()`; the block\n"
     "does so by itself.\n"
     "\n"
     "Args:\n"
     "    timeout: Seconds for all of it, factory and hooks included. Left out it is\n"
     "        `acquire_timeout`; None waits without a limit; 0 takes what is there at once.\n"
     "    wait_timeout: Seconds in the queue alone; with 0 it does not queue, but a factory may\n"
     "        run.\n"
     "    scoped: The resource belongs to a block of this task, which releases it at its end, as\n"
     "        `async with` does; so deadlocks are detected.\n"
     "\n"
     "Raises:\n"
     "    AcquireTimeoutError: There was no resource in time; the message names the holders.\n"
     "    PoolClosedError: The pool is closed.\n"
     "    ServiceUnavailableError: The circuit breaker is open.\n"
     "    PoolOverloadedError: Too many acquires wait already.\n"
     "    PoolDeadlockError: The resources are held by tasks that wait for more.\n"
     "    Exception: What the factory raised."},
    {"try_acquire", (PyCFunction)FastPath_try_acquire, METH_NOARGS,
     "try_acquire($self)\n--\n\n"
     "An idle resource, or a new one of a sync factory; None if that needs waiting."},
    {"release", (PyCFunction)FastPath_release, METH_O,
     "release($self, resource)\n--\n\n"
     "Release a resource; await the result to wait for async hooks.\n"
     "\n"
     "Args:\n"
     "    resource: What `acquire()` gave.\n"
     "\n"
     "Raises:\n"
     "    NotAcquiredError: The resource is not acquired."},
    {"_release_clean", (PyCFunction)FastPath_release_clean, METH_O, NULL},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *
FastPath_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *nothing = PyTuple_New(0);
    if (nothing == NULL) {
        return NULL;
    }
    /* Not tp_alloc: object's __new__ also prepares the __dict__ of a subclass, so that methods are
     * found fast (3.12). It does not get the pool's arguments. */
    PyObject *pool = PyBaseObject_Type.tp_new(type, nothing, NULL);
    Py_DECREF(nothing);
    return pool;
}

static int
FastPath_traverse(FastPath *pool, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(pool));
    Py_VISIT(pool->engine);
    return 0;
}

/* Without tp_clear: an acquire may still look at the engine. Whatever leads from that back to the pool
 * is cleared there. */
static void
FastPath_dealloc(FastPath *pool)
{
    PyTypeObject *type = Py_TYPE(pool);
    PyObject_GC_UnTrack(pool);
    Py_XDECREF(pool->engine);
    type->tp_free(pool);
    Py_DECREF(type);
}

static PyType_Slot fastpath_slots[] = {
    {Py_tp_doc, "The face of a pool, as far as it needs no waiting."},
    {Py_tp_new, FastPath_new},
    {Py_tp_methods, fastpath_methods},
    {Py_tp_getset, fastpath_getset},
    {Py_sq_length, FastPath_length},
    {Py_tp_traverse, FastPath_traverse},
    {Py_tp_dealloc, FastPath_dealloc},
    {0, NULL},
};

/* adopt(cls): the class of the pools that the C API makes. It gets descriptors of its own for the public
 * methods of FastPath. The interpreter calls
 * a C method directly only if it belongs to the very class of the object. */
static PyObject *
adopt(PyObject *module, PyObject *object)
{
    State *st = PyModule_GetState(module);
    if (!PyType_Check(object) || !PyType_IsSubtype((PyTypeObject *)object, st->fastpath_type)) {
        PyErr_SetString(PyExc_TypeError, "a subclass of FastPath is needed");
        return NULL;
    }
    for (PyMethodDef *method = fastpath_methods; method->ml_name[0] != '_'; method++) {
        PyObject *descriptor = PyDescr_NewMethod((PyTypeObject *)object, method);
        int failed = descriptor == NULL || PyObject_SetAttrString(object, method->ml_name, descriptor) < 0;
        Py_XDECREF(descriptor);
        if (failed) {
            return NULL;
        }
    }
    if (st->pool_class == NULL) {
        st->pool_class = Py_NewRef(object);
    }
    return Py_NewRef(object);
}

static PyType_Spec fastpath_spec = {
    .name = "cenote._core.native.FastPath",
    .basicsize = sizeof(FastPath),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = fastpath_slots,
};
