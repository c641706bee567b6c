/* Returns: the holder gives a slot back. */

/* The holder gives the slot back: the end, or an Operation that leads to it. `clean`: there is
 * nothing for before_release to do. */
static PyObject *
fastpath_give_back(FastPath *front, Slot *slot, int clean)
{
    Core *core = front->core;
    State *st = core->st;
    PyObject *result;
    double now = fastpath_now(front);
    if (now == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Claim *claim = core_reclaim(core, slot, now);
    if (claim == NULL) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(front->subscribers) > 0 &&
        fastpath_tell(front, st->s_released, claim, slot, now, now - claim->since) < 0) {
        Py_DECREF(claim);
        return NULL;
    }
    Py_DECREF(claim);
    if (!clean && front->before_release != Py_None) {
        PyObject *answer = ask(core, front->before_release, slot->resource);
        if (answer == NULL || answer == Py_False || is_awaitable(answer)) {
            PyObject *error = answer == NULL ? PyErr_GetRaisedException() : Py_NewRef(Py_None);
            result = PyObject_CallMethodObjArgs(slow_path(front), st->s_examine, slot,
                                                answer == NULL ? Py_None : answer, error, NULL);
            Py_XDECREF(answer);
            Py_DECREF(error);
            return result;
        }
        Py_DECREF(answer);
    }
    if (front->strategy != Py_None && fastpath_report_success(front, slot->probe) < 0) {
        return NULL;
    }
    const char *reason;
    int unfit = core_put(core, slot, now, &reason);
    if (unfit != 0) {
        return unfit < 0 ? NULL : PyObject_CallMethodOneArg(slow_path(front), st->s_settle, (PyObject *)slot);
    }
    double until = isnan(core->max_idle) ? slot->expires_at
                                         : fmin(now + core->max_idle, slot->expires_at);
    if (until < front->due_at) {
        result = PyObject_CallMethodOneArg(slow_path(front), st->s_expect, (PyObject *)slot);
        if (result == NULL) {
            return NULL;
        }
        Py_DECREF(result);
    }
    if ((core->waiters.length > 0 || core->min_size > 0 || core->phase != OPEN) &&
        fastpath_advance(front) < 0) {
        return NULL;
    }
    return Py_NewRef(st->done);
}

/* Whether this is a task of the pool's own loop; else the slow check raises or lets it pass. */
static int
fastpath_check_loop(FastPath *front)
{
    PyObject *tasks = front->core->st->current_tasks;
    if (tasks != NULL && PyThread_get_thread_ident() == front->thread &&
        look_up_task(tasks, front->loop) != NULL) {
        return 0;
    }
    if (PyErr_Occurred()) {
        return -1;
    }
    PyObject *result = PyObject_CallMethodNoArgs(slow_path(front), front->core->st->s_check_loop);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* The same as a step, or put off to the end of the one that is under way. */
static PyObject *
fastpath_return(FastPath *front, Slot *slot, int clean)
{
    if (front->core->busy) {
        return PyObject_CallMethodObjArgs(slow_path(front), front->core->st->s_defer_return, slot,
                                          clean ? Py_True : Py_False, NULL);
    }
    Core *core = step_begin(front);
    PyObject *result = fastpath_give_back(front, slot, clean);
    step_end(front, core, result == NULL);
    return result;
}
