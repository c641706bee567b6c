/* Core: the methods that change it. */

/* -- Core: the Python methods ---------------------------------------------------------------- */

#define NARGS(least, most, name)                                                                           \
    if (nargs < (least) || nargs > (most)) {                                                               \
        PyErr_Format(PyExc_TypeError, "%s() takes %d to %d arguments, not %zd", name, least, most, nargs); \
        return NULL;                                                                                       \
    }

static Slot *
as_slot(Core *core, PyObject *object)
{
    if (!PyObject_TypeCheck(object, core->st->slot_type)) {
        PyErr_Format(PyExc_TypeError, "a Slot is needed, not %s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    if (((Slot *)object)->owner != core) {
        PyErr_SetString(PyExc_ValueError, "this slot belongs to another core");
        return NULL;
    }
    return (Slot *)object;
}

static Claim *
as_claim(Core *core, PyObject *object)
{
    if (!PyObject_TypeCheck(object, core->st->claim_type)) {
        PyErr_Format(PyExc_TypeError, "a Claim is needed, not %s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    Claim *claim = (Claim *)object;
    if (claim->owner != NULL && claim->owner != core) {
        PyErr_SetString(PyExc_ValueError, "this claim belongs to another core");
        return NULL;
    }
    return claim;
}

static int
as_seconds(PyObject *object, double *seconds)
{
    *seconds = PyFloat_AsDouble(object);
    return *seconds == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *
done_or_error(int result)
{
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
Core_take(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(0, 1, "take");
    double before = nargs == 0 ? Py_HUGE_VAL : PyFloat_AsDouble(args[0]);
    if (before == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Slot *slot = core_take(core, before);
    return slot == NULL ? Py_NewRef(Py_None) : (PyObject *)slot;
}

static PyObject *
Core_take_this(Core *core, PyObject *object)
{
    Slot *slot = as_slot(core, object);
    if (slot == NULL || check_slot(slot, SLOT_TAKE) < 0) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < core->idle; i++) {
        if (ring_at(core, i) == slot) {
            slot->state = RESERVED;
            ring_remove(core, i);
            Py_DECREF(slot); /* the ring's; the caller has one */
            Py_RETURN_NONE;
        }
    }
    PyErr_SetString(PyExc_ValueError, "this slot belongs to another core");
    return NULL;
}

static PyObject *
Core_permit_for_pool(Core *core, PyObject *Py_UNUSED(ignored))
{
    if (core_room(core) <= 0) {
        Py_RETURN_NONE;
    }
    Slot *slot = core_new_slot(core);
    if (slot != NULL && core_room(core) < 0) { /* somebody was faster meanwhile */
        core_fail_slot(core, slot);
        Py_DECREF(slot);
        Py_RETURN_NONE;
    }
    return (PyObject *)slot;
}

static PyObject *
Core_permit(Core *core, PyObject *ignored)
{
    if (core->idle + core_room(core) <= core->waiters.length) {
        Py_RETURN_NONE;
    }
    return Core_permit_for_pool(core, ignored);
}

static PyObject *
Core_open_slot(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 3, "open_slot");
    Slot *slot = as_slot(core, args[0]);
    double expires_at = Py_HUGE_VAL;
    if (slot == NULL || (nargs == 3 && as_seconds(args[2], &expires_at) < 0) ||
        check_slot(slot, SLOT_OPEN) < 0) {
        return NULL;
    }
    slot->state = RESERVED;
    slot->resource = Py_NewRef(args[1]); /* was NULL while OPENING */
    slot->expires_at = expires_at;
    slot->fresh = 1;
    core->opening--;
    core->count++;
    Py_RETURN_NONE;
}

static PyObject *
Core_fail_slot(Core *core, PyObject *object)
{
    Slot *slot = as_slot(core, object);
    if (slot == NULL || check_slot(slot, SLOT_FAIL) < 0) {
        return NULL;
    }
    core_fail_slot(core, slot);
    Py_RETURN_NONE;
}

static PyObject *
put(Core *core, PyObject *const *args, int looked_at)
{
    double now;
    Slot *slot = as_slot(core, args[0]);
    if (slot == NULL || as_seconds(args[1], &now) < 0) {
        return NULL;
    }
    const char *reason;
    double since = slot->idle_since;
    switch (core_put(core, slot, now, &reason)) {
    case 0:
        if (looked_at) {
            slot->idle_since = since;
        }
        Py_RETURN_NONE;
    case 1:
        return PyUnicode_FromString(reason);
    default:
        return NULL;
    }
}

static PyObject *
Core_put(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "put");
    return put(core, args, 0);
}

static PyObject *
Core_put_back(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "put_back");
    return put(core, args, 1);
}

static PyObject *
Core_untake(Core *core, PyObject *object)
{
    Slot *slot = as_slot(core, object);
    if (slot == NULL || check_slot(slot, SLOT_PUT) < 0 || ring_reserve(core) < 0) {
        return NULL;
    }
    slot->state = IDLE;
    Py_INCREF(slot);
    if (core->lifo) {
        ring_append(core, slot);
    }
    else {
        ring_prepend(core, slot);
    }
    Py_RETURN_NONE;
}

static PyObject *
Core_unfit(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "unfit");
    double now;
    Slot *slot = as_slot(core, args[0]);
    if (slot == NULL || as_seconds(args[1], &now) < 0) {
        return NULL;
    }
    const char *reason = core_unfit(core, slot, now);
    return reason == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(reason);
}

static PyObject *
Core_retire(Core *core, PyObject *object)
{
    Slot *slot = as_slot(core, object);
    if (slot == NULL || check_slot(slot, SLOT_RETIRE) < 0) {
        return NULL;
    }
    slot->state = CLOSING;
    core_release_probe(core, &slot->probe);
    core_leave_lane(core, slot);
    core->count--;
    core->closing++;
    Py_RETURN_NONE;
}

static PyObject *
Core_finish(Core *core, PyObject *object)
{
    Slot *slot = as_slot(core, object);
    if (slot == NULL || check_slot(slot, SLOT_FINISH) < 0) {
        return NULL;
    }
    slot->state = GONE;
    core->closing--;
    core_unlist(slot);
    Py_CLEAR(slot->resource);
    Py_RETURN_NONE;
}

static PyObject *
Core_admit(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    if (claim == NULL) {
        return NULL;
    }
    if (core->circuit == ACTIVE) {
        Py_RETURN_TRUE;
    }
    long long owed = core->probes_in_use + core->waiters_without_probe;
    for (Claim *granted = core->granted.first; granted != NULL; granted = granted->next) {
        owed += granted->probe != core->recovery; /* may wait again, before newcomers */
    }
    if (core->circuit == INACTIVE || owed >= core->recovering_limit) {
        Py_RETURN_FALSE;
    }
    core->probes_in_use++;
    claim->probe = core->recovery;
    Py_RETURN_TRUE;
}

static PyObject *
Core_dismiss(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    if (claim == NULL) {
        return NULL;
    }
    core_release_probe(core, &claim->probe);
    core_vacate(core, claim, NULL);
    deadline_remove(claim);
    Py_RETURN_NONE;
}

static PyObject *
Core_reserve(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "reserve");
    Claim *claim = as_claim(core, args[0]);
    Slot *slot = claim == NULL ? NULL : as_slot(core, args[1]);
    if (slot == NULL || check_claim(claim, CLAIM_GRANT) < 0) {
        return NULL;
    }
    if (claim->state != ASKING) { /* one that waits is granted by core_grant() only */
        illegal(claim->st, "claim", claim->st->claim_states[claim->state], "grant");
        return NULL;
    }
    claim->state = GRANTED;
    claim->owner = core;
    list_insert(&core->granted, claim, core->granted.last);
    Py_XSETREF(claim->slot, (Slot *)Py_NewRef(slot));
    Py_RETURN_NONE;
}

