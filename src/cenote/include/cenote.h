/* cenote.h: pools of cenote from C.
 *
 * One header, nothing to link. In your module's exec function:
 *
 *     if (cenote_import() < 0) { return -1; }
 *
 * and then call through the table, for example `cenote->try_acquire(pool)`. The table is per
 * interpreter and append-only: what is there keeps its place and its meaning.
 *
 * Every function needs the GIL, and, unless it says otherwise, the thread of the pool's event loop.
 * Unless it says otherwise, an argument is borrowed, a PyObject * result is a new reference, and
 * failure is NULL or -1 with an exception set. A pool made here is an ordinary `cenote.Pool`.
 */
#ifndef CENOTE_H
#define CENOTE_H

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CENOTE_ABI 1

/* States of the circuit breaker. */
enum { CENOTE_ACTIVE = 0, CENOTE_INACTIVE = 1, CENOTE_RECOVERING = 2 };

/* What a pool calls instead of Python hooks: directly, without a Python call. `data` is the pointer
 * given with them. All but `factory` may be NULL.
 *
 * factory:    a new reference to the resource (not None); NULL with an exception: it failed
 * destructor: 0, or -1 with an exception; `resource` is borrowed, and dropped afterwards
 * the checks: 1 accepts, 0 rejects, -1 with an exception rejects; `resource` is borrowed
 */
typedef struct {
    PyObject *(*factory)(void *data);
    int (*destructor)(PyObject *resource, void *data);
    int (*healthcheck)(PyObject *resource, void *data);
    int (*before_acquire)(PyObject *resource, void *data);
    int (*before_release)(PyObject *resource, void *data);
} Cenote_Handlers;

/* A circuit breaker strategy in C. 0, or -1 with an exception, which is logged. `should_recover` may
 * be NULL (recovery is manual then); it returns 1 or 0. */
typedef struct {
    int (*report_success)(PyObject *pool, void *data);
    int (*report_failure)(PyObject *pool, PyObject *error, void *data);
    int (*should_recover)(void *data);
} Cenote_Strategy;

/* Frees user data; called exactly once, when cenote no longer needs it, also if the call that was
 * given the data fails. May be NULL. */
typedef void (*Cenote_Free)(void *data);

/* The end of acquire_call: called once, from the event loop, never from inside acquire_call, with a
 * resource that is now held, or with NULL and the error (an exception, also CancelledError after
 * ticket_cancel). Both are borrowed. 0, or -1 with an exception, which is reported as unraisable. */
typedef int (*Cenote_Completion)(PyObject *resource, PyObject *error, void *data);

/* Called with each PoolEvent (borrowed). 0, or -1 with an exception, which is logged. */
typedef int (*Cenote_Listener)(PyObject *event, void *data);

