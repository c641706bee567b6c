/* probe: every function of cenote's C API, in thin form, also for wrong use.
 *
 * Wherever an object is expected, probe.NULL stands for a null pointer. The user data of everything
 * is a Plan: it says for each callback how it shall behave, has a log of what was called, and counts
 * how often it was freed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "cenote.h"

/* How a callback behaves. */
enum {
    WELL,       /* it accepts, succeeds */
    NO,         /* a check: 0; a factory: None; should_recover: 1, that is "yes" */
    RAISE,      /* failure with plan.error */
    SILENT,     /* failure without an exception */
    CONTRADICT, /* success with an exception set */
    GIVE,       /* a factory: plan.given */
    MAKE,       /* a factory: what plan.given() returns */
    WILD,       /* whatever number plan.value is, without an exception; a factory: NULL if below 0 */
};

typedef struct {
    PyObject_HEAD PyObject *log; /* list of (callback, argument) */
    PyObject *error;             /* what is raised: an exception, or a class */
    PyObject *given;             /* what a factory makes in mode GIVE, or calls in mode MAKE */
    PyObject *call;              /* None, or called with (callback, argument) inside each callback */
    PyObject *at_free;           /* None, or called with the plan when it is freed */
    int factory, destructor, healthcheck, before_acquire, before_release;
    int completion, listener, success, failure, recover;
    int value;
    int leaves; /* what at_free raises is left set */
    int freed;
} Plan;

typedef struct {
    PyTypeObject *plan_type;
    PyObject *null;
} State;

/* -- Plan ------------------------------------------------------------------------------------- */

static PyObject *
Plan_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Plan *plan = (Plan *)type->tp_alloc(type, 0);
    if (plan != NULL) {
        plan->log = PyList_New(0);
        plan->error = Py_NewRef(Py_None);
        plan->given = Py_NewRef(Py_None);
        plan->call = Py_NewRef(Py_None);
        plan->at_free = Py_NewRef(Py_None);
        if (plan->log == NULL) {
            Py_CLEAR(plan);
        }
    }
    return (PyObject *)plan;
}

static int
Plan_traverse(Plan *plan, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(plan));
    Py_VISIT(plan->log);
    Py_VISIT(plan->error);
    Py_VISIT(plan->given);
    Py_VISIT(plan->call);
    Py_VISIT(plan->at_free);
    return 0;
}

static int
Plan_clear(Plan *plan)
{
    Py_CLEAR(plan->log);
    Py_CLEAR(plan->error);
    Py_CLEAR(plan->given);
    Py_CLEAR(plan->call);
    Py_CLEAR(plan->at_free);
    return 0;
}

static void
Plan_dealloc(Plan *plan)
{
    PyTypeObject *type = Py_TYPE(plan);
    PyObject_GC_UnTrack(plan);
    Plan_clear(plan);
    type->tp_free(plan);
    Py_DECREF(type);
}

#define MODE(name) {#name, T_INT, offsetof(Plan, name), 0, NULL}

