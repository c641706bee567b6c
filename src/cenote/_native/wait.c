/* Waiting: the ordinary wait, in a pool that is full and has nothing to create, without a step of
 * Python. Whatever is not ordinary (a slot to be made, a hook that is async or says no) is handed
 * over to pool/waiter.py in the middle. */

/* -- the wait -------------------------------------------------------------------------------- */

static int
can_wait(Engine *engine, Claim *claim)
{
    Core *core = engine->core;
    return claim->stage == BEGUN && claim->state == ASKING && core->phase == OPEN &&
           core->circuit == ACTIVE && core->idle == 0 && core_room(core) <= 0 && claim->timeout != 0.0 &&
           isnan(claim->wait_timeout) &&
           (engine->max_waiting < 0 || core->waiters.length + core->parked < engine->max_waiting);
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
        result = PyObject_CallMethodOneArg(slow_path(engine), st->s_check_deadlock, (PyObject *)claim);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    else {
        claim->deadline = claim->began + (claim->timeout < LONGEST ? claim->timeout : LONGEST);
        if (claim->deadline < engine->core->alarm_at) {
            PyObject *when = PyFloat_FromDouble(claim->deadline);
            result =
                when == NULL ? NULL : PyObject_CallMethodOneArg(slow_path(engine), st->s_set_alarm, when);
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
        core_wait(engine->core, claim, Py_NAN) < 0) {
        Py_XDECREF(future);
        Py_XDECREF(pause);
        return PyErr_Occurred() ? -1 : 0;
    }
    claim->own_waiter = 1;
    claim->future = future;
    claim->pause = pause;
    acquire_move(claim, ACQUIRE_PAUSE); /* BEGUN, as can_wait() has seen */
    deadline_add(engine->core, claim);
    if (PyTuple_GET_SIZE(engine->on_waiting) > 0 && tell_of_wait(engine, claim) < 0) {
        wait_end(claim);
        return -1;
    }
    return 1;
}

/* Its end is counted, by the error that ends it; -1 with what has broken that off. */
static int
acquire_ended(Claim *claim, Engine *engine, PyObject *error)
{
    PyObject *result = PyObject_CallMethodObjArgs(slow_path(engine), claim->st->s_ended, claim, error, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* The exception that is set was thrown in: everything is passed on, and the exception goes on. */
static PyObject *
wait_interrupted(Claim *claim)
{
    int finalizing = PyErr_ExceptionMatches(PyExc_GeneratorExit);
    PyObject *error = PyErr_GetRaisedException();
    wait_end(claim);
    acquire_end(claim);
    deadline_remove(claim);
    PyObject *result = PyObject_CallMethodObjArgs(slow_path(engine_of(claim)), claim->st->s_interrupted,
                                                  claim, finalizing ? Py_True : Py_False, NULL);
    if (result == NULL) {
        Engine *engine = engine_of(claim);
        claim->over = engine->must_tidy = 1;
        if (claim->state == ABANDONED && claim->uncounted) { /* it has left: no end is uncounted */
            PyObject *broken_off = PyErr_GetRaisedException();
            if (acquire_ended(claim, engine, error) < 0) {
                PyErr_Clear();
            }
            PyErr_SetRaisedException(broken_off);
        }
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

/* From here on pool/waiter.py drives it: SLOW. Steals the slot and the answer, which may be NULL. */
static int
wait_delegate(Claim *claim, int at, Slot *slot, PyObject *answer)
{
    State *st = claim->st;
    PyObject *coroutine = PyObject_CallMethodObjArgs(
        slow_path(engine_of(claim)), st->s_obtain, claim, st->handovers[at],
        slot == NULL ? Py_None : (PyObject *)slot, answer == NULL ? Py_None : answer, NULL);
    Py_XDECREF(slot);
    Py_XDECREF(answer);
    PyObject *steps = coroutine == NULL ? NULL : iterate(coroutine);
    Py_XDECREF(coroutine);
    if (steps == NULL || acquire_move(claim, ACQUIRE_DELEGATE) < 0) {
        Py_XDECREF(steps);
        return -1;
    }
    Py_XSETREF(claim->steps, steps);
    return 0;
}

/* What before_acquire says of a slot that was granted: how to go on, or HANDOVERS if it may be held. */
static int
wait_ask(Engine *engine, Core *core, Slot *slot, double now, PyObject **answer)
{
    if (slot->fresh) { /* made for a waiter */
        return HANDOVERS;
    }
    if (slot->expires_at <= now) {
        return SHOWING;
    }
    if (engine->before_acquire == Py_None || skips_check(engine, slot, now)) {
        return HANDOVERS;
    }
    *answer = ask(core, engine->before_acquire, slot->resource);
    if (*answer == NULL) {
        *answer = PyErr_GetRaisedException();
        return REFUSED;
    }
    if (is_awaitable(*answer)) {
        return INSPECTING;
    }
    int refused = *answer == Py_False;
    Py_CLEAR(*answer);
    return refused ? REFUSED : HANDOVERS;
}

/* The claim was woken, and has the slot in hand, which is stolen. 0: it is READY or SLOW. */
static int
wait_serve(Claim *claim, Engine *engine, Core *core, Slot *slot)
{
    PyObject *answer = NULL;
    double now = engine_now(engine);
    if (now == -1.0 && PyErr_Occurred()) {
        return wait_delegate(claim, REFUSED, slot, PyErr_GetRaisedException());
    }
    int at = slot->state != RESERVED ? SHOWING : wait_ask(engine, core, slot, now, &answer);
    if (at != HANDOVERS) {
        return wait_delegate(claim, at, slot, answer);
    }
    if (engine->before_acquire != Py_None) { /* it may have taken its time */
        now = engine_now(engine);
        if (now == -1.0 && PyErr_Occurred()) {
            return wait_delegate(claim, REFUSED, slot, PyErr_GetRaisedException());
        }
    }
    if (claim->state != GRANTED || core->phase == CLOSED || engine->core != core) { /* by the hook */
        return wait_delegate(claim, ACCEPTED, slot, NULL);
    }
    double waited = now - claim->began;
    if (core_hold(core, claim, slot, now, waited) < 0) {
        Py_DECREF(slot);
        return -1;
    }
    return acquire_serve(claim, engine, core, slot, now, waited);
}

/* One step of the wait: the future for the task, or NULL if it is not PAUSED any more. */
static PyObject *
wait_step(Claim *claim)
{
    PyObject *pause = Py_NewRef(claim->pause); /* a loop's own future may end the wait inside */
    PyObject *step = Py_TYPE(pause)->tp_iternext(pause);
    Py_DECREF(pause);
    if (step != NULL) {
        return step;
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
    if (claim->stage != PAUSED) {
        return NULL;
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
        wait_delegate(claim, SEEKING, NULL, NULL); /* somebody else has woken it */
        return NULL;
    }
    claim->slot = NULL;
    wait_serve(claim, engine, core, slot);
    return NULL;
}
