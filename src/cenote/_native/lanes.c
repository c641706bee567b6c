/* Lanes and the queue: the decisions of queue.py. */

/* -- the queue ------------------------------------------------------------------------------- */

static inline Level *
level_of(Core *core, Claim *claim)
{
    return claim->lane == NULL ? &core->normal : claim->lane->level;
}

/* Enqueue it behind claims of its priority, or a higher one, with an earlier turn. `near`: where a
 * claim stood that has just left the queue, or NULL. The search begins there if it can. */
static void
queue_insert(Core *core, Claim *claim, Claim *near)
{
    Level *level = level_of(core, claim), *above = level->higher;
    while (above != NULL && above->last == NULL) {
        above = above->higher;
    }
    Claim *before_level = above == NULL ? NULL : above->last;
    Claim *after = level->last;
    if (after == NULL) {
        after = before_level;
    }
    else if (after->queue_seq > claim->queue_seq) {
        /* It has its old turn: near the front, behind others of the kind at most. */
        Claim *before = before_level == NULL ? core->waiters.first : before_level->next;
        if (near != NULL && near->prev != before_level && level_of(core, near) == level &&
            near->prev->queue_seq < claim->queue_seq) {
            before = near;
        }
        while (before->queue_seq < claim->queue_seq) {
            before = before->next;
        }
        after = before->prev;
    }
    if (level->last == NULL || after == level->last) {
        level->last = claim;
    }
    if (claim->lane != NULL) {
        claim->lane->queued++;
    }
    list_insert(&core->waiters, claim, after);
}

/* Out of the queue; its reference moves to the caller. */
static inline void
queue_remove(Core *core, Claim *claim)
{
    Level *level = level_of(core, claim);
    if (level->last == claim) {
        Claim *before = claim->prev;
        level->last = before != NULL && level_of(core, before) == level ? before : NULL;
    }
    if (claim->lane != NULL) {
        claim->lane->queued--;
    }
    list_remove(&core->waiters, claim);
}

/* Into the queue, in which it stands since that time. In an empty one, what is judged begins. */
static void
core_stand(Core *core, Claim *claim, double since, Claim *near)
{
    if (core->waiters.length == 0) {
        core->overloaded = 0;
        core->standing_since = since;
    }
    if (core->waiters.length < core->opening && !core->sync_factory) {
        claim->chosen = 1; /* more factories run than claims wait */
    }
    queue_insert(core, claim, near);
    if (core_without_probe(core, claim)) {
        core->waiters_without_probe++;
    }
}

/* Whether a claim whose turn has come is refused instead: controlled delay, see queue.py. */
static int
core_sheds(Core *core, Claim *claim, double now)
{
    double waited = now - claim->queued_at;
    core->now = now;
    if (claim->chosen) {
        return 0;
    }
    if (waited < core->queue_target) {
        core->overloaded = 0;
        core->standing_since = now;
    }
    else if (now - core->standing_since >= core->queue_interval) {
        core->overloaded = 1;
    }
    claim->chosen = !(core->overloaded && waited > 2 * core->queue_target);
    return !claim->chosen;
}

/* -- places ---------------------------------------------------------------------------------- */

/* Whether the claim has a place of its lane, or may have one now. Without a lane: yes. */
static int
core_enter(Claim *claim)
{
    Lane *lane = claim->lane;
    if (lane == NULL || claim->placed) {
        return 1;
    }
    if (lane->used >= lane->max_size) {
        return 0;
    }
    lane->used++;
    claim->placed = 1;
    return 1;
}

/* Behind the last that waits for a place of its lane. */
static void
core_park(Core *core, Claim *claim)
{
    core_release_probe(core, &claim->probe);
    list_insert(&claim->lane->parked, claim, claim->lane->parked.last);
    claim->parked = 1;
    core->parked++;
}

/* Out of the parked ones of its lane; the reference of that list moves to the caller. */
static void
core_unpark(Core *core, Claim *claim)
{
    list_remove(&claim->lane->parked, claim);
    claim->parked = 0;
    core->parked--;
}

/* One place less is taken: the oldest that waits for one has it, and is in the queue. */
static void
core_free_place(Core *core, Lane *lane, Claim *near)
{
    lane->used--;
    Claim *claim = lane->parked.first;
    if (claim != NULL && core_enter(claim)) {
        core_unpark(core, claim);
        claim->queued_at = core->now;
        core_stand(core, claim, core->now, near);
        Py_DECREF(claim); /* the lane's; the queue has its own */
    }
}

/* The claim gives up its place of its lane, if it has one. `near`: see queue_insert(). */
static void
core_vacate(Core *core, Claim *claim, Claim *near)
{
    if (claim->placed) {
        claim->placed = 0;
        core_free_place(core, claim->lane, near);
    }
}

