/* Core: the methods that answer, the attributes, and the Python type. */

static PyObject *
Core_find(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "find");
    if (core->table == NULL) {
        Py_RETURN_NONE;
    }
    Slot *slot = core->table[table_find(core, args[0])];
    while (slot != NULL && slot->same_resource != NULL) {
        if (args[1] != Py_None && slot->holder != NULL && slot->holder->task == args[1]) {
            break;
        }
        slot = (Slot *)slot->same_resource;
    }
    return newref_or_none((PyObject *)slot);
}

static PyObject *
Core_is_shared(Core *core, PyObject *resource)
{
    Slot *slot = core->table == NULL ? NULL : core->table[table_find(core, resource)];
    return PyBool_FromLong(slot != NULL && slot->same_resource != NULL);
}

static PyObject *
Core_holders(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && core->table != NULL && i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->same_resource) {
            if (slot->holder != NULL && PyList_Append(found, (PyObject *)slot->holder) < 0) {
                Py_CLEAR(found);
                break;
            }
        }
    }
    return found;
}

static int
append_claims(PyObject *list, Claim *claim)
{
    for (; claim != NULL; claim = claim->next) {
        if (PyList_Append(list, (PyObject *)claim) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
Core_granted(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    if (found != NULL && append_claims(found, core->granted.first) < 0) {
        Py_CLEAR(found);
    }
    return found;
}

/* Those that wait: the queue in its order, then the parked ones of each lane. */
static int
append_waiters(PyObject *list, Core *core)
{
    int failed = append_claims(list, core->waiters.first);
    for (Py_ssize_t i = 0; !failed && core->lanes != NULL && i < PyList_GET_SIZE(core->lanes); i++) {
        failed = append_claims(list, ((Lane *)PyList_GET_ITEM(core->lanes, i))->parked.first);
    }
    return failed;
}

static PyObject *
Core_waiters(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    if (found != NULL && append_waiters(found, core) < 0) {
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *
Core_pending(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    if (found != NULL && (append_claims(found, core->granted.first) < 0 || append_waiters(found, core) < 0)) {
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *
Core_idle_slots(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < core->idle; i++) {
        if (PyList_Append(found, (PyObject *)ring_at(core, i)) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

/* Every slot that is neither idle nor leased nor gone. */
static PyObject *
Core_in_hand(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    for (Slot *slot = core->slots; found != NULL && slot != NULL; slot = (Slot *)slot->after) {
        if ((slot->state == OPENING || slot->state == RESERVED || slot->state == CLOSING) &&
            PyList_Append(found, (PyObject *)slot) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyObject *
Core_deadlock(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "deadlock");
    Claim *claim = as_claim(core, args[0]);
    int deadlines = claim == NULL ? -1 : PyObject_IsTrue(args[1]);
    PyObject *leases = deadlines < 0 ? NULL : PyList_New(0);
    if (leases == NULL || core->opening != 0 || core->closing != 0 || core->out == 0 ||
        core->out != core->count || core_room(core) > 0 || core->ceiling > core_total(core)) {
        return leases;
    }
    for (Py_ssize_t i = 0; i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->same_resource) {
            Claim *lease = slot->holder;
            int stuck = lease != NULL && lease->in_block && lease->task != NULL;
            if (stuck && lease->task != claim->task) {
                PyObject *key = PyLong_FromVoidPtr(lease->task);
                Claim *waiter =
                    key == NULL ? NULL : (Claim *)PyDict_GetItemWithError(core->waiting_tasks, key);
                Py_XDECREF(key);
                if (waiter == NULL && PyErr_Occurred()) {
                    Py_DECREF(leases);
                    return NULL;
                }
                stuck = waiter != NULL && (deadlines || isnan(waiter->deadline));
            }
            if (!stuck) {
                Py_DECREF(leases);
                return PyList_New(0);
            }
            if (PyList_Append(leases, (PyObject *)lease) < 0) {
                Py_DECREF(leases);
                return NULL;
            }
        }
    }
    return leases;
}

static PyObject *
Core_room(Core *core, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(core_room(core));
}

/* The peak since the last call of this. */
static PyObject *
Core_take_peak(Core *core, PyObject *Py_UNUSED(ignored))
{
    long long peak = core->peak;
    core->peak = 0;
    core_note_peak(core);
    return PyLong_FromLongLong(peak > core->peak ? peak : core->peak);
}

static PyObject *
Core_demand(Core *core, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(core_demand(core));
}

static PyObject *
Core_shortage(Core *core, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(core_shortage(core));
}

static PyObject *
Core_surplus(Core *core, PyObject *Py_UNUSED(ignored))
{
    long long surplus = core_excess(core);
    surplus = surplus < core->idle ? surplus : core->idle;
    return PyLong_FromLongLong(surplus < 0 ? 0 : surplus);
}

static PyObject *
Core_reports(Core *core, PyObject *object)
{
    long long probe = PyLong_AsLongLong(object);
    if (probe == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(core_reports(core, probe));
}

static PyMethodDef core_methods[] = {
    {"take", (PyCFunction)(void (*)(void))Core_take, METH_FASTCALL, NULL},
    {"take_this", (PyCFunction)Core_take_this, METH_O, NULL},
    {"untake", (PyCFunction)Core_untake, METH_O, NULL},
    {"permit", (PyCFunction)Core_permit, METH_NOARGS, NULL},
    {"permit_for_pool", (PyCFunction)Core_permit_for_pool, METH_NOARGS, NULL},
    {"open_slot", (PyCFunction)(void (*)(void))Core_open_slot, METH_FASTCALL, NULL},
    {"fail_slot", (PyCFunction)Core_fail_slot, METH_O, NULL},
    {"put", (PyCFunction)(void (*)(void))Core_put, METH_FASTCALL, NULL},
    {"put_back", (PyCFunction)(void (*)(void))Core_put_back, METH_FASTCALL, NULL},
    {"unfit", (PyCFunction)(void (*)(void))Core_unfit, METH_FASTCALL, NULL},
    {"retire", (PyCFunction)Core_retire, METH_O, NULL},
    {"finish", (PyCFunction)Core_finish, METH_O, NULL},
    {"admit", (PyCFunction)Core_admit, METH_O, NULL},
    {"dismiss", (PyCFunction)Core_dismiss, METH_O, NULL},
    {"reserve", (PyCFunction)(void (*)(void))Core_reserve, METH_FASTCALL, NULL},
    {"ask_again", (PyCFunction)Core_ask_again, METH_O, NULL},
    {"wait", (PyCFunction)(void (*)(void))Core_wait, METH_FASTCALL, NULL},
    {"choose", (PyCFunction)Core_choose, METH_O, NULL},
    {"grant", (PyCFunction)(void (*)(void))Core_grant, METH_FASTCALL, NULL},
    {"add_lane", (PyCFunction)(void (*)(void))Core_add_lane, METH_FASTCALL, NULL},
    {"enter", (PyCFunction)Core_enter, METH_O, NULL},
    {"waiters", (PyCFunction)Core_waiters, METH_NOARGS, NULL},
    {"hold", (PyCFunction)(void (*)(void))Core_hold, METH_FASTCALL, NULL},
    {"reclaim", (PyCFunction)(void (*)(void))Core_reclaim, METH_FASTCALL, NULL},
    {"fail", (PyCFunction)(void (*)(void))Core_fail, METH_FASTCALL, NULL},
    {"leave", (PyCFunction)Core_leave, METH_O, NULL},
    {"find", (PyCFunction)(void (*)(void))Core_find, METH_FASTCALL, NULL},
    {"is_shared", (PyCFunction)Core_is_shared, METH_O, NULL},
    {"holders", (PyCFunction)Core_holders, METH_NOARGS, NULL},
    {"granted", (PyCFunction)Core_granted, METH_NOARGS, NULL},
    {"pending", (PyCFunction)Core_pending, METH_NOARGS, NULL},
    {"idle_slots", (PyCFunction)Core_idle_slots, METH_NOARGS, NULL},
    {"in_hand", (PyCFunction)Core_in_hand, METH_NOARGS, NULL},
    {"deadlock", (PyCFunction)(void (*)(void))Core_deadlock, METH_FASTCALL, NULL},
    {"room", (PyCFunction)Core_room, METH_NOARGS, NULL},
    {"take_peak", (PyCFunction)Core_take_peak, METH_NOARGS, NULL},
    {"demand", (PyCFunction)Core_demand, METH_NOARGS, NULL},
    {"shortage", (PyCFunction)Core_shortage, METH_NOARGS, NULL},
    {"surplus", (PyCFunction)Core_surplus, METH_NOARGS, NULL},
    {"reports", (PyCFunction)Core_reports, METH_O, NULL},
    {"add_deadline", (PyCFunction)Core_add_deadline, METH_O, NULL},
    {"remove_deadline", (PyCFunction)Core_remove_deadline, METH_O, NULL},
    {"expired", (PyCFunction)Core_expired, METH_O, NULL},
    {"next_deadline", (PyCFunction)Core_next_deadline, METH_NOARGS, NULL},
    {"set_circuit", (PyCFunction)Core_set_circuit, METH_O, NULL},
    {"move", (PyCFunction)Core_move, METH_O, NULL},
    {"disown", (PyCFunction)Core_disown, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *
Core_get_phase(Core *core, void *Py_UNUSED(closure))
{
    return Py_NewRef(core->st->phases[core->phase]);
}

static PyObject *
Core_get_circuit(Core *core, void *Py_UNUSED(closure))
{
    return Py_NewRef(core->st->circuits[core->circuit]);
}

static PyObject *
Core_get_active(Core *core, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(core->count - core->idle);
}

static PyObject *
Core_get_total(Core *core, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(core_total(core));
}

static PyObject *
Core_get_first(Core *core, void *Py_UNUSED(closure))
{
    return newref_or_none((PyObject *)core->waiters.first);
}

static PyObject *
Core_get_last(Core *core, void *Py_UNUSED(closure))
{
    return newref_or_none((PyObject *)core->waiters.last);
}

static PyObject *
Core_get_max_idle(Core *core, void *Py_UNUSED(closure))
{
    return isnan(core->max_idle) ? Py_NewRef(Py_None) : PyFloat_FromDouble(core->max_idle);
}

static PyObject *
Core_get_max_uses(Core *core, void *Py_UNUSED(closure))
{
    return core->max_uses == 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(core->max_uses);
}

static PyObject *
Core_get_max_creating(Core *core, void *Py_UNUSED(closure))
{
    return core->max_creating == LLONG_MAX ? Py_NewRef(Py_None) : PyLong_FromLongLong(core->max_creating);
}

static int
Core_set_max_creating(Core *core, PyObject *value, void *Py_UNUSED(closure))
{
    long long most = value == NULL || value == Py_None ? LLONG_MAX : PyLong_AsLongLong(value);
    if (most == -1 && PyErr_Occurred()) {
        return -1;
    }
    core->max_creating = most;
    return 0;
}

static PyObject *
Core_get_waiting(Core *core, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(core->waiters.length + core->parked);
}

static PyObject *
Core_get_lanes(Core *core, void *Py_UNUSED(closure))
{
    return core->lanes == NULL ? PyList_New(0) : PyList_GetSlice(core->lanes, 0, PY_SSIZE_T_MAX);
}

static PyObject *
Core_get_queue_target(Core *core, void *Py_UNUSED(closure))
{
    return isnan(core->queue_target) ? Py_NewRef(Py_None) : PyFloat_FromDouble(core->queue_target);
}

static int
Core_set_queue_target(Core *core, PyObject *value, void *Py_UNUSED(closure))
{
    double target = value == NULL ? Py_NAN : optional_seconds(value);
    if (target == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    core->queue_target = target;
    return 0;
}

static PyGetSetDef core_getset[] = {
    {"waiting", (getter)Core_get_waiting, NULL, NULL, NULL},
    {"lanes", (getter)Core_get_lanes, NULL, NULL, NULL},
    {"queue_target", (getter)Core_get_queue_target, (setter)Core_set_queue_target, NULL, NULL},
    {"phase", (getter)Core_get_phase, NULL, NULL, NULL},
    {"circuit", (getter)Core_get_circuit, NULL, NULL, NULL},
    {"active", (getter)Core_get_active, NULL, NULL, NULL},
    {"total", (getter)Core_get_total, NULL, NULL, NULL},
    {"first", (getter)Core_get_first, NULL, NULL, NULL},
    {"last", (getter)Core_get_last, NULL, NULL, NULL},
    {"max_idle", (getter)Core_get_max_idle, NULL, NULL, NULL},
    {"max_uses", (getter)Core_get_max_uses, NULL, NULL, NULL},
    {"max_creating", (getter)Core_get_max_creating, (setter)Core_set_max_creating, NULL, NULL},
    {"histograms", (getter)Core_get_histograms, (setter)Core_set_histograms, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef core_members[] = {
    {"min_size", Py_T_LONGLONG, offsetof(Core, min_size), 0, NULL},
    {"max_size", Py_T_LONGLONG, offsetof(Core, max_size), 0, NULL},
    {"ceiling", Py_T_LONGLONG, offsetof(Core, ceiling), 0, NULL},
    {"sync_factory", Py_T_BOOL, offsetof(Core, sync_factory), 0, NULL},
    {"generation", Py_T_LONGLONG, offsetof(Core, generation), 0, NULL},
    {"busy", Py_T_INT, offsetof(Core, busy), 0, NULL},
    {"alarm_at", Py_T_DOUBLE, offsetof(Core, alarm_at), 0, NULL},
    {"deadline_count", Py_T_PYSSIZET, offsetof(Core, timed), Py_READONLY, NULL},
    {"lifo", Py_T_BOOL, offsetof(Core, lifo), Py_READONLY, NULL},
    {"recovering_limit", Py_T_LONGLONG, offsetof(Core, recovering_limit), Py_READONLY, NULL},
    {"recovery", Py_T_LONGLONG, offsetof(Core, recovery), Py_READONLY, NULL},
    {"probes_in_use", Py_T_LONGLONG, offsetof(Core, probes_in_use), Py_READONLY, NULL},
    {"waiters_without_probe", Py_T_LONGLONG, offsetof(Core, waiters_without_probe), Py_READONLY, NULL},
    {"count", Py_T_LONGLONG, offsetof(Core, count), Py_READONLY, NULL},
    {"idle_count", Py_T_PYSSIZET, offsetof(Core, idle), Py_READONLY, NULL},
    {"opening", Py_T_LONGLONG, offsetof(Core, opening), Py_READONLY, NULL},
    {"closing", Py_T_LONGLONG, offsetof(Core, closing), Py_READONLY, NULL},
    {"out", Py_T_LONGLONG, offsetof(Core, out), Py_READONLY, NULL},
    {"queued", Py_T_PYSSIZET, offsetof(Core, waiters.length), Py_READONLY, NULL},
    {"parked", Py_T_LONGLONG, offsetof(Core, parked), Py_READONLY, NULL},
    {"queue_interval", Py_T_DOUBLE, offsetof(Core, queue_interval), 0, NULL},
    {"overloaded", Py_T_BOOL, offsetof(Core, overloaded), Py_READONLY, NULL},
    {"standing_since", Py_T_DOUBLE, offsetof(Core, standing_since), Py_READONLY, NULL},
    {"now", Py_T_DOUBLE, offsetof(Core, now), 0, NULL},
    {"granted_count", Py_T_PYSSIZET, offsetof(Core, granted.length), Py_READONLY, NULL},
    {"idle_seqs", Py_T_LONGLONG, offsetof(Core, idle_seqs), Py_READONLY, NULL},
    {"queue_seqs", Py_T_LONGLONG, offsetof(Core, queue_seqs), Py_READONLY, NULL},
    {"begun", Py_T_LONGLONG, offsetof(Core, begun), 0, NULL},
    {"acquired", Py_T_LONGLONG, offsetof(Core, acquired), Py_READONLY, NULL},
    {"released", Py_T_LONGLONG, offsetof(Core, released), Py_READONLY, NULL},
    {"wait_time", Py_T_DOUBLE, offsetof(Core, wait_time), Py_READONLY, NULL},
    {"max_wait_time", Py_T_DOUBLE, offsetof(Core, max_wait_time), Py_READONLY, NULL},
    {"hold_time", Py_T_DOUBLE, offsetof(Core, hold_time), Py_READONLY, NULL},
    {"max_hold_time", Py_T_DOUBLE, offsetof(Core, max_hold_time), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *
Core_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"min_size", "max_size",         "max_uses",     "max_idle",
                            "lifo",     "recovering_limit", "sync_factory", NULL};
    long long min_size, max_size, limit;
    PyObject *max_uses, *max_idle;
    int lifo, sync_factory;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$LLOOpLp:Core", names, &min_size, &max_size, &max_uses,
                                     &max_idle, &lifo, &limit, &sync_factory)) {
        return NULL;
    }
    PyObject *module = PyType_GetModuleByDef(type, &module_def);
    if (module == NULL) {
        return NULL;
    }
    Core *core = (Core *)type->tp_alloc(type, 0); /* zeroed */
    if (core == NULL) {
        return NULL;
    }
    core->st = PyModule_GetState(module);
    core->min_size = min_size;
    core->max_size = max_size;
    core->recovering_limit = limit;
    core->lifo = (char)lifo;
    core->sync_factory = (char)sync_factory;
    core->max_idle = optional_seconds(max_idle);
    core->max_uses = max_uses == Py_None ? 0 : PyLong_AsLongLong(max_uses);
    core->max_creating = LLONG_MAX;
    core->queue_target = Py_NAN;
    core->queue_interval = 1.0;
    core->alarm_at = Py_HUGE_VAL;
    core->lanes = PyList_New(0);
    core->waiting_tasks = PyDict_New();
    if (core->waiting_tasks == NULL || core->lanes == NULL || PyErr_Occurred()) {
        Py_DECREF(core);
        return NULL;
    }
    return (PyObject *)core;
}

static int
Core_traverse(Core *core, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(core));
    Py_VISIT(core->waiting_tasks);
    Py_VISIT(core->lanes);
    Py_VISIT(core->histograms);
    Py_VISIT(core->stop);
    for (Slot *slot = core->slots; slot != NULL; slot = (Slot *)slot->after) {
        Py_VISIT(slot);
    }
    for (Py_ssize_t i = 0; i < core->idle; i++) {
        Py_VISIT(ring_at(core, i));
    }
    for (Py_ssize_t i = 0; core->table != NULL && i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->same_resource) {
            Py_VISIT(slot);
        }
    }
    for (Claim *claim = core->waiters.first; claim != NULL; claim = claim->next) {
        Py_VISIT(claim);
    }
    for (Claim *claim = core->granted.first; claim != NULL; claim = claim->next) {
        Py_VISIT(claim);
    }
    for (Py_ssize_t i = 0; i < core->timed; i++) {
        Py_VISIT(core->deadlines[i]);
    }
    return 0;
}

static int
Core_clear(Core *core)
{
    Py_CLEAR(core->waiting_tasks);
    Py_CLEAR(core->histograms);
    Py_CLEAR(core->stop);
    while (core->idle > 0) {
        Slot *slot = ring_pop_last(core);
        Py_DECREF(slot);
    }
    Slot **table = core->table;
    Py_ssize_t size = table == NULL ? 0 : core->mask + 1;
    core->table = NULL;
    core->used = core->mask = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        Slot *slot = table[i];
        while (slot != NULL) {
            Slot *older = (Slot *)slot->same_resource;
            slot->same_resource = NULL;
            Py_DECREF(slot);
            slot = older;
        }
    }
    PyMem_Free(table);
    for (Slot *slot = core->slots; slot != NULL; slot = (Slot *)slot->after) {
        slot->lane = NULL; /* borrowed from the core */
    }
    PyObject *lanes = core->lanes;
    core->lanes = NULL;
    core->parked = 0;
    for (Level *level = &core->normal; level != NULL; level = level->higher) {
        level->last = NULL;
    }
    for (Level *level = core->normal.lower; level != NULL; level = level->lower) {
        level->last = NULL;
    }
    clear_list(&core->waiters);
    clear_list(&core->granted);
    for (Py_ssize_t i = 0; lanes != NULL && i < PyList_GET_SIZE(lanes); i++) {
        clear_list(&((Lane *)PyList_GET_ITEM(lanes, i))->parked);
    }
    deadlines_clear(core);
    while (core->slots != NULL) {
        core_unlist(core->slots);
    }
    Py_XDECREF(lanes);
    return 0;
}

static void
Core_dealloc(Core *core)
{
    PyTypeObject *type = Py_TYPE(core);
    PyObject_GC_UnTrack(core);
    Core_clear(core);
    levels_free(core);
    PyMem_Free(core->deadlines);
    PyMem_Free(core->ring);
    type->tp_free(core);
    Py_DECREF(type);
}

static PyType_Slot core_slots[] = {
    {Py_tp_doc, "The state of one pool, in C. See machine.py for what each method decides."},
    {Py_tp_new, Core_new},
    {Py_tp_methods, core_methods},
    {Py_tp_getset, core_getset},
    {Py_tp_members, core_members},
    {Py_tp_traverse, Core_traverse},
    {Py_tp_clear, Core_clear},
    {Py_tp_dealloc, Core_dealloc},
    {0, NULL},
};

static PyType_Spec core_spec = {
    .name = "cenote._core.native.Core",
    .basicsize = sizeof(Core),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = core_slots,
};
