/* Small helpers: references, imports, types. */

static PyObject *
newref_or_none(PyObject *object)
{
    return Py_NewRef(object == NULL ? Py_None : object);
}

/* Attributes that are objects or NULL, which is None for Python; the closure is the offset. */
static PyObject *
get_object(PyObject *self, void *offset)
{
    return newref_or_none(*(PyObject **)((char *)self + (size_t)offset));
}

static int
set_object(PyObject *self, PyObject *value, void *offset)
{
    PyObject **place = (PyObject **)((char *)self + (size_t)offset);
    Py_XSETREF(*place, value == Py_None ? NULL : Py_XNewRef(value));
    return 0;
}

static int
illegal(State *st, const char *machine, PyObject *state, const char *event)
{
    PyObject *error = PyObject_CallFunction(st->illegal, "sOs", machine, state, event);
    if (error != NULL) {
        PyErr_SetObject(st->illegal, error);
        Py_DECREF(error);
    }
    return -1;
}

/* Whether the law lets this event happen; -1 with an IllegalTransition if not, and nothing changes. */
static inline int
check_slot(Slot *slot, int event)
{
    if (slot_law[(int)slot->state][event] != NOWHERE) {
        return 0;
    }
    State *st = PyType_GetModuleState(Py_TYPE(slot));
    return st == NULL ? -1 : illegal(st, "slot", st->slot_states[(int)slot->state], slot_events[event]);
}

static inline int
check_claim(Claim *claim, int event)
{
    if (claim_law[claim->state][event] != NOWHERE) {
        return 0;
    }
    return illegal(claim->st, "claim", claim->st->claim_states[claim->state], claim_events[event]);
}

static double
optional_seconds(PyObject *value)
{
    return value == Py_None ? Py_NAN : PyFloat_AsDouble(value);
}

static PyObject *
import_from(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    if (imported == NULL) {
        return NULL;
    }
    PyObject *found = PyObject_GetAttrString(imported, name);
    Py_DECREF(imported);
    return found;
}

static int
add_type(PyObject *module, PyTypeObject **place, PyType_Spec *spec, PyTypeObject *base)
{
    *place = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    return *place == NULL ? -1 : PyModule_AddType(module, *place);
}
