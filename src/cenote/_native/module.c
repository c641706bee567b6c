/* The module: its state, its types, and the Python names that C uses. */

static int
load_members(PyObject **members, const char *const *names, int length, const char *enumeration)
{
    PyObject *type = import_from("cenote.states", enumeration);
    for (int i = 0; type != NULL && i < length; i++) {
        members[i] = PyObject_GetAttrString(type, names[i]);
        if (members[i] == NULL) {
            Py_CLEAR(type);
        }
    }
    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}

/* Every name that C looks up in the engine, its waiters, and the loop, tasks and futures of asyncio, with
 * the protocol of contract.py that lists it. NULL: a name of the clock. The C API also calls public methods
 * of the pool. */
static const struct {
    size_t place;
    const char *name;
    const char *protocol;
} used_names[] = {
    {offsetof(State, s_monotonic), "monotonic", NULL},
    {offsetof(State, s_time), "time", NULL},
    {offsetof(State, s_begin), "begin", "SlowPath"},
    {offsetof(State, s_check_loop), "check_loop", "SlowPath"},
    {offsetof(State, s_admit_or_raise), "admit_or_raise", "SlowPath"},
    {offsetof(State, s_obtain), "obtain", "SlowPath"},
    {offsetof(State, s_leave), "leave", "SlowPath"},
    {offsetof(State, s_advance), "advance", "SlowPath"},
    {offsetof(State, s_settle), "settle", "SlowPath"},
    {offsetof(State, s_examine), "examine", "SlowPath"},
    {offsetof(State, s_refuse), "refuse", "SlowPath"},
    {offsetof(State, s_held), "held", "SlowPath"},
    {offsetof(State, s_report_success), "report_success", "SlowPath"},
    {offsetof(State, s_expect), "expect", "SlowPath"},
    {offsetof(State, s_wake), "wake", "Waiter"},
    {offsetof(State, s_leased), "leased", "SlowPath"},
    {offsetof(State, s_completed), "completed", "SlowPath"},
    {offsetof(State, s_try_acquire_slow), "try_acquire_slow", "SlowPath"},
    {offsetof(State, s_start_ticket), "start_ticket", "SlowPath"},
    {offsetof(State, s_get_name), "get_name", "Task"},
    {offsetof(State, s_contain), "contain", "SlowPath"},
    {offsetof(State, s_check_deadlock), "check_deadlock", "SlowPath"},
    {offsetof(State, s_set_alarm), "set_alarm", "SlowPath"},
    {offsetof(State, s_sample), "sample", "SlowPath"},
    {offsetof(State, s_create_future), "create_future", "Loop"},
    {offsetof(State, s_interrupted), "interrupted", "SlowPath"},
    {offsetof(State, s_done), "done", "Future"},
    {offsetof(State, s_set_result), "set_result", "Future"},
    {offsetof(State, s_broken_off), "broken_off", "SlowPath"},
    {offsetof(State, s_defer_return), "defer_return", "SlowPath"},
    {offsetof(State, s_ended), "ended", "SlowPath"},
    {offsetof(State, s_get_loop), "get_loop", "Task"},
    {offsetof(State, s_is_closed), "is_closed", "Loop"},
    {offsetof(State, s_cancel), "cancel", "Task"},
};

static int
intern_names(State *st)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(used_names); i++) {
        PyObject *name = PyUnicode_InternFromString(used_names[i].name);
        if (name == NULL) {
            return -1;
        }
        *(PyObject **)((char *)st + used_names[i].place) = name;
    }
    return 0;
}

/* names(): (protocol, name) of all that contract.py has to list. */
static PyObject *
module_names(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found != NULL && i < Py_ARRAY_LENGTH(used_names); i++) {
        if (used_names[i].protocol == NULL) {
            continue;
        }
        PyObject *pair = Py_BuildValue("(ss)", used_names[i].protocol, used_names[i].name);
        if (pair == NULL || PyList_Append(found, pair) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(pair);
    }
    return found;
}

