/* The C API: the table of cenote.h. */

/* For calls without a pool, from which the state is found faster. */
static State *
state_of_interpreter(void)
{
    PyObject *module = PyImport_ImportModule("cenote._core.native");
    if (module == NULL) {
        return NULL;
    }
    State *st = PyModule_GetState(module);
    Py_DECREF(module); /* sys.modules keeps it */
    return st;
}

/* The state behind an object of ours, or NULL without an exception. It need not be that of
 * sys.modules, from which cenote may have been dropped since. */
static State *
state_of(PyObject *object)
{
    if (object == NULL) {
        return NULL;
    }
    PyObject *error = PyErr_GetRaisedException(); /* an exception that is set is none of our business */
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(object), &module_def);
    PyErr_SetRaisedException(error); /* replaces ours */
    return module == NULL ? NULL : PyModule_GetState(module);
}

static int
is_pool(PyObject *object)
{
    State *st = state_of(object);
    return st != NULL && PyObject_TypeCheck(object, st->fastpath_type);
}

/* The pool, ready for use, or NULL with a TypeError. */
static FastPath *
as_pool(PyObject *object)
{
    if (!is_pool(object)) {
        PyErr_Format(PyExc_TypeError, "a cenote.Pool is needed, not %s",
                     object == NULL ? "NULL" : Py_TYPE(object)->tp_name);
        return NULL;
    }
    return fastpath_ready((FastPath *)object) < 0 ? NULL : (FastPath *)object;
}

static PyObject *
pool_class(void)
{
    State *st = state_of_interpreter();
    if (st == NULL) {
        return NULL;
    }
    if (st->pool_class == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "cenote is not imported");
    }
    return Py_XNewRef(st->pool_class);
}

static PyObject *
capi_pool_new(PyObject *factory, PyObject *options)
{
    if (factory == NULL || (options != NULL && !PyDict_Check(options))) {
        PyErr_SetString(PyExc_TypeError,
                        factory == NULL ? "a factory is needed, not NULL" : "options must be a dict or NULL");
        return NULL;
    }
    PyObject *type = pool_class();
    PyObject *args = type == NULL ? NULL : PyTuple_Pack(1, factory);
    PyObject *pool = args == NULL ? NULL : PyObject_Call(type, args, options);
    Py_XDECREF(type);
    Py_XDECREF(args);
    return pool;
}

static int
add_check(State *st, PyObject *options, Handlers *handlers, const char *name,
          int (*function)(PyObject *, void *))
{
    if (PyDict_GetItemString(options, name) != NULL) {
        PyErr_Format(PyExc_TypeError, "%s is given in C: it must not be in the options", name);
        return -1;
    }
    if (function == NULL) {
        return 0;
    }
    PyObject *check = check_new(st, handlers, name, function);
    int result = check == NULL ? -1 : PyDict_SetItemString(options, name, check);
    Py_XDECREF(check);
    return result;
}

static PyObject *
capi_pool_new_c(const Cenote_Handlers *given, void *data, Cenote_Free free_data, PyObject *options)
{
    Data owned = {data, free_data};
    State *st = state_of_interpreter();
    if (st == NULL) {
        data_free(&owned);
        return NULL;
    }
    if (given == NULL || given->factory == NULL || (options != NULL && !PyDict_Check(options))) {
        if (given == NULL || given->factory == NULL) {
            PyErr_SetString(PyExc_ValueError, "the C handlers need a factory");
        }
        else {
            PyErr_SetString(PyExc_TypeError, "options must be a dict or NULL");
        }
        data_free(&owned);
        return NULL;
    }
    Handlers *handlers = PyObject_New(Handlers, st->handlers_type);
    if (handlers == NULL) {
        data_free(&owned);
        return NULL;
    }
    handlers->data = owned;
    handlers->handlers = *given;
    PyObject *pool = NULL;
    PyObject *all = options == NULL ? PyDict_New() : PyDict_Copy(options);
    PyObject *factory = all == NULL ? NULL : PyCFunction_New(&factory_method, (PyObject *)handlers);
    if (factory != NULL && add_check(st, all, handlers, "destructor", given->destructor) == 0 &&
        add_check(st, all, handlers, "healthcheck", given->healthcheck) == 0 &&
        add_check(st, all, handlers, "before_acquire", given->before_acquire) == 0 &&
        add_check(st, all, handlers, "before_release", given->before_release) == 0) {
        pool = capi_pool_new(factory, all);
    }
    Py_XDECREF(factory);
    Py_XDECREF(all);
    Py_DECREF(handlers);
    return pool;
}

static int
capi_pool_check(PyObject *object)
{
    return is_pool(object);
}

