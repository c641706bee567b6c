/* handlers: a pool whose five hooks are C functions that do nothing, and a loop over it in C. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "cenote.h"

static PyObject *
make(void *Py_UNUSED(data))
{
    return PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
}

static int
destroy(PyObject *Py_UNUSED(resource), void *Py_UNUSED(data))
{
    return 0;
}

static int
accept(PyObject *Py_UNUSED(resource), void *Py_UNUSED(data))
{
    return 1;
}

static const Cenote_Handlers handlers = {
    .factory = make,
    .destructor = destroy,
    .healthcheck = accept,
    .before_acquire = accept,
    .before_release = accept,
};

static PyObject *
pool(PyObject *Py_UNUSED(module), PyObject *options)
{
    return cenote->pool_new_c(&handlers, NULL, NULL, options);
}

/* cycle(pool, times): try_acquire and release, from C. */
static PyObject *
cycle(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *from;
    Py_ssize_t times;
    if (!PyArg_ParseTuple(args, "On:cycle", &from, &times)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < times; i++) {
        PyObject *resource = cenote->try_acquire(from);
        if (resource == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_RuntimeError, "nothing is free");
            }
            return NULL;
        }
        int failed = cenote->release(from, resource);
        Py_DECREF(resource);
        if (failed < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"pool", pool, METH_O, NULL},
    {"cycle", cycle, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
exec(PyObject *Py_UNUSED(module))
{
    return cenote_import();
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, exec},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "handlers",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit_handlers(void)
{
    return PyModuleDef_Init(&definition);
}
