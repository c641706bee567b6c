/* Steps: whatever is called from outside, from its first look at the core to its return.
 *
 * While a step is under way `busy` is above 0, and what calls in meanwhile (finalizers, a clock, a log
 * handler) is put off until the step is over. Around the hooks, subscribers and strategies that a step
 * calls itself, `busy` is 0: these may use the pool as they like, and the step looks again afterwards. */

/* A reference to the core, for the time of the step. */
static inline Core *
step_begin(Engine *engine)
{
    Core *core = (Core *)Py_NewRef(engine->core);
    core->busy++;
    return core;
}

/* Before something is called that may use the pool; the answer goes to step_resume(). */
static inline int
step_pause(Core *core)
{
    int busy = core->busy;
    core->busy = 0;
    return busy;
}

static inline void
step_resume(Core *core, int busy)
{
    core->busy = busy;
}

/* Whether the exception that is set has left something: the same as in Steps.step(). */
static int
step_unsettled(Core *core)
{
    return core->count - core->idle - core->out + core->opening + core->closing + core->granted.length != 0 ||
           (core->waiters.length > 0 && (core->idle > 0 || core_room(core) > 0)) ||
           !PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_RecursionError) ||
           PyErr_ExceptionMatches(PyExc_MemoryError);
}

/* An exception has broken off a step: what it had in hand is found when no step is under way. */
static void
engine_broken_off(Engine *engine, Core *core)
{
    if (!engine->must_tidy && !step_unsettled(core)) {
        return;
    }
    PyObject *error = PyErr_GetRaisedException();
    engine->must_tidy = 1; /* in case that the call fails: the next step tries again */
    PyObject *result = PyObject_CallMethodNoArgs(slow_path(engine), core->st->s_broken_off);
    if (result == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(result);
    PyErr_SetRaisedException(error);
}

static inline void
step_end(Engine *engine, Core *core, int failed)
{
    core->busy--;
    if (failed || engine->must_tidy) {
        engine_broken_off(engine, core);
    }
    Py_DECREF(core);
}

/* The exception that is set has broken off what should have handed the resource over. */
static void
lose_hold(Core *core, Claim *claim)
{
    if (claim->state != HOLDING || claim->slot == NULL) {
        return;
    }
    PyObject *error = PyErr_GetRaisedException();
    Slot *slot = (Slot *)Py_NewRef(claim->slot);
    Claim *lost = core_reclaim(core, slot, claim->since);
    if (lost == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(lost);
    Py_DECREF(slot);
    PyErr_SetRaisedException(error);
}
