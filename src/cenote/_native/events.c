/* Events: those of the fast path, made and delivered without a step of Python. */

static const char *const event_fields[EVENT_FIELDS] = {"kind",     "pool",   "time",  "resource", "task",
                                                       "duration", "reason", "error", "lane"};

/* Where the object of a slot of a Python class is. */
static int
find_slot(PyObject *type, const char *name, Py_ssize_t *offset)
{
    PyObject *member = PyObject_GetAttrString(type, name);
    if (member == NULL) {
        return -1;
    }
    int found = Py_IS_TYPE(member, &PyMemberDescr_Type);
    if (found) {
        *offset = ((PyMemberDescrObject *)member)->d_member->offset;
    }
    else {
        PyErr_Format(PyExc_SystemError, "%R has no slot %s", type, name);
    }
    Py_DECREF(member);
    return found ? 0 : -1;
}

#define SLOT_AT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* The kinds of the events that C emits. */
static int
load_kinds(State *st)
{
    PyObject *kinds = import_from("cenote.events", "EventKind");
    int failed = kinds == NULL || (st->s_acquired = PyObject_GetAttrString(kinds, "ACQUIRED")) == NULL ||
                 (st->s_released = PyObject_GetAttrString(kinds, "RELEASED")) == NULL ||
                 (st->s_waiting = PyObject_GetAttrString(kinds, "WAITING")) == NULL;
    Py_XDECREF(kinds);
    return failed ? -1 : 0;
}

/* A PoolEvent is frozen, for everybody else. */
static int
load_events(State *st)
{
    if (load_kinds(st) < 0) {
        return -1;
    }
    PyObject *event = import_from("cenote.events", "PoolEvent");
    PyObject *subscription = import_from("cenote.events", "Subscription");
    int failed = event == NULL || subscription == NULL ||
                 find_slot(subscription, "callback", &st->callback_offset) < 0;
    for (int i = 0; !failed && i < EVENT_FIELDS; i++) {
        failed = find_slot(event, event_fields[i], &st->event_offsets[i]) < 0;
    }
    if (failed) {
        Py_XDECREF(event);
        Py_XDECREF(subscription);
        return -1;
    }
    st->event_type = (PyTypeObject *)event;
    st->subscription_type = (PyTypeObject *)subscription;
    return 0;
}

/* What events.task_name() says, or None. */
static PyObject *
name_of_task(State *st, PyObject *task)
{
    if (task == NULL || task == Py_None) {
        return Py_NewRef(Py_None);
    }
    PyObject *name = PyObject_CallMethodNoArgs(task, st->s_get_name);
    if (name != NULL && !PyUnicode_CheckExact(name)) {
        Py_SETREF(name, PyObject_Str(name));
    }
    return name;
}

/* As the constructor would make it, which costs several times as much. `slot` may be NULL, and NaN is
 * no duration. */
static PyObject *
new_event(Engine *engine, PyObject *kind, Claim *claim, Slot *slot, double now, double duration)
{
    State *st = claim->st;
    PyObject *name = name_of_task(st, claim->task); /* first: no call with an exception set */
    if (name == NULL) {
        return NULL;
    }
    PyObject *fields[EVENT_FIELDS] = {
        Py_NewRef(kind),
        claim->pool != NULL ? Py_NewRef(claim->pool) : engine_pool(engine),
        PyFloat_FromDouble(now),
        newref_or_none(slot == NULL ? NULL : slot->resource),
        name,
        isnan(duration) ? Py_NewRef(Py_None) : PyFloat_FromDouble(duration),
        Py_NewRef(Py_None),
        Py_NewRef(Py_None),
        claim->lane == NULL ? Py_NewRef(Py_None) : Py_NewRef(claim->lane->name),
    };
    PyObject *event = NULL;
    if (fields[2] != NULL && fields[5] != NULL) {
        event = st->spare_event;
        st->spare_event = NULL;
        if (event != NULL && Py_REFCNT(event) > 1) { /* somebody has found it by way of gc */
            Py_CLEAR(event);
        }
        if (event == NULL) {
            event = st->event_type->tp_alloc(st->event_type, 0);
        }
    }
    for (int i = 0; i < EVENT_FIELDS; i++) {
        if (event == NULL) {
            Py_XDECREF(fields[i]);
        }
        else {
            SLOT_AT(event, st->event_offsets[i]) = fields[i];
        }
    }
    return event;
}

/* One that no subscriber has kept is used again: making and freeing it would be most of its price. */
static void
drop_event(State *st, PyObject *event)
{
    if (Py_REFCNT(event) > 1 || st->ended) {
        Py_DECREF(event);
        return;
    }
    for (int i = 0; i < EVENT_FIELDS; i++) {
        Py_CLEAR(SLOT_AT(event, st->event_offsets[i]));
    }
    if (st->spare_event == NULL && Py_REFCNT(event) == 1 && !st->ended) {
        st->spare_event = event;
    }
    else {
        Py_DECREF(event);
    }
}

/* Emit one of the events of the fast path: acquired, released, waiting. */
static int
engine_tell(Engine *engine, PyObject *subscribers, PyObject *kind, Claim *claim, Slot *slot, double now,
            double duration)
{
    State *st = claim->st;
    PyObject *event = new_event(engine, kind, claim, slot, now, duration);
    if (event == NULL) {
        return -1;
    }
    Py_INCREF(subscribers); /* one may unsubscribe */
    Core *core = (Core *)Py_NewRef(engine->core);
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(subscribers); i++) {
        PyObject *subscription = PyTuple_GET_ITEM(subscribers, i);
        PyObject *callback = Py_IS_TYPE(subscription, st->subscription_type)
                                 ? Py_XNewRef(SLOT_AT(subscription, st->callback_offset))
                                 : NULL;
        if (callback == NULL) { /* nothing that subscribe() has made: it says what is wrong */
            callback = PyObject_GetAttrString(subscription, "callback");
        }
        int busy = step_pause(core);
        PyObject *result = callback == NULL ? NULL : PyObject_CallOneArg(callback, event);
        step_resume(core, busy);
        Py_XDECREF(callback);
        Py_XDECREF(result);
        if (result == NULL) {
            PyObject *error = PyErr_GetRaisedException();
            failed =
                engine_contain(engine, error, PyUnicode_FromFormat("a subscriber failed on %R", kind)) < 0;
        }
    }
    Py_DECREF(subscribers);
    Py_DECREF(core);
    drop_event(st, event);
    return failed ? -1 : 0;
}

/* Emit `waiting`. A subscriber may do anything: the caller looks again. */
static int
tell_of_wait(Engine *engine, Claim *claim)
{
    double now = engine_now(engine);
    if (now == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    return engine_tell(engine, engine->on_waiting, claim->st->s_waiting, claim, NULL, now, Py_NAN);
}

/* A claim holds a slot: arm hold_warning and emit `acquired`. */
static int
engine_report_hold(Engine *engine, Claim *claim, Slot *slot, double now, double waited)
{
    if (engine->hold_warning != Py_None) {
        PyObject *result =
            PyObject_CallMethodObjArgs(slow_path(engine), claim->st->s_held, claim, slot, NULL);
        Py_XDECREF(result);
        return result == NULL ? -1 : 0;
    }
    if (PyTuple_GET_SIZE(engine->on_acquired) > 0) {
        return engine_tell(engine, engine->on_acquired, claim->st->s_acquired, claim, slot, now, waited);
    }
    return 0;
}
