/* FastPath: the base class of a pool. */

static int
fastpath_ready(FastPath *front)
{
    if (front->core == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was not initialized");
        return -1;
    }
    return 0;
}

static PyObject *
FastPath_acquire(FastPath *front, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *timeout = nargs > 0 ? args[0] : NULL;
    if (names != NULL && PyTuple_GET_SIZE(names) > 0) {
        if (nargs > 0 || PyTuple_GET_SIZE(names) > 1 ||
            PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") != 0) {
            PyErr_SetString(PyExc_TypeError, "acquire() takes one argument at most: timeout");
            return NULL;
        }
        timeout = args[0];
    }
    else if (nargs > 1) {
        PyErr_SetString(PyExc_TypeError, "acquire() takes one argument at most: timeout");
        return NULL;
    }
    if (fastpath_ready(front) < 0) {
        return NULL;
    }
    State *st = front->core->st;
    double limit;
    if (timeout == NULL || timeout == st->unset) {
        limit = front->acquire_timeout == Py_None ? Py_NAN : PyFloat_AS_DOUBLE(front->acquire_timeout);
    }
    else if (timeout == Py_None) {
        limit = Py_NAN;
    }
    else if (PyFloat_CheckExact(timeout) && PyFloat_AS_DOUBLE(timeout) >= 0.0 &&
             isfinite(PyFloat_AS_DOUBLE(timeout))) {
        limit = PyFloat_AS_DOUBLE(timeout);
    }
    else {
        PyObject *checked = PyObject_CallFunction(st->check_timeout, "sO", "timeout", timeout);
        if (checked == NULL) {
            return NULL;
        }
        limit = optional_seconds(checked);
        Py_DECREF(checked);
    }
    Claim *claim = acquire_new(front);
    if (claim == NULL) {
        return NULL;
    }
    claim->timeout = limit;
    if (claim_note_caller(claim) < 0) {
        Py_DECREF(claim);
        return NULL;
    }
    return (PyObject *)claim;
}

