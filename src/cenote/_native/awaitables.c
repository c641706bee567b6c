/* Steps and Done: what __await__() gives, and what release() gives. */

/* -- Steps: what __await__ gives if there is something to wait for ----------------------------- */

/* The queue owns the claim, so that a claim cannot notice that nobody drives it any more. A coroutine
 * closes what it awaits; an iterator that is driven by hand is just dropped. */
typedef struct {
    PyObject_HEAD Claim *claim;
    char began; /* it is this one that drives the claim */
    char ended; /* as a generator does, it gives nothing any more */
} Steps;

static PyObject *
steps_new(Claim *claim)
{
    Steps *steps = PyObject_GC_New(Steps, claim->st->steps_type);
    if (steps != NULL) {
        steps->claim = (Claim *)Py_NewRef(claim);
        steps->began = steps->ended = 0;
        PyObject_GC_Track(steps);
    }
    return (PyObject *)steps;
}

static int
steps_ready(Steps *steps)
{
    if (steps->claim == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was garbage-collected");
        return -1;
    }
    return 0;
}

static PyObject *
steps_go_on(Steps *steps, int by_interpreter)
{
    if (steps->ended || steps_ready(steps) < 0) {
        return NULL;
    }
    int was_fresh = steps->claim->stage == FRESH;
    if (!was_fresh && !steps->began) {
        steps->ended = 1;
        used_before();
        return NULL;
    }
    PyObject *step = acquire_step(steps->claim, by_interpreter);
    steps->began |= was_fresh && steps->claim->stage != FRESH;
    steps->ended = step == NULL;
    return step;
}

static PyObject *
steps_next(Steps *steps)
{
    return steps_go_on(steps, 1);
}

static PyObject *
Steps_send(Steps *steps, PyObject *Py_UNUSED(value))
{
    PyObject *step = steps_go_on(steps, 0);
    if (step == NULL && !PyErr_Occurred()) {
        PyErr_SetNone(PyExc_StopIteration);
    }
    return step;
}

static PyObject *
Steps_throw(Steps *steps, PyObject *args)
{
    if (steps_ready(steps) < 0) {
        return NULL;
    }
    if (steps->ended || !steps->began) { /* as into a generator that has not begun, or is over */
        steps->ended = 1;
        raise_thrown(args);
        return NULL;
    }
    PyObject *step = Acquire_throw(steps->claim, args);
    steps->ended = step == NULL;
    return step;
}

static PyObject *
Steps_close(Steps *steps, PyObject *ignored)
{
    if (steps_ready(steps) < 0) {
        return NULL;
    }
    char driven = steps->began && !steps->ended;
    steps->ended = 1;
    return driven ? Acquire_close(steps->claim, ignored) : Py_NewRef(Py_None);
}

static void
steps_finalize(Steps *steps)
{
    Claim *claim = steps->claim;
    if (claim == NULL || !steps->began || (claim->stage != PAUSED && claim->stage != SLOW) ||
        (claim->state != ASKING && claim->state != WAITING && claim->state != GRANTED)) {
        return; /* it was driven to its end */
    }
    PyObject *error = PyErr_GetRaisedException();
    PyObject *result = Acquire_close(claim, NULL);
    if (result == NULL) {
        PyErr_WriteUnraisable((PyObject *)steps);
    }
    Py_XDECREF(result);
    PyErr_SetRaisedException(error);
}

static int
steps_traverse(Steps *steps, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(steps));
    Py_VISIT(steps->claim);
    return 0;
}

static int
steps_clear(Steps *steps)
{
    Py_CLEAR(steps->claim);
    return 0;
}

static void
steps_dealloc(Steps *steps)
{
    if (PyObject_CallFinalizerFromDealloc((PyObject *)steps) < 0) {
        return;
    }
    PyTypeObject *type = Py_TYPE(steps);
    PyObject_GC_UnTrack(steps);
    Py_CLEAR(steps->claim);
    type->tp_free(steps);
    Py_DECREF(type);
}

static PyMethodDef steps_methods[] = {
    {"send", (PyCFunction)Steps_send, METH_O, NULL},
    {"throw", (PyCFunction)Steps_throw, METH_VARARGS, NULL},
    {"close", (PyCFunction)Steps_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot steps_slots[] = {
    {Py_tp_doc, "The wait of one acquire; dropped in the middle, it gives up its place."},
    {Py_tp_methods, steps_methods},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, steps_next},
    {Py_tp_traverse, steps_traverse},
    {Py_tp_clear, steps_clear},
    {Py_tp_finalize, steps_finalize},
    {Py_tp_dealloc, steps_dealloc},
    {0, NULL},
};

static PyType_Spec steps_spec = {
    .name = "cenote._core.native.Steps",
    .basicsize = sizeof(Steps),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = steps_slots,
};

/* -- Done: the awaitable of what has happened already ----------------------------------------- */

static PyObject *
done_next(PyObject *Py_UNUSED(self))
{
    return NULL; /* without an exception: the end, without a value */
}

/* Of the collector's interest only for its type, and so for the module. */
static int
done_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
done_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
done_get_done(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    Py_RETURN_TRUE;
}

static PyObject *
done_result(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    Py_RETURN_NONE;
}

static PyObject *
done_wait(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(self);
}

/* With send(), throw() and close() it is a coroutine to asyncio.create_task(). */
static PyObject *
done_send(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(value))
{
    PyErr_SetNone(PyExc_StopIteration);
    return NULL;
}

static PyObject *
done_throw(PyObject *Py_UNUSED(self), PyObject *args)
{
    raise_thrown(args);
    return NULL;
}

static PyMethodDef done_methods[] = {
    {"result", done_result, METH_NOARGS, NULL}, {"wait", done_wait, METH_NOARGS, NULL},
    {"send", done_send, METH_O, NULL},          {"throw", done_throw, METH_VARARGS, NULL},
    {"close", done_result, METH_NOARGS, NULL},  {NULL, NULL, 0, NULL},
};

static PyObject *
done_get_errors(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    return PyTuple_New(0);
}

static PyGetSetDef done_getset[] = {
    {"done", done_get_done, NULL, NULL, NULL},
    {"errors", done_get_errors, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot done_slots[] = {
    {Py_tp_doc, "What release() returns when everything has happened: awaiting it is optional."},
    {Py_am_await, PyObject_SelfIter},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, done_next},
    {Py_tp_methods, done_methods},
    {Py_tp_getset, done_getset},
    {Py_tp_traverse, done_traverse},
    {Py_tp_dealloc, done_dealloc},
    {0, NULL},
};

static PyType_Spec done_spec = {
    .name = "cenote._core.native.Done",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = done_slots,
};