static PyObject *
Core_ask_again(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    if (claim == NULL || check_claim(claim, CLAIM_ASK) < 0) {
        return NULL;
    }
    core_ungrant(core, claim);
    claim->state = ASKING;
    Py_CLEAR(claim->slot);
    Py_DECREF(claim);
    Py_RETURN_NONE;
}

static PyObject *
Core_wait(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(1, 2, "wait");
    double now = Py_NAN;
    Claim *claim = as_claim(core, args[0]);
    if (claim == NULL || (nargs == 2 && args[1] != Py_None && as_seconds(args[1], &now) < 0)) {
        return NULL;
    }
    return done_or_error(core_wait(core, claim, now));
}

static PyObject *
Core_choose(Core *core, PyObject *seconds)
{
    double now = 0.0;
    return as_seconds(seconds, &now) < 0 ? NULL : newref_or_none((PyObject *)core_choose(core, now));
}

static PyObject *
Core_grant(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(0, 1, "grant");
    double now = 0.0;
    if (nargs == 1 && as_seconds(args[0], &now) < 0) {
        return NULL;
    }
    Claim *claim = core_grant(core, now);
    if (claim == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    return Py_NewRef(claim);
}

static PyObject *
Core_hold(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(3, 4, "hold");
    double now, waited = 0.0;
    Claim *claim = as_claim(core, args[0]);
    Slot *slot = claim == NULL ? NULL : as_slot(core, args[1]);
    if (slot == NULL || as_seconds(args[2], &now) < 0 || (nargs == 4 && as_seconds(args[3], &waited) < 0)) {
        return NULL;
    }
    return done_or_error(core_hold(core, claim, slot, now, waited));
}

static PyObject *
Core_reclaim(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(1, 2, "reclaim");
    double now = 0.0;
    Slot *slot = as_slot(core, args[0]);
    if (slot == NULL || (nargs == 2 && as_seconds(args[1], &now) < 0)) {
        return NULL;
    }
    return (PyObject *)core_reclaim(core, slot, now);
}

static PyObject *
Core_fail(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "fail");
    Claim *claim = as_claim(core, args[0]);
    if (claim == NULL) {
        return NULL;
    }
    Py_INCREF(claim);
    int result = core_end(core, claim, CLAIM_FAIL);
    if (result == 0) {
        Py_XSETREF(claim->error, Py_NewRef(args[1]));
    }
    Py_DECREF(claim);
    return done_or_error(result);
}

