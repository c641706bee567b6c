/* Acquire and Front: the fast path of the runtime. */

/* -- the fast path --------------------------------------------------------------------------- */

static PyObject *front_return(Front *front, Slot *slot, int clean);

typedef struct Watcher Watcher; /* a listener or a strategy in C: see native_capi.h */
static PyObject *Watcher_report_success(Watcher *self, PyObject *pool);

/* What asyncio's own table says about the pool's loop: a borrowed reference, or NULL. */
static PyObject *
look_up_task(PyObject *tasks, PyObject *loop)
{
    /* Nearly always there is one loop: its entry is the first, and needs no hash. */
    PyObject *key, *task;
    Py_ssize_t position = 0;
    if (PyDict_Next(tasks, &position, &key, &task) && key == loop) {
        return task;
    }
    return PyDict_GetItemWithError(tasks, loop);
}

/* The task that runs now in the pool's loop, in this thread: a new reference. NULL without an
 * exception: there is none, or this is another thread. */
static PyObject *
front_task(Front *front)
{
    State *st = front->core->st;
    if (front->loop == NULL || front->loop == Py_None ||
        PyThread_get_thread_ident() != front->thread) {
        return NULL;
    }
    if (st->current_tasks != NULL) {
        return Py_XNewRef(look_up_task(st->current_tasks, front->loop));
    }
    PyObject *task = PyObject_CallOneArg(st->current_task, front->loop);
    if (task == Py_None) {
        Py_CLEAR(task);
    }
    return task;
}

/* Where acquire() was called: code and instruction of the first frame outside cenote. */
static int
claim_note_caller(Claim *claim)
{
    State *st = claim->st;
    PyFrameObject *frame = PyEval_GetFrame(); /* borrowed */
    if (frame == NULL) {
        return 0;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    if ((PyObject *)code == st->last_code) {
        claim->code = (PyObject *)code;
        claim->instruction = PyFrame_GetLasti(frame);
        return 0;
    }
    PyObject *inner = PyDict_GetItemWithError(st->internal, code->co_filename);
    if (inner == Py_False) {
        Py_XSETREF(st->last_code, Py_NewRef(code));
        claim->code = (PyObject *)code;
        claim->instruction = PyFrame_GetLasti(frame);
        return 0;
    }
    Py_DECREF(code);
    if (inner == NULL && PyErr_Occurred()) {
        return -1;
    }
    /* From inside cenote, as every statement of a database is: look further out. */
    PyFrameObject *outer = inner == Py_True ? PyFrame_GetBack(frame) : NULL;
    while (outer != NULL) {
        code = PyFrame_GetCode(outer);
        inner = PyDict_GetItemWithError(st->internal, code->co_filename);
        if (inner == Py_False) {
            claim->code = (PyObject *)code;
            claim->instruction = PyFrame_GetLasti(outer);
            Py_DECREF(outer);
            return 0;
        }
        Py_DECREF(code);
        if (inner == NULL && PyErr_Occurred()) {
            Py_DECREF(outer);
            return -1;
        }
        PyFrameObject *next = inner == Py_True ? PyFrame_GetBack(outer) : NULL;
        Py_DECREF(outer);
        outer = next;
    }
    PyObject *found = PyObject_CallOneArg(st->caller, (PyObject *)frame);
    if (found == NULL) {
        return -1;
    }
    claim->code = Py_NewRef(PyTuple_GET_ITEM(found, 0));
    claim->instruction = (int)PyLong_AsLong(PyTuple_GET_ITEM(found, 1));
    Py_DECREF(found);
    return 0;
}

static Claim *
acquire_new(Front *front)
{
    State *st = front->core->st;
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
    claim->front = Py_NewRef(front);
    PyObject_GC_Track(claim);
    return claim;
}

static int
is_awaitable(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_as_async != NULL && type->tp_as_async->am_await != NULL) {
        return 1;
    }
    return PyGen_CheckExact(object); /* the slow path looks closer */
}

