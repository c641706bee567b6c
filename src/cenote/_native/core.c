/* Core: the decisions of machine.py. */

/* -- Core: slots ----------------------------------------------------------------------------- */

/* The claims that still wait and are about to be failed. */
static int
core_refusing(Core *core)
{
    return core->circuit == INACTIVE || core->phase == CLOSED;
}

static int
core_without_probe(Core *core, Claim *claim)
{
    return core->circuit == RECOVERING && claim->probe != core->recovery;
}

static void
core_release_probe(Core *core, long long *probe)
{
    if (*probe != 0 && *probe == core->recovery && core->circuit == RECOVERING) {
        core->probes_in_use--;
    }
    *probe = 0;
}

static long long
core_total(Core *core)
{
    return core->opening + core->count + core->closing;
}

/* How many slots there may be beside those that there are. */
static long long
core_left(Core *core)
{
    return core->max_size - core_total(core);
}

/* How many more slots may be made now: the one place that knows. Below 0 after a resize. */
static long long
core_room(Core *core)
{
    long long left = core_left(core), creating = core->max_creating - core->opening;
    return left < creating ? left : creating;
}

/* How many there are too many; those that are being destroyed are on their way out already. */
static long long
core_excess(Core *core)
{
    return -(core_left(core) + core->closing);
}

