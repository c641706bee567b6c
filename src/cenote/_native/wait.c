/* Waiting: the ordinary wait, in a pool that is full and has nothing to create, without a step of
 * Python. Whatever is not ordinary (a slot to be made, a hook that is async or says no) is handed
 * over to pool/waiter.py in the middle. */

/* -- the wait -------------------------------------------------------------------------------- */

static int
can_wait(Engine *engine, Claim *claim)
{
    Core *core = engine->core;
    return claim->state == ASKING && core->phase == OPEN && core->circuit == ACTIVE &&
           core->idle == 0 && core_room(core) <= 0 && claim->timeout != 0.0 &&
           (engine->max_waiting < 0 || core->waiters.length < engine->max_waiting);
}

static void
wait_end(Claim *claim)
{
    Py_CLEAR(claim->pause);
    Py_CLEAR(claim->future);
}

/* 1: it waits; 0: it cannot wait here; -1: an exception is set. */
static int
wait_begin(Claim *claim)
{
    Engine *engine = engine_of(claim);
    State *st = claim->st;
    PyObject *result;
    if (!can_wait(engine, claim)) {
        return 0;
    }
    if (isnan(claim->timeout)) {
        result = PyObject_CallMethodOneArg(slow_path(engine), st->s_check_deadlock,
                                           (PyObject *)claim);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    else {
        claim->deadline = claim->began + (claim->timeout < LONGEST ? claim->timeout : LONGEST);
        if (claim->deadline < engine->core->alarm_at) {
            PyObject *when = PyFloat_FromDouble(claim->deadline);
            result = when == NULL ? NULL
                                  : PyObject_CallMethodOneArg(slow_path(engine), st->s_set_alarm,
                                                              when);
            Py_XDECREF(when);
            if (result == NULL) {
                return -1;
            }
            Py_DECREF(result);
        }
    }
    claim->failures = engine->factory_failures;
    PyObject *future = engine->direct_future
                           ? PyObject_Vectorcall(st->future, &engine->loop, 0, st->loop_only)
                           : PyObject_CallMethodNoArgs(engine->loop, st->s_create_future);
    PyObject *pause = future == NULL ? NULL : iterate(future);
    /* From the last look on nothing runs other code, core_wait() included: a place in the heap that is
     * reserved here is still there when the claim takes it. */
    if (pause == NULL || !can_wait(engine, claim) || deadline_reserve(engine->core) < 0 ||
        core_wait(engine->core, claim) < 0) {
        Py_XDECREF(future);
        Py_XDECREF(pause);
        return PyErr_Occurred() ? -1 : 0;
    }
    claim->plain = 1;
    claim->future = future;
    claim->pause = pause;
    deadline_add(engine->core, claim);
    if (PyTuple_GET_SIZE(engine->subscribers) > 0 && tell_of_wait(engine, claim) < 0) {
        wait_end(claim);
        return -1;
    }
    return 1;
}

/* The exception that is set was thrown in: everything is passed on, and the exception goes on. */
static PyObject *
wait_interrupted(Claim *claim)
{
    int finalizing = PyErr_ExceptionMatches(PyExc_GeneratorExit);
    PyObject *error = PyErr_GetRaisedException();
    wait_end(claim);
    deadline_remove(claim);
    PyObject *result = PyObject_CallMethodObjArgs(slow_path(engine_of(claim)), claim->st->s_interrupted, claim,
                                                  finalizing ? Py_True : Py_False, NULL);
    if (result == NULL) {
        Engine *engine = engine_of(claim);
        claim->over = engine->must_tidy = 1;
        if (engine->core != NULL) {
            engine_broken_off(engine, engine->core);
        }
        Py_XDECREF(error);
        return NULL;
    }
    Py_DECREF(result);
    PyErr_SetRaisedException(error);
    return NULL;
}

/* From here on it is done by pool/waiter.py. Steals the slot and the verdict, which may be NULL. */
static PyObject *
wait_slowly(Claim *claim, Slot *slot, PyObject *verdict)
{
    PyObject *coroutine = PyObject_CallMethodObjArgs(
        slow_path(engine_of(claim)), claim->st->s_obtain, claim, slot == NULL ? Py_None : (PyObject *)slot,
        verdict == NULL ? Py_None : verdict, NULL);
    Py_XDECREF(slot);
    Py_XDECREF(verdict);
    if (coroutine == NULL) {
        return NULL;
    }
    claim->steps = iterate(coroutine);
    Py_DECREF(coroutine);
    return claim->steps == NULL ? NULL : Py_TYPE(claim->steps)->tp_iternext(claim->steps);
}

/* One step of the wait. NULL with claim->result: it has the resource. Else: what is to be yielded,
 * or NULL with an exception. */
static PyObject *
wait_step(Claim *claim)
{
    PyObject *pause = Py_NewRef(claim->pause); /* a loop's own future may end the wait inside */
    PyObject *step = Py_TYPE(pause)->tp_iternext(pause);
    Py_DECREF(pause);
    if (step != NULL) {
        return step; /* the future, for the task */
    }
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) {
            Core *stepping = (engine_of(claim))->core;
            int busy = step_pause(stepping); /* it is this step that is interrupted */
            wait_interrupted(claim);
            step_resume(stepping, busy);
            return NULL;
        }
        PyErr_Clear();
    }
    wait_end(claim);
    if (claim->error != NULL) {
        PyObject *error = claim->error;
        claim->error = NULL;
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
        return NULL;
    }
    Engine *engine = engine_of(claim);
    Core *core = engine->core;
    Slot *slot = claim->slot; /* the reference moves here: it is in hand */
    if (slot == NULL || claim->state != GRANTED || core == NULL) {
        return wait_slowly(claim, NULL, NULL); /* somebody else has woken it */
    }
    claim->slot = NULL;
    if (slot->state != RESERVED) {
        return wait_slowly(claim, slot, NULL);
    }
    double now = engine_now(engine);
    if (now == -1.0 && PyErr_Occurred()) {
        return wait_slowly(claim, slot, PyErr_GetRaisedException());
    }
    if (!slot->fresh) { /* made for whoever waits: not shown to before_acquire */
        if (slot->expires_at <= now) {
            return wait_slowly(claim, slot, NULL);
        }
        if (engine->before_acquire != Py_None && !skips_check(engine, slot, now)) {
            PyObject *answer = ask(core, engine->before_acquire, slot->resource);
            if (answer == NULL) {
                return wait_slowly(claim, slot, PyErr_GetRaisedException());
            }
            if (answer == Py_False || is_awaitable(answer)) {
                return wait_slowly(claim, slot, answer);
            }
            Py_DECREF(answer);
            now = engine_now(engine);
            if (now == -1.0 && PyErr_Occurred()) {
                return wait_slowly(claim, slot, PyErr_GetRaisedException());
            }
        }
    }
    if (claim->state != GRANTED || core->phase == CLOSED || engine->core != core) { /* by the hook */
        return wait_slowly(claim, slot, Py_NewRef(Py_True));
    }
    double waited = now - claim->began;
    if (core_hold(core, claim, slot, now, waited) < 0) {
        Py_DECREF(slot);
        return NULL;
    }
    claim->result = Py_NewRef(slot->resource); /* a subscriber may discard it */
    if (engine_report_hold(engine, claim, slot, now, waited) < 0) {
        Py_CLEAR(claim->result);
        lose_hold(core, claim);
    }
    Py_DECREF(slot);
    return NULL;
}
