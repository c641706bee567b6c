/* Engine: what the fast path reads of a pool.Engine, whose base it is. */

/* The pool, or None if it is gone: a new reference. */
static PyObject *
engine_pool(Engine *engine)
{
    if (!PyWeakref_Check(engine->pool_ref)) {
        return Py_NewRef(Py_None);
    }
    return weakref_target(engine->pool_ref);
}

/* give_back(engine, slot, clean=False): as a step, or as a part of the one that is under way. */
static PyObject *
give_back(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *st = PyModule_GetState(module);
    NARGS(2, 3, "give_back");
    if (!PyObject_TypeCheck(args[0], st->engine_type) || ((Engine *)args[0])->core == NULL) {
        PyErr_SetString(PyExc_TypeError, "give_back() needs an engine with a core");
        return NULL;
    }
    Engine *engine = (Engine *)args[0];
    int clean = nargs > 2 ? PyObject_IsTrue(args[2]) : 0;
    Slot *slot = clean < 0 ? NULL : as_slot(engine->core, args[1]);
    if (slot == NULL) {
        return NULL;
    }
    Py_INCREF(slot);
    Core *core = step_begin(engine);
    PyObject *result = engine_give_back(engine, slot, clean);
    step_end(engine, core, result == NULL);
    Py_DECREF(slot);
    return result;
}

/* skips_check(slot, now) */
static PyObject *
Engine_skips_check(Engine *engine, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "skips_check");
    Slot *slot = engine->core == NULL ? NULL : as_slot(engine->core, args[0]);
    double now = slot == NULL ? -1.0 : PyFloat_AsDouble(args[1]);
    if (slot == NULL || (now == -1.0 && PyErr_Occurred())) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "this engine was not initialized");
        }
        return NULL;
    }
    return PyBool_FromLong(skips_check(engine, slot, now));
}

static PyObject *
Engine_get_pool(Engine *engine, void *Py_UNUSED(closure))
{
    return engine_pool(engine);
}

static PyObject *
Engine_get_core(Engine *engine, void *Py_UNUSED(closure))
{
    if (engine->core == NULL) {
        PyErr_SetString(PyExc_AttributeError, "core");
        return NULL;
    }
    return Py_NewRef(engine->core);
}

static int
Engine_set_core(Engine *engine, PyObject *value, void *Py_UNUSED(closure))
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(engine), &module_def);
    if (module == NULL) {
        return -1;
    }
    State *st = PyModule_GetState(module);
    if (value == NULL || !PyObject_TypeCheck(value, st->core_type)) {
        PyErr_SetString(PyExc_TypeError, "core must be a Core");
        return -1;
    }
    Py_XSETREF(engine->core, (Core *)Py_NewRef(value));
    return 0;
}

/* A tuple of subscriptions: those to one kind of events. */
#define SUBSCRIBERS(name)                                                                   \
    static PyObject *Engine_get_##name(Engine *engine, void *Py_UNUSED(closure))            \
    {                                                                                       \
        return Py_NewRef(engine->name);                                                     \
    }                                                                                       \
    static int Engine_set_##name(Engine *engine, PyObject *value, void *Py_UNUSED(closure)) \
    {                                                                                       \
        if (value == NULL || !PyTuple_CheckExact(value)) {                                  \
            PyErr_SetString(PyExc_TypeError, #name " must be a tuple");                     \
            return -1;                                                                      \
        }                                                                                   \
        Py_SETREF(engine->name, Py_NewRef(value));                                          \
        return 0;                                                                           \
    }
SUBSCRIBERS(on_acquired)
SUBSCRIBERS(on_released)
SUBSCRIBERS(on_waiting)

static PyObject *
Engine_get_acquire_timeout(Engine *engine, void *Py_UNUSED(closure))
{
    return Py_NewRef(engine->acquire_timeout);
}

static int
Engine_set_acquire_timeout(Engine *engine, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL || (value != Py_None && !PyFloat_CheckExact(value))) {
        PyErr_SetString(PyExc_TypeError, "acquire_timeout must be a float or None");
        return -1;
    }
    Py_SETREF(engine->acquire_timeout, Py_NewRef(value));
    return 0;
}

/* What the fast path looks at, each a plain attribute for Python. NULL is None. */
#define FIELD(name)                                                                         \
    static PyObject *Engine_get_##name(Engine *engine, void *Py_UNUSED(closure))            \
    {                                                                                       \
        return Py_NewRef(engine->name);                                                     \
    }                                                                                       \
    static int Engine_set_##name(Engine *engine, PyObject *value, void *Py_UNUSED(closure)) \
    {                                                                                       \
        Py_SETREF(engine->name, Py_NewRef(value == NULL ? Py_None : value));                \
        return 0;                                                                           \
    }
FIELD(loop)
FIELD(time)
FIELD(before_acquire)
FIELD(before_release)
FIELD(strategy)
FIELD(hold_warning)
FIELD(find_caller)
FIELD(pool_ref)

#define GETSET(name) {#name, (getter)Engine_get_##name, (setter)Engine_set_##name, NULL, NULL}