/* -1 without an exception would crash whoever believes it. */
static void
explain(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_SystemError, "the C %s of a cenote pool failed without an exception",
                     what);
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
    if (claim->waiting != NULL) {
        result = PyObject_CallMethodNoArgs(claim->waiting, st->s_wake);
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
front_advance(Front *front)
{
    Core *core = front->core;
    while (core->waiters.length > 0) {
        Claim *claim = core_grant(core);
        if (claim == NULL) {
            if (PyErr_Occurred()) {
                return -1;
            }
            break;
        }
        Py_INCREF(claim);
        int failed = claim_wake(claim);
        Py_DECREF(claim);
        if (failed < 0) {
            return -1;
        }
    }
    if (core->phase == OPEN && core_demand(core) == 0 &&
        (core->min_size == 0 || core_shortage(core) == 0)) {
        return 0;
    }
    PyObject *result = PyObject_CallMethodNoArgs((PyObject *)front, core->st->s_advance);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* What a hook raised, as an exception instance; the error indicator is clear afterwards. */
static PyObject *
fetch_error(void)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

/* Bound._contain() of what a watcher has raised. Steals both; `what` may be NULL with an exception. */
static int
front_contain(Front *front, PyObject *error, PyObject *what)
{
    PyObject *result = what == NULL ? NULL
                                    : PyObject_CallMethodObjArgs((PyObject *)front,
                                                                 front->core->st->s_contain, error,
                                                                 what, NULL);
    Py_XDECREF(error);
    Py_XDECREF(what);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* -- events ---------------------------------------------------------------------------------- */

static const char *const event_fields[EVENT_FIELDS] = {"kind", "pool",     "time",   "resource",
                                                       "task", "duration", "reason", "error"};

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

/* A PoolEvent is frozen, for everybody else. */
static int
load_event(State *st)
{
    PyObject *event = import_from("cenote.observe", "PoolEvent");
    PyObject *subscription = import_from("cenote.observe", "Subscription");
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

/* What observe.task_name() says, or None. */
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

/* As the constructor would make it, which costs several times as much. */
static PyObject *
new_event(Front *front, PyObject *kind, Claim *claim, Slot *slot, double now, double duration)
{
    State *st = claim->st;
    if (st->event_type == NULL && load_event(st) < 0) {
        return NULL;
    }
    PyObject *name = name_of_task(st, claim->task); /* first: no call with an exception set */
    if (name == NULL) {
        return NULL;
    }
    PyObject *fields[EVENT_FIELDS] = {
        Py_NewRef(kind),
        Py_NewRef(front),
        PyFloat_FromDouble(now),
        newref_or_none(slot->resource),
        name,
        PyFloat_FromDouble(duration),
        Py_NewRef(Py_None),
        Py_NewRef(Py_None),
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

/* Bound._emit() for the two events of the fast path. */
static int
front_tell(Front *front, PyObject *kind, Claim *claim, Slot *slot, double now, double duration)
{
    State *st = claim->st;
    PyObject *event = new_event(front, kind, claim, slot, now, duration);
    if (event == NULL) {
        return -1;
    }
    PyObject *subscribers = Py_NewRef(front->subscribers); /* one may unsubscribe */
    Core *core = (Core *)Py_NewRef(front->core);
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
            PyObject *error = fetch_error();
            failed = front_contain(front, error,
                                   PyUnicode_FromFormat("a subscriber failed on %R", kind)) < 0;
        }
    }
    Py_DECREF(subscribers);
    Py_DECREF(core);
    drop_event(st, event);
    return failed ? -1 : 0;
}

/* A claim holds a slot: tell those who want to know. */
static int
front_report_hold(Front *front, Claim *claim, Slot *slot, double now, double waited)
{
    if (front->hold_warning != Py_None) {
        PyObject *result = PyObject_CallMethodObjArgs((PyObject *)front, claim->st->s_held, claim,
                                                      slot, NULL);
        Py_XDECREF(result);
        return result == NULL ? -1 : 0;
    }
    if (PyTuple_GET_SIZE(front->subscribers) > 0) {
        return front_tell(front, claim->st->s_acquired, claim, slot, now, waited);
    }
    return 0;
}

/* -- acquire and release --------------------------------------------------------------------- */

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
    Front *front = (Front *)claim->front;
    Core *core = front->core;
    State *st = claim->st;
    PyObject *result;

    if (claim->used) {
        return used_before();
    }
    PyObject *task = core->phase == OPEN ? front_task(front) : NULL;
    if (task == NULL) {
        if (PyErr_Occurred()) {
            return -1;
        }
        result = PyObject_CallMethodNoArgs((PyObject *)front, st->s_enter);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
        task = front_task(front);
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
    double now = front_now(front);
    if (now == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    claim->began = now;
    claim->before = core->idle_orders;
    if (core->circuit != ACTIVE) {
        result = PyObject_CallMethodOneArg((PyObject *)front, st->s_admit_or_raise,
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
    if (front->before_acquire != Py_None && !trusts(front, slot, now)) {
        PyObject *answer = ask(core, front->before_acquire, slot->resource);
        if (answer == NULL || answer == Py_False) {
            /* Logged, reported and destroyed there; raises what is no Exception. */
            PyObject *error = answer == NULL ? fetch_error() : Py_NewRef(Py_None);
            Py_XDECREF(answer);
            result = PyObject_CallMethodObjArgs((PyObject *)front, st->s_refuse, slot, error, NULL);
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
    int failed = front_report_hold(front, claim, slot, now, 0.0) < 0;
    Py_DECREF(slot);
    if (failed) {
        Py_CLEAR(claim->result);
        lose_hold(core, claim);
        return -1;
    }
    return 1;
}

/* The claim itself, with the resource or with the order to wait; or what waiting.py does. */
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
            core_give_place(((Front *)claim->front)->core, &claim->probe);
        }
        return NULL;
    }
    if (slot == NULL && can_wait((Front *)claim->front, claim)) {
        claim->must_wait = 1;
        return Py_NewRef(claim);
    }
    State *st = claim->st;
    PyObject *coroutine = PyObject_CallMethodObjArgs(
        claim->front, st->s_obtain, claim, slot == NULL ? Py_None : (PyObject *)slot,
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

/* The resource is what the awaiting expression gives. */
static PyObject *
stop_with(PyObject *result)
{
    if (PyTuple_Check(result) || PyExceptionInstance_Check(result)) {
        /* These would be taken for the arguments of StopIteration, or for the exception itself. */
        PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
        if (stop != NULL) {
            PyErr_SetObject(PyExc_StopIteration, stop);
            Py_DECREF(stop);
        }
    }
    else {
        PyErr_SetObject(PyExc_StopIteration, result);
    }
    Py_DECREF(result);
    return NULL;
}

/* The same, out of a slot, for the interpreter, which takes nothing but the value. From 3.12 on an
 * exception that is raised is always an object: the slot keeps one, and raises it for each lease. */
static PyObject *
slot_stop(Slot *slot, PyObject *result)
{
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *stop = slot->stop;
    if (stop == NULL) {
        Py_INCREF(slot);
        stop = PyObject_CallNoArgs(PyExc_StopIteration);
        if (stop != NULL && slot->state == LEASED && slot->stop == NULL) {
            slot->stop = Py_NewRef(stop);
        }
        Py_DECREF(slot);
        if (stop == NULL) {
            Py_DECREF(result);
            return NULL;
        }
    }
    else if (((PyStopIterationObject *)stop)->value == NULL && stop_is_ours(stop)) {
        Py_INCREF(stop);
    }
    else {
        return stop_with(result);
    }
    Py_XSETREF(((PyStopIterationObject *)stop)->value, result);
    PyErr_SetRaisedException(stop);
    return NULL;
#else
    (void)slot;
    return stop_with(result);
#endif
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
acquire_failed(Claim *claim, Front *front, Core *core)
{
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_StopIteration)) {
        return;
    }
    if (claim->state == WAITING || claim->state == GRANTED) {
        claim->over = front->doubtful = 1;
    }
    front_broken_off(front, core);
}

static PyObject *
acquire_step(Claim *claim, int by_interpreter)
{
    Front *front = (Front *)claim->front;
    if (front == NULL || front->core == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was garbage-collected");
        return NULL;
    }
    if (front->core->busy) {
        Py_RETURN_NONE; /* in the middle of another step: the task comes back in the next turn */
    }
    Core *core = step_begin(front);
    PyObject *step = acquire_go_on(claim, core, by_interpreter);
    if (step == NULL && claim->state != HOLDING) {
        acquire_failed(claim, front, core);
    }
    step_end(front, core, 0);
    return step;
}

static PyObject *
acquire_next(Claim *claim)
{
    return acquire_step(claim, 1);
}

static PyObject *steps_new(Claim *claim);

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
    PyObject *result = front_return((Front *)claim->front, slot, 0);
    Py_DECREF(slot);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
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

/* Bound._report_success(); a strategy in C is called without a step of Python. */
static int
front_report_success(Front *front, long long probe)
{
    Core *core = front->core;
    State *st = core->st;
    PyObject *result;
    if (!Py_IS_TYPE(front->strategy, st->watcher_type)) {
        PyObject *number = PyLong_FromLongLong(probe);
        result = number == NULL ? NULL
                                : PyObject_CallMethodOneArg((PyObject *)front, st->s_report_success,
                                                            number);
        Py_XDECREF(number);
        Py_XDECREF(result);
        return result == NULL ? -1 : 0;
    }
    if (!core_reports(core, probe)) {
        return 0;
    }
    PyObject *strategy = Py_NewRef(front->strategy); /* it may be replaced meanwhile */
    int busy = step_pause(core);
    result = Watcher_report_success((Watcher *)strategy, (PyObject *)front);
    step_resume(core, busy);
    Py_DECREF(strategy);
    Py_XDECREF(result);
    if (result != NULL) {
        return 0;
    }
    PyObject *error = fetch_error();
    return front_contain(front, error,
                         PyUnicode_FromString("the strategy failed in report_success()"));
}

/* The holder gives the slot back: the end, or an Operation that leads to it. `clean`: there is
 * nothing for before_release to do. */
static PyObject *
front_give_back(Front *front, Slot *slot, int clean)
{
    Core *core = front->core;
    State *st = core->st;
    PyObject *self = (PyObject *)front, *result;
    double now = front_now(front);
    if (now == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Claim *claim = core_reclaim(core, slot, now);
    if (claim == NULL) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(front->subscribers) > 0 &&
        front_tell(front, st->s_released, claim, slot, now, now - claim->since) < 0) {
        Py_DECREF(claim);
        return NULL;
    }
    Py_DECREF(claim);
    if (!clean && front->before_release != Py_None) {
        PyObject *answer = ask(core, front->before_release, slot->resource);
        if (answer == NULL || answer == Py_False || is_awaitable(answer)) {
            PyObject *error = answer == NULL ? fetch_error() : Py_NewRef(Py_None);
            result = PyObject_CallMethodObjArgs(self, st->s_examine, slot,
                                                answer == NULL ? Py_None : answer, error, NULL);
            Py_XDECREF(answer);
            Py_DECREF(error);
            return result;
        }
        Py_DECREF(answer);
    }
    if (front->strategy != Py_None && front_report_success(front, slot->probe) < 0) {
        return NULL;
    }
    const char *reason;
    int unfit = core_put(core, slot, now, &reason);
    if (unfit != 0) {
        return unfit < 0 ? NULL : PyObject_CallMethodOneArg(self, st->s_settle, (PyObject *)slot);
    }
    double until = isnan(core->max_idle) ? slot->expires_at
                                         : fmin(now + core->max_idle, slot->expires_at);
    if (until < front->due_at) {
        result = PyObject_CallMethodOneArg(self, st->s_expect, (PyObject *)slot);
        if (result == NULL) {
            return NULL;
        }
        Py_DECREF(result);
    }
    if ((core->waiters.length > 0 || core->min_size > 0 || core->phase != OPEN) &&
        front_advance(front) < 0) {
        return NULL;
    }
    return Py_NewRef(st->done);
}

/* Whether this is a task of the pool's own loop; else the slow check raises or lets it pass. */
static int
front_check_loop(Front *front)
{
    PyObject *tasks = front->core->st->current_tasks;
    if (tasks != NULL && PyThread_get_thread_ident() == front->thread &&
        look_up_task(tasks, front->loop) != NULL) {
        return 0;
    }
    if (PyErr_Occurred()) {
        return -1;
    }
    PyObject *result = PyObject_CallMethodNoArgs((PyObject *)front, front->core->st->s_check_loop);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* The same as a step, or put off to the end of the one that is under way. */
static PyObject *
front_return(Front *front, Slot *slot, int clean)
{
    if (front->core->busy) {
        return PyObject_CallMethodObjArgs((PyObject *)front, front->core->st->s_defer_return, slot,
                                          clean ? Py_True : Py_False, NULL);
    }
    Core *core = step_begin(front);
    PyObject *result = front_give_back(front, slot, clean);
    step_end(front, core, result == NULL);
    return result;
}

static PyObject *
Acquire_aexit(Claim *claim, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(3, 3, "__aexit__");
    State *st = claim->st;
    if (claim->state != HOLDING) {
        return Py_NewRef(st->done); /* released or discarded inside the block */
    }
    Front *front = (Front *)claim->front;
    if (args[0] != Py_None) {
        return PyObject_CallMethodObjArgs((PyObject *)front, st->s_leave, claim, args[1], NULL);
    }
    if (front_check_loop(front) < 0) {
        return NULL;
    }
    Slot *slot = (Slot *)Py_NewRef(claim->slot);
    PyObject *result = front_return(front, slot, 0);
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

/* -- Steps: what __await__ gives if there is something to wait for ----------------------------- */

/* The queue owns the claim, so that a claim cannot notice that nobody drives it any more. A coroutine
 * closes what it awaits; an iterator that is driven by hand is just dropped. */
typedef struct {
    PyObject_HEAD
    Claim *claim;
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
    char used = steps->claim->used;
    if (used && !steps->began) {
        steps->ended = 1;
        used_before();
        return NULL;
    }
    PyObject *step = acquire_step(steps->claim, by_interpreter);
    steps->began |= !used && steps->claim->used;
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
    if (claim == NULL || !steps->began || (claim->pause == NULL && claim->steps == NULL) ||
        (claim->state != ASKING && claim->state != WAITING && claim->state != GRANTED)) {
        return; /* it was driven to its end */
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *result = Acquire_close(claim, NULL);
    if (result == NULL) {
        PyErr_WriteUnraisable((PyObject *)steps);
    }
    Py_XDECREF(result);
    PyErr_Restore(type, error, traceback);
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
    {"result", done_result, METH_NOARGS, NULL},
    {"wait", done_wait, METH_NOARGS, NULL},
    {"send", done_send, METH_O, NULL},
    {"throw", done_throw, METH_VARARGS, NULL},
    {"close", done_result, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
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

/* -- Front ----------------------------------------------------------------------------------- */

static int
front_ready(Front *front)
{
    if (front->core == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this pool was not initialized");
        return -1;
    }
    return 0;
}

static PyObject *
Front_acquire(Front *front, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *timeout = nargs > 0 ? args[0] : NULL;
    if (names != NULL && PyTuple_GET_SIZE(names) > 0) {
        if (nargs > 0 || PyTuple_GET_SIZE(names) > 1 ||
            PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") != 0) {
            PyErr_SetString(PyExc_TypeError, "acquire() takes one argument at most: timeout");
            return NULL;
        }
        timeout = args[0];
    }
    else if (nargs > 1) {
        PyErr_SetString(PyExc_TypeError, "acquire() takes one argument at most: timeout");
        return NULL;
    }
    if (front_ready(front) < 0) {
        return NULL;
    }
    State *st = front->core->st;
    double limit;
    if (timeout == NULL || timeout == st->unset) {
        limit = front->acquire_timeout == Py_None ? Py_NAN : PyFloat_AS_DOUBLE(front->acquire_timeout);
    }
    else if (timeout == Py_None) {
        limit = Py_NAN;
    }
    else if (PyFloat_CheckExact(timeout) && PyFloat_AS_DOUBLE(timeout) >= 0.0 &&
             isfinite(PyFloat_AS_DOUBLE(timeout))) {
        limit = PyFloat_AS_DOUBLE(timeout);
    }
    else {
        PyObject *checked = PyObject_CallFunction(st->check_timeout, "sO", "timeout", timeout);
        if (checked == NULL) {
            return NULL;
        }
        limit = optional_seconds(checked);
        Py_DECREF(checked);
    }
    Claim *claim = acquire_new(front);
    if (claim == NULL) {
        return NULL;
    }
    claim->timeout = limit;
    if (claim_note_caller(claim) < 0) {
        Py_DECREF(claim);
        return NULL;
    }
    return (PyObject *)claim;
}

static PyObject *
try_acquire(Front *front, Core *core)
{
    PyObject *self = (PyObject *)front;
    PyObject *task = NULL;
    if (core->phase == OPEN && core->circuit == ACTIVE && core->idle > core->waiters.length &&
        (front->before_acquire == Py_None ||
         Py_IS_TYPE(front->before_acquire, core->st->check_type)) &&
        front->hold_warning == Py_None &&
        PyTuple_GET_SIZE(front->subscribers) == 0) {
        task = front_task(front);
        if (task == NULL && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (task == NULL) {
        return PyObject_CallMethodNoArgs(self, core->st->s_try_acquire_slow);
    }
    double now = front_now(front);
    Claim *claim = now == -1.0 && PyErr_Occurred() ? NULL : acquire_new(front);
    if (claim == NULL) {
        Py_DECREF(task);
        return NULL;
    }
    claim->task = task;
    claim->used = 1;
    claim->began = now;
    PyObject *resource = NULL;
    if (claim_note_caller(claim) == 0) {
        /* The clock and the collector may have run any code in between. */
        Slot *slot = NULL;
        if (core->idle > 0 && core->phase == OPEN && core->circuit == ACTIVE &&
            ring_at(core, core->lifo ? core->idle - 1 : 0)->expires_at > now) {
            slot = core_take(core, Py_HUGE_VAL);
        }
        if (slot == NULL) {
            resource = PyObject_CallMethodNoArgs(self, core->st->s_try_acquire_slow);
        }
        else {
            PyObject *answer = front->before_acquire == Py_None
                                   ? Py_NewRef(Py_True)
                                   : ask(core, front->before_acquire, slot->resource);
            if (answer == Py_True && core->phase == CLOSED) { /* by the hook */
                PyObject *settled = PyObject_CallMethodOneArg(self, core->st->s_settle,
                                                              (PyObject *)slot);
                resource = settled == NULL ? NULL : Py_NewRef(Py_None);
                Py_XDECREF(settled);
            }
            else if (answer == Py_True) {
                if (core_hold(core, claim, slot, now, 0.0) == 0) {
                    resource = Py_NewRef(slot->resource);
                }
            }
            else { /* rejected: destroyed there, and the slow path takes the next one */
                PyObject *error = answer == NULL ? fetch_error() : Py_NewRef(Py_None);
                PyObject *refused = PyObject_CallMethodObjArgs(self, core->st->s_refuse, slot,
                                                               error, NULL);
                Py_DECREF(error);
                if (refused != NULL) {
                    Py_DECREF(refused);
                    resource = PyObject_CallMethodNoArgs(self, core->st->s_try_acquire_slow);
                }
            }
            Py_XDECREF(answer);
            Py_DECREF(slot);
        }
    }
    Py_DECREF(claim);
    return resource;
}

static PyObject *
Front_try_acquire(Front *front, PyObject *Py_UNUSED(ignored))
{
    if (front_ready(front) < 0) {
        return NULL;
    }
    if (front->core->busy) {
        Py_RETURN_NONE; /* in the middle of another step: that would need waiting */
    }
    Core *core = step_begin(front);
    PyObject *resource = try_acquire(front, core);
    step_end(front, core, resource == NULL);
    return resource;
}

static PyObject *
front_release(Front *front, PyObject *resource, int clean)
{
    if (front_ready(front) < 0 || front_check_loop(front) < 0) {
        return NULL;
    }
    Core *core = front->core;
    State *st = core->st;
    Slot *slot = core->table == NULL ? NULL : core->table[table_find(core, resource)];
    if (slot == NULL || slot->twin != NULL) {
        PyObject *verb = PyUnicode_FromString("release");
        slot = verb == NULL ? NULL
                            : (Slot *)PyObject_CallMethodObjArgs((PyObject *)front, st->s_leased,
                                                                 resource, verb, NULL);
        Py_XDECREF(verb);
        if (slot == NULL) {
            return NULL;
        }
    }
    else {
        Py_INCREF(slot);
    }
    PyObject *result = front_return(front, slot, clean);
    Py_DECREF(slot);
    if (result == NULL || result == st->done) {
        return result;
    }
    PyObject *completed = PyObject_CallMethodOneArg((PyObject *)front, st->s_completed, result);
    Py_DECREF(result);
    return completed;
}

static PyObject *
Front_release(Front *front, PyObject *resource)
{
    return front_release(front, resource, 0);
}

static PyObject *
Front_release_clean(Front *front, PyObject *resource)
{
    return front_release(front, resource, 1);
}

static PyObject *
give_back(Front *front, PyObject *object, int clean)
{
    Slot *slot = front_ready(front) < 0 ? NULL : as_slot(front->core, object);
    if (slot == NULL) {
        return NULL;
    }
    Py_INCREF(slot);
    Core *core = step_begin(front);
    PyObject *result = front_give_back(front, slot, clean);
    step_end(front, core, result == NULL);
    Py_DECREF(slot);
    return result;
}

static PyObject *
Front_give_back(Front *front, PyObject *object)
{
    return give_back(front, object, 0);
}

static PyObject *
Front_give_back_clean(Front *front, PyObject *object)
{
    return give_back(front, object, 1);
}

static Py_ssize_t
Front_length(Front *front)
{
    return front->core == NULL ? 0 : (Py_ssize_t)front->core->count;
}

static PyObject *
Front_get_count(Front *front, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(Front_length(front));
}

static PyObject *
Front_get_idle(Front *front, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(front->core == NULL ? 0 : front->core->idle);
}

static PyObject *
Front_get_active(Front *front, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(front->core == NULL ? 0 : front->core->count - front->core->idle);
}

static PyObject *
Front_get_waiting(Front *front, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(front->core == NULL ? 0 : front->core->waiters.length);
}

static PyObject *
Front_get_core(Front *front, void *Py_UNUSED(closure))
{
    if (front->core == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_core");
        return NULL;
    }
    return Py_NewRef(front->core);
}

static int
Front_set_core(Front *front, PyObject *value, void *Py_UNUSED(closure))
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(front), &module_def);
    if (module == NULL) {
        return -1;
    }
    State *st = PyModule_GetState(module);
    if (value == NULL || !PyObject_TypeCheck(value, st->core_type)) {
        PyErr_SetString(PyExc_TypeError, "_core must be a Core");
        return -1;
    }
    Py_XSETREF(front->core, (Core *)Py_NewRef(value));
    return 0;
}

static PyObject *
Front_get_subscribers(Front *front, void *Py_UNUSED(closure))
{
    return Py_NewRef(front->subscribers);
}

static int
Front_set_subscribers(Front *front, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL || !PyTuple_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "_subscribers must be a tuple");
        return -1;
    }
    Py_SETREF(front->subscribers, Py_NewRef(value));
    return 0;
}

static PyObject *
Front_get_acquire_timeout(Front *front, void *Py_UNUSED(closure))
{
    return Py_NewRef(front->acquire_timeout);
}

static int
Front_set_acquire_timeout(Front *front, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL || (value != Py_None && !PyFloat_CheckExact(value))) {
        PyErr_SetString(PyExc_TypeError, "_acquire_timeout must be a float or None");
        return -1;
    }
    Py_SETREF(front->acquire_timeout, Py_NewRef(value));
    return 0;
}

/* What the fast path looks at, each a plain attribute for Python. NULL is None. */
#define FIELD(name)                                                                       \
    static PyObject *Front_get_##name(Front *front, void *Py_UNUSED(closure))             \
    {                                                                                     \
        return Py_NewRef(front->name);                                                    \
    }                                                                                     \
    static int Front_set_##name(Front *front, PyObject *value, void *Py_UNUSED(closure))  \
    {                                                                                     \
        Py_SETREF(front->name, Py_NewRef(value == NULL ? Py_None : value));               \
        return 0;                                                                         \
    }
FIELD(loop)
FIELD(time)
FIELD(before_acquire)
FIELD(before_release)
FIELD(strategy)
FIELD(hold_warning)

#define GETSET(attribute, name) \
    {attribute, (getter)Front_get_##name, (setter)Front_set_##name, NULL, NULL}

static PyGetSetDef front_getset[] = {
    {"count", (getter)Front_get_count, NULL, "Idle and active resources.", NULL},
    {"idle_count", (getter)Front_get_idle, NULL, "Resources that nobody uses.", NULL},
    {"active_count", (getter)Front_get_active, NULL, "Resources that are out, or in a hook.", NULL},
    {"waiting_count", (getter)Front_get_waiting, NULL, "Acquires that wait.", NULL},
    GETSET("_core", core),
    GETSET("_subscribers", subscribers),
    GETSET("_acquire_timeout", acquire_timeout),
    GETSET("_loop", loop),
    GETSET("_time", time),
    GETSET("_before_acquire", before_acquire),
    GETSET("_before_release", before_release),
    GETSET("_strategy", strategy),
    GETSET("_hold_warning", hold_warning),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef front_members[] = {
    {"_thread", T_ULONG, offsetof(Front, thread), 0, NULL},
    {"_direct_clock", T_BOOL, offsetof(Front, direct_clock), 0, NULL},
    {"_direct_future", T_BOOL, offsetof(Front, direct_future), 0, NULL},
    {"_doubtful", T_BOOL, offsetof(Front, doubtful), 0, NULL},
    {"_trust", T_DOUBLE, offsetof(Front, trust), 0, NULL},
    {"_doubted", T_DOUBLE, offsetof(Front, doubted), 0, NULL},
    {"_alarm_at", T_DOUBLE, offsetof(Front, alarm), 0, NULL},
    {"_due_at", T_DOUBLE, offsetof(Front, due_at), 0, NULL},
    {"_max_waiting", T_LONGLONG, offsetof(Front, max_waiting), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Those that do not begin with an underscore come first: see adopt. */
static PyMethodDef front_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))Front_acquire, METH_FASTCALL | METH_KEYWORDS,
     "acquire($self, /, timeout=...)\n--\n\n"
     "`await` it, or use it as `async with`; by itself it does nothing."},
    {"try_acquire", (PyCFunction)Front_try_acquire, METH_NOARGS,
     "try_acquire($self)\n--\n\n"
     "An idle resource, or a new one of a sync factory; None if that needs waiting."},
    {"release", (PyCFunction)Front_release, METH_O,
     "release($self, resource)\n--\n\n"
     "Give a resource back. Under way when this returns; awaiting it tells the end."},
    {"_release_clean", (PyCFunction)Front_release_clean, METH_O, NULL},
    {"_give_back", (PyCFunction)Front_give_back, METH_O, NULL},
    {"_give_back_clean", (PyCFunction)Front_give_back_clean, METH_O, NULL},
    {"_expired", (PyCFunction)Front_expired, METH_O, NULL},
    {"_next_deadline", (PyCFunction)Front_next_deadline, METH_NOARGS, NULL},
    {"_forget_deadlines", (PyCFunction)Front_forget_deadlines, METH_NOARGS, NULL},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *
Front_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *nothing = PyTuple_New(0);
    if (nothing == NULL) {
        return NULL;
    }
    /* Not tp_alloc: object's __new__ also prepares the __dict__ of a subclass, so that methods are
     * found fast (3.12). The pool's arguments are none of its business. */
    Front *front = (Front *)PyBaseObject_Type.tp_new(type, nothing, NULL);
    if (front == NULL) {
        Py_DECREF(nothing);
        return NULL;
    }
    front->loop = Py_NewRef(Py_None);
    front->time = Py_NewRef(Py_None);
    front->before_acquire = Py_NewRef(Py_None);
    front->before_release = Py_NewRef(Py_None);
    front->strategy = Py_NewRef(Py_None);
    front->hold_warning = Py_NewRef(Py_None);
    front->acquire_timeout = Py_NewRef(Py_None);
    front->subscribers = nothing;
    front->alarm = front->due_at = Py_HUGE_VAL;
    front->max_waiting = -1;
    return (PyObject *)front;
}

static int
Front_traverse(Front *front, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(front));
    Py_VISIT(front->core);
    Py_VISIT(front->loop);
    Py_VISIT(front->time);
    Py_VISIT(front->before_acquire);
    Py_VISIT(front->before_release);
    Py_VISIT(front->strategy);
    Py_VISIT(front->hold_warning);
    Py_VISIT(front->acquire_timeout);
    Py_VISIT(front->subscribers);
    return 0;
}

static int
Front_clear(Front *front)
{
    /* Nothing becomes NULL but the core, without which no method does anything. */
    Py_CLEAR(front->core);
    Py_SETREF(front->loop, Py_NewRef(Py_None));
    Py_SETREF(front->time, Py_NewRef(Py_None));
    Py_SETREF(front->before_acquire, Py_NewRef(Py_None));
    Py_SETREF(front->before_release, Py_NewRef(Py_None));
    Py_SETREF(front->strategy, Py_NewRef(Py_None));
    PyObject *subscribers = PyTuple_New(0); /* a shared constant: cannot fail */
    Py_SETREF(front->subscribers, subscribers);
    return 0;
}

static void
Front_dealloc(Front *front)
{
    PyTypeObject *type = Py_TYPE(front);
    PyObject_GC_UnTrack(front);
    Py_XDECREF(front->core);
    Py_XDECREF(front->loop);
    Py_XDECREF(front->time);
    Py_XDECREF(front->before_acquire);
    Py_XDECREF(front->before_release);
    Py_XDECREF(front->strategy);
    Py_XDECREF(front->hold_warning);
    Py_XDECREF(front->acquire_timeout);
    Py_XDECREF(front->subscribers);
    PyMem_Free(front->deadlines);
    type->tp_free(front);
    Py_DECREF(type);
}

static PyType_Slot front_slots[] = {
    {Py_tp_doc, "The fast path of a pool: what needs no waiting."},
    {Py_tp_new, Front_new},
    {Py_tp_methods, front_methods},
    {Py_tp_getset, front_getset},
    {Py_tp_members, front_members},
    {Py_sq_length, Front_length},
    {Py_tp_traverse, Front_traverse},
    {Py_tp_clear, Front_clear},
    {Py_tp_dealloc, Front_dealloc},
    {0, NULL},
};

/* adopt(cls): gives it descriptors of its own for the public methods of Front. The interpreter calls
 * a C method directly only if it belongs to the very class of the object. */
static PyObject *
adopt(PyObject *module, PyObject *object)
{
    State *st = PyModule_GetState(module);
    if (!PyType_Check(object) || !PyType_IsSubtype((PyTypeObject *)object, st->front_type)) {
        PyErr_SetString(PyExc_TypeError, "a subclass of Front is needed");
        return NULL;
    }
    for (PyMethodDef *method = front_methods; method->ml_name[0] != '_'; method++) {
        PyObject *descriptor = PyDescr_NewMethod((PyTypeObject *)object, method);
        int failed = descriptor == NULL ||
                     PyObject_SetAttrString(object, method->ml_name, descriptor) < 0;
        Py_XDECREF(descriptor);
        if (failed) {
            return NULL;
        }
    }
    return Py_NewRef(object);
}

static PyType_Spec front_spec = {
    .name = "cenote._core.native.Front",
    .basicsize = sizeof(Front),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = front_slots,
};

