/* Acquire: the awaitable and async context manager that acquire() gives. */

static Claim *
acquire_new(FastPath *pool)
{
    State *st = pool->engine->core->st;
    Claim *claim;
    if (st->spares > 0) {
        claim = st->spare[--st->spares];
#ifdef Py_REF_DEBUG
        PyObject_Init((PyObject *)claim, st->acquire_type);
        Py_DECREF(st->acquire_type); /* it had kept the one it was made with */
#else
        Py_SET_REFCNT((PyObject *)claim, 1); /* it has kept its type, and a reference to that */
#endif
    }
    else {
        claim = PyObject_GC_New(Claim, st->acquire_type);
        if (claim == NULL) {
            return NULL;
        }
    }
    claim_start(claim, st);
    claim->pool = (FastPath *)Py_NewRef(pool);
    PyObject_GC_Track(claim);
    return claim;
}

/* Raise what the arguments of throw() say. */
static void
raise_thrown(PyObject *args)
{
    PyObject *error = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
    if (error != NULL && PyTuple_GET_SIZE(args) > 1 && PyTuple_GET_ITEM(args, 1) != Py_None) {
        error = PyTuple_GET_ITEM(args, 1);
    }
    if (error != NULL && PyExceptionInstance_Check(error)) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    else if (error != NULL && PyExceptionClass_Check(error)) {
        PyErr_SetNone(error);
    }
    else {
        PyErr_SetString(PyExc_TypeError, "throw() takes an exception");
    }
}

static int
used_before(void)
{
    PyErr_SetString(PyExc_RuntimeError,
                    "this acquire() was used before; call pool.acquire() for each resource");
    return -1;
}

/* Takes what is there at once. 1: claim->result has the resource; 0: the slow path must go on, with
 * `slot` and `verdict` if a hook was asked already; -1: an exception is set. */
