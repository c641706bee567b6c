/* Deadlines: a heap of the claims that wait in C, each of which knows its place. */

static int
is_earlier(Claim *one, Claim *other)
{
    return one->deadline < other->deadline ||
           (one->deadline == other->deadline && one->queue_seq < other->queue_seq);
}

static void
deadline_put(FastPath *front, Py_ssize_t i, Claim *claim)
{
    front->deadlines[i] = claim;
    claim->place = i + 1;
}

static void
deadline_rise(FastPath *front, Py_ssize_t i, Claim *claim)
{
    while (i > 0 && is_earlier(claim, front->deadlines[(i - 1) / 2])) {
        deadline_put(front, i, front->deadlines[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    deadline_put(front, i, claim);
}

static void
deadline_sink(FastPath *front, Py_ssize_t i, Claim *claim)
{
    for (;;) {
        Py_ssize_t child = 2 * i + 1;
        if (child + 1 < front->timed &&
            is_earlier(front->deadlines[child + 1], front->deadlines[child])) {
            child++;
        }
        if (child >= front->timed || !is_earlier(front->deadlines[child], claim)) {
            break;
        }
        deadline_put(front, i, front->deadlines[child]);
        i = child;
    }
    deadline_put(front, i, claim);
}

static int
deadline_reserve(FastPath *front)
{
    if (front->timed < front->room) {
        return 0;
    }
    Py_ssize_t room = front->room == 0 ? FIRST_CAPACITY : front->room * 2;
    Claim **deadlines = front->deadlines;
    PyMem_Resize(deadlines, Claim *, room);
    if (deadlines == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    front->deadlines = deadlines;
    front->room = room;
    return 0;
}

/* Room was reserved. The heap borrows: a claim takes itself out before it goes. */
static void
deadline_add(FastPath *front, Claim *claim)
{
    deadline_rise(front, front->timed++, claim);
}

static void
deadline_remove(Claim *claim)
{
    if (claim->place == 0) {
        return;
    }
    FastPath *front = (FastPath *)claim->front;
    Py_ssize_t i = claim->place - 1;
    claim->place = 0;
    Claim *last = front->deadlines[--front->timed];
    if (last != claim) {
        if (i > 0 && is_earlier(last, front->deadlines[(i - 1) / 2])) {
            deadline_rise(front, i, last);
        }
        else {
            deadline_sink(front, i, last);
        }
    }
}

/* Out of the heap: one whose deadline has passed at that time, or None. */
static PyObject *
FastPath_expired(FastPath *front, PyObject *time)
{
    double now = PyFloat_AsDouble(time);
    if (now == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (front->timed == 0 || front->deadlines[0]->deadline > now) {
        Py_RETURN_NONE;
    }
    Claim *claim = (Claim *)Py_NewRef(front->deadlines[0]);
    deadline_remove(claim);
    return (PyObject *)claim;
}

/* The earliest deadline, or None. */
static PyObject *
FastPath_next_deadline(FastPath *front, PyObject *Py_UNUSED(ignored))
{
    return front->timed == 0 ? Py_NewRef(Py_None)
                             : PyFloat_FromDouble(front->deadlines[0]->deadline);
}

/* After a fork: nobody of those who waited will come back. */
static PyObject *
FastPath_forget_deadlines(FastPath *front, PyObject *Py_UNUSED(ignored))
{
    while (front->timed > 0) {
        front->deadlines[--front->timed]->place = 0;
    }
    Py_RETURN_NONE;
}
