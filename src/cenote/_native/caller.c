/* Who acquires: the running task, and the first frame outside of cenote. */

/* What asyncio's own table says about the pool's loop: a borrowed reference, or NULL. */
static PyObject *
look_up_task(PyObject *tasks, PyObject *loop)
{
    /* Nearly always there is one loop: its entry is the first, and needs no hash. */
    PyObject *key, *task;
    Py_ssize_t position = 0;
    if (PyDict_Next(tasks, &position, &key, &task) && key == loop) {
        return task;
    }
    return PyDict_GetItemWithError(tasks, loop);
}

/* Since 3.14 a thread's state has the running loop and, behind it, the running task, where no public
 * header says so: the place is looked for once, as that of a loop and a task that are known. What is
 * searched lies inside the structure, by the private headers of these versions; later ones are not
 * searched, and asked by a call. */
#if PY_VERSION_HEX >= 0x030e0000 && PY_VERSION_HEX < 0x03100000
#define RUNNING_WITHIN (PY_VERSION_HEX < 0x030f0000 ? 6 : 24) /* words behind the public part */

static void
find_running(State *st, PyObject *loop, PyObject *task)
{
    PyThreadState *thread = PyThreadState_Get();
    PyObject **words = (PyObject **)(thread + 1);
    st->running_at = -1;
    for (int i = 0; i + 1 < RUNNING_WITHIN; i++) {
        if (words[i] == loop && words[i + 1] == task) {
            st->running_at = (char *)(words + i) - (char *)thread;
            return;
        }
    }
}
#else
static void
find_running(State *st, PyObject *Py_UNUSED(loop), PyObject *Py_UNUSED(task))
{
    st->running_at = -1;
}
#endif

/* The running loop of this thread, and behind it the running task; NULL if it is not known where. */
static inline PyObject **
running(State *st)
{
    return st->running_at <= 0 ? NULL : (PyObject **)((char *)PyThreadState_Get() + st->running_at);
}

/* The task that runs now in the pool's loop, in this thread: a new reference. NULL without an
 * exception: there is none, or this is another thread. */
static PyObject *
engine_task(Engine *engine)
{
    State *st = engine->core->st;
    PyObject **words = running(st);
    if (words != NULL && words[0] == engine->loop) {
        return Py_XNewRef(words[1]);
    }
    if (engine->loop == NULL || engine->loop == Py_None || PyThread_get_thread_ident() != engine->thread) {
        return NULL;
    }
    if (st->current_tasks != NULL) {
        return Py_XNewRef(look_up_task(st->current_tasks, engine->loop));
    }
    PyObject *task = PyObject_CallOneArg(st->current_task, engine->loop);
    if (task == Py_None) {
        Py_CLEAR(task);
    }
    else if (task != NULL && st->running_at == 0) {
        find_running(st, engine->loop, task);
    }
    return task;
}

/* The long way, in Python. */
static int
claim_find_caller(Claim *claim, PyObject *find, PyFrameObject *frame)
{
    PyObject *found = PyObject_CallOneArg(find, (PyObject *)frame);
    if (found == NULL) {
        return -1;
    }
    if (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != 2) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "a caller is a code and an instruction");
        return -1;
    }
    claim->code = Py_NewRef(PyTuple_GET_ITEM(found, 0));
    claim->instruction = (int)PyLong_AsLong(PyTuple_GET_ITEM(found, 1));
    Py_DECREF(found);
    return 0;
}

/* Where acquire() was called: code and instruction of the first frame outside cenote. */
static int
claim_note_caller(Claim *claim)
{
    State *st = claim->st;
    PyFrameObject *frame = PyEval_GetFrame(); /* borrowed */
    if (frame == NULL) {
        return 0;
    }
    PyObject *find = engine_of(claim)->find_caller;
    if (find != Py_None) { /* of a pool with skip_frames */
        return claim_find_caller(claim, find, frame);
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    if ((PyObject *)code == st->last_code) {
        claim->code = (PyObject *)code;
        claim->instruction = PyFrame_GetLasti(frame);
        return 0;
    }
    PyObject *inner = PyDict_GetItemWithError(st->internal, code->co_filename);
    if (inner == Py_False) {
        Py_XSETREF(st->last_code, Py_NewRef(code));
        claim->code = (PyObject *)code;
        claim->instruction = PyFrame_GetLasti(frame);
        return 0;
    }
    Py_DECREF(code);
    if (inner == NULL && PyErr_Occurred()) {
        return -1;
    }
    /* From inside cenote, as every statement of a database is: look further out. */
    PyFrameObject *outer = inner == Py_True ? PyFrame_GetBack(frame) : NULL;
    while (outer != NULL) {
        code = PyFrame_GetCode(outer);
        inner = PyDict_GetItemWithError(st->internal, code->co_filename);
        if (inner == Py_False) {
            claim->code = (PyObject *)code;
            claim->instruction = PyFrame_GetLasti(outer);
            Py_DECREF(outer);
            return 0;
        }
        Py_DECREF(code);
        if (inner == NULL && PyErr_Occurred()) {
            Py_DECREF(outer);
            return -1;
        }
        PyFrameObject *next = inner == Py_True ? PyFrame_GetBack(outer) : NULL;
        Py_DECREF(outer);
        outer = next;
    }
    return claim_find_caller(claim, st->caller, frame);
}
