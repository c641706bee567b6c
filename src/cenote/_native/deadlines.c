/* Deadlines: a heap of claims, each of which knows its place. See _core/deadlines.py. */

static int
is_earlier(Claim *one, Claim *other)
{
    return one->deadline < other->deadline ||
           (one->deadline == other->deadline && one->deadline_seq < other->deadline_seq);
}

static void
deadline_put(Core *core, Py_ssize_t i, Claim *claim)
{
    core->deadlines[i] = claim;
    claim->place = i;
}

static void
deadline_rise(Core *core, Py_ssize_t i, Claim *claim)
{
    while (i > 0 && is_earlier(claim, core->deadlines[(i - 1) / 2])) {
        deadline_put(core, i, core->deadlines[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    deadline_put(core, i, claim);
}

static void
deadline_sink(Core *core, Py_ssize_t i, Claim *claim)
{
    for (;;) {
        Py_ssize_t child = 2 * i + 1;
        if (child + 1 < core->timed && is_earlier(core->deadlines[child + 1], core->deadlines[child])) {
            child++;
        }
        if (child >= core->timed || !is_earlier(core->deadlines[child], claim)) {
            break;
        }
        deadline_put(core, i, core->deadlines[child]);
        i = child;
    }
    deadline_put(core, i, claim);
}

/* Makes room in the heap for one more, so that deadline_add() cannot fail. */
static int
deadline_reserve(Core *core)
{
    if (core->timed < core->timed_capacity) {
        return 0;
    }
    Py_ssize_t capacity = core->timed_capacity == 0 ? FIRST_CAPACITY : core->timed_capacity * 2;
    Claim **deadlines = core->deadlines;
    PyMem_Resize(deadlines, Claim *, capacity);
    if (deadlines == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    core->deadlines = deadlines;
    core->timed_capacity = capacity;
    return 0;
}

/* Whether it has a deadline, has not ended, and is in no heap. */
static int
deadline_wanted(Claim *claim)
{
    return claim->timed_by == NULL && !isnan(claim->deadline) &&
           (claim->state == ASKING || claim->state == WAITING || claim->state == GRANTED);
}

/* Room was reserved. The heap owns the claim until the deadline is taken out. */
static void
deadline_add(Core *core, Claim *claim)
{
    if (!deadline_wanted(claim)) {
        return;
    }
    claim->timed_by = core;
    claim->deadline_seq = ++core->deadline_seqs;
    deadline_rise(core, core->timed++, (Claim *)Py_NewRef(claim));
}

/* Takes the claim out of the heap; the heap's reference moves to the caller. */
static void
deadline_take(Claim *claim)
{
    Core *core = claim->timed_by;
    Py_ssize_t i = claim->place;
    claim->timed_by = NULL;
    Claim *last = core->deadlines[--core->timed];
    if (last == claim) {
        return;
    }
    if (i > 0 && is_earlier(last, core->deadlines[(i - 1) / 2])) {
        deadline_rise(core, i, last);
    }
    else {
        deadline_sink(core, i, last);
    }
}

/* The caller has a reference of its own to the claim. */
static inline void
deadline_remove(Claim *claim)
{
    if (claim->timed_by != NULL) {
        deadline_take(claim);
        Py_DECREF(claim);
    }
}

/* For the garbage collector: the heap lets go of everything. */
static void
deadlines_clear(Core *core)
{
    while (core->timed > 0) {
        Claim *claim = core->deadlines[--core->timed];
        claim->timed_by = NULL;
        Py_DECREF(claim);
    }
}

static PyObject *
Core_add_deadline(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    if (claim == NULL || deadline_reserve(core) < 0) {
        return NULL;
    }
    deadline_add(core, claim);
    Py_RETURN_NONE;
}

static PyObject *
Core_remove_deadline(Core *core, PyObject *object)
{
    Claim *claim = as_claim(core, object);
    if (claim == NULL) {
        return NULL;
    }
    if (claim->timed_by == core) {
        deadline_remove(claim);
    }
    Py_RETURN_NONE;
}

static PyObject *
Core_expired(Core *core, PyObject *time)
{
    double now = PyFloat_AsDouble(time);
    if (now == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    core->now = now;
    if (core->timed == 0 || core->deadlines[0]->deadline > now) {
        Py_RETURN_NONE;
    }
    Claim *claim = core->deadlines[0];
    deadline_take(claim);
    return (PyObject *)claim;
}

static PyObject *
Core_next_deadline(Core *core, PyObject *Py_UNUSED(ignored))
{
    return PyFloat_FromDouble(core->timed == 0 ? Py_HUGE_VAL : core->deadlines[0]->deadline);
}