/* The most that is wanted at once: in use, or waited for. A reader begins to count from there. */
static inline void
core_note_peak(Core *core)
{
    long long wanted = core->count - core->idle + core->waiters.length;
    core->peak = wanted > core->peak ? wanted : core->peak;
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

/* The allocation may run the garbage collector, and so any code: the caller has to look again at
 * what it had read before. */
static Slot *
core_new_slot(Core *core)
{
    Slot *slot = PyObject_GC_New(Slot, core->st->slot_type);
    if (slot == NULL) {
        return NULL;
    }
    slot->owner = core;
    slot->resource = NULL;
    slot->holder = NULL;
    slot->lane = NULL;
    slot->expires_at = Py_HUGE_VAL;
    slot->idle_since = 0.0;
    slot->idle_seq = 0;
    slot->generation = (uint32_t)core->generation;
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
    if ((double)slot->idle_seq > before) {
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
    if (slot->generation != (uint32_t)core->generation) {
        return "retired";
    }
    if (core_excess(core) > 0) {
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
    if (check_slot(slot, SLOT_PUT) < 0 || ring_reserve(core) < 0) {
        return -1;
    }
    slot->state = IDLE;
    core_release_probe(core, &slot->probe);
    if (slot->lane != NULL) {
        core->now = now;
        core_leave_lane(core, slot);
    }
    slot->idle_since = now;
    slot->idle_seq = ++core->idle_seqs;
    Py_INCREF(slot);
    ring_append(core, slot);
    return 0;
}

/* -- Core: claims ---------------------------------------------------------------------------- */

/* Out of the queue, or out of its lane; the reference of the list moves to the caller. */
static int
core_dequeue(Core *core, Claim *claim)
{
    if (claim->parked) {
        core_unpark(core, claim);
    }
    else {
        queue_remove(core, claim);
        if (core_without_probe(core, claim)) {
            core->waiters_without_probe--;
        }
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

/* `now`: if it is not what it was when the claim began, else NaN. */
static int
core_wait(Core *core, Claim *claim, double now)
{
    if (check_claim(claim, CLAIM_WAIT) < 0) {
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
    double since = isnan(now) ? claim->began : now;
    if (claim->queue_seq == 0) {
        claim->queue_seq = ++core->queue_seqs;
        claim->queued_at = since;
    }
    if (core_enter(claim)) {
        core_stand(core, claim, since, NULL);
        core_note_peak(core);
    }
    else {
        core_park(core, claim);
    }
    Py_XDECREF(slot);
    if (owned) {
        Py_DECREF(claim);
    }
    return 0;
}

/* Hands the next free thing to the next waiter: a borrowed claim, owned by the list of granted
 * ones; NULL without an exception: nothing is free, or nobody waits. A claim that still waits is not
 * to be served: it is to be failed, because of an overload. */
static Claim *
core_grant(Core *core, double now)
{
    Slot *permit = NULL;
    if (core->waiters.first != NULL && core->idle == 0 && core->sync_factory && core_room(core) > 0 &&
        !core_refusing(core)) {
        permit = core_new_slot(core); /* before anything else is read */
        if (permit == NULL) {
            return NULL;
        }
    }
    Claim *claim = core->waiters.first;
    if (claim == NULL || core_refusing(core) ||
        (core_without_probe(core, claim) && core->probes_in_use >= core->recovering_limit) ||
        (core->idle == 0 && (permit == NULL || core_room(core) < 0))) {
        if (permit != NULL) {
            core_fail_slot(core, permit);
            Py_DECREF(permit);
        }
        return NULL;
    }
    if (!isnan(core->queue_target) && core_sheds(core, claim, now)) {
        if (permit != NULL) {
            core_fail_slot(core, permit);
            Py_DECREF(permit);
        }
        return claim;
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
        core->probes_in_use++;
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

/* A factory is about to be started for a claim that waits: the claim, if it is to be failed instead,
 * because of an overload. */
static Claim *
core_choose(Core *core, double now)
{
    Claim *claim = core->waiters.first;
    while (claim != NULL && claim->chosen) {
        claim = claim->next;
    }
    return claim != NULL && !isnan(core->queue_target) && core_sheds(core, claim, now) ? claim : NULL;
}

/* RESERVED -> LEASED. */
static int
core_hold(Core *core, Claim *claim, Slot *slot, double now, double waited)
{
    if (check_slot(slot, SLOT_LEASE) < 0 || check_claim(claim, CLAIM_HOLD) < 0 || table_reserve(core) < 0) {
        return -1;
    }
    int owned = core_ungrant(core, claim);
    Slot *before = claim->slot;
    slot->state = LEASED;
    claim->state = HOLDING;
    claim->owner = core;
    claim->since = now;
    claim->slot = (Slot *)Py_NewRef(slot);
    slot->holder = (Claim *)Py_NewRef(claim);
    slot->uses++;
    slot->fresh = 0;
    Py_INCREF(slot);
    table_add(core, slot);
    core->out++;
    claim->lease_seq = ++core->acquired;
    core_note_peak(core);
    core->wait_time += waited;
    if (waited > core->max_wait_time) {
        core->max_wait_time = waited;
    }
    if (claim->lane != NULL) {
        claim->lane->acquired++;
        claim->lane->wait_time += waited;
        claim->lane->max_wait_time = fmax(claim->lane->max_wait_time, waited);
    }
    if (core->histograms != NULL) {
        histograms_waited(core->histograms, waited);
    }
    deadline_remove(claim);
    Py_XDECREF(before);
    if (owned) {
        Py_DECREF(claim);
    }
    return 0;
}

/* LEASED -> RESERVED. The claim that held it: a new reference. */
static Claim *
core_reclaim(Core *core, Slot *slot, double now)
{
    if (check_slot(slot, SLOT_RECLAIM) < 0) {
        return NULL;
    }
    Claim *claim = slot->holder;
    if (claim == NULL || core->table == NULL) { /* torn down by the garbage collector */
        PyErr_SetString(PyExc_RuntimeError, "this pool was garbage-collected");
        return NULL;
    }
    if (check_claim(claim, CLAIM_END) < 0) {
        return NULL;
    }
    double held = now - claim->since;
    table_remove(core, slot);
    slot->state = RESERVED;
    slot->holder = NULL;
    slot->probe = claim->probe;
    if (claim->placed) {
        core->now = now;
        slot->lane = claim->lane;
        claim->placed = 0;
    }
    claim->state = ENDED;
    core->out--;
    core->released++;
    core->hold_time += held;
    if (held > core->max_hold_time) {
        core->max_hold_time = held;
    }
    if (core->histograms != NULL) {
        histograms_held(core->histograms, held);
    }
    PyObject *stop = core_take_back_stop(core, slot->resource);
    /* The caller holds the slot: neither of these is the last reference. */
    Slot *held_slot = claim->slot;
    claim->slot = NULL;
    Py_DECREF(held_slot);
    Py_DECREF(slot);
    Py_XDECREF(stop);
    return claim;
}

static int
core_end(Core *core, Claim *claim, int event)
{
    if (check_claim(claim, event) < 0) {
        return -1;
    }
    int failed = 0;
    int state = claim_law[claim->state][event];
    Claim *near = NULL;
    if (claim->state == WAITING) {
        near = claim->next;
        failed = core_dequeue(core, claim);
    }
    else {
        core_ungrant(core, claim);
    }
    claim->state = state;
    core_release_probe(core, &claim->probe);
    core_vacate(core, claim, near);
    deadline_remove(claim);
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
        long long free = core->recovering_limit - core->probes_in_use;
        free = free < 0 ? 0 : free;
        wanted += (core->waiters_without_probe < free ? core->waiters_without_probe : free) -
                  core->waiters_without_probe;
    }
    wanted -= core->idle + core->opening;
    long long room = core_room(core);
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
    long long room = core_room(core);
    missing = missing < room ? missing : room;
    return missing < 0 ? 0 : missing;
}

/* Whether an outcome with this probe number concerns the breaker. */
static int
core_reports(Core *core, long long probe)
{
    return core->circuit != RECOVERING || probe == core->recovery;
}
