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

/* Where this event leads; NOWHERE with an IllegalTransition if the law does not list it. */
static inline int
acquire_after(State *st, int stage, int event)
{
    int target = acquire_law[stage][event];
    if (target == NOWHERE) {
        illegal(st, "acquire", st->acquire_states[stage], acquire_events[event]);
    }
    return target;
}

/* The one place where its stage changes; -1 with an IllegalTransition, and nothing changes. */
static inline int
acquire_move(Claim *claim, int event)
{
    int target = acquire_after(claim->st, claim->stage, event);
    if (target == NOWHERE) {
        return -1;
    }
    claim->stage = target;
    return 0;
}

/* It is OVER, if it is not already. */
static inline void
acquire_end(Claim *claim)
{
    if (claim->stage != OVER) {
        acquire_move(claim, ACQUIRE_END);
    }
}

/* It holds the slot, which is stolen: READY, and subscribers are notified. */
static int
acquire_serve(Claim *claim, Engine *engine, Core *core, Slot *slot, double now, double waited)
{
    if (acquire_move(claim, ACQUIRE_SERVE) < 0) {
        lose_hold(core, claim);
        Py_DECREF(slot);
        return -1;
    }
    claim->result = Py_NewRef(slot->resource); /* a subscriber may discard it */
    int failed = engine_report_hold(engine, claim, slot, now, waited) < 0;
    Py_DECREF(slot);
    if (failed) {
        Py_CLEAR(claim->result);
        lose_hold(core, claim);
        return -1;
    }
    return 0;
}