static Claim *
acquire_of(PyObject *pool, double timeout)
{
    FastPath *face = as_pool(pool);
    if (face == NULL) {
        return NULL;
    }
    if (isnan(timeout)) {
        PyErr_SetString(PyExc_ValueError, "timeout must be a number, not nan");
        return NULL;
    }
    Claim *claim = acquire_new(face);
    if (claim == NULL) {
        return NULL;
    }
    if (timeout < 0) {
        claim->timeout = face->engine->acquire_timeout == Py_None
                             ? Py_NAN
                             : PyFloat_AS_DOUBLE(face->engine->acquire_timeout);
    }
    else {
        claim->timeout = isinf(timeout) ? Py_NAN : timeout;
    }
    if (claim_note_caller(claim) < 0) {
        Py_DECREF(claim);
        return NULL;
    }
    return claim;
}

static PyObject *
capi_acquire(PyObject *pool, double timeout)
{
    return (PyObject *)acquire_of(pool, timeout);
}

static PyObject *
capi_acquire_call(PyObject *pool, double timeout, Cenote_Completion done, void *data, Cenote_Free free_data)
{
    Data owned = {data, free_data};
    Claim *claim = NULL;
    if (done == NULL) {
        PyErr_SetString(PyExc_ValueError, "acquire_call needs a completion callback");
    }
    else {
        claim = acquire_of(pool, timeout);
    }
    State *st = claim == NULL ? NULL : claim->st;
    Ticket *ticket = claim == NULL ? NULL : PyObject_GC_New(Ticket, st->ticket_type);
    if (ticket == NULL) {
        Py_XDECREF(claim);
        data_free(&owned);
        return NULL;
    }
    ticket->data = owned;
    ticket->done = done;
    ticket->task = NULL;
    PyObject_GC_Track(ticket);
    PyObject *task = PyObject_CallMethodObjArgs(slow_path(((FastPath *)pool)->engine), st->s_start_ticket,
                                                claim, ticket, NULL);
    Py_DECREF(claim);
    if (task == NULL) {
        ticket->done = NULL;
        Py_DECREF(ticket);
        return NULL;
    }
    ticket->task = task;
    return (PyObject *)ticket;
}

/* Of a result, which it steals: 1 or 0; -1 with the exception that is set. */
static int
truth(PyObject *result)
{
    int answer = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return answer;
}

static int
capi_ticket_cancel(PyObject *object)
{
    State *st = state_of(object);
    if (st == NULL || !Py_IS_TYPE(object, st->ticket_type)) {
        PyErr_Format(PyExc_TypeError, "a ticket of acquire_call is needed, not %s",
                     object == NULL ? "NULL" : Py_TYPE(object)->tp_name);
        return -1;
    }
    Ticket *ticket = (Ticket *)object;
    if (ticket->done == NULL || ticket->task == NULL) {
        return 0;
    }
    PyObject *loop = PyObject_CallMethodNoArgs(ticket->task, st->s_get_loop);
    int closed = loop == NULL ? -1 : truth(PyObject_CallMethodNoArgs(loop, st->s_is_closed));
    Py_XDECREF(loop);
    if (closed != 0) { /* then nothing is called any more */
        return closed < 0 ? -1 : 0;
    }
    return truth(PyObject_CallMethodNoArgs(ticket->task, st->s_cancel));
}

static PyObject *
capi_try_acquire(PyObject *pool)
{
    FastPath *face = as_pool(pool);
    PyObject *resource = face == NULL ? NULL : FastPath_try_acquire(face, NULL);
    if (resource == Py_None) {
        Py_DECREF(resource);
        return NULL;
    }
    return resource;
}