static PyObject *
try_acquire(FastPath *front, Core *core)
{
    PyObject *task = NULL;
    if (core->phase == OPEN && core->circuit == ACTIVE && core->idle > core->waiters.length &&
        (front->before_acquire == Py_None ||
         Py_IS_TYPE(front->before_acquire, core->st->check_type)) &&
        front->hold_warning == Py_None &&
        PyTuple_GET_SIZE(front->subscribers) == 0) {
        task = fastpath_task(front);
        if (task == NULL && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (task == NULL) {
        return PyObject_CallMethodNoArgs(slow_path(front), core->st->s_try_acquire_slow);
    }
    double now = fastpath_now(front);
    Claim *claim = now == -1.0 && PyErr_Occurred() ? NULL : acquire_new(front);
    if (claim == NULL) {
        Py_DECREF(task);
        return NULL;
    }
    claim->task = task;
    claim->used = 1;
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
            resource = PyObject_CallMethodNoArgs(slow_path(front), core->st->s_try_acquire_slow);
        }
        else {
            PyObject *answer = front->before_acquire == Py_None
                                   ? Py_NewRef(Py_True)
                                   : ask(core, front->before_acquire, slot->resource);
            if (answer == Py_True && core->phase == CLOSED) { /* by the hook */
                PyObject *settled = PyObject_CallMethodOneArg(slow_path(front), core->st->s_settle,
                                                              (PyObject *)slot);
                resource = settled == NULL ? NULL : Py_NewRef(Py_None);
                Py_XDECREF(settled);
            }
            else if (answer == Py_True) {
                if (core_hold(core, claim, slot, now, 0.0) == 0) {
                    resource = Py_NewRef(slot->resource);
                }
            }
            else { /* rejected: destroyed there, and the slow path takes the next one */
                PyObject *error = answer == NULL ? PyErr_GetRaisedException() : Py_NewRef(Py_None);
                PyObject *refused = PyObject_CallMethodObjArgs(slow_path(front), core->st->s_refuse, slot,
                                                               error, NULL);
                Py_DECREF(error);
                if (refused != NULL) {
                    Py_DECREF(refused);
                    resource = PyObject_CallMethodNoArgs(slow_path(front), core->st->s_try_acquire_slow);
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
FastPath_try_acquire(FastPath *front, PyObject *Py_UNUSED(ignored))
{
    if (fastpath_ready(front) < 0) {
        return NULL;
    }
    if (front->core->busy) {
        Py_RETURN_NONE; /* in the middle of another step: that would need waiting */
    }
    Core *core = step_begin(front);
    PyObject *resource = try_acquire(front, core);
    step_end(front, core, resource == NULL);
    return resource;
}

static PyObject *
fastpath_release(FastPath *front, PyObject *resource, int clean)
{
    if (fastpath_ready(front) < 0 || fastpath_check_loop(front) < 0) {
        return NULL;
    }
    Core *core = front->core;
    State *st = core->st;
    Slot *slot = core->table == NULL ? NULL : core->table[table_find(core, resource)];
    if (slot == NULL || slot->same_resource != NULL) {
        PyObject *verb = PyUnicode_FromString("release");
        slot = verb == NULL ? NULL
                            : (Slot *)PyObject_CallMethodObjArgs(slow_path(front), st->s_leased,
                                                                 resource, verb, NULL);
        Py_XDECREF(verb);
        if (slot == NULL) {
            return NULL;
        }
    }
    else {
        Py_INCREF(slot);
    }
    PyObject *result = fastpath_return(front, slot, clean);
    Py_DECREF(slot);
    if (result == NULL || result == st->done) {
        return result;
    }
    PyObject *completed = PyObject_CallMethodOneArg(slow_path(front), st->s_completed, result);
    Py_DECREF(result);
    return completed;
}

static PyObject *
FastPath_release(FastPath *front, PyObject *resource)
{
    return fastpath_release(front, resource, 0);
}

static PyObject *
FastPath_release_clean(FastPath *front, PyObject *resource)
{
    return fastpath_release(front, resource, 1);
}

static PyObject *
give_back(FastPath *front, PyObject *object, int clean)
{
    Slot *slot = fastpath_ready(front) < 0 ? NULL : as_slot(front->core, object);
    if (slot == NULL) {
        return NULL;
    }
    Py_INCREF(slot);
    Core *core = step_begin(front);
    PyObject *result = fastpath_give_back(front, slot, clean);
    step_end(front, core, result == NULL);
    Py_DECREF(slot);
    return result;
}

static PyObject *
FastPath_give_back(FastPath *front, PyObject *object)
{
    return give_back(front, object, 0);
}

static PyObject *
FastPath_give_back_clean(FastPath *front, PyObject *object)
{
    return give_back(front, object, 1);
}

static Py_ssize_t
FastPath_length(FastPath *front)
{
    return front->core == NULL ? 0 : (Py_ssize_t)front->core->count;
}

static PyObject *
FastPath_get_count(FastPath *front, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(FastPath_length(front));
}

static PyObject *
FastPath_get_idle(FastPath *front, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(front->core == NULL ? 0 : front->core->idle);
}

static PyObject *
FastPath_get_active(FastPath *front, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(front->core == NULL ? 0 : front->core->count - front->core->idle);
}

static PyObject *
FastPath_get_waiting(FastPath *front, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(front->core == NULL ? 0 : front->core->waiters.length);
}

static PyObject *
FastPath_get_core(FastPath *front, void *Py_UNUSED(closure))
{
    if (front->core == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_core");
        return NULL;
    }
    return Py_NewRef(front->core);
}

static int
FastPath_set_core(FastPath *front, PyObject *value, void *Py_UNUSED(closure))
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(front), &module_def);
    if (module == NULL) {
        return -1;
    }
    State *st = PyModule_GetState(module);
    if (value == NULL || !PyObject_TypeCheck(value, st->core_type)) {
        PyErr_SetString(PyExc_TypeError, "_core must be a Core");
        return -1;
    }
    Py_XSETREF(front->core, (Core *)Py_NewRef(value));
    return 0;
}

static PyObject *
FastPath_get_subscribers(FastPath *front, void *Py_UNUSED(closure))
{
    return Py_NewRef(front->subscribers);
}

static int
FastPath_set_subscribers(FastPath *front, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL || !PyTuple_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "_subscribers must be a tuple");
        return -1;
    }
    Py_SETREF(front->subscribers, Py_NewRef(value));
    return 0;
}

static PyObject *
FastPath_get_acquire_timeout(FastPath *front, void *Py_UNUSED(closure))
{
    return Py_NewRef(front->acquire_timeout);
}

static int
FastPath_set_acquire_timeout(FastPath *front, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL || (value != Py_None && !PyFloat_CheckExact(value))) {
        PyErr_SetString(PyExc_TypeError, "_acquire_timeout must be a float or None");
        return -1;
    }
    Py_SETREF(front->acquire_timeout, Py_NewRef(value));
    return 0;
}