typedef struct {
    int abi;     /* of the cenote that is installed; at least CENOTE_ABI after cenote_import() */
    size_t size; /* of this table there */

    /* A pool with Python callables: cenote.Pool(factory, **options). `options`: a dict or NULL. */
    PyObject *(*pool_new)(PyObject *factory, PyObject *options);

    /* A pool with C handlers, which are copied. `options`: a dict without hooks, or NULL. */
    PyObject *(*pool_new_c)(const Cenote_Handlers *handlers, void *data, Cenote_Free free_data,
                            PyObject *options);

    /* 1 if the object is a pool of this cenote, else 0. */
    int (*pool_check)(PyObject *object);

    /* The awaitable (and async context manager) that pool.acquire(timeout) gives. A timeout below 0
     * is the pool's default, infinity waits without a limit. */
    PyObject *(*acquire)(PyObject *pool, double timeout);

    /* Acquire without Python: `done` is called later by the running loop of this thread. Gives a
     * ticket. `free_data` is called after `done`, or without it if the loop goes away first, or the
     * pool with all who wait in it. */
    PyObject *(*acquire_call)(PyObject *pool, double timeout, Cenote_Completion done, void *data,
                              Cenote_Free free_data);

    /* Give up waiting, in O(1): 1 if `done` will get CancelledError; 0 if it was called before, or
     * never will be because the loop is closed. */
    int (*ticket_cancel)(PyObject *ticket);

    /* A resource, or NULL without an exception if that would need waiting. */
    PyObject *(*try_acquire)(PyObject *pool);

    /* Give back. With async hooks it goes on in the loop; the reference of the caller stays valid. */
    int (*release)(PyObject *pool, PyObject *resource);

    /* Destroy instead of giving back; `error` (an exception or NULL) goes to the strategy. */
    int (*discard)(PyObject *pool, PyObject *resource, PyObject *error);

    /* The coroutine pool.close(): await it, or hand it to a task. */
    PyObject *(*close)(PyObject *pool);

    /* Counts; any thread that holds the GIL. -1: not a pool. */
    Py_ssize_t (*count)(PyObject *pool);
    Py_ssize_t (*idle_count)(PyObject *pool);
    Py_ssize_t (*active_count)(PyObject *pool);
    Py_ssize_t (*waiting_count)(PyObject *pool);

    /* Subscribe to events. Gives a subscription, to be kept until it is passed to unsubscribe or dropped;
     * dropping it does not unsubscribe. */
    PyObject *(*subscribe)(PyObject *pool, Cenote_Listener listener, void *data, Cenote_Free free_data);
    int (*unsubscribe)(PyObject *subscription);

    /* The circuit breaker: CENOTE_ACTIVE, CENOTE_INACTIVE or CENOTE_RECOVERING. */
    int (*state)(PyObject *pool);
    int (*set_state)(PyObject *pool, int state);

    /* A C strategy (copied), or NULL to remove the present one. */
    int (*set_strategy)(PyObject *pool, const Cenote_Strategy *strategy, void *data, Cenote_Free free_data);
} Cenote_API;

static const Cenote_API *cenote = NULL;

/* Finds the table. -1 with an ImportError that says what is wrong, or with what the import of cenote
 * raised. */
static inline int
cenote_import(void)
{
    PyObject *package = PyImport_ImportModule("cenote");
    if (package == NULL) {
        if (PyErr_ExceptionMatches(PyExc_ModuleNotFoundError)) {
#if PY_VERSION_HEX >= 0x030c0000
            PyObject *error = PyErr_GetRaisedException();
#else
            PyObject *type, *error, *traceback;
            PyErr_Fetch(&type, &error, &traceback);
            PyErr_NormalizeException(&type, &error, &traceback);
#endif
            PyObject *name = PyObject_GetAttrString(error, "name"); /* of what was not found */
            int absent = name != NULL && PyUnicode_Check(name) &&
                         PyUnicode_CompareWithASCIIString(name, "cenote") == 0;
            Py_XDECREF(name);
#if PY_VERSION_HEX >= 0x030c0000
            PyErr_SetRaisedException(error);
#else
            PyErr_Restore(type, error, traceback);
#endif
            if (absent) {
                PyErr_SetString(PyExc_ImportError,
                                "this extension needs cenote, which is not installed: pip install cenote");
            }
        }
        return -1;
    }
    PyObject *core = PyObject_GetAttrString(package, "core");
    Py_DECREF(package);
    if (core == NULL) {
        PyErr_SetString(PyExc_ImportError,
                        "this extension needs cenote, and what was imported under that name is "
                        "something else");
        return -1;
    }
    int native = PyUnicode_Check(core) && PyUnicode_CompareWithASCIIString(core, "native") == 0;
    Py_DECREF(core);
    if (!native) {
        PyErr_SetString(PyExc_ImportError,
                        "this extension needs the native core of cenote, but the pure one is in use: "
                        "unset CENOTE_PURE, or install cenote where a C compiler is at hand");
        return -1;
    }
    cenote = (const Cenote_API *)PyCapsule_Import("cenote._core.native.C_API", 0);
    if (cenote == NULL) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_SetString(PyExc_ImportError,
                            "this extension needs the C API of cenote, which the installed one does "
                            "not have: upgrade cenote");
        }
        return -1;
    }
    if (cenote->abi < CENOTE_ABI || cenote->size < sizeof(Cenote_API)) {
        PyErr_Format(PyExc_ImportError,
                     "this extension was compiled for C API %d of cenote, the installed one has %d: "
                     "upgrade cenote",
                     CENOTE_ABI, cenote->abi);
        cenote = NULL;
        return -1;
    }
    return 0;
}

#ifdef __cplusplus
}
#endif
#endif /* CENOTE_H */