static int
succeeded(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int
capi_release(PyObject *pool, PyObject *resource)
{
    FastPath *face = as_pool(pool);
    if (face == NULL) {
        return -1;
    }
    return succeeded(FastPath_release(face, resource == NULL ? Py_None : resource));
}

static int
capi_discard(PyObject *pool, PyObject *resource, PyObject *error)
{
    if (as_pool(pool) == NULL) {
        return -1;
    }
    return succeeded(PyObject_CallMethod(pool, "discard", "OO", resource == NULL ? Py_None : resource,
                                         error == NULL ? Py_None : error));
}

static PyObject *
capi_close(PyObject *pool)
{
    return as_pool(pool) == NULL ? NULL : PyObject_CallMethod(pool, "close", NULL);
}

static Py_ssize_t
capi_count(PyObject *pool)
{
    FastPath *face = as_pool(pool);
    return face == NULL ? -1 : (Py_ssize_t)face->engine->core->count;
}

static Py_ssize_t
capi_idle_count(PyObject *pool)
{
    FastPath *face = as_pool(pool);
    return face == NULL ? -1 : face->engine->core->idle;
}

static Py_ssize_t
capi_active_count(PyObject *pool)
{
    FastPath *face = as_pool(pool);
    return face == NULL ? -1 : (Py_ssize_t)face->engine->core->count - face->engine->core->idle;
}

static Py_ssize_t
capi_waiting_count(PyObject *pool)
{
    FastPath *face = as_pool(pool);
    return face == NULL ? -1 : (Py_ssize_t)(face->engine->core->waiters.length + face->engine->core->parked);
}

static Watcher *
watcher_new(Data owned)
{
    State *st = state_of_interpreter();
    Watcher *watcher = st == NULL ? NULL : PyObject_New(Watcher, st->watcher_type);
    if (watcher == NULL) {
        data_free(&owned);
        return NULL;
    }
    watcher->data = owned;
    watcher->listener = NULL;
    memset(&watcher->strategy, 0, sizeof(watcher->strategy));
    return watcher;
}

/* A subscription is a function of ours around the one that pool.subscribe() gave. */
static PyObject *
unsubscribe_call(PyObject *unsubscribe, PyObject *Py_UNUSED(ignored))
{
    return PyObject_CallNoArgs(unsubscribe);
}

static PyMethodDef unsubscribe_method = {"unsubscribe", unsubscribe_call, METH_NOARGS, NULL};

static PyObject *
capi_subscribe(PyObject *pool, Cenote_Listener listener, void *data, Cenote_Free free_data)
{
    Watcher *watcher = watcher_new((Data){data, free_data});
    if (watcher == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    if (listener == NULL) {
        PyErr_SetString(PyExc_ValueError, "subscribe needs a listener");
    }
    else if (as_pool(pool) != NULL) {
        watcher->listener = listener;
        PyObject *hear = PyObject_GetAttrString((PyObject *)watcher, "hear");
        PyObject *unsubscribe = hear == NULL ? NULL : PyObject_CallMethod(pool, "subscribe", "O", hear);
        result = unsubscribe == NULL ? NULL : PyCFunction_New(&unsubscribe_method, unsubscribe);
        Py_XDECREF(hear);
        Py_XDECREF(unsubscribe);
    }
    Py_DECREF(watcher);
    return result;
}

static int
capi_unsubscribe(PyObject *subscription)
{
    if (subscription == NULL || !PyCFunction_Check(subscription) ||
        PyCFunction_GET_FUNCTION(subscription) != unsubscribe_call) {
        PyErr_Format(PyExc_TypeError, "a subscription of subscribe is needed, not %s",
                     subscription == NULL ? "NULL" : Py_TYPE(subscription)->tp_name);
        return -1;
    }
    return succeeded(PyObject_CallNoArgs(subscription));
}

static int
capi_state(PyObject *pool)
{
    FastPath *face = as_pool(pool);
    return face == NULL ? -1 : face->engine->core->circuit;
}

static int
capi_set_state(PyObject *pool, int state)
{
    static const char *const names[] = {"activate", "deactivate", "recover"};
    if (as_pool(pool) == NULL) {
        return -1;
    }
    if (state < 0 || state >= CIRCUITS) {
        PyErr_Format(PyExc_ValueError, "%d is no state of the circuit breaker", state);
        return -1;
    }
    return succeeded(PyObject_CallMethod(pool, names[state], NULL));
}

static int
capi_set_strategy(PyObject *pool, const Cenote_Strategy *strategy, void *data, Cenote_Free free_data)
{
    Data owned = {data, free_data};
    if (as_pool(pool) == NULL) {
        data_free(&owned);
        return -1;
    }
    if (strategy == NULL) {
        data_free(&owned);
        return PyObject_SetAttrString(pool, "strategy", Py_None);
    }
    if (strategy->report_success == NULL || strategy->report_failure == NULL) {
        PyErr_SetString(PyExc_ValueError, "a C strategy needs report_success and report_failure");
        data_free(&owned);
        return -1;
    }
    Watcher *watcher = watcher_new(owned);
    if (watcher == NULL) {
        return -1;
    }
    watcher->strategy = *strategy;
    int result = PyObject_SetAttrString(pool, "strategy", (PyObject *)watcher);
    Py_DECREF(watcher);
    return result;
}

static const Cenote_API capi_table = {
    .abi = CENOTE_ABI,
    .size = sizeof(Cenote_API),
    .pool_new = capi_pool_new,
    .pool_new_c = capi_pool_new_c,
    .pool_check = capi_pool_check,
    .acquire = capi_acquire,
    .acquire_call = capi_acquire_call,
    .ticket_cancel = capi_ticket_cancel,
    .try_acquire = capi_try_acquire,
    .release = capi_release,
    .discard = capi_discard,
    .close = capi_close,
    .count = capi_count,
    .idle_count = capi_idle_count,
    .active_count = capi_active_count,
    .waiting_count = capi_waiting_count,
    .subscribe = capi_subscribe,
    .unsubscribe = capi_unsubscribe,
    .state = capi_state,
    .set_state = capi_set_state,
    .set_strategy = capi_set_strategy,
};

static int
add_capi(PyObject *module, State *st)
{
    if (add_type(module, &st->handlers_type, &handlers_spec, NULL) < 0 ||
        add_type(module, &st->check_type, &check_spec, NULL) < 0 ||
        add_type(module, &st->ticket_type, &ticket_spec, NULL) < 0 ||
        add_type(module, &st->watcher_type, &watcher_spec, NULL) < 0) {
        return -1;
    }
    PyObject *capsule = PyCapsule_New((void *)&capi_table, "cenote._core.native.C_API", NULL);
    if (capsule == NULL) {
        return -1;
    }
    int result = PyModule_AddObjectRef(module, "C_API", capsule);
    Py_DECREF(capsule);
    return result;
}
