/* Core, Slot and Claim: the decisions of pure.py, and their Python types. */

static struct PyModuleDef module_def;

/* -- Core: slots ----------------------------------------------------------------------------- */

/* Whoever still waits is about to be failed. */
static int
core_refusing(Core *core)
{
    return core->circuit == INACTIVE || core->phase == CLOSED;
}

static int
core_unplaced(Core *core, Claim *claim)
{
    return core->circuit == RECOVERING && claim->probe != core->recovery;
}

static void
core_give_place(Core *core, long long *probe)
{
    if (*probe != 0 && *probe == core->recovery && core->circuit == RECOVERING) {
        core->probes--;
    }
    *probe = 0;
}

static long long
core_total(Core *core)
{
    return core->opening + core->count + core->closing;
}

static void
core_list(Core *core, Slot *slot)
{
    slot->before = NULL;
    slot->after = (PyObject *)core->slots;
    if (core->slots != NULL) {
        core->slots->before = (PyObject *)slot;
    }
    core->slots = (Slot *)Py_NewRef(slot);
    slot->listed = 1;
}

static void
core_unlist(Slot *slot)
{
    if (!slot->listed) {
        return;
    }
    slot->listed = 0;
    if (slot->before == NULL) {
        ((Core *)slot->owner)->slots = (Slot *)slot->after;
    }
    else {
        ((Slot *)slot->before)->after = slot->after;
    }
    if (slot->after != NULL) {
        ((Slot *)slot->after)->before = slot->before;
    }
    slot->before = slot->after = NULL;
    Py_DECREF(slot);
}

/* The allocation may run the garbage collector, and so any code: whoever calls this looks again at
 * what it has read before. */
static Slot *
core_new_slot(Core *core)
{
    Slot *slot = PyObject_GC_New(Slot, core->st->slot_type);
    if (slot == NULL) {
        return NULL;
    }
    slot->st = core->st;
    slot->owner = core;
    slot->resource = NULL;
    slot->stop = NULL;
    slot->lease = NULL;
    slot->twin = NULL;
    slot->expires_at = Py_HUGE_VAL;
    slot->idle_since = 0.0;
    slot->idle_order = 0;
    slot->generation = core->generation;
    slot->uses = 0;
    slot->probe = 0;
    slot->state = OPENING;
    slot->fresh = slot->told = 0;
    core_list(core, slot);
    core->opening++;
    PyObject_GC_Track(slot);
    return slot;
}

/* A permit that is of no use: OPENING -> GONE. */
static void
core_fail_slot(Core *core, Slot *slot)
{
    slot->state = GONE;
    core->opening--;
    core_unlist(slot);
}

/* An idle slot, RESERVED now, or NULL without an exception. A new reference. */
static Slot *
core_take(Core *core, double before)
{
    if (core->idle <= core->waiters.length) {
        return NULL;
    }
    Slot *slot = ring_at(core, core->lifo ? core->idle - 1 : 0);
    if ((double)slot->idle_order > before) {
        return NULL;
    }
    slot->state = RESERVED;
    return core->lifo ? ring_pop_last(core) : ring_pop_first(core);
}

static const char *
core_unfit(Core *core, Slot *slot, double now)
{
    if (core->phase == CLOSED) {
        return "closed";
    }
    if (slot->generation != core->generation) {
        return "retired";
    }
    if (core->count + core->opening > core->max_size) {
        return "resized";
    }
    if (slot->expires_at <= now) {
        return "max_lifetime";
    }
    if (core->max_uses != 0 && slot->uses >= core->max_uses) {
        return "max_uses";
    }
    return NULL;
}

/* RESERVED -> IDLE. 0: done; 1: it is unfit, see `reason`; -1: an exception is set. */
static int
core_put(Core *core, Slot *slot, double now, const char **reason)
{
    *reason = core_unfit(core, slot, now);
    if (*reason != NULL) {
        return 1;
    }
    if (check_slot(slot, RESERVED, "put") < 0 || ring_reserve(core) < 0) {
        return -1;
    }
    slot->state = IDLE;
    core_give_place(core, &slot->probe);
    slot->idle_since = now;
    slot->idle_order = ++core->idle_orders;
    Py_INCREF(slot);
    ring_append(core, slot);
    return 0;
}

/* -- Core: claims ---------------------------------------------------------------------------- */

