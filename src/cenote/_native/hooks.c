/* Calling out: hooks, waiters, the strategy, and the slow path. */

static int
is_awaitable(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_as_async != NULL && type->tp_as_async->am_await != NULL) {
        return 1;
    }
    return PyGen_CheckExact(object); /* the slow path looks closer */
}

/* -1 without an exception would crash a caller that believes it. */
static void
explain(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_SystemError, "the C %s of a cenote pool failed without an exception", what);
    }
}

static PyObject *
check_call(Check *check, PyObject *resource)
{
    int verdict = check->function(resource, check->data);
    if (verdict < 0) {
        explain(check->name);
    }
    if (PyErr_Occurred()) { /* also if it says that all is well: an exception is not lost */
        return NULL;
    }
    return check->is_check ? PyBool_FromLong(verdict) : Py_NewRef(Py_None);
}

/* Calls a sync hook, or the sync part of an async one. */
static PyObject *
ask(Core *core, PyObject *hook, PyObject *resource)
{
    int busy = step_pause(core);
    PyObject *answer = Py_IS_TYPE(hook, core->st->check_type) ? check_call((Check *)hook, resource)
                                                              : PyObject_CallOneArg(hook, resource);
    step_resume(core, busy);
    return answer;
}

/* Wakes the task of a claim that was granted something. */
static int
claim_wake(Claim *claim)
{
    State *st = claim->st;
    PyObject *result;
    if (claim->waiter != NULL) {
        result = PyObject_CallMethodNoArgs(claim->waiter, st->s_wake);
    }
    else if (claim->future == NULL) {
        return 0;
    }
    else {
        PyObject *future = Py_NewRef(claim->future);
        result = PyObject_CallMethodNoArgs(future, st->s_done);
        if (result == Py_False) {
            Py_SETREF(result, PyObject_CallMethodOneArg(future, st->s_set_result, Py_None));
        }
        Py_DECREF(future);
    }
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Everything that follows a return: waiters, creations, min_size, drain, close. */
static int
engine_advance(Engine *engine)
{
    Core *core = engine->core;
    int sheds = 0;
    double now = 0.0;
    if (!isnan(core->queue_target) && core->waiters.length > 0) {
        now = engine_now(engine);
        if (now == -1.0 && PyErr_Occurred()) {
            return -1;
        }
    }
    while (core->waiters.length > 0) {
        Claim *claim = core_grant(core, now);
        if (claim == NULL) {
            if (PyErr_Occurred()) {
                return -1;
            }
            break;
        }
        if (claim->state == WAITING) { /* to be failed: in Python */
            sheds = 1;
            break;
        }
        Py_INCREF(claim);
        int failed = claim_wake(claim);
        Py_DECREF(claim);
        if (failed < 0) {
            return -1;
        }
    }
    if (!sheds && core->phase == OPEN && core_demand(core) == 0 &&
        (core->min_size == 0 || core_shortage(core) == 0)) {
        return 0;
    }
    PyObject *result = PyObject_CallMethodNoArgs(slow_path(engine), core->st->s_advance);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* contain() of what a watcher has raised. Steals both; `what` may be NULL with an exception. */
static int
engine_contain(Engine *engine, PyObject *error, PyObject *what)
{
    PyObject *result =
        what == NULL
            ? NULL
            : PyObject_CallMethodObjArgs(slow_path(engine), engine->core->st->s_contain, error, what, NULL);
    Py_XDECREF(error);
    Py_XDECREF(what);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* report_success(); a strategy in C is called without a step of Python. */
static int
engine_report_success(Engine *engine, long long probe)
{
    Core *core = engine->core;
    State *st = core->st;
    PyObject *result;
    if (!Py_IS_TYPE(engine->strategy, st->watcher_type)) {
        PyObject *number = PyLong_FromLongLong(probe);
        result = number == NULL ? NULL
                                : PyObject_CallMethodOneArg(slow_path(engine), st->s_report_success, number);
        Py_XDECREF(number);
        Py_XDECREF(result);
        return result == NULL ? -1 : 0;
    }
    if (!core_reports(core, probe)) {
        return 0;
    }
    PyObject *strategy = Py_NewRef(engine->strategy); /* it may be replaced meanwhile */
    int busy = step_pause(core);
    PyObject *pool = engine_pool(engine);
    result = Watcher_report_success((Watcher *)strategy, pool);
    Py_DECREF(pool);
    step_resume(core, busy);
    Py_DECREF(strategy);
    Py_XDECREF(result);
    if (result != NULL) {
        return 0;
    }
    PyObject *error = PyErr_GetRaisedException();
    return engine_contain(engine, error, PyUnicode_FromString("the strategy failed in report_success()"));
}

/* Whether before_acquire need not be asked: see EngineBase in fastpath.py. */
static int
skips_check(Engine *engine, Slot *slot, double now)
{
    return now - slot->idle_since < engine->skip_check_within && slot->idle_since > engine->suspect_before;
}

static PyObject *
iterate(PyObject *awaitable)
{
    PyAsyncMethods *methods = Py_TYPE(awaitable)->tp_as_async;
    return methods != NULL && methods->am_await != NULL ? methods->am_await(awaitable)
                                                        : PyObject_GetIter(awaitable);
}
