/* Returns: the holder gives a slot back. */

/* The holder gives the slot back: the end, or an Operation that leads to it. `clean`: there is
 * nothing for before_release to do. */
static PyObject *
engine_give_back(Engine *engine, Slot *slot, int clean)
{
    Core *core = engine->core;
    State *st = core->st;
    PyObject *result;
    double now = engine_now(engine);
    if (now == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Claim *claim = core_reclaim(core, slot, now);
    if (claim == NULL) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(engine->on_released) > 0 &&
        engine_tell(engine, engine->on_released, st->s_released, claim, slot, now, now - claim->since) < 0) {
        Py_DECREF(claim);
        return NULL;
    }
    Py_DECREF(claim);
    if (!clean && engine->before_release != Py_None) {
        PyObject *answer = ask(core, engine->before_release, slot->resource);
        if (answer == NULL || answer == Py_False || answer == st->retire || is_awaitable(answer)) {
            PyObject *error = answer == NULL ? PyErr_GetRaisedException() : Py_NewRef(Py_None);
            result = PyObject_CallMethodObjArgs(slow_path(engine), st->s_examine, slot,
                                                answer == NULL ? Py_None : answer, error, NULL);
            Py_XDECREF(answer);
            Py_DECREF(error);
            return result;
        }
        Py_DECREF(answer);
    }
    if (engine->strategy != Py_None && engine_report_success(engine, slot->probe) < 0) {
        return NULL;
    }
    const char *reason;
    int unfit = core_put(core, slot, now, &reason);
    if (unfit != 0) {
        return unfit < 0 ? NULL
                         : PyObject_CallMethodOneArg(slow_path(engine), st->s_settle, (PyObject *)slot);
    }
    double until = isnan(core->max_idle) ? slot->expires_at : fmin(now + core->max_idle, slot->expires_at);
    if (until < engine->next_sweep) {
        result = PyObject_CallMethodOneArg(slow_path(engine), st->s_expect, (PyObject *)slot);
        if (result == NULL) {
            return NULL;
        }
        Py_DECREF(result);
    }
    if ((core->waiters.length > 0 || core->min_size > 0 || core->phase != OPEN) &&
        engine_advance(engine) < 0) {
        return NULL;
    }
    return Py_NewRef(st->done);
}

/* Whether this is a task of the pool's own loop; else the slow check raises or lets it pass. */
static int
engine_check_loop(Engine *engine)
{
    PyObject **words = running(engine->core->st);
    if (words != NULL && words[0] == engine->loop) {
        return 0;
    }
    PyObject *tasks = engine->core->st->current_tasks;
    if (tasks != NULL && PyThread_get_thread_ident() == engine->thread &&
        look_up_task(tasks, engine->loop) != NULL) {
        return 0;
    }
    if (PyErr_Occurred()) {
        return -1;
    }
    PyObject *result;
    if (tasks == NULL && engine->loop != NULL) { /* since 3.14; a loop runs in one thread only */
        result = PyObject_CallNoArgs(engine->core->st->running_loop);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
        if (result == engine->loop && result != Py_None) {
            return 0;
        }
    }
    result = PyObject_CallMethodNoArgs(slow_path(engine), engine->core->st->s_check_loop);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* The same as a step, or put off to the end of the one that is under way. */
static PyObject *
engine_return(Engine *engine, Slot *slot, int clean)
{
    if (engine->core->busy) {
        return PyObject_CallMethodObjArgs(slow_path(engine), engine->core->st->s_defer_return, slot,
                                          clean ? Py_True : Py_False, NULL);
    }
    Core *core = step_begin(engine);
    PyObject *result = engine_give_back(engine, slot, clean);
    step_end(engine, core, result == NULL);
    return result;
}