static PyObject *
Core_leave(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    if (claim == NULL) {
        return NULL;
    }
    Py_INCREF(claim);
    int result = core_end(core, claim, CLAIM_LEAVE);
    Py_DECREF(claim);
    return done_or_error(result);
}

static int
index_of(PyObject *const *members, int length, PyObject *member)
{
    for (int i = 0; i < length; i++) {
        if (members[i] == member) {
            return i;
        }
    }
    PyErr_Format(PyExc_TypeError, "%R is no state of this kind", member);
    return -1;
}

static PyObject *
Core_set_circuit(Core *core, PyObject *state)
{
    int circuit = index_of(core->st->circuits, CIRCUITS, state);
    if (circuit < 0) {
        return NULL;
    }
    core->circuit = circuit;
    core->probes_in_use = 0;
    core->waiters_without_probe = 0;
    if (circuit == RECOVERING) {
        core->recovery++;
        core->waiters_without_probe = core->waiters.length;
    }
    Py_RETURN_NONE;
}

static PyObject *
Core_move(Core *core, PyObject *event)
{
    const char *name = PyUnicode_AsUTF8(event);
    if (name == NULL) {
        return NULL;
    }
    for (int i = 0; i < POOL_EVENTS; i++) {
        if (strcmp(pool_events[i], name) == 0 && pool_law[core->phase][i] != NOWHERE) {
            core->phase = pool_law[core->phase][i];
            Py_RETURN_NONE;
        }
    }
    illegal(core->st, "pool", core->st->phases[core->phase], name);
    return NULL;
}

/* After a fork: forget the claims that held or waited in the parent. */
static PyObject *
Core_disown(Core *core, PyObject *Py_UNUSED(ignored))
{
    for (Py_ssize_t i = 0; core->table != NULL && i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->same_resource) {
            if (slot->holder != NULL) {
                slot->holder->state = ENDED;
            }
        }
    }
    for (Claim *claim = core->granted.first; claim != NULL; claim = claim->next) {
        claim->state = ABANDONED;
    }
    for (Claim *claim = core->waiters.first; claim != NULL; claim = claim->next) {
        claim->state = ABANDONED;
    }
    for (Py_ssize_t i = 0; core->lanes != NULL && i < PyList_GET_SIZE(core->lanes); i++) {
        Lane *lane = (Lane *)PyList_GET_ITEM(core->lanes, i);
        for (Claim *claim = lane->parked.first; claim != NULL; claim = claim->next) {
            claim->state = ABANDONED;
        }
    }
    Py_RETURN_NONE;
}