/* The same for a slot, which had it from its holder. The core has a reference to every lane. */
static inline void
core_leave_lane(Core *core, Slot *slot)
{
    if (slot->lane != NULL) {
        Lane *lane = slot->lane;
        slot->lane = NULL;
        core_free_place(core, lane, NULL);
    }
}

/* -- the Python type ------------------------------------------------------------------------- */

static Level *
core_level(Core *core, long long priority)
{
    Level *higher = NULL, *level = &core->normal;
    while (level->higher != NULL) {
        level = level->higher;
    }
    while (level != NULL && level->priority > priority) {
        higher = level;
        level = level->lower;
    }
    if (level != NULL && level->priority == priority) {
        return level;
    }
    Level *new = PyMem_Calloc(1, sizeof(Level));
    if (new == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *new = (Level){.higher = higher, .lower = level, .priority = priority};
    if (higher != NULL) {
        higher->lower = new;
    }
    if (level != NULL) {
        level->higher = new;
    }
    return new;
}

static void
levels_free(Core *core)
{
    for (Level *level = core->normal.higher; level != NULL;) {
        Level *higher = level->higher;
        PyMem_Free(level);
        level = higher;
    }
    for (Level *level = core->normal.lower; level != NULL;) {
        Level *lower = level->lower;
        PyMem_Free(level);
        level = lower;
    }
}

/* add_lane(name, max_size, priority) */
static PyObject *
Core_add_lane(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(3, 3, "add_lane");
    if (core->lanes == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was garbage-collected");
        return NULL;
    }
    long long max_size = args[1] == Py_None ? LLONG_MAX : PyLong_AsLongLong(args[1]);
    long long priority = PyLong_AsLongLong(args[2]);
    Level *level = PyErr_Occurred() ? NULL : core_level(core, priority);
    Lane *lane =
        level == NULL ? NULL : (Lane *)core->st->lane_type->tp_alloc(core->st->lane_type, 0); /* zeroed */
    if (lane == NULL) {
        return NULL;
    }
    lane->owner = core;
    lane->name = Py_NewRef(args[0]);
    lane->max_size = max_size;
    lane->level = level;
    lane->priority = priority;
    if (PyList_Append(core->lanes, (PyObject *)lane) < 0) {
        Py_CLEAR(lane);
    }
    return (PyObject *)lane;
}

static PyObject *
Core_enter(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    return claim == NULL ? NULL : PyBool_FromLong(core_enter(claim));
}

static PyObject *
Lane_get_max_size(Lane *lane, void *Py_UNUSED(closure))
{
    return lane->max_size == LLONG_MAX ? Py_NewRef(Py_None) : PyLong_FromLongLong(lane->max_size);
}

static PyObject *
Lane_get_first(Lane *lane, void *Py_UNUSED(closure))
{
    return newref_or_none((PyObject *)lane->parked.first);
}

static PyGetSetDef lane_getset[] = {
    {"name", get_object, NULL, NULL, (void *)offsetof(Lane, name)},
    {"max_size", (getter)Lane_get_max_size, NULL, NULL, NULL},
    {"first", (getter)Lane_get_first, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef lane_members[] = {
    {"priority", Py_T_LONGLONG, offsetof(Lane, priority), Py_READONLY, NULL},
    {"used", Py_T_LONGLONG, offsetof(Lane, used), Py_READONLY, NULL},
    {"queued", Py_T_LONGLONG, offsetof(Lane, queued), Py_READONLY, NULL},
    {"parked", Py_T_PYSSIZET, offsetof(Lane, parked.length), Py_READONLY, NULL},
    {"acquired", Py_T_LONGLONG, offsetof(Lane, acquired), Py_READONLY, NULL},
    {"wait_time", Py_T_DOUBLE, offsetof(Lane, wait_time), Py_READONLY, NULL},
    {"max_wait_time", Py_T_DOUBLE, offsetof(Lane, max_wait_time), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
Lane_traverse(Lane *lane, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(lane));
    Py_VISIT(lane->name);
    for (Claim *claim = lane->parked.first; claim != NULL; claim = claim->next) {
        Py_VISIT(claim);
    }
    return 0;
}

/* Its list is cleared by the core, which counts it. */
static void
Lane_dealloc(Lane *lane)
{
    PyTypeObject *type = Py_TYPE(lane);
    PyObject_GC_UnTrack(lane);
    clear_list(&lane->parked);
    Py_XDECREF(lane->name);
    type->tp_free(lane);
    Py_DECREF(type);
}

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "A part of the acquires of a pool. See records.py."},
    {Py_tp_getset, lane_getset},
    {Py_tp_members, lane_members},
    {Py_tp_traverse, Lane_traverse},
    {Py_tp_dealloc, Lane_dealloc},
    {0, NULL},
};

static PyType_Spec lane_spec = {
    .name = "cenote._core.native.Lane",
    .basicsize = sizeof(Lane),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = lane_slots,
};