static int
module_exec(PyObject *module)
{
    State *st = PyModule_GetState(module);
    st->clock_watcher = -1;
    if (add_type(module, &st->slot_type, &slot_spec, NULL) < 0 ||
        add_type(module, &st->claim_type, &claim_spec, NULL) < 0 ||
        add_type(module, &st->core_type, &core_spec, NULL) < 0 ||
        add_type(module, &st->lane_type, &lane_spec, NULL) < 0 ||
        add_type(module, &st->acquire_type, &acquire_spec, st->claim_type) < 0 ||
        add_type(module, &st->steps_type, &steps_spec, NULL) < 0 ||
        add_type(module, &st->histograms_type, &histograms_spec, NULL) < 0 ||
        add_type(module, &st->done_type, &done_spec, NULL) < 0 ||
        add_type(module, &st->engine_type, &engine_spec, NULL) < 0 ||
        add_type(module, &st->fastpath_type, &fastpath_spec, NULL) < 0 ||
        load_members(st->slot_states, slot_names, SLOT_STATES, "SlotState") < 0 ||
        load_members(st->claim_states, claim_names, CLAIM_STATES, "ClaimState") < 0 ||
        load_members(st->acquire_states, acquire_names, ACQUIRE_STATES, "AcquireState") < 0 ||
        load_members(st->handovers, handover_names, HANDOVERS, "Handover") < 0 ||
        load_members(st->phases, phase_names, PHASES, "Phase") < 0 ||
        load_members(st->circuits, circuit_names, CIRCUITS, "CircuitState") < 0 ||
        (st->illegal = import_from("cenote.errors", "IllegalTransition")) == NULL ||
        (st->unset = import_from("cenote.options", "UNSET")) == NULL ||
        (st->retire = import_from("cenote.hooks", "RETIRE")) == NULL ||
        (st->check_timeout = import_from("cenote.options", "optional_duration")) == NULL ||
        (st->caller = import_from("cenote.caller", "caller")) == NULL ||
        (st->internal = import_from("cenote.caller", "internal")) == NULL ||
        (st->current_task = import_from("asyncio", "current_task")) == NULL ||
        (st->running_loop = import_from("asyncio", "_get_running_loop")) == NULL ||
        (st->future = import_from("asyncio", "Future")) == NULL ||
        (st->loop_only = Py_BuildValue("(s)", "loop")) == NULL ||
        (st->done = PyObject_GC_New(PyObject, st->done_type)) == NULL ||
        PyModule_AddObjectRef(module, "DONE", st->done) < 0 || add_capi(module, st) < 0) {
        return -1;
    }
    PyObject_GC_Track(st->done);
#if PY_VERSION_HEX < 0x030e0000
    /* A look-up in this dict is what current_task() is, without the price of a call. */
    st->current_tasks = import_from("asyncio.tasks", "_current_tasks");
    if (st->current_tasks == NULL || !PyDict_CheckExact(st->current_tasks)) {
        PyErr_Clear();
        Py_CLEAR(st->current_tasks);
    }
#endif
    if (intern_names(st) < 0 || load_events(st) < 0) {
        return -1;
    }
    return load_clock(st);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *st = PyModule_GetState(module);
    PyObject **first = (PyObject **)&st->slot_type;
    for (size_t i = 0; i < offsetof(State, spare) / sizeof(PyObject *); i++) {
        Py_VISIT(first[i]);
    }
    for (int i = 0; i < st->spares; i++) { /* each has kept its reference to the type */
        Py_VISIT(st->acquire_type);
    }
    return 0;
}

static int
module_clear(PyObject *module)
{
    State *st = PyModule_GetState(module);
    while (st->spares > 0) {
        PyObject_GC_Del(st->spare[--st->spares]);
        Py_DECREF(st->acquire_type);
    }
    st->ended = 1;
    clock_unwatch(st);
    PyObject **first = (PyObject **)&st->slot_type;
    for (size_t i = 0; i < offsetof(State, spare) / sizeof(PyObject *); i++) {
        Py_CLEAR(first[i]);
    }
    return 0;
}

static void
module_free(void *module)
{
    module_clear((PyObject *)module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030d0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static PyMethodDef module_methods[] = {
    {"adopt", adopt, METH_O, NULL},
    {"acquire_after", module_acquire_after, METH_VARARGS, NULL},
    {"give_back", (PyCFunction)(void (*)(void))give_back, METH_FASTCALL, NULL},
    {"names", module_names, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,         .m_name = "cenote._core.native", .m_doc = "The core of cenote in C.",
    .m_size = sizeof(State),       .m_methods = module_methods,     .m_slots = module_slots,
    .m_traverse = module_traverse, .m_clear = module_clear,         .m_free = module_free,
};

PyMODINIT_FUNC
PyInit_native(void)
{
    return PyModuleDef_Init(&module_def);
}