/* FRESH -> BEGUN, in a pool that is open: it notes its task and the time, and the breaker admits it. */
static int
acquire_begin(Claim *claim, Engine *engine, Core *core)
{
    PyObject *result;
    State *st = claim->st;
    PyObject *task = core->phase == OPEN ? engine_task(engine) : NULL;
    if (task == NULL) {
        if (PyErr_Occurred()) {
            return -1;
        }
        result = PyObject_CallMethodOneArg(slow_path(engine), st->s_begin, (PyObject *)claim);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
        task = engine_task(engine);
        if (task == NULL && PyErr_Occurred()) {
            return -1;
        }
        if (claim->stage != FRESH) { /* a subscriber to the opening has driven it */
            Py_XDECREF(task);
            return used_before();
        }
    }
    acquire_move(claim, ACQUIRE_BEGIN);
    claim->uncounted = 1;
    core->begun++;
    Py_CLEAR(claim->key);
    Py_XSETREF(claim->task, task);
    claim->began = engine_now(engine);
    if (claim->began == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    claim->seen_idle = core->idle_seqs;
    if (core->circuit == ACTIVE) {
        return 0;
    }
    result = PyObject_CallMethodOneArg(slow_path(engine), st->s_admit_or_raise, (PyObject *)claim);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Nothing is in hand: it waits here if it can, or else the slow part looks for something. */
static int
acquire_wait(Claim *claim)
{
    int waits = wait_begin(claim);
    return waits == 0 ? wait_delegate(claim, SEEKING, NULL, NULL) : waits < 0 ? -1 : 0;
}

/* Takes what is there at once: afterwards it is READY, PAUSED or SLOW. */
static int
acquire_look(Claim *claim, Engine *engine, Core *core)
{
    State *st = claim->st;
    double now = claim->began;
    Slot *slot = core_enter(claim) ? core_take(core, Py_HUGE_VAL) : NULL;
    if (slot == NULL) {
        return acquire_wait(claim);
    }
    if (slot->expires_at <= now) {
        return wait_delegate(claim, SHOWING, slot, NULL);
    }
    if (engine->before_acquire != Py_None && !skips_check(engine, slot, now)) {
        PyObject *answer = ask(core, engine->before_acquire, slot->resource);
        if (answer == NULL || answer == Py_False) {
            /* Logged, reported and destroyed there; raises what is not an Exception. */
            PyObject *error = answer == NULL ? PyErr_GetRaisedException() : Py_NewRef(Py_None);
            Py_XDECREF(answer);
            PyObject *result = PyObject_CallMethodObjArgs(slow_path(engine), st->s_refuse, slot, error, NULL);
            Py_DECREF(error);
            Py_DECREF(slot);
            Py_XDECREF(result);
            return result == NULL ? -1 : acquire_wait(claim);
        }
        if (is_awaitable(answer)) {
            return wait_delegate(claim, INSPECTING, slot, answer);
        }
        Py_DECREF(answer);
        if (core->phase == CLOSED) { /* by the hook */
            return wait_delegate(claim, ACCEPTED, slot, NULL);
        }
    }
    if (core_hold(core, claim, slot, now, 0.0) < 0) {
        Py_DECREF(slot);
        return -1;
    }
    return acquire_serve(claim, engine, core, slot, now, 0.0);
}

/* The first step: FRESH -> READY, PAUSED or SLOW. */
static inline int
acquire_start(Claim *claim, Engine *engine, Core *core)
{
    if (acquire_begin(claim, engine, core) == 0 && acquire_look(claim, engine, core) == 0) {
        return 0;
    }
    if (claim->state == ASKING) { /* not if it is in use already, or was */
        core_release_probe(core, &claim->probe);
        if (claim->placed) { /* somebody may have waited for its place of the lane */
            PyObject *error = PyErr_GetRaisedException();
            core->now = claim->began > core->now ? claim->began : core->now;
            core_vacate(core, claim, NULL);
            if (engine_advance(engine) < 0) {
                PyErr_Clear();
            }
            PyErr_SetRaisedException(error);
        }
    }
    return -1;
}

/* For the interpreter, which drives what it gets to the end or closes it: nothing happens before the
 * first step. A caller of __await__() gets Steps. */
static PyObject *
acquire_await(Claim *claim)
{
    if (claim->stage != FRESH) {
        used_before();
        return NULL;
    }
    return Py_NewRef(claim);
}

/* READY -> OVER: the StopIteration that hands the resource over. */
static inline PyObject *
acquire_hand_over(Claim *claim, Core *core, int by_interpreter)
{
    PyObject *result = claim->result;
    claim->result = NULL;
    acquire_move(claim, ACQUIRE_END);
    if (by_interpreter && claim->slot != NULL) {
        core_stop(core, claim->slot, result);
    }
    else {
        stop_with(result);
    }
    if (PyErr_Occurred() != PyExc_StopIteration) { /* there was no memory for one */
        lose_hold(core, claim);
    }
    return NULL;
}

/* From its present stage to where it suspends, or to the end. */
static inline PyObject *
acquire_go_on(Claim *claim, Engine *engine, Core *core, int by_interpreter)
{
    if (claim->stage == FRESH && acquire_start(claim, engine, core) < 0) {
        return NULL;
    }
    if (claim->stage == PAUSED) {
        PyObject *step = wait_step(claim);
        if (step != NULL || PyErr_Occurred()) {
            return step;
        }
    }
    if (claim->stage == READY) {
        return acquire_hand_over(claim, core, by_interpreter);
    }
    if (claim->stage == SLOW) {
        claim->driven = 1;
        PyObject *step = Py_TYPE(claim->steps)->tp_iternext(claim->steps);
        claim->driven = 0;
        return step;
    }
    used_before(); /* its first step is under way, or a subscriber has driven it to its end */
    return NULL;
}

/* Whether what its slow path calls has come back to it: refused, as by any coroutine. */
static int
is_driven(Claim *claim)
{
    if (claim->driven) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
    }
    return claim->driven;
}

/* It ends without a resource, by an exception. */
static void
acquire_failed(Claim *claim, Engine *engine, Core *core)
{
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_StopIteration)) {
        return;
    }
    if (claim->uncounted) {
        PyObject *error = PyErr_GetRaisedException();
        if (acquire_ended(claim, engine, error) < 0) { /* that goes on, but no end is uncounted */
            PyObject *broken_off = PyErr_GetRaisedException();
            if (acquire_ended(claim, engine, error) < 0) {
                PyErr_Clear();
            }
            Py_SETREF(error, broken_off);
        }
        PyErr_SetRaisedException(error);
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
    if (engine->core == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was garbage-collected");
        return NULL;
    }
    if (engine->core->busy) {
        Py_RETURN_NONE; /* in the middle of another step: the task comes back in the next turn */
    }
    if (is_driven(claim)) {
        return NULL;
    }
    Core *core = step_begin(engine);
    int entered = claim->stage;
    PyObject *step = acquire_go_on(claim, engine, core, by_interpreter);
    if (step == NULL && entered != BEGUN) { /* else its first step goes on */
        if (claim->stage != FRESH) {        /* else it has not begun */
            acquire_end(claim);
        }
        if (claim->state != HOLDING) {
            acquire_failed(claim, engine, core);
        }
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
    if (claim->stage != READY) {
        return 0;
    }
    Py_CLEAR(claim->result);
    acquire_move(claim, ACQUIRE_END);
    Engine *engine = engine_of(claim);
    if (claim->slot == NULL || engine->core == NULL) { /* its pool is being collected */
        return 0;
    }
    Slot *slot = (Slot *)Py_NewRef(claim->slot);
    PyObject *result = engine_return(engine, slot, 0);
    Py_DECREF(slot);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
Acquire_throw(Claim *claim, PyObject *args)
{
    if (is_driven(claim) || acquire_undo(claim) < 0) {
        return NULL;
    }
    if (claim->stage == SLOW) {
        PyObject *throw = PyObject_GetAttrString(claim->steps, "throw");
        claim->driven = 1;
        PyObject *result = throw == NULL ? NULL : PyObject_CallObject(throw, args);
        claim->driven = 0;
        Py_XDECREF(throw);
        if (result == NULL) {
            acquire_end(claim);
        }
        return result;
    }
    if (claim->stage == FRESH) {
        acquire_end(claim); /* it never began */
    }
    raise_thrown(args);
    return claim->stage == PAUSED ? wait_interrupted(claim) : NULL;
}

static PyObject *
Acquire_close(Claim *claim, PyObject *Py_UNUSED(ignored))
{
    if (is_driven(claim)) {
        return NULL;
    }
    if (claim->stage == FRESH) {
        acquire_end(claim);
    }
    if (acquire_undo(claim) < 0) {
        return NULL;
    }
    if (claim->stage == SLOW) {
        acquire_end(claim);
        claim->driven = 1;
        PyObject *result = PyObject_CallMethod(claim->steps, "close", NULL);
        claim->driven = 0;
        return result;
    }
    if (claim->stage == PAUSED) {
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
    if (claim->slot == NULL || engine->core == NULL) {
        return Py_NewRef(st->done); /* being collected, and found by somebody all the same */
    }
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

static PyObject *
Acquire_get_stage(Claim *claim, void *Py_UNUSED(closure))
{
    return Py_NewRef(claim->st->acquire_states[claim->stage]);
}

static PyGetSetDef acquire_getset[] = {
    {"stage", (getter)Acquire_get_stage, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* acquire_after(state, event): what the law in C says, for the test that walks it. */
static PyObject *
module_acquire_after(PyObject *module, PyObject *args)
{
    State *st = PyModule_GetState(module);
    PyObject *state;
    const char *name;
    if (!PyArg_ParseTuple(args, "Os:acquire_after", &state, &name)) {
        return NULL;
    }
    int stage = index_of(st->acquire_states, ACQUIRE_STATES, state);
    for (int event = 0; stage >= 0 && event < ACQUIRE_EVENTS; event++) {
        if (strcmp(acquire_events[event], name) == 0) {
            int target = acquire_after(st, stage, event);
            return target == NOWHERE ? NULL : Py_NewRef(st->acquire_states[target]);
        }
    }
    if (stage >= 0) {
        illegal(st, "acquire", state, name);
    }
    return NULL;
}

static PyType_Slot acquire_slots[] = {
    {Py_tp_doc, "One acquire of a pool; it does nothing until it is awaited or entered, once."},
    {Py_tp_methods, acquire_methods},
    {Py_tp_getset, acquire_getset},
    {Py_am_await, acquire_await},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, acquire_next},
    {Py_tp_traverse, Claim_traverse},
    {Py_tp_clear, Acquire_clear},
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