static int
acquire_begin(Claim *claim, Slot **in_hand, PyObject **verdict)
{
    Engine *engine = engine_of(claim);
    Core *core = engine->core;
    State *st = claim->st;
    PyObject *result;

    if (claim->used) {
        return used_before();
    }
    PyObject *task = core->phase == OPEN ? engine_task(engine) : NULL;
    if (task == NULL) {
        if (PyErr_Occurred()) {
            return -1;
        }
        result = PyObject_CallMethodNoArgs(slow_path(engine), st->s_enter);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
        task = engine_task(engine);
        if (task == NULL && PyErr_Occurred()) {
            return -1;
        }
        if (claim->used) { /* by a subscriber that heard of the opening */
            Py_XDECREF(task);
            return used_before();
        }
    }
    claim->used = 1;
    Py_CLEAR(claim->key);
    Py_XSETREF(claim->task, task);
    double now = engine_now(engine);
    if (now == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    claim->began = now;
    claim->seen_idle = core->idle_seqs;
    if (core->circuit != ACTIVE) {
        result = PyObject_CallMethodOneArg(slow_path(engine), st->s_admit_or_raise,
                                           (PyObject *)claim);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    Slot *slot = core_take(core, Py_HUGE_VAL);
    if (slot == NULL) {
        return 0;
    }
    if (slot->expires_at <= now) {
        *in_hand = slot;
        return 0;
    }
    if (engine->before_acquire != Py_None && !skips_check(engine, slot, now)) {
        PyObject *answer = ask(core, engine->before_acquire, slot->resource);
        if (answer == NULL || answer == Py_False) {
            /* Logged, reported and destroyed there; raises what is no Exception. */
            PyObject *error = answer == NULL ? PyErr_GetRaisedException() : Py_NewRef(Py_None);
            Py_XDECREF(answer);
            result = PyObject_CallMethodObjArgs(slow_path(engine), st->s_refuse, slot, error, NULL);
            Py_DECREF(error);
            Py_DECREF(slot);
            Py_XDECREF(result);
            return result == NULL ? -1 : 0;
        }
        if (is_awaitable(answer) || core->phase == CLOSED) {
            *in_hand = slot;
            *verdict = answer;
            if (!is_awaitable(answer)) { /* the hook has closed the pool */
                Py_SETREF(*verdict, Py_NewRef(Py_True));
            }
            return 0;
        }
        Py_DECREF(answer);
    }
    if (core_hold(core, claim, slot, now, 0.0) < 0) {
        Py_DECREF(slot);
        return -1;
    }
    claim->result = Py_NewRef(slot->resource);
    int failed = engine_report_hold(engine, claim, slot, now, 0.0) < 0;
    Py_DECREF(slot);
    if (failed) {
        Py_CLEAR(claim->result);
        lose_hold(core, claim);
        return -1;
    }
    return 1;
}

/* The claim itself, with the resource or with the order to wait; or what pool/waiter.py does. */
static inline PyObject *
acquire_start(Claim *claim)
{
    Slot *slot = NULL;
    PyObject *verdict = NULL;
    int ready = acquire_begin(claim, &slot, &verdict);
    if (ready > 0) {
        return Py_NewRef(claim);
    }
    if (ready < 0) {
        if (claim->state == ASKING) { /* not if it is in use already, or was */
            core_release_probe((engine_of(claim))->core, &claim->probe);
        }
        return NULL;
    }
    if (slot == NULL && can_wait(engine_of(claim), claim)) {
        claim->must_wait = 1;
        return Py_NewRef(claim);
    }
    State *st = claim->st;
    PyObject *coroutine = PyObject_CallMethodObjArgs(
        slow_path(engine_of(claim)), st->s_obtain, claim, slot == NULL ? Py_None : (PyObject *)slot,
        verdict == NULL ? Py_None : verdict, NULL);
    Py_XDECREF(slot);
    Py_XDECREF(verdict);
    if (coroutine == NULL) {
        return NULL;
    }
    PyObject *iterator = iterate(coroutine);
    Py_DECREF(coroutine);
    return iterator;
}

/* For the interpreter, which drives what it gets to the end or closes it: nothing happens before the
 * first step. Whoever calls __await__() gets Steps. */
static PyObject *
acquire_await(Claim *claim)
{
    if (claim->used) {
        used_before();
        return NULL;
    }
    return Py_NewRef(claim);
}

/* The one step of an acquire that was ready at once; or all of them, if it has to wait. */
static inline PyObject *
acquire_go_on(Claim *claim, Core *core, int by_interpreter)
{
    PyObject *result = claim->result;
    if (result == NULL && claim->steps == NULL && claim->pause == NULL && !claim->must_wait) {
        PyObject *steps = acquire_start(claim);
        if (steps == NULL) {
            return NULL;
        }
        if (steps == (PyObject *)claim) {
            Py_DECREF(steps);
            result = claim->result;
            if (result == NULL && !claim->must_wait) {
                /* A subscriber has driven it, and has what there was. */
                used_before();
                return NULL;
            }
        }
        else {
            claim->steps = steps;
        }
    }
    if (claim->must_wait) {
        claim->must_wait = 0;
        int waits = wait_begin(claim);
        if (waits <= 0) {
            return waits < 0 ? NULL : wait_slowly(claim, NULL, NULL);
        }
        if (claim->pause == NULL && claim->result == NULL && claim->steps == NULL) {
            used_before(); /* a subscriber has driven it, and has what there was */
            return NULL;
        }
        result = claim->result;
    }
    if (claim->pause != NULL) {
        PyObject *step = wait_step(claim);
        result = claim->result;
        if (result == NULL) {
            if (step == NULL && !PyErr_Occurred()) {
                used_before(); /* a subscriber has driven it, and has what there was */
            }
            return step;
        }
    }
    if (result != NULL) {
        claim->result = NULL;
        if (by_interpreter && claim->slot != NULL) {
            slot_stop(claim->slot, result);
        }
        else {
            stop_with(result);
        }
        if (PyErr_Occurred() != PyExc_StopIteration) { /* there was no memory for one */
            lose_hold(core, claim);
        }
        return NULL;
    }
    return Py_TYPE(claim->steps)->tp_iternext(claim->steps);
}

/* It ends without a resource, by an exception. */
static void
acquire_failed(Claim *claim, Engine *engine, Core *core)
{
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_StopIteration)) {
        return;
    }
    if (claim->state == WAITING || claim->state == GRANTED) {
        claim->over = engine->must_tidy = 1;
    }
    engine_broken_off(engine, core);
}

static PyObject *
acquire_step(Claim *claim, int by_interpreter)
{
    Engine *engine = engine_of(claim);
    if (engine == NULL || engine->core == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was garbage-collected");
        return NULL;
    }
    if (engine->core->busy) {
        Py_RETURN_NONE; /* in the middle of another step: the task comes back in the next turn */
    }
    Core *core = step_begin(engine);
    PyObject *step = acquire_go_on(claim, core, by_interpreter);
    if (step == NULL && claim->state != HOLDING) {
        acquire_failed(claim, engine, core);
    }
    step_end(engine, core, 0);
    return step;
}

