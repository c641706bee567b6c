/* The C API: handlers, tickets, listeners and strategies in C. */

/* -- user data ------------------------------------------------------------------------------- */

struct Data {
    void *data;
    Cenote_Free free_data;
};

/* The callback may call anything: the current exception is kept around it, and what it leaves set is
 * reported as unraisable. */
static void
data_free(Data *data)
{
    if (data->free_data != NULL) {
        Cenote_Free free_data = data->free_data;
        data->free_data = NULL;
        PyObject *error = PyErr_GetRaisedException();
        free_data(data->data);
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(NULL);
        }
        PyErr_SetRaisedException(error);
    }
}

/* -- Handlers: the five of one pool, and what Python sees of each ----------------------------- */

struct Handlers {
    PyObject_HEAD Data data;
    Cenote_Handlers handlers;
};

static void
Handlers_dealloc(Handlers *self)
{
    PyTypeObject *type = Py_TYPE(self);
    data_free(&self->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot handlers_slots[] = {
    {Py_tp_doc, "The C handlers of one pool, and their user data."},
    {Py_tp_dealloc, Handlers_dealloc},
    {0, NULL},
};

static PyType_Spec handlers_spec = {
    .name = "cenote._core.native.Handlers",
    .basicsize = sizeof(Handlers),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = handlers_slots,
};

static PyObject *
Check_vectorcall(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) != 1 || (names != NULL && PyTuple_GET_SIZE(names) > 0)) {
        PyErr_SetString(PyExc_TypeError, "a C handler takes the resource, and nothing else");
        return NULL;
    }
    return check_call((Check *)self, args[0]);
}

static void
Check_dealloc(Check *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->handlers);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef check_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Check, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot check_slots[] = {
    {Py_tp_doc, "A hook in C."},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, check_members},
    {Py_tp_dealloc, Check_dealloc},
    {0, NULL},
};

static PyType_Spec check_spec = {
    .name = "cenote._core.native.Check",
    .basicsize = sizeof(Check),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = check_slots,
};

static PyObject *
check_new(State *st, Handlers *handlers, const char *name, int (*function)(PyObject *, void *))
{
    Check *check = PyObject_New(Check, st->check_type);
    if (check != NULL) {
        check->vectorcall = Check_vectorcall;
        check->handlers = Py_NewRef(handlers);
        check->data = handlers->data.data;
        check->is_check = strcmp(name, "destructor") != 0;
        check->name = name;
        check->function = function;
    }
    return (PyObject *)check;
}

static PyObject *
factory_call(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Handlers *handlers = (Handlers *)self;
    PyObject *made = handlers->handlers.factory(handlers->data.data);
    if (made == NULL) {
        explain("factory");
    }
    else if (PyErr_Occurred()) { /* success with an exception set is a failure */
        PyObject *error = PyErr_GetRaisedException();
        Py_CLEAR(made);
        PyErr_SetRaisedException(error);
    }
    return made;
}

static PyMethodDef factory_method = {"factory", factory_call, METH_NOARGS, NULL};

/* -- Ticket: an acquire that ends in a C callback ---------------------------------------------- */

typedef struct {
    PyObject_HEAD Data data;
    Cenote_Completion done;
    PyObject *task;
} Ticket;

/* complete(resource, error): the end, once. */
static PyObject *
Ticket_complete(Ticket *self, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "complete");
    Cenote_Completion done = self->done;
    if (done == NULL) {
        Py_RETURN_NONE;
    }
    self->done = NULL;
    PyObject *resource = args[0] == Py_None ? NULL : args[0];
    PyObject *error = args[1] == Py_None ? NULL : args[1];
    if (done(resource, error, self->data.data) < 0 || PyErr_Occurred()) {
        explain("completion callback");
        PyErr_WriteUnraisable((PyObject *)self);
    }
    data_free(&self->data);
    Py_RETURN_NONE;
}

static int
Ticket_traverse(Ticket *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->task);
    return 0;
}

static int
Ticket_clear(Ticket *self)
{
    Py_CLEAR(self->task);
    return 0;
}

static void
Ticket_dealloc(Ticket *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->task);
    data_free(&self->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef ticket_methods[] = {
    {"complete", (PyCFunction)(void (*)(void))Ticket_complete, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ticket_slots[] = {
    {Py_tp_doc, "An acquire that ends in a C callback."},
    {Py_tp_methods, ticket_methods},
    {Py_tp_traverse, Ticket_traverse},
    {Py_tp_clear, Ticket_clear},
    {Py_tp_dealloc, Ticket_dealloc},
    {0, NULL},
};

static PyType_Spec ticket_spec = {
    .name = "cenote._core.native.Ticket",
    .basicsize = sizeof(Ticket),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = ticket_slots,
};

/* -- Listener and Strategy -------------------------------------------------------------------- */

struct Watcher {
    PyObject_HEAD Data data;
    Cenote_Listener listener;
    Cenote_Strategy strategy;
};

static void
Watcher_dealloc(Watcher *self)
{
    PyTypeObject *type = Py_TYPE(self);
    data_free(&self->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
watcher_answer(int result, const char *what)
{
    if (result < 0) {
        explain(what);
    }
    if (PyErr_Occurred()) { /* also if it says that all is well: an exception is not lost */
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Python code may call any method of either. */
static PyObject *
watcher_is_no(const char *what)
{
    PyErr_Format(PyExc_TypeError, "this object of the C API of cenote is no %s", what);
    return NULL;
}

static PyObject *
Watcher_hear(Watcher *self, PyObject *event)
{
    if (self->listener == NULL) {
        return watcher_is_no("listener");
    }
    return watcher_answer(self->listener(event, self->data.data), "listener");
}

static PyObject *
Watcher_report_success(Watcher *self, PyObject *pool)
{
    if (self->strategy.report_success == NULL) {
        return watcher_is_no("strategy");
    }
    return watcher_answer(self->strategy.report_success(pool, self->data.data), "strategy");
}

static PyObject *
Watcher_report_failure(Watcher *self, PyObject *const *args, Py_ssize_t nargs)
{
    NARGS(2, 2, "report_failure");
    if (self->strategy.report_failure == NULL) {
        return watcher_is_no("strategy");
    }
    return watcher_answer(self->strategy.report_failure(args[0], args[1], self->data.data), "strategy");
}

static PyObject *
Watcher_should_recover(Watcher *self, PyObject *Py_UNUSED(ignored))
{
    if (self->strategy.should_recover == NULL) {
        Py_RETURN_FALSE;
    }
    int answer = self->strategy.should_recover(self->data.data);
    if (answer < 0) {
        explain("strategy");
    }
    return PyErr_Occurred() ? NULL : PyBool_FromLong(answer);
}

static PyMethodDef watcher_methods[] = {
    {"hear", (PyCFunction)Watcher_hear, METH_O, NULL},
    {"report_success", (PyCFunction)Watcher_report_success, METH_O, NULL},
    {"report_failure", (PyCFunction)(void (*)(void))Watcher_report_failure, METH_FASTCALL, NULL},
    {"should_recover", (PyCFunction)Watcher_should_recover, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot watcher_slots[] = {
    {Py_tp_doc, "A listener or a strategy in C."},
    {Py_tp_methods, watcher_methods},
    {Py_tp_dealloc, Watcher_dealloc},
    {0, NULL},
};

static PyType_Spec watcher_spec = {
    .name = "cenote._core.native.Watcher",
    .basicsize = sizeof(Watcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = watcher_slots,
};
