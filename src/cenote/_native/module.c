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

static int
module_exec(PyObject *module)
{
    State *st = PyModule_GetState(module);
    st->clock_watcher = -1;
    if (add_type(module, &st->slot_type, &slot_spec, NULL) < 0 ||
        add_type(module, &st->claim_type, &claim_spec, NULL) < 0 ||
        add_type(module, &st->core_type, &core_spec, NULL) < 0 ||
        add_type(module, &st->acquire_type, &acquire_spec, st->claim_type) < 0 ||
        add_type(module, &st->steps_type, &steps_spec, NULL) < 0 ||
        add_type(module, &st->done_type, &done_spec, NULL) < 0 ||
        add_type(module, &st->fastpath_type, &fastpath_spec, NULL) < 0 ||
        load_members(st->slot_states, slot_names, SLOT_STATES, "SlotState") < 0 ||
        load_members(st->claim_states, claim_names, CLAIM_STATES, "ClaimState") < 0 ||
        load_members(st->phases, phase_names, PHASES, "Phase") < 0 ||
        load_members(st->circuits, circuit_names, CIRCUITS, "CircuitState") < 0 ||
        (st->illegal = import_from("cenote.errors", "IllegalTransition")) == NULL ||
        (st->unset = import_from("cenote.options", "UNSET")) == NULL ||
        (st->check_timeout = import_from("cenote.options", "optional_duration")) == NULL ||
        (st->caller = import_from("cenote.caller", "caller")) == NULL ||
        (st->internal = import_from("cenote.caller", "_internal")) == NULL ||
        (st->current_task = import_from("asyncio", "current_task")) == NULL ||
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
    struct {
        PyObject **place;
        const char *name;
    } names[] = {
        {&st->s_monotonic, "monotonic"},
        {&st->s_time, "time"},
        {&st->s_enter, "_enter"},
        {&st->s_check_loop, "_check_loop"},
        {&st->s_admit_or_raise, "_admit_or_raise"},
        {&st->s_obtain, "_obtain"},
        {&st->s_leave, "_leave"},
        {&st->s_advance, "_advance"},
        {&st->s_settle, "_settle"},
        {&st->s_examine, "_examine"},
        {&st->s_refuse, "_refuse"},
        {&st->s_held, "_held"},
        {&st->s_report_success, "_report_success"},
        {&st->s_expect, "_expect"},
        {&st->s_wake, "wake"},
        {&st->s_leased, "_leased"},
        {&st->s_completed, "_completed"},
        {&st->s_try_acquire_slow, "_try_acquire_slow"},
        {&st->s_start_ticket, "_start_ticket"},
        {&st->s_acquired, "acquired"},
        {&st->s_released, "released"},
        {&st->s_get_name, "get_name"},
        {&st->s_contain, "_contain"},
        {&st->s_check_deadlock, "_check_deadlock"},
        {&st->s_set_alarm, "_set_alarm"},
        {&st->s_factory_failures, "_factory_failures"},
        {&st->s_create_future, "create_future"},
        {&st->s_interrupted, "_interrupted"},
        {&st->s_done, "done"},
        {&st->s_set_result, "set_result"},
        {&st->s_broken_off, "_broken_off"},
        {&st->s_defer_return, "_defer_return"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        *names[i].place = PyUnicode_InternFromString(names[i].name);
        if (*names[i].place == NULL) {
            return -1;
        }
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
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cenote._core.native",
    .m_doc = "The core of cenote in C.",
    .m_size = sizeof(State),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit_native(void)
{
    return PyModuleDef_Init(&module_def);
}
