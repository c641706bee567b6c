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

/* The task that runs now in the pool's loop, in this thread: a new reference. NULL without an
 * exception: there is none, or this is another thread. */
static PyObject *
engine_task(Engine *engine)
{
    State *st = engine->core->st;
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
    return task;
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
    PyObject *found = PyObject_CallOneArg(st->caller, (PyObject *)frame);
    if (found == NULL) {
        return -1;
    }
    claim->code = Py_NewRef(PyTuple_GET_ITEM(found, 0));
    claim->instruction = (int)PyLong_AsLong(PyTuple_GET_ITEM(found, 1));
    Py_DECREF(found);
    return 0;
}
