/* Slots: the ring of the idle ones, the table of the leased ones, and their Python type. */

/* -- the ring -------------------------------------------------------------------------------- */

static Slot *
ring_at(Core *core, Py_ssize_t index)
{
    return core->ring[(core->head + index) & (core->capacity - 1)];
}

static int
ring_reserve(Core *core)
{
    if (core->idle < core->capacity) {
        return 0;
    }
    Py_ssize_t capacity = core->capacity == 0 ? FIRST_CAPACITY : core->capacity * 2;
    Slot **ring = PyMem_New(Slot *, capacity);
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < core->idle; i++) {
        ring[i] = ring_at(core, i);
    }
    PyMem_Free(core->ring);
    core->ring = ring;
    core->head = 0;
    core->capacity = capacity;
    return 0;
}

/* Both steal nothing: the reference moves from or to the caller. Room was reserved. */
static void
ring_append(Core *core, Slot *slot)
{
    core->ring[(core->head + core->idle) & (core->capacity - 1)] = slot;
    core->idle++;
}

static void
ring_prepend(Core *core, Slot *slot)
{
    core->head = (core->head - 1) & (core->capacity - 1);
    core->ring[core->head] = slot;
    core->idle++;
}

static Slot *
ring_pop_first(Core *core)
{
    Slot *slot = core->ring[core->head];
    core->head = (core->head + 1) & (core->capacity - 1);
    core->idle--;
    return slot;
}

static Slot *
ring_pop_last(Core *core)
{
    core->idle--;
    return ring_at(core, core->idle);
}

static void
ring_remove(Core *core, Py_ssize_t index)
{
    Py_ssize_t mask = core->capacity - 1;
    if (index == 0) {
        ring_pop_first(core);
        return;
    }
    for (Py_ssize_t i = index; i + 1 < core->idle; i++) {
        core->ring[(core->head + i) & mask] = core->ring[(core->head + i + 1) & mask];
    }
    core->idle--;
}

/* -- the table of leases --------------------------------------------------------------------- */

static Py_ssize_t
table_index(PyObject *resource, Py_ssize_t mask)
{
    uint64_t bits = (uint64_t)(uintptr_t)resource >> 4;
    return (Py_ssize_t)((bits * 0x9E3779B97F4A7C15ull) >> 20) & mask;
}

/* Where the newest slot with this resource is, or the free place where it would be. */
static Py_ssize_t
table_find(Core *core, PyObject *resource)
{
    Py_ssize_t i = table_index(resource, core->mask);
    while (core->table[i] != NULL && core->table[i]->resource != resource) {
        i = (i + 1) & core->mask;
    }
    return i;
}

static int
table_reserve(Core *core)
{
    if (core->table != NULL && core->used * 2 <= core->mask) {
        return 0;
    }
    Py_ssize_t size = core->table == NULL ? FIRST_CAPACITY : (core->mask + 1) * 2;
    Slot **old = core->table;
    Py_ssize_t old_size = old == NULL ? 0 : core->mask + 1;
    Slot **table = PyMem_Calloc(size, sizeof(Slot *));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    core->table = table;
    core->mask = size - 1;
    for (Py_ssize_t i = 0; i < old_size; i++) {
        if (old[i] != NULL) {
            core->table[table_find(core, old[i]->resource)] = old[i];
        }
    }
    PyMem_Free(old);
    return 0;
}

/* The reference to the slot moves into the table. Room was reserved. */
static void
table_add(Core *core, Slot *slot)
{
    Py_ssize_t i = table_find(core, slot->resource);
    slot->same_resource = (PyObject *)core->table[i];
    if (core->table[i] == NULL) {
        core->used++;
    }
    core->table[i] = slot;
}

/* Nothing is leased: whatever was out at the same time once, an idle resource needs no place here. */
static void
table_shrink(Core *core)
{
    Slot **table = PyMem_Realloc(core->table, FIRST_CAPACITY * sizeof(Slot *));
    if (table != NULL) {
        core->table = table;
        core->mask = FIRST_CAPACITY - 1;
    }
}

/* The reference to the slot moves to the caller. */
static void
table_remove(Core *core, Slot *slot)
{
    Py_ssize_t i = table_find(core, slot->resource);
    Slot *newest = core->table[i];
    if (newest != slot) {
        while (newest->same_resource != (PyObject *)slot) {
            newest = (Slot *)newest->same_resource;
        }
        newest->same_resource = slot->same_resource;
    }
    else if (slot->same_resource != NULL) {
        core->table[i] = (Slot *)slot->same_resource;
    }
    else {
        /* Close the gap: whatever was pushed beyond it by a collision moves back. */
        Py_ssize_t gap = i;
        core->table[gap] = NULL;
        core->used--;
        for (i = (i + 1) & core->mask; core->table[i] != NULL; i = (i + 1) & core->mask) {
            Py_ssize_t home = table_index(core->table[i]->resource, core->mask);
            if (((i - home) & core->mask) >= ((i - gap) & core->mask)) {
                core->table[gap] = core->table[i];
                core->table[i] = NULL;
                gap = i;
            }
        }
    }
    slot->same_resource = NULL;
    if (core->used == 0 && core->mask >= LARGE_TABLE) {
        table_shrink(core);
    }
}

/* -- the StopIteration that hands a resource over ---------------------------------------------- */