static PyGetSetDef engine_getset[] = {
    {"pool", (getter)Engine_get_pool, NULL, "The pool, or None if it is gone.", NULL},
    GETSET(core),
    GETSET(on_acquired),
    GETSET(on_released),
    GETSET(on_waiting),
    GETSET(acquire_timeout),
    GETSET(loop),
    GETSET(time),
    GETSET(before_acquire),
    GETSET(before_release),
    GETSET(strategy),
    GETSET(hold_warning),
    GETSET(find_caller),
    GETSET(pool_ref),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef engine_members[] = {
    {"thread", Py_T_ULONG, offsetof(Engine, thread), 0, NULL},
    {"direct_clock", Py_T_BOOL, offsetof(Engine, direct_clock), 0, NULL},
    {"direct_future", Py_T_BOOL, offsetof(Engine, direct_future), 0, NULL},
    {"must_tidy", Py_T_BOOL, offsetof(Engine, must_tidy), 0, NULL},
    {"skip_check_within", Py_T_DOUBLE, offsetof(Engine, skip_check_within), 0, NULL},
    {"suspect_before", Py_T_DOUBLE, offsetof(Engine, suspect_before), 0, NULL},
    {"next_sweep", Py_T_DOUBLE, offsetof(Engine, next_sweep), 0, NULL},
    {"sample_at", Py_T_DOUBLE, offsetof(Engine, sample_at), 0, NULL},
    {"max_waiting", Py_T_LONGLONG, offsetof(Engine, max_waiting), 0, NULL},
    {"factory_failures", Py_T_LONGLONG, offsetof(Engine, factory_failures), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef engine_methods[] = {
    {"skips_check", (PyCFunction)(void (*)(void))Engine_skips_check, METH_FASTCALL,
     "skips_check($self, slot, now)\n--\n\nWhether before_acquire need not look at this slot."},
    {NULL, NULL, 0, NULL},
};

static PyObject *
Engine_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Engine *engine = (Engine *)type->tp_alloc(type, 0);
    if (engine == NULL) {
        return NULL;
    }
    engine->loop = Py_NewRef(Py_None);
    engine->time = Py_NewRef(Py_None);
    engine->before_acquire = Py_NewRef(Py_None);
    engine->before_release = Py_NewRef(Py_None);
    engine->strategy = Py_NewRef(Py_None);
    engine->hold_warning = Py_NewRef(Py_None);
    engine->acquire_timeout = Py_NewRef(Py_None);
    engine->pool_ref = Py_NewRef(Py_None);
    engine->find_caller = Py_NewRef(Py_None);
    engine->on_acquired = PyTuple_New(0); /* a shared constant: cannot fail */
    engine->on_released = PyTuple_New(0);
    engine->on_waiting = PyTuple_New(0);
    engine->next_sweep = engine->sample_at = Py_HUGE_VAL;
    engine->max_waiting = -1;
    return (PyObject *)engine;
}

/* The arguments are for the subclass. */
static int
Engine_init(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return 0;
}

static int
Engine_traverse(Engine *engine, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(engine));
    Py_VISIT(engine->core);
    Py_VISIT(engine->loop);
    Py_VISIT(engine->time);
    Py_VISIT(engine->before_acquire);
    Py_VISIT(engine->before_release);
    Py_VISIT(engine->strategy);
    Py_VISIT(engine->hold_warning);
    Py_VISIT(engine->acquire_timeout);
    Py_VISIT(engine->pool_ref);
    Py_VISIT(engine->find_caller);
    Py_VISIT(engine->on_acquired);
    Py_VISIT(engine->on_released);
    Py_VISIT(engine->on_waiting);
    return 0;
}

static int
Engine_clear(Engine *engine)
{
    /* Nothing becomes NULL but the core, without which no method does anything. */
    Py_CLEAR(engine->core);
    Py_SETREF(engine->loop, Py_NewRef(Py_None));
    Py_SETREF(engine->time, Py_NewRef(Py_None));
    Py_SETREF(engine->before_acquire, Py_NewRef(Py_None));
    Py_SETREF(engine->before_release, Py_NewRef(Py_None));
    Py_SETREF(engine->strategy, Py_NewRef(Py_None));
    Py_SETREF(engine->pool_ref, Py_NewRef(Py_None));
    Py_SETREF(engine->on_acquired, PyTuple_New(0));
    Py_SETREF(engine->on_released, PyTuple_New(0));
    Py_SETREF(engine->on_waiting, PyTuple_New(0));
    return 0;
}

static void
Engine_dealloc(Engine *engine)
{
    PyTypeObject *type = Py_TYPE(engine);
    PyObject_GC_UnTrack(engine);
    Py_XDECREF(engine->core);
    Py_XDECREF(engine->loop);
    Py_XDECREF(engine->time);
    Py_XDECREF(engine->before_acquire);
    Py_XDECREF(engine->before_release);
    Py_XDECREF(engine->strategy);
    Py_XDECREF(engine->hold_warning);
    Py_XDECREF(engine->acquire_timeout);
    Py_XDECREF(engine->pool_ref);
    Py_XDECREF(engine->find_caller);
    Py_XDECREF(engine->on_acquired);
    Py_XDECREF(engine->on_released);
    Py_XDECREF(engine->on_waiting);
    type->tp_free(engine);
    Py_DECREF(type);
}

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, "What the fast path reads of an engine, and the engine writes."},
    {Py_tp_new, Engine_new},
    {Py_tp_init, Engine_init},
    {Py_tp_methods, engine_methods},
    {Py_tp_getset, engine_getset},
    {Py_tp_members, engine_members},
    {Py_tp_traverse, Engine_traverse},
    {Py_tp_clear, Engine_clear},
    {Py_tp_dealloc, Engine_dealloc},
    {0, NULL},
};

static PyType_Spec engine_spec = {
    .name = "cenote._core.native.EngineBase",
    .basicsize = sizeof(Engine),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = engine_slots,
};
