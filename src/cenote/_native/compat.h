/* What newer versions of Python have and 3.11 does not, under its new name. */
#ifndef CENOTE_COMPAT_H
#define CENOTE_COMPAT_H

#include <Python.h>

#if PY_VERSION_HEX < 0x030c0000

#include <structmember.h>

#define Py_T_INT T_INT
#define Py_T_UINT T_UINT
#define Py_T_ULONG T_ULONG
#define Py_T_LONGLONG T_LONGLONG
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_T_DOUBLE T_DOUBLE
#define Py_T_BOOL T_BOOL
#define Py_READONLY READONLY

/* The exception that is set, as an instance with its traceback, or NULL; none is set afterwards. */
static inline PyObject *
PyErr_GetRaisedException(void)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

/* Steals the exception; NULL: none is set afterwards. */
static inline void
PyErr_SetRaisedException(PyObject *error)
{
    if (error == NULL) {
        PyErr_Restore(NULL, NULL, NULL);
    }
    else {
        PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
    }
}

#endif
/* What a weak reference refers to, or None: a new reference. */
static inline PyObject *
weakref_target(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *target = NULL;
    PyWeakref_GetRef(reference, &target);
    return target == NULL ? Py_NewRef(Py_None) : target;
#else
    return Py_NewRef(PyWeakref_GetObject(reference));
#endif
}

#endif /* CENOTE_COMPAT_H */