static PyMemberDef plan_members[] = {
    {"log", T_OBJECT, offsetof(Plan, log), READONLY, NULL},
    {"error", T_OBJECT, offsetof(Plan, error), 0, NULL},
    {"given", T_OBJECT, offsetof(Plan, given), 0, NULL},
    {"call", T_OBJECT, offsetof(Plan, call), 0, NULL},
    {"at_free", T_OBJECT, offsetof(Plan, at_free), 0, NULL},
    {"freed", T_INT, offsetof(Plan, freed), READONLY, NULL},
    {"leaves", T_INT, offsetof(Plan, leaves), 0, NULL},
    {"value", T_INT, offsetof(Plan, value), 0, NULL},
    MODE(factory),
    MODE(destructor),
    MODE(healthcheck),
    MODE(before_acquire),
    MODE(before_release),
    MODE(completion),
    MODE(listener),
    MODE(success),
    MODE(failure),
    MODE(recover),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_new, Plan_new},     {Py_tp_members, plan_members}, {Py_tp_traverse, Plan_traverse},
    {Py_tp_clear, Plan_clear}, {Py_tp_dealloc, Plan_dealloc}, {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "probe.Plan",
    .basicsize = sizeof(Plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = plan_slots,
};

static void
free_plan(void *data)
{
    Plan *plan = data;
    plan->freed++;
    if (plan->at_free != Py_None) {
        PyObject *result = PyObject_CallOneArg(plan->at_free, (PyObject *)plan);
        if (result == NULL && !plan->leaves) {
            PyErr_WriteUnraisable(plan->at_free);
        }
        Py_XDECREF(result);
    }
    Py_DECREF(plan);
}

/* -- the callbacks ------------------------------------------------------------------------------ */

static int
note(Plan *plan, const char *name, PyObject *argument)
{
    PyObject *entry = Py_BuildValue("(sO)", name, argument == NULL ? Py_None : argument);
    if (entry == NULL || PyList_Append(plan->log, entry) < 0) {
        Py_XDECREF(entry);
        return -1;
    }
    PyObject *result = plan->call == Py_None ? Py_NewRef(Py_None) : PyObject_CallObject(plan->call, entry);
    Py_DECREF(entry);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* `well` or `no`, or as the mode says. */
static int
behave(Plan *plan, int mode, const char *name, PyObject *argument, int well, int no)
{
    if (note(plan, name, argument) < 0) {
        return -1;
    }
    if (mode == RAISE || mode == CONTRADICT) {
        if (PyExceptionClass_Check(plan->error)) {
            PyErr_SetString(plan->error, "planned");
        }
        else {
            PyErr_SetObject((PyObject *)Py_TYPE(plan->error), plan->error);
        }
    }
    if (mode == WILD) {
        return plan->value;
    }
    return mode == RAISE || mode == SILENT ? -1 : mode == NO ? no : well;
}

static PyObject *
on_factory(void *data)
{
    Plan *plan = data;
    int mode = plan->factory; /* it may be changed inside */
    int answer = behave(plan, mode, "factory", NULL, 1, 0);
    if (answer < 0) {
        return NULL;
    }
    if (answer == 0) {
        Py_RETURN_NONE;
    }
    if (mode == GIVE) {
        return Py_NewRef(plan->given);
    }
    if (mode == MAKE) {
        return PyObject_CallNoArgs(plan->given);
    }
    return PyByteArray_FromStringAndSize("resource", 8);
}

#define CHECK(name, well)                                          \
    static int on_##name(PyObject *resource, void *data)           \
    {                                                              \
        Plan *plan = data;                                         \
        return behave(plan, plan->name, #name, resource, well, 0); \
    }
CHECK(destructor, 0)
CHECK(healthcheck, 1)
CHECK(before_acquire, 1)
CHECK(before_release, 1)

static int
on_completion(PyObject *resource, PyObject *error, void *data)
{
    Plan *plan = data;
    if ((resource == NULL) == (error == NULL)) {
        Py_FatalError("a completion needs a resource or an error, and not both");
    }
    const char *name = resource == NULL ? "error" : "resource";
    return behave(plan, plan->completion, name, resource == NULL ? error : resource, 0, 0);
}

static int
on_event(PyObject *event, void *data)
{
    Plan *plan = data;
    PyObject *kind = PyObject_GetAttrString(event, "kind");
    if (kind == NULL) {
        return -1;
    }
    int result = behave(plan, plan->listener, "event", kind, 0, 0);
    Py_DECREF(kind);
    return result;
}

static int
on_success(PyObject *pool, void *data)
{
    Plan *plan = data;
    PyObject *name = PyObject_GetAttrString(pool, "name");
    if (name == NULL) {
        return -1;
    }
    int result = behave(plan, plan->success, "success", name, 0, 0);
    Py_DECREF(name);
    return result;
}

static int
on_failure(PyObject *pool, PyObject *error, void *data)
{
    Plan *plan = data;
    if (!cenote->pool_check(pool)) {
        PyErr_SetString(PyExc_AssertionError, "the source of a failure is no pool");
        return -1;
    }
    return behave(plan, plan->failure, "failure", error, 0, 0);
}

static int
on_recover(void *data)
{
    Plan *plan = data;
    return behave(plan, plan->recover, "recover", NULL, 0, 1);
}

/* -- the table ------------------------------------------------------------------------------------ */

static PyObject *
or_null(PyObject *module, PyObject *object)
{
    State *state = PyModule_GetState(module);
    return object == state->null ? NULL : object;
}

/* The user data of a call: it owns a reference that free_plan() gives back. */
static void *
data_of(PyObject *module, PyObject *plan, Cenote_Free *free_data)
{
    State *state = PyModule_GetState(module);
    if (!Py_IS_TYPE(plan, state->plan_type)) { /* probe.NULL: no data at all */
        *free_data = NULL;
        return NULL;
    }
    *free_data = free_plan;
    return Py_NewRef(plan);
}

static PyObject *
number(Py_ssize_t result)
{
    if (result < 0 && PyErr_Occurred()) {
        return NULL;
    }
    return PyLong_FromSsize_t(result); /* -1 without an exception is seen by the tests */
}

static PyObject *
probe_pool_new(PyObject *module, PyObject *args)
{
    PyObject *factory, *options;
    if (!PyArg_ParseTuple(args, "OO", &factory, &options)) {
        return NULL;
    }
    return cenote->pool_new(or_null(module, factory), or_null(module, options));
}

/* pool_new_c(plan, names of the handlers or None for no struct, options) */
static PyObject *
probe_pool_new_c(PyObject *module, PyObject *args)
{
    PyObject *plan, *options;
    const char *names;
    if (!PyArg_ParseTuple(args, "OzO", &plan, &names, &options)) {
        return NULL;
    }
    Cenote_Handlers handlers = {0};
    if (names != NULL) {
        handlers.factory = strstr(names, "factory") ? on_factory : NULL;
        handlers.destructor = strstr(names, "destructor") ? on_destructor : NULL;
        handlers.healthcheck = strstr(names, "healthcheck") ? on_healthcheck : NULL;
        handlers.before_acquire = strstr(names, "before_acquire") ? on_before_acquire : NULL;
        handlers.before_release = strstr(names, "before_release") ? on_before_release : NULL;
    }
    Cenote_Free free_data;
    void *data = data_of(module, plan, &free_data);
    PyObject *pool =
        cenote->pool_new_c(names == NULL ? NULL : &handlers, data, free_data, or_null(module, options));
    memset(&handlers, 0xFF, sizeof(handlers)); /* it was copied, or the tests crash */
    return pool;
}

static PyObject *
probe_pool_check(PyObject *module, PyObject *object)
{
    return PyLong_FromLong(cenote->pool_check(or_null(module, object)));
}

/* Whether pool_check() leaves an exception alone. */
static PyObject *
probe_pool_check_keeps_exception(PyObject *module, PyObject *object)
{
    PyErr_SetString(PyExc_KeyError, "mine");
    cenote->pool_check(or_null(module, object));
    int kept = PyErr_ExceptionMatches(PyExc_KeyError);
    PyErr_Clear();
    return PyBool_FromLong(kept);
}

static PyObject *
probe_acquire(PyObject *module, PyObject *args)
{
    PyObject *pool;
    double timeout;
    if (!PyArg_ParseTuple(args, "Od", &pool, &timeout)) {
        return NULL;
    }
    return cenote->acquire(or_null(module, pool), timeout);
}

/* acquire_call(pool, timeout, plan, with_callback=True): the plan's log must not grow inside. */
static PyObject *
probe_acquire_call(PyObject *module, PyObject *args)
{
    PyObject *pool, *plan;
    double timeout;
    int with_callback = 1;
    if (!PyArg_ParseTuple(args, "OdO|p", &pool, &timeout, &plan, &with_callback)) {
        return NULL;
    }
    Cenote_Free free_data;
    void *data = data_of(module, plan, &free_data);
    Py_ssize_t before = data == NULL ? 0 : PyList_GET_SIZE(((Plan *)data)->log);
    PyObject *ticket = cenote->acquire_call(or_null(module, pool), timeout,
                                            with_callback ? on_completion : NULL, data, free_data);
    if (data != NULL && PyList_GET_SIZE(((Plan *)plan)->log) != before) {
        Py_XDECREF(ticket);
        PyErr_SetString(PyExc_AssertionError, "a callback was called inside acquire_call");
        return NULL;
    }
    return ticket;
}

static PyObject *
probe_ticket_cancel(PyObject *module, PyObject *ticket)
{
    return number(cenote->ticket_cancel(or_null(module, ticket)));
}

static PyObject *
probe_try_acquire(PyObject *module, PyObject *pool)
{
    PyObject *resource = cenote->try_acquire(or_null(module, pool));
    if (resource == NULL && !PyErr_Occurred()) {
        State *state = PyModule_GetState(module);
        return Py_NewRef(state->null);
    }
    return resource;
}

static PyObject *
probe_release(PyObject *module, PyObject *args)
{
    PyObject *pool, *resource;
    if (!PyArg_ParseTuple(args, "OO", &pool, &resource)) {
        return NULL;
    }
    return number(cenote->release(or_null(module, pool), or_null(module, resource)));
}

static PyObject *
probe_discard(PyObject *module, PyObject *args)
{
    PyObject *pool, *resource, *error;
    if (!PyArg_ParseTuple(args, "OOO", &pool, &resource, &error)) {
        return NULL;
    }
    return number(cenote->discard(or_null(module, pool), or_null(module, resource), or_null(module, error)));
}

static PyObject *
probe_close(PyObject *module, PyObject *pool)
{
    return cenote->close(or_null(module, pool));
}

#define OF_POOL(name)                                               \
    static PyObject *probe_##name(PyObject *module, PyObject *pool) \
    {                                                               \
        return number(cenote->name(or_null(module, pool)));         \
    }
OF_POOL(count)
OF_POOL(idle_count)
OF_POOL(active_count)
OF_POOL(waiting_count)
OF_POOL(state)

static PyObject *
probe_subscribe(PyObject *module, PyObject *args)
{
    PyObject *pool, *plan;
    int with_listener = 1;
    if (!PyArg_ParseTuple(args, "OO|p", &pool, &plan, &with_listener)) {
        return NULL;
    }
    Cenote_Free free_data;
    void *data = data_of(module, plan, &free_data);
    return cenote->subscribe(or_null(module, pool), with_listener ? on_event : NULL, data, free_data);
}

static PyObject *
probe_unsubscribe(PyObject *module, PyObject *subscription)
{
    return number(cenote->unsubscribe(or_null(module, subscription)));
}

static PyObject *
probe_set_state(PyObject *module, PyObject *args)
{
    PyObject *pool;
    int state;
    if (!PyArg_ParseTuple(args, "Oi", &pool, &state)) {
        return NULL;
    }
    return number(cenote->set_state(or_null(module, pool), state));
}

/* set_strategy(pool, plan, names of the functions or None for no struct) */
static PyObject *
probe_set_strategy(PyObject *module, PyObject *args)
{
    PyObject *pool, *plan;
    const char *names;
    if (!PyArg_ParseTuple(args, "OOz", &pool, &plan, &names)) {
        return NULL;
    }
    Cenote_Strategy strategy = {0};
    if (names != NULL) {
        strategy.report_success = strstr(names, "success") ? on_success : NULL;
        strategy.report_failure = strstr(names, "failure") ? on_failure : NULL;
        strategy.should_recover = strstr(names, "recover") ? on_recover : NULL;
    }
    Cenote_Free free_data;
    void *data = data_of(module, plan, &free_data);
    int result =
        cenote->set_strategy(or_null(module, pool), names == NULL ? NULL : &strategy, data, free_data);
    memset(&strategy, 0xFF, sizeof(strategy)); /* it was copied, or the tests crash */
    return number(result);
}

static PyObject *
probe_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ini)", cenote->abi, (Py_ssize_t)cenote->size, cenote->size >= sizeof(Cenote_API));
}

#define FUNCTION(name, flags) {#name, (PyCFunction)probe_##name, flags, NULL}

static PyMethodDef methods[] = {
    FUNCTION(pool_new, METH_VARARGS),  FUNCTION(pool_new_c, METH_VARARGS),
    FUNCTION(pool_check, METH_O),      FUNCTION(pool_check_keeps_exception, METH_O),
    FUNCTION(acquire, METH_VARARGS),   FUNCTION(acquire_call, METH_VARARGS),
    FUNCTION(ticket_cancel, METH_O),   FUNCTION(try_acquire, METH_O),
    FUNCTION(release, METH_VARARGS),   FUNCTION(discard, METH_VARARGS),
    FUNCTION(close, METH_O),           FUNCTION(count, METH_O),
    FUNCTION(idle_count, METH_O),      FUNCTION(active_count, METH_O),
    FUNCTION(waiting_count, METH_O),   FUNCTION(subscribe, METH_VARARGS),
    FUNCTION(unsubscribe, METH_O),     FUNCTION(state, METH_O),
    FUNCTION(set_state, METH_VARARGS), FUNCTION(set_strategy, METH_VARARGS),
    FUNCTION(table, METH_NOARGS),      {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (cenote_import() < 0) {
        return -1;
    }
    state->plan_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &plan_spec, NULL);
    state->null = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (state->plan_type == NULL || state->null == NULL || PyModule_AddType(module, state->plan_type) < 0 ||
        PyModule_AddObjectRef(module, "NULL", state->null) < 0 || PyModule_AddIntMacro(module, WELL) < 0 ||
        PyModule_AddIntMacro(module, NO) < 0 || PyModule_AddIntMacro(module, RAISE) < 0 ||
        PyModule_AddIntMacro(module, SILENT) < 0 || PyModule_AddIntMacro(module, CONTRADICT) < 0 ||
        PyModule_AddIntMacro(module, GIVE) < 0 || PyModule_AddIntMacro(module, MAKE) < 0 ||
        PyModule_AddIntMacro(module, WILD) < 0 || PyModule_AddIntMacro(module, CENOTE_ACTIVE) < 0 ||
        PyModule_AddIntMacro(module, CENOTE_INACTIVE) < 0 ||
        PyModule_AddIntMacro(module, CENOTE_RECOVERING) < 0) {
        return -1;
    }
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->plan_type);
    Py_VISIT(state->null);
    return 0;
}

static int
module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->plan_type);
    Py_CLEAR(state->null);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,   .m_name = "probe",       .m_size = sizeof(State),
    .m_methods = methods,    .m_slots = module_slots, .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC
PyInit_probe(void)
{
    return PyModuleDef_Init(&module_def);
}