/* What the fast path looks at, each a plain attribute for Python. NULL is None. */
#define FIELD(name)                                                                       \
    static PyObject *FastPath_get_##name(FastPath *front, void *Py_UNUSED(closure))             \
    {                                                                                     \
        return Py_NewRef(front->name);                                                    \
    }                                                                                     \
    static int FastPath_set_##name(FastPath *front, PyObject *value, void *Py_UNUSED(closure))  \
    {                                                                                     \
        Py_SETREF(front->name, Py_NewRef(value == NULL ? Py_None : value));               \
        return 0;                                                                         \
    }
FIELD(loop)
FIELD(time)
FIELD(before_acquire)
FIELD(before_release)
FIELD(strategy)
FIELD(hold_warning)
FIELD(engine)

#define GETSET(attribute, name) \
    {attribute, (getter)FastPath_get_##name, (setter)FastPath_set_##name, NULL, NULL}

static PyGetSetDef fastpath_getset[] = {
    {"count", (getter)FastPath_get_count, NULL, "Idle and active resources.", NULL},
    {"idle_count", (getter)FastPath_get_idle, NULL, "Resources that nobody uses.", NULL},
    {"active_count", (getter)FastPath_get_active, NULL, "Resources that are out, or in a hook.", NULL},
    {"waiting_count", (getter)FastPath_get_waiting, NULL, "Acquires that wait.", NULL},
    GETSET("_core", core),
    GETSET("_subscribers", subscribers),
    GETSET("_acquire_timeout", acquire_timeout),
    GETSET("_loop", loop),
    GETSET("_time", time),
    GETSET("_before_acquire", before_acquire),
    GETSET("_before_release", before_release),
    GETSET("_strategy", strategy),
    GETSET("_hold_warning", hold_warning),
    GETSET("_engine", engine),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef fastpath_members[] = {
    {"_thread", Py_T_ULONG, offsetof(FastPath, thread), 0, NULL},
    {"_direct_clock", Py_T_BOOL, offsetof(FastPath, direct_clock), 0, NULL},
    {"_direct_future", Py_T_BOOL, offsetof(FastPath, direct_future), 0, NULL},
    {"_doubtful", Py_T_BOOL, offsetof(FastPath, doubtful), 0, NULL},
    {"_trust", Py_T_DOUBLE, offsetof(FastPath, trust), 0, NULL},
    {"_doubted", Py_T_DOUBLE, offsetof(FastPath, doubted), 0, NULL},
    {"_due_at", Py_T_DOUBLE, offsetof(FastPath, due_at), 0, NULL},
    {"_max_waiting", Py_T_LONGLONG, offsetof(FastPath, max_waiting), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Those that do not begin with an underscore come first: see adopt. */
static PyMethodDef fastpath_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))FastPath_acquire, METH_FASTCALL | METH_KEYWORDS,
     "acquire($self, /, timeout=...)\n--\n\n"
     "`await` it, or use it as `async with`; by itself it does nothing."},
    {"try_acquire", (PyCFunction)FastPath_try_acquire, METH_NOARGS,
     "try_acquire($self)\n--\n\n"
     "An idle resource, or a new one of a sync factory; None if that needs waiting."},
    {"release", (PyCFunction)FastPath_release, METH_O,
     "release($self, resource)\n--\n\n"
     "Give a resource back. Under way when this returns; awaiting it tells the end."},
    {"_release_clean", (PyCFunction)FastPath_release_clean, METH_O, NULL},
    {"_give_back", (PyCFunction)FastPath_give_back, METH_O, NULL},
    {"_give_back_clean", (PyCFunction)FastPath_give_back_clean, METH_O, NULL},
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
     * found fast (3.12). The pool's arguments are none of its business. */
    FastPath *front = (FastPath *)PyBaseObject_Type.tp_new(type, nothing, NULL);
    if (front == NULL) {
        Py_DECREF(nothing);
        return NULL;
    }
    front->loop = Py_NewRef(Py_None);
    front->time = Py_NewRef(Py_None);
    front->before_acquire = Py_NewRef(Py_None);
    front->before_release = Py_NewRef(Py_None);
    front->strategy = Py_NewRef(Py_None);
    front->hold_warning = Py_NewRef(Py_None);
    front->engine = Py_NewRef(Py_None);
    front->acquire_timeout = Py_NewRef(Py_None);
    front->subscribers = nothing;
    front->due_at = Py_HUGE_VAL;
    front->max_waiting = -1;
    return (PyObject *)front;
}

