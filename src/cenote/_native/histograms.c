/* Histograms: waits and holds counted in buckets. See _core/histograms.py. */

static void
bucket_add(Histograms *histograms, Bucket *buckets, double seconds)
{
    Py_ssize_t low = 0;
    if (seconds > histograms->bounds[0]) {
        Py_ssize_t high = histograms->length; /* the first bound that is not below is in low..high */
        for (low = 1; low < high;) {
            Py_ssize_t middle = (low + high) / 2;
            if (histograms->bounds[middle] < seconds) {
                low = middle + 1;
            }
            else {
                high = middle;
            }
        }
    }
    buckets[low].count++;
    buckets[low].sum += seconds;
}

/* All of a core: a tuple, which cannot change here, since no Python code runs. */
static void
histograms_waited(PyObject *all, double seconds)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); i++) {
        Histograms *histograms = (Histograms *)PyTuple_GET_ITEM(all, i);
        bucket_add(histograms, histograms->waits, seconds);
    }
}

static void
histograms_held(PyObject *all, double seconds)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); i++) {
        Histograms *histograms = (Histograms *)PyTuple_GET_ITEM(all, i);
        bucket_add(histograms, histograms->holds, seconds);
    }
}

static PyObject *
buckets_as_list(Histograms *histograms, Bucket *buckets)
{
    PyObject *found = PyList_New(histograms->length + 1);
    for (Py_ssize_t i = 0; found != NULL && i <= histograms->length; i++) {
        PyObject *pair = Py_BuildValue("(Ld)", buckets[i].count, buckets[i].sum);
        if (pair == NULL) {
            Py_CLEAR(found);
            break;
        }
        PyList_SET_ITEM(found, i, pair);
    }
    return found;
}

static PyObject *
Histograms_get_waits(Histograms *histograms, void *Py_UNUSED(closure))
{
    return buckets_as_list(histograms, histograms->waits);
}

static PyObject *
Histograms_get_holds(Histograms *histograms, void *Py_UNUSED(closure))
{
    return buckets_as_list(histograms, histograms->holds);
}

static PyGetSetDef histograms_getset[] = {
    {"waits", (getter)Histograms_get_waits, NULL, NULL, NULL},
    {"holds", (getter)Histograms_get_holds, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *
Histograms_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"bounds", NULL};
    PyObject *given;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Histograms", names, &given)) {
        return NULL;
    }
    PyObject *bounds = PySequence_Tuple(given);
    if (bounds == NULL) {
        return NULL;
    }
    Py_ssize_t length = PyTuple_GET_SIZE(bounds);
    Histograms *histograms = NULL;
    if (length == 0) {
        PyErr_SetString(PyExc_ValueError, "bounds must not be empty");
    }
    else {
        histograms = (Histograms *)type->tp_alloc(type, 0); /* zeroed */
    }
    if (histograms != NULL) {
        histograms->length = length;
        histograms->bounds = PyMem_Calloc((size_t)length, sizeof(double));
        histograms->waits = PyMem_Calloc((size_t)length + 1, sizeof(Bucket));
        histograms->holds = PyMem_Calloc((size_t)length + 1, sizeof(Bucket));
        if (histograms->bounds == NULL || histograms->waits == NULL || histograms->holds == NULL) {
            PyErr_NoMemory();
            Py_CLEAR(histograms);
        }
    }
    for (Py_ssize_t i = 0; histograms != NULL && i < length; i++) {
        histograms->bounds[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(bounds, i));
        if (histograms->bounds[i] == -1.0 && PyErr_Occurred()) {
            Py_CLEAR(histograms);
        }
    }
    Py_DECREF(bounds);
    return (PyObject *)histograms;
}

static void
Histograms_dealloc(Histograms *histograms)
{
    PyTypeObject *type = Py_TYPE(histograms);
    PyMem_Free(histograms->bounds);
    PyMem_Free(histograms->waits);
    PyMem_Free(histograms->holds);
    type->tp_free(histograms);
    Py_DECREF(type);
}

static PyType_Slot histograms_slots[] = {
    {Py_tp_doc, "Waits and holds of a pool, in buckets. See _core/histograms.py."},
    {Py_tp_new, Histograms_new},
    {Py_tp_getset, histograms_getset},
    {Py_tp_dealloc, Histograms_dealloc},
    {0, NULL},
};

static PyType_Spec histograms_spec = {
    .name = "cenote._core.native.Histograms",
    .basicsize = sizeof(Histograms),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = histograms_slots,
};

/* core.histograms: a tuple; NULL if it is empty, so that the fast path has one thing to look at. */
static PyObject *
Core_get_histograms(Core *core, void *Py_UNUSED(closure))
{
    return core->histograms == NULL ? PyTuple_New(0) : Py_NewRef(core->histograms);
}

static int
Core_set_histograms(Core *core, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL || !PyTuple_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "histograms must be a tuple");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(value, i), core->st->histograms_type)) {
            PyErr_SetString(PyExc_TypeError, "histograms must be a tuple of Histograms");
            return -1;
        }
    }
    Py_XSETREF(core->histograms, PyTuple_GET_SIZE(value) == 0 ? NULL : Py_NewRef(value));
    return 0;
}
