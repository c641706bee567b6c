/* Small helpers: references, imports, types. */

static PyObject *
newref_or_none(PyObject *object)
{
    return Py_NewRef(object == NULL ? Py_None : object);
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

static int
check_slot(Slot *slot, int wanted, const char *event)
{
    if (slot->state == wanted) {
        return 0;
    }
    return illegal(slot->st, "slot", slot->st->slot_states[slot->state], event);
}

static int
check_claim(Claim *claim, int one, int other, const char *event)
{
    if (claim->state == one || claim->state == other) {
        return 0;
    }
    return illegal(claim->st, "claim", claim->st->claim_states[claim->state], event);
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