/* Whether only the core has it, and nobody else who had it has left anything in it. */
static int
stop_is_ours(PyObject *object)
{
    PyStopIterationObject *stop = (PyStopIterationObject *)object;
    return Py_REFCNT(stop) == 1 && stop->traceback == NULL && stop->context == NULL && stop->cause == NULL &&
           stop->dict == NULL && PyTuple_GET_SIZE(stop->args) == 0;
}

/* After a lease: the StopIteration forgets the resource, if it was the last that it handed over. One
 * that somebody has seen is theirs. What the core lets go of is returned, to be dropped last. */
static PyObject *
core_take_back_stop(Core *core, PyObject *resource)
{
    PyObject *stop = core->stop;
    if (stop == NULL) {
        return NULL;
    }
    if (!stop_is_ours(stop)) {
        core->stop = NULL;
        return stop;
    }
    PyObject *value = ((PyStopIterationObject *)stop)->value;
    if (value != resource) {
        return NULL;
    }
    ((PyStopIterationObject *)stop)->value = NULL;
    return value;
}

/* The resource is what the awaiting expression gives. */
static PyObject *
stop_with(PyObject *result)
{
    if (PyTuple_Check(result) || PyExceptionInstance_Check(result)) {
        /* These would be taken for the arguments of StopIteration, or for the exception itself. */
        PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
        if (stop != NULL) {
            PyErr_SetObject(PyExc_StopIteration, stop);
            Py_DECREF(stop);
        }
    }
    else {
        PyErr_SetObject(PyExc_StopIteration, result);
    }
    Py_DECREF(result);
    return NULL;
}

/* The same, out of a leased slot, for the interpreter, which takes nothing but the value. From 3.12 on
 * an exception that is raised is always an object: the core keeps one, and raises it for each lease. */
static PyObject *
core_stop(Core *core, Slot *slot, PyObject *result)
{
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *stop = core->stop;
    if (stop == NULL) {
        Py_INCREF(slot);
        stop = PyObject_CallNoArgs(PyExc_StopIteration);
        if (stop != NULL && slot->state == LEASED && core->stop == NULL) {
            core->stop = Py_NewRef(stop);
        }
        Py_DECREF(slot);
        if (stop == NULL) {
            Py_DECREF(result);
            return NULL;
        }
    }
    else if (stop_is_ours(stop)) {
        Py_INCREF(stop);
    }
    else {
        return stop_with(result);
    }
    Py_XSETREF(((PyStopIterationObject *)stop)->value, result);
    PyErr_SetRaisedException(stop);
    return NULL;
#else
    (void)core;
    (void)slot;
    return stop_with(result);
#endif
}

/* -- Slot ------------------------------------------------------------------------------------ */

static PyObject *
Slot_get_state(Slot *slot, void *Py_UNUSED(closure))
{
    State *st = PyType_GetModuleState(Py_TYPE(slot));
    return st == NULL ? NULL : newref_or_none(st->slot_states[(int)slot->state]);
}

static PyGetSetDef slot_getset[] = {
    {"resource", get_object, NULL, NULL, (void *)offsetof(Slot, resource)},
    {"holder", get_object, NULL, NULL, (void *)offsetof(Slot, holder)},
    {"state", (getter)Slot_get_state, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef slot_members[] = {
    {"expires_at", Py_T_DOUBLE, offsetof(Slot, expires_at), 0, NULL},
    {"idle_since", Py_T_DOUBLE, offsetof(Slot, idle_since), 0, NULL},
    {"idle_seq", Py_T_LONGLONG, offsetof(Slot, idle_seq), Py_READONLY, NULL},
    {"generation", Py_T_UINT, offsetof(Slot, generation), Py_READONLY, NULL},
    {"uses", Py_T_LONGLONG, offsetof(Slot, uses), Py_READONLY, NULL},
    {"probe", Py_T_LONGLONG, offsetof(Slot, probe), Py_READONLY, NULL},
    {"fresh", Py_T_BOOL, offsetof(Slot, fresh), 0, NULL},
    {"told", Py_T_BOOL, offsetof(Slot, told), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
Slot_traverse(Slot *slot, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(slot));
    Py_VISIT(slot->resource);
    Py_VISIT(slot->holder);
    return 0;
}

static int
Slot_clear(Slot *slot)
{
    /* A leased slot is found in the table by its resource: leave that to the core. */
    if (slot->state != LEASED) {
        Py_CLEAR(slot->resource);
    }
    Py_CLEAR(slot->holder);
    return 0;
}

static void
Slot_dealloc(Slot *slot)
{
    PyTypeObject *type = Py_TYPE(slot);
    PyObject_GC_UnTrack(slot);
    Py_CLEAR(slot->resource);
    Py_CLEAR(slot->holder);
    type->tp_free(slot);
    Py_DECREF(type);
}

static PyType_Slot slot_slots[] = {
    {Py_tp_doc, "One place in the pool."},
    {Py_tp_getset, slot_getset},
    {Py_tp_members, slot_members},
    {Py_tp_traverse, Slot_traverse},
    {Py_tp_clear, Slot_clear},
    {Py_tp_dealloc, Slot_dealloc},
    {0, NULL},
};

static PyType_Spec slot_spec = {
    .name = "cenote._core.native.Slot",
    .basicsize = sizeof(Slot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slot_slots,
};