/* Out of the queue; the queue's reference moves to the caller. */
static int
core_dequeue(Core *core, Claim *claim)
{
    list_remove(&core->waiters, claim);
    if (core_unplaced(core, claim)) {
        core->unplaced--;
    }
    if (claim->key == NULL || core->waiting_tasks == NULL) {
        return 0;
    }
    PyObject *known = PyDict_GetItemWithError(core->waiting_tasks, claim->key);
    if (known == (PyObject *)claim) {
        return PyDict_DelItem(core->waiting_tasks, claim->key);
    }
    return known == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Out of the list of granted claims, if it is there; its reference moves to the caller. */
static int
core_ungrant(Core *core, Claim *claim)
{
    if (claim->state != GRANTED) {
        return 0;
    }
    list_remove(&core->granted, claim);
    return 1;
}

static int
core_wait(Core *core, Claim *claim)
{
    if (check_claim(claim, ASKING, GRANTED, "wait") < 0) {
        return -1;
    }
    if (claim->task != NULL) {
        if (claim->key == NULL && (claim->key = PyLong_FromVoidPtr(claim->task)) == NULL) {
            return -1;
        }
        if (PyDict_SetItem(core->waiting_tasks, claim->key, (PyObject *)claim) < 0) {
            return -1;
        }
    }
    int owned = core_ungrant(core, claim);
    Slot *slot = claim->slot;
    claim->slot = NULL;
    claim->state = WAITING;
    claim->owner = core;
    if (claim->turn == 0) {
        claim->turn = ++core->turns;
    }
    Claim *after = core->waiters.last;
    if (after != NULL && after->turn > claim->turn) {
        /* It has its old turn: near the front, behind others of the kind at most. */
        Claim *before = core->waiters.first;
        while (before->turn < claim->turn) {
            before = before->next;
        }
        after = before->prev;
    }
    list_insert(&core->waiters, claim, after);
    if (core_unplaced(core, claim)) {
        core->unplaced++;
    }
    Py_XDECREF(slot);
    if (owned) {
        Py_DECREF(claim);
    }
    return 0;
}

/* Hands the next free thing to the oldest waiter: a borrowed claim, owned by the list of granted
 * ones; NULL without an exception: nothing is free, or nobody waits. */
static Claim *
core_grant(Core *core)
{
    Slot *permit = NULL;
    if (core->waiters.first != NULL && core->idle == 0 && core->sync_factory &&
        core_total(core) < core->max_size && !core_refusing(core)) {
        permit = core_new_slot(core); /* before anything else is read */
        if (permit == NULL) {
            return NULL;
        }
    }
    Claim *claim = core->waiters.first;
    if (claim == NULL || core_refusing(core) ||
        (core_unplaced(core, claim) && core->probes >= core->recovering_limit) ||
        (core->idle == 0 && (permit == NULL || core_total(core) > core->max_size))) {
        if (permit != NULL) {
            core_fail_slot(core, permit);
            Py_DECREF(permit);
        }
        return NULL;
    }
    Slot *slot = permit;
    if (core->idle > 0) {
        slot = core->lifo ? ring_pop_last(core) : ring_pop_first(core);
        slot->state = RESERVED;
        if (permit != NULL) {
            core_fail_slot(core, permit);
        }
    }
    int failed = core_dequeue(core, claim);
    if (core->circuit == RECOVERING && claim->probe != core->recovery) {
        claim->probe = core->recovery;
        core->probes++;
    }
    claim->state = GRANTED;
    claim->slot = slot; /* was NULL while it waited */
    list_insert(&core->granted, claim, core->granted.last);
    Py_DECREF(claim); /* the queue's; the list has its own */
    if (permit != slot) {
        Py_XDECREF(permit);
    }
    return failed < 0 ? NULL : claim;
}

/* RESERVED -> LEASED. */
static int
core_hold(Core *core, Claim *claim, Slot *slot, double now, double waited)
{
    if (check_slot(slot, RESERVED, "lease") < 0 ||
        check_claim(claim, ASKING, GRANTED, "hold") < 0 || table_reserve(core) < 0) {
        return -1;
    }
    int owned = core_ungrant(core, claim);
    Slot *before = claim->slot;
    slot->state = LEASED;
    claim->state = HOLDING;
    claim->owner = core;
    claim->since = now;
    claim->slot = (Slot *)Py_NewRef(slot);
    slot->lease = (Claim *)Py_NewRef(claim);
    slot->uses++;
    slot->fresh = 0;
    Py_INCREF(slot);
    table_add(core, slot);
    core->out++;
    claim->number = ++core->acquired;
    core->wait_time += waited;
    if (waited > core->max_wait_time) {
        core->max_wait_time = waited;
    }
    Py_XDECREF(before);
    if (owned) {
        Py_DECREF(claim);
    }
    return 0;
}

/* Whether only the slot has it, and nobody else who had it has left anything in it. */
static int
stop_is_ours(PyObject *object)
{
    PyStopIterationObject *stop = (PyStopIterationObject *)object;
    return Py_REFCNT(stop) == 1 && stop->traceback == NULL && stop->context == NULL &&
           stop->cause == NULL && stop->dict == NULL && PyTuple_GET_SIZE(stop->args) == 0;
}

/* After the lease: its StopIteration forgets the resource. One that somebody has seen is theirs: the
 * slot's reference to that is returned, to be dropped last. */
static PyObject *
slot_take_back_stop(Slot *slot)
{
    PyObject *stop = slot->stop;
    if (stop == NULL) {
        return NULL;
    }
    if (stop_is_ours(stop)) {
        PyObject *value = ((PyStopIterationObject *)stop)->value;
        ((PyStopIterationObject *)stop)->value = NULL;
        return value;
    }
    slot->stop = NULL;
    return stop;
}

/* LEASED -> RESERVED. The claim that held it: a new reference. */
static Claim *
core_reclaim(Core *core, Slot *slot, double now)
{
    if (check_slot(slot, LEASED, "reclaim") < 0) {
        return NULL;
    }
    Claim *claim = slot->lease;
    if (claim == NULL || core->table == NULL) { /* torn down by the garbage collector */
        PyErr_SetString(PyExc_RuntimeError, "this pool was garbage-collected");
        return NULL;
    }
    if (check_claim(claim, HOLDING, HOLDING, "end") < 0) {
        return NULL;
    }
    double held = now - claim->since;
    table_remove(core, slot);
    slot->state = RESERVED;
    slot->lease = NULL;
    slot->probe = claim->probe;
    claim->state = ENDED;
    core->out--;
    core->released++;
    core->hold_time += held;
    if (held > core->max_hold_time) {
        core->max_hold_time = held;
    }
    PyObject *stop = slot_take_back_stop(slot);
    /* The caller holds the slot: neither of these is the last reference. */
    Slot *held_slot = claim->slot;
    claim->slot = NULL;
    Py_DECREF(held_slot);
    Py_DECREF(slot);
    Py_XDECREF(stop);
    return claim;
}

static int
core_end(Core *core, Claim *claim, int state, const char *event)
{
    if (check_claim(claim, WAITING, GRANTED, event) < 0) {
        return -1;
    }
    int failed = 0;
    if (claim->state == WAITING) {
        failed = core_dequeue(core, claim);
    }
    else {
        core_ungrant(core, claim);
    }
    claim->state = state;
    core_give_place(core, &claim->probe);
    Py_DECREF(claim);
    return failed;
}

static long long
core_demand(Core *core)
{
    if (core->sync_factory || core->waiters.length == 0 || core_refusing(core)) {
        return 0;
    }
    long long wanted = core->waiters.length;
    if (core->circuit == RECOVERING) {
        long long free = core->recovering_limit - core->probes;
        free = free < 0 ? 0 : free;
        wanted += (core->unplaced < free ? core->unplaced : free) - core->unplaced;
    }
    wanted -= core->idle + core->opening;
    long long room = core->max_size - core_total(core);
    wanted = wanted < room ? wanted : room;
    return wanted < 0 ? 0 : wanted;
}

static long long
core_shortage(Core *core)
{
    if (core->phase != OPEN || core->circuit == INACTIVE) {
        return 0;
    }
    long long missing = core->min_size - core->count - core->opening;
    long long room = core->max_size - core_total(core);
    missing = missing < room ? missing : room;
    return missing < 0 ? 0 : missing;
}

/* Whether an outcome with this probe number concerns the breaker. */
static int
core_reports(Core *core, long long probe)
{
    return core->circuit != RECOVERING || probe == core->recovery;
}

/* -- Core: the Python methods ---------------------------------------------------------------- */

#define NARGS(least, most, name)                                                                   \
    if (nargs < (least) || nargs > (most)) {                                                       \
        PyErr_Format(PyExc_TypeError, "%s() takes %d to %d arguments, not %zd", name, least, most, \
                     nargs);                                                                       \
        return NULL;                                                                               \
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
    if (slot == NULL || check_slot(slot, IDLE, "take") < 0) {
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
    if (core_total(core) >= core->max_size) {
        Py_RETURN_NONE;
    }
    Slot *slot = core_new_slot(core);
    if (slot != NULL && core_total(core) > core->max_size) { /* somebody was faster meanwhile */
        core_fail_slot(core, slot);
        Py_DECREF(slot);
        Py_RETURN_NONE;
    }
    return (PyObject *)slot;
}

static PyObject *
Core_permit(Core *core, PyObject *ignored)
{
    if (core->idle + core->max_size - core_total(core) <= core->waiters.length) {
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
        check_slot(slot, OPENING, "open") < 0) {
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
    if (slot == NULL || check_slot(slot, OPENING, "fail") < 0) {
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
    if (slot == NULL || check_slot(slot, RESERVED, "put") < 0 || ring_reserve(core) < 0) {
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
    if (slot == NULL || check_slot(slot, RESERVED, "retire") < 0) {
        return NULL;
    }
    slot->state = CLOSING;
    core_give_place(core, &slot->probe);
    core->count--;
    core->closing++;
    Py_RETURN_NONE;
}

static PyObject *
Core_finish(Core *core, PyObject *object)
{
    Slot *slot = as_slot(core, object);
    if (slot == NULL || check_slot(slot, CLOSING, "finish") < 0) {
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
    long long owed = core->probes + core->unplaced;
    for (Claim *granted = core->granted.first; granted != NULL; granted = granted->next) {
        owed += granted->probe != core->recovery; /* may wait again, before newcomers */
    }
    if (core->circuit == INACTIVE || owed >= core->recovering_limit) {
        Py_RETURN_FALSE;
    }
    core->probes++;
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
    core_give_place(core, &claim->probe);
    Py_RETURN_NONE;
}

static PyObject *
Core_reserve(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "reserve");
    Claim *claim = as_claim(core, args[0]);
    Slot *slot = claim == NULL ? NULL : as_slot(core, args[1]);
    if (slot == NULL || check_claim(claim, ASKING, ASKING, "grant") < 0) {
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
    if (claim == NULL || check_claim(claim, GRANTED, GRANTED, "ask") < 0) {
        return NULL;
    }
    core_ungrant(core, claim);
    claim->state = ASKING;
    Py_CLEAR(claim->slot);
    Py_DECREF(claim);
    Py_RETURN_NONE;
}

static PyObject *
Core_wait(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    return claim == NULL ? NULL : done_or_error(core_wait(core, claim));
}

static PyObject *
Core_grant(Core *core, PyObject *Py_UNUSED(ignored))
{
    Claim *claim = core_grant(core);
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
    if (slot == NULL || as_seconds(args[2], &now) < 0 ||
        (nargs == 4 && as_seconds(args[3], &waited) < 0)) {
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
    int result = core_end(core, claim, FAILED, "fail");
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
    int result = core_end(core, claim, ABANDONED, "leave");
    Py_DECREF(claim);
    return done_or_error(result);
}

static PyObject *
Core_find(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "find");
    if (core->table == NULL) {
        Py_RETURN_NONE;
    }
    Slot *slot = core->table[table_find(core, args[0])];
    while (slot != NULL && slot->twin != NULL) {
        if (args[1] != Py_None && slot->lease != NULL && slot->lease->task == args[1]) {
            break;
        }
        slot = (Slot *)slot->twin;
    }
    return newref_or_none((PyObject *)slot);
}

static PyObject *
Core_has_twins(Core *core, PyObject *resource)
{
    Slot *slot = core->table == NULL ? NULL : core->table[table_find(core, resource)];
    return PyBool_FromLong(slot != NULL && slot->twin != NULL);
}

static PyObject *
Core_leases(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && core->table != NULL && i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->twin) {
            if (slot->lease != NULL && PyList_Append(found, (PyObject *)slot->lease) < 0) {
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
Core_handed(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    if (found != NULL && append_claims(found, core->granted.first) < 0) {
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *
Core_pending(Core *core, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    if (found != NULL && (append_claims(found, core->granted.first) < 0 ||
                          append_claims(found, core->waiters.first) < 0)) {
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
Core_circle(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "circle");
    Claim *claim = as_claim(core, args[0]);
    int deadlines = claim == NULL ? -1 : PyObject_IsTrue(args[1]);
    PyObject *leases = deadlines < 0 ? NULL : PyList_New(0);
    if (leases == NULL || core->opening != 0 || core->closing != 0 || core->out == 0 ||
        core->out != core->count || core_total(core) < core->max_size) {
        return leases;
    }
    for (Py_ssize_t i = 0; i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->twin) {
            Claim *lease = slot->lease;
            int stuck = lease != NULL && lease->in_block && lease->task != NULL;
            if (stuck && lease->task != claim->task) {
                PyObject *key = PyLong_FromVoidPtr(lease->task);
                Claim *waiter = key == NULL ? NULL
                                            : (Claim *)PyDict_GetItemWithError(
                                                  core->waiting_tasks, key);
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
    long long surplus = core->count + core->opening - core->max_size;
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
    core->probes = 0;
    core->unplaced = 0;
    if (circuit == RECOVERING) {
        core->recovery++;
        core->unplaced = core->waiters.length;
    }
    Py_RETURN_NONE;
}

static PyObject *
Core_move(Core *core, PyObject *event)
{
    static const struct {
        const char *event;
        int from, to;
    } law[] = {
        {"open", NEW, OPEN},       {"close", NEW, CLOSED}, {"unopen", OPEN, NEW},
        {"drain", OPEN, DRAINING}, {"close", OPEN, CLOSED}, {"close", DRAINING, CLOSED},
    };
    const char *name = PyUnicode_AsUTF8(event);
    if (name == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(law); i++) {
        if (law[i].from == core->phase && strcmp(law[i].event, name) == 0) {
            core->phase = law[i].to;
            Py_RETURN_NONE;
        }
    }
    illegal(core->st, "pool", core->st->phases[core->phase], name);
    return NULL;
}

/* After a fork: whoever held or waited in the parent has no business here. */
static PyObject *
Core_disown(Core *core, PyObject *Py_UNUSED(ignored))
{
    for (Py_ssize_t i = 0; core->table != NULL && i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->twin) {
            if (slot->lease != NULL) {
                slot->lease->state = ENDED;
            }
        }
    }
    for (Claim *claim = core->granted.first; claim != NULL; claim = claim->next) {
        claim->state = ABANDONED;
    }
    for (Claim *claim = core->waiters.first; claim != NULL; claim = claim->next) {
        claim->state = ABANDONED;
    }
    Py_RETURN_NONE;
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
    {"wait", (PyCFunction)Core_wait, METH_O, NULL},
    {"grant", (PyCFunction)Core_grant, METH_NOARGS, NULL},
    {"hold", (PyCFunction)(void (*)(void))Core_hold, METH_FASTCALL, NULL},
    {"reclaim", (PyCFunction)(void (*)(void))Core_reclaim, METH_FASTCALL, NULL},
    {"fail", (PyCFunction)(void (*)(void))Core_fail, METH_FASTCALL, NULL},
    {"leave", (PyCFunction)Core_leave, METH_O, NULL},
    {"find", (PyCFunction)(void (*)(void))Core_find, METH_FASTCALL, NULL},
    {"has_twins", (PyCFunction)Core_has_twins, METH_O, NULL},
    {"leases", (PyCFunction)Core_leases, METH_NOARGS, NULL},
    {"handed", (PyCFunction)Core_handed, METH_NOARGS, NULL},
    {"pending", (PyCFunction)Core_pending, METH_NOARGS, NULL},
    {"idle_slots", (PyCFunction)Core_idle_slots, METH_NOARGS, NULL},
    {"in_hand", (PyCFunction)Core_in_hand, METH_NOARGS, NULL},
    {"circle", (PyCFunction)(void (*)(void))Core_circle, METH_FASTCALL, NULL},
    {"demand", (PyCFunction)Core_demand, METH_NOARGS, NULL},
    {"shortage", (PyCFunction)Core_shortage, METH_NOARGS, NULL},
    {"surplus", (PyCFunction)Core_surplus, METH_NOARGS, NULL},
    {"reports", (PyCFunction)Core_reports, METH_O, NULL},
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

static PyGetSetDef core_getset[] = {
    {"phase", (getter)Core_get_phase, NULL, NULL, NULL},
    {"circuit", (getter)Core_get_circuit, NULL, NULL, NULL},
    {"active", (getter)Core_get_active, NULL, NULL, NULL},
    {"total", (getter)Core_get_total, NULL, NULL, NULL},
    {"first", (getter)Core_get_first, NULL, NULL, NULL},
    {"last", (getter)Core_get_last, NULL, NULL, NULL},
    {"max_idle", (getter)Core_get_max_idle, NULL, NULL, NULL},
    {"max_uses", (getter)Core_get_max_uses, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef core_members[] = {
    {"min_size", T_LONGLONG, offsetof(Core, min_size), 0, NULL},
    {"max_size", T_LONGLONG, offsetof(Core, max_size), 0, NULL},
    {"sync_factory", T_BOOL, offsetof(Core, sync_factory), 0, NULL},
    {"generation", T_LONGLONG, offsetof(Core, generation), 0, NULL},
    {"busy", T_INT, offsetof(Core, busy), 0, NULL},
    {"lifo", T_BOOL, offsetof(Core, lifo), READONLY, NULL},
    {"recovering_limit", T_LONGLONG, offsetof(Core, recovering_limit), READONLY, NULL},
    {"recovery", T_LONGLONG, offsetof(Core, recovery), READONLY, NULL},
    {"probes", T_LONGLONG, offsetof(Core, probes), READONLY, NULL},
    {"unplaced", T_LONGLONG, offsetof(Core, unplaced), READONLY, NULL},
    {"count", T_LONGLONG, offsetof(Core, count), READONLY, NULL},
    {"idle_count", T_PYSSIZET, offsetof(Core, idle), READONLY, NULL},
    {"opening", T_LONGLONG, offsetof(Core, opening), READONLY, NULL},
    {"closing", T_LONGLONG, offsetof(Core, closing), READONLY, NULL},
    {"out", T_LONGLONG, offsetof(Core, out), READONLY, NULL},
    {"waiting", T_PYSSIZET, offsetof(Core, waiters.length), READONLY, NULL},
    {"granted_count", T_PYSSIZET, offsetof(Core, granted.length), READONLY, NULL},
    {"idle_orders", T_LONGLONG, offsetof(Core, idle_orders), READONLY, NULL},
    {"turns", T_LONGLONG, offsetof(Core, turns), READONLY, NULL},
    {"acquired", T_LONGLONG, offsetof(Core, acquired), READONLY, NULL},
    {"released", T_LONGLONG, offsetof(Core, released), READONLY, NULL},
    {"wait_time", T_DOUBLE, offsetof(Core, wait_time), READONLY, NULL},
    {"max_wait_time", T_DOUBLE, offsetof(Core, max_wait_time), READONLY, NULL},
    {"hold_time", T_DOUBLE, offsetof(Core, hold_time), READONLY, NULL},
    {"max_hold_time", T_DOUBLE, offsetof(Core, max_hold_time), READONLY, NULL},
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
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$LLOOpLp:Core", names, &min_size, &max_size,
                                     &max_uses, &max_idle, &lifo, &limit, &sync_factory)) {
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
    core->waiting_tasks = PyDict_New();
    if (core->waiting_tasks == NULL || PyErr_Occurred()) {
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
    for (Slot *slot = core->slots; slot != NULL; slot = (Slot *)slot->after) {
        Py_VISIT(slot);
    }
    for (Py_ssize_t i = 0; i < core->idle; i++) {
        Py_VISIT(ring_at(core, i));
    }
    for (Py_ssize_t i = 0; core->table != NULL && i <= core->mask; i++) {
        for (Slot *slot = core->table[i]; slot != NULL; slot = (Slot *)slot->twin) {
            Py_VISIT(slot);
        }
    }
    for (Claim *claim = core->waiters.first; claim != NULL; claim = claim->next) {
        Py_VISIT(claim);
    }
    for (Claim *claim = core->granted.first; claim != NULL; claim = claim->next) {
        Py_VISIT(claim);
    }
    return 0;
}

static void
clear_list(List *list)
{
    while (list->first != NULL) {
        Claim *claim = list->first;
        list_remove(list, claim);
        claim->state = ABANDONED;
        Py_DECREF(claim);
    }
}

static int
Core_clear(Core *core)
{
    Py_CLEAR(core->waiting_tasks);
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
            Slot *older = (Slot *)slot->twin;
            slot->twin = NULL;
            Py_DECREF(slot);
            slot = older;
        }
    }
    PyMem_Free(table);
    clear_list(&core->waiters);
    clear_list(&core->granted);
    while (core->slots != NULL) {
        core_unlist(core->slots);
    }
    return 0;
}

static void
Core_dealloc(Core *core)
{
    PyTypeObject *type = Py_TYPE(core);
    PyObject_GC_UnTrack(core);
    Core_clear(core);
    PyMem_Free(core->ring);
    type->tp_free(core);
    Py_DECREF(type);
}

static PyType_Slot core_slots[] = {
    {Py_tp_doc, "The state of one pool, in C. See pure.py for what each method decides."},
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

/* -- Slot ------------------------------------------------------------------------------------ */

static PyObject *
Slot_get_state(Slot *slot, void *Py_UNUSED(closure))
{
    return Py_NewRef(slot->st->slot_states[slot->state]);
}

static PyGetSetDef slot_getset[] = {
    {"state", (getter)Slot_get_state, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef slot_members[] = {
    {"resource", T_OBJECT, offsetof(Slot, resource), READONLY, NULL},
    {"lease", T_OBJECT, offsetof(Slot, lease), READONLY, NULL},
    {"expires_at", T_DOUBLE, offsetof(Slot, expires_at), 0, NULL},
    {"idle_since", T_DOUBLE, offsetof(Slot, idle_since), 0, NULL},
    {"idle_order", T_LONGLONG, offsetof(Slot, idle_order), READONLY, NULL},
    {"generation", T_LONGLONG, offsetof(Slot, generation), READONLY, NULL},
    {"uses", T_LONGLONG, offsetof(Slot, uses), READONLY, NULL},
    {"probe", T_LONGLONG, offsetof(Slot, probe), READONLY, NULL},
    {"fresh", T_BOOL, offsetof(Slot, fresh), 0, NULL},
    {"told", T_BOOL, offsetof(Slot, told), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
Slot_traverse(Slot *slot, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(slot));
    Py_VISIT(slot->resource);
    Py_VISIT(slot->stop);
    Py_VISIT(slot->lease);
    return 0;
}

static int
Slot_clear(Slot *slot)
{
    /* A leased slot is found in the table by its resource: leave that to the core. */
    if (slot->state != LEASED) {
        Py_CLEAR(slot->resource);
    }
    Py_CLEAR(slot->stop);
    Py_CLEAR(slot->lease);
    return 0;
}

static void
Slot_dealloc(Slot *slot)
{
    PyTypeObject *type = Py_TYPE(slot);
    PyObject_GC_UnTrack(slot);
    Py_CLEAR(slot->resource);
    Py_CLEAR(slot->stop);
    Py_CLEAR(slot->lease);
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

/* -- Claim ----------------------------------------------------------------------------------- */

static PyObject *
Claim_get_state(Claim *claim, void *Py_UNUSED(closure))
{
    return Py_NewRef(claim->st->claim_states[claim->state]);
}

static PyObject *
Claim_get_slot(Claim *claim, void *Py_UNUSED(closure))
{
    return newref_or_none((PyObject *)claim->slot);
}

static int
Claim_set_slot(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    if (claim->state == HOLDING) { /* the core relies on it */
        PyErr_SetString(PyExc_AttributeError, "the slot of a claim that holds it is fixed");
        return -1;
    }
    if (value == Py_None) {
        value = NULL;
    }
    else if (value == NULL || !PyObject_TypeCheck(value, claim->st->slot_type)) {
        PyErr_SetString(PyExc_TypeError, "slot must be a Slot or None");
        return -1;
    }
    Py_XSETREF(claim->slot, (Slot *)Py_XNewRef(value));
    return 0;
}

static PyObject *
Claim_get_task(Claim *claim, void *Py_UNUSED(closure))
{
    return newref_or_none(claim->task);
}

static int
Claim_set_task(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    if (claim->state == WAITING) { /* the core finds it by its task */
        PyErr_SetString(PyExc_AttributeError, "the task of a claim that waits is fixed");
        return -1;
    }
    Py_CLEAR(claim->key);
    Py_XSETREF(claim->task, value == Py_None ? NULL : Py_XNewRef(value));
    return 0;
}

static PyObject *
Claim_get_deadline(Claim *claim, void *Py_UNUSED(closure))
{
    return isnan(claim->deadline) ? Py_NewRef(Py_None) : PyFloat_FromDouble(claim->deadline);
}

static int
Claim_set_deadline(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    double deadline = value == NULL ? Py_NAN : optional_seconds(value);
    if (deadline == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    claim->deadline = deadline;
    return 0;
}

static PyObject *
Claim_get_timeout(Claim *claim, void *Py_UNUSED(closure))
{
    return isnan(claim->timeout) ? Py_NewRef(Py_None) : PyFloat_FromDouble(claim->timeout);
}

/* Who is woken, and knows of the wait: the slow part, or the claim itself if it waits in C. */
static PyObject *
Claim_get_waiting(Claim *claim, void *Py_UNUSED(closure))
{
    if (claim->waiting == NULL && claim->plain) {
        return Py_NewRef(claim);
    }
    return newref_or_none(claim->waiting);
}

static int
Claim_set_waiting(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    Py_XSETREF(claim->waiting, value == NULL || value == Py_None ? NULL : Py_NewRef(value));
    return 0;
}

static PyObject *
Claim_get_inspection(Claim *Py_UNUSED(claim), void *Py_UNUSED(closure))
{
    Py_RETURN_NONE;
}

static int claim_wake(Claim *claim);

static PyObject *
Claim_wake(Claim *claim, PyObject *Py_UNUSED(ignored))
{
    return claim_wake(claim) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef claim_methods[] = {
    {"wake", (PyCFunction)Claim_wake, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef claim_getset[] = {
    {"waiting", (getter)Claim_get_waiting, (setter)Claim_set_waiting, NULL, NULL},
    {"inspection", (getter)Claim_get_inspection, NULL, NULL, NULL},
    {"state", (getter)Claim_get_state, NULL, NULL, NULL},
    {"slot", (getter)Claim_get_slot, (setter)Claim_set_slot, NULL, NULL},
    {"task", (getter)Claim_get_task, (setter)Claim_set_task, NULL, NULL},
    {"deadline", (getter)Claim_get_deadline, (setter)Claim_set_deadline, NULL, NULL},
    {"timeout", (getter)Claim_get_timeout, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef claim_members[] = {
    {"next", T_OBJECT, offsetof(Claim, next), READONLY, NULL},
    {"previous", T_OBJECT, offsetof(Claim, prev), READONLY, NULL},
    {"error", T_OBJECT, offsetof(Claim, error), 0, NULL},
    {"code", T_OBJECT, offsetof(Claim, code), 0, NULL},
    {"reason", T_OBJECT, offsetof(Claim, reason), 0, NULL},
    {"began", T_DOUBLE, offsetof(Claim, began), 0, NULL},
    {"since", T_DOUBLE, offsetof(Claim, since), 0, NULL},
    {"probe", T_LONGLONG, offsetof(Claim, probe), 0, NULL},
    {"turn", T_LONGLONG, offsetof(Claim, turn), READONLY, NULL},
    {"failures", T_LONGLONG, offsetof(Claim, failures), 0, NULL},
    {"over", T_BOOL, offsetof(Claim, over), 0, NULL},
    {"number", T_LONGLONG, offsetof(Claim, number), READONLY, NULL},
    {"before", T_LONGLONG, offsetof(Claim, before), 0, NULL},
    {"instruction", T_INT, offsetof(Claim, instruction), 0, NULL},
    {"in_block", T_BOOL, offsetof(Claim, in_block), 0, NULL},
    {"warned", T_BOOL, offsetof(Claim, warned), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void
claim_start(Claim *claim, State *st)
{
    claim->st = st;
    claim->owner = NULL;
    claim->slot = NULL;
    claim->prev = claim->next = NULL;
    claim->error = claim->task = claim->code = claim->reason = claim->waiting = claim->key = NULL;
    claim->front = claim->result = claim->steps = NULL;
    claim->deadline = claim->timeout = Py_NAN;
    claim->began = claim->since = 0.0;
    claim->probe = claim->turn = claim->before = claim->number = 0;
    claim->instruction = 0;
    claim->state = ASKING;
    claim->in_block = claim->warned = claim->used = claim->must_wait = claim->plain = 0;
    claim->over = 0;
    claim->future = claim->pause = NULL;
    claim->place = 0;
    claim->failures = 0;
}

static PyObject *
Claim_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Claim", names)) {
        return NULL;
    }
    PyObject *module = PyType_GetModuleByDef(type, &module_def);
    Claim *claim = module == NULL ? NULL : (Claim *)type->tp_alloc(type, 0);
    if (claim != NULL) {
        claim_start(claim, PyModule_GetState(module));
    }
    return (PyObject *)claim;
}

static int
Claim_traverse(Claim *claim, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(claim));
    Py_VISIT(claim->slot);
    Py_VISIT(claim->error);
    Py_VISIT(claim->task);
    Py_VISIT(claim->code);
    Py_VISIT(claim->reason);
    Py_VISIT(claim->waiting);
    Py_VISIT(claim->front);
    Py_VISIT(claim->result);
    Py_VISIT(claim->steps);
    Py_VISIT(claim->future);
    Py_VISIT(claim->pause);
    return 0;
}

static void deadline_remove(Claim *claim);

static int
Claim_clear(Claim *claim)
{
    deadline_remove(claim);
    Py_CLEAR(claim->future);
    Py_CLEAR(claim->pause);
    Py_CLEAR(claim->slot);
    Py_CLEAR(claim->error);
    Py_CLEAR(claim->key);
    Py_CLEAR(claim->task);
    Py_CLEAR(claim->code);
    Py_CLEAR(claim->reason);
    Py_CLEAR(claim->waiting);
    Py_CLEAR(claim->front);
    Py_CLEAR(claim->result);
    Py_CLEAR(claim->steps);
    return 0;
}

static void
Claim_dealloc(Claim *claim)
{
    PyTypeObject *type = Py_TYPE(claim);
    PyObject_GC_UnTrack(claim);
    Claim_clear(claim);
    /* Not claim->st: when a module is collected with what it made, its state may be gone by now. */
    PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
    State *st = module == NULL ? NULL : PyModule_GetState(module);
    if (st != NULL && type == st->acquire_type && st->spares < SPARE && !st->ended) {
        st->spare[st->spares++] = claim; /* it keeps its type: see acquire_new */
        return;
    }
    type->tp_free(claim);
    Py_DECREF(type);
}

static PyType_Slot claim_slots[] = {
    {Py_tp_doc, "One acquire: it may wait, is granted a slot, and holds it until the return."},
    {Py_tp_new, Claim_new},
    {Py_tp_methods, claim_methods},
    {Py_tp_getset, claim_getset},
    {Py_tp_members, claim_members},
    {Py_tp_traverse, Claim_traverse},
    {Py_tp_clear, Claim_clear},
    {Py_tp_dealloc, Claim_dealloc},
    {0, NULL},
};

static PyType_Spec claim_spec = {
    .name = "cenote._core.native.Claim",
    .basicsize = sizeof(Claim),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_BASETYPE,
    .slots = claim_slots,
};