static PyObject *
acquire_next(Claim *claim)
{
    return acquire_step(claim, 1);
}

/* With throw and close: a coroutine to asyncio, so that create_task() takes it. */
static PyObject *
Acquire_send(Claim *claim, PyObject *Py_UNUSED(value))
{
    PyObject *result = acquire_step(claim, 0);
    if (result == NULL && !PyErr_Occurred()) {
        PyErr_SetNone(PyExc_StopIteration);
    }
    return result;
}

/* It was ready, and nobody takes the resource: it goes back. */
static int
acquire_undo(Claim *claim)
{
    if (claim->result == NULL) {
        return 0;
    }
    Py_CLEAR(claim->result);
    if (claim->slot == NULL) {
        return 0;
    }
    Slot *slot = (Slot *)Py_NewRef(claim->slot);
    PyObject *result = engine_return(engine_of(claim), slot, 0);
    Py_DECREF(slot);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
Acquire_throw(Claim *claim, PyObject *args)
{
    if (acquire_undo(claim) < 0) {
        return NULL;
    }
    if (claim->steps != NULL) {
        PyObject *throw = PyObject_GetAttrString(claim->steps, "throw");
        PyObject *result = throw == NULL ? NULL : PyObject_CallObject(throw, args);
        Py_XDECREF(throw);
        return result;
    }
    claim->used = 1; /* it never began */
    raise_thrown(args);
    claim->must_wait = 0;
    return claim->pause == NULL ? NULL : wait_interrupted(claim);
}

static PyObject *
Acquire_close(Claim *claim, PyObject *Py_UNUSED(ignored))
{
    claim->used = 1;
    if (acquire_undo(claim) < 0) {
        return NULL;
    }
    claim->must_wait = 0;
    if (claim->steps != NULL) {
        return PyObject_CallMethod(claim->steps, "close", NULL);
    }
    if (claim->pause != NULL) {
        PyErr_SetNone(PyExc_GeneratorExit);
        wait_interrupted(claim);
        if (!PyErr_ExceptionMatches(PyExc_GeneratorExit)) {
            return NULL;
        }
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

static PyObject *
Acquire_await(Claim *claim, PyObject *Py_UNUSED(ignored))
{
    return steps_new(claim);
}

static PyObject *
Acquire_aenter(Claim *claim, PyObject *Py_UNUSED(ignored))
{
    claim->in_block = 1;
    return Py_NewRef(claim);
}

static PyObject *
Acquire_aexit(Claim *claim, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(3, 3, "__aexit__");
    State *st = claim->st;
    if (claim->state != HOLDING) {
        return Py_NewRef(st->done); /* released or discarded inside the block */
    }
    Engine *engine = engine_of(claim);
    if (args[0] != Py_None) {
        return PyObject_CallMethodObjArgs(slow_path(engine), st->s_leave, claim, args[1], NULL);
    }
    if (engine_check_loop(engine) < 0) {
        return NULL;
    }
    Slot *slot = (Slot *)Py_NewRef(claim->slot);
    PyObject *result = engine_return(engine, slot, 0);
    Py_DECREF(slot);
    return result;
}

static PyMethodDef acquire_methods[] = {
    {"__await__", (PyCFunction)Acquire_await, METH_NOARGS | METH_COEXIST, NULL},
    {"__aenter__", (PyCFunction)Acquire_aenter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))Acquire_aexit, METH_FASTCALL, NULL},
    {"send", (PyCFunction)Acquire_send, METH_O, NULL},
    {"throw", (PyCFunction)Acquire_throw, METH_VARARGS, NULL},
    {"close", (PyCFunction)Acquire_close, METH_NOARGS, NULL},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot acquire_slots[] = {
    {Py_tp_doc, "One acquire of a pool; it does nothing until it is awaited or entered, once."},
    {Py_tp_methods, acquire_methods},
    {Py_am_await, acquire_await},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, acquire_next},
    {Py_tp_traverse, Claim_traverse},
    {Py_tp_clear, Claim_clear},
    {Py_tp_dealloc, Claim_dealloc},
    {0, NULL},
};

static PyType_Spec acquire_spec = {
    .name = "cenote._core.native.Acquire",
    .basicsize = sizeof(Claim),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = acquire_slots,
};