static int
FastPath_traverse(FastPath *front, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(front));
    Py_VISIT(front->core);
    Py_VISIT(front->loop);
    Py_VISIT(front->time);
    Py_VISIT(front->before_acquire);
    Py_VISIT(front->before_release);
    Py_VISIT(front->strategy);
    Py_VISIT(front->hold_warning);
    Py_VISIT(front->engine);
    Py_VISIT(front->acquire_timeout);
    Py_VISIT(front->subscribers);
    return 0;
}

static int
FastPath_clear(FastPath *front)
{
    /* Nothing becomes NULL but the core, without which no method does anything. */
    Py_CLEAR(front->core);
    Py_SETREF(front->loop, Py_NewRef(Py_None));
    Py_SETREF(front->time, Py_NewRef(Py_None));
    Py_SETREF(front->before_acquire, Py_NewRef(Py_None));
    Py_SETREF(front->before_release, Py_NewRef(Py_None));
    Py_SETREF(front->strategy, Py_NewRef(Py_None));
    Py_SETREF(front->engine, Py_NewRef(Py_None));
    PyObject *subscribers = PyTuple_New(0); /* a shared constant: cannot fail */
    Py_SETREF(front->subscribers, subscribers);
    return 0;
}

static void
FastPath_dealloc(FastPath *front)
{
    PyTypeObject *type = Py_TYPE(front);
    PyObject_GC_UnTrack(front);
    Py_XDECREF(front->core);
    Py_XDECREF(front->loop);
    Py_XDECREF(front->time);
    Py_XDECREF(front->before_acquire);
    Py_XDECREF(front->before_release);
    Py_XDECREF(front->strategy);
    Py_XDECREF(front->hold_warning);
    Py_XDECREF(front->engine);
    Py_XDECREF(front->acquire_timeout);
    Py_XDECREF(front->subscribers);
    type->tp_free(front);
    Py_DECREF(type);
}

static PyType_Slot fastpath_slots[] = {
    {Py_tp_doc, "The fast path of a pool: what needs no waiting."},
    {Py_tp_new, FastPath_new},
    {Py_tp_methods, fastpath_methods},
    {Py_tp_getset, fastpath_getset},
    {Py_tp_members, fastpath_members},
    {Py_sq_length, FastPath_length},
    {Py_tp_traverse, FastPath_traverse},
    {Py_tp_clear, FastPath_clear},
    {Py_tp_dealloc, FastPath_dealloc},
    {0, NULL},
};

/* adopt(cls): gives it descriptors of its own for the public methods of FastPath. The interpreter calls
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
        int failed = descriptor == NULL ||
                     PyObject_SetAttrString(object, method->ml_name, descriptor) < 0;
        Py_XDECREF(descriptor);
        if (failed) {
            return NULL;
        }
    }
    return Py_NewRef(object);
}

static PyType_Spec fastpath_spec = {
    .name = "cenote._core.native.FastPath",
    .basicsize = sizeof(FastPath),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = fastpath_slots,
};
