/* The clock. The time of a stock loop is time.monotonic(), which C reads by itself, unless somebody has
 * put another function in its place (mocks of time do): then the loop's time() is asked, as it is
 * wherever a loop has a clock of its own. */

/* Whether `name` in that dict is still what it was; 0 if that cannot be found out. */
static int
still_is(PyObject *dict, PyObject *name, PyObject *original)
{
    PyObject *error = PyErr_GetRaisedException(); /* an exception that is set is none of our business */
    int same = PyDict_GetItemWithError(dict, name) == original;
    PyErr_SetRaisedException(error); /* replaces ours */
    return same;
}

static int
clock_look(State *st)
{
    return still_is(st->time_dict, st->s_monotonic, st->monotonic) &&
           still_is(st->loops_dict, st->s_time, st->time_module);
}

#if PY_VERSION_HEX >= 0x030c0000
/* How often either dict of any interpreter has changed. More than needed only costs a look. */
static unsigned long clock_changes = 1;

static int
clock_changed(PyDict_WatchEvent Py_UNUSED(event), PyObject *Py_UNUSED(dict), PyObject *Py_UNUSED(key),
              PyObject *Py_UNUSED(value))
{
    __atomic_fetch_add(&clock_changes, 1, __ATOMIC_RELAXED);
    return 0;
}

static int
clock_is_real(State *st)
{
    unsigned long changes = __atomic_load_n(&clock_changes, __ATOMIC_RELAXED);
    if (changes != st->clock_changes || st->clock_watcher < 0) {
        st->clock_changes = changes;
        st->clock_real = (char)clock_look(st);
    }
    return st->clock_real;
}

static void
clock_watch(State *st)
{
    st->clock_watcher = PyDict_AddWatcher(clock_changed);
    if (st->clock_watcher >= 0 && (PyDict_Watch(st->clock_watcher, st->time_dict) < 0 ||
                                   PyDict_Watch(st->clock_watcher, st->loops_dict) < 0)) {
        PyErr_Clear();
        PyDict_ClearWatcher(st->clock_watcher);
        st->clock_watcher = -1;
    }
    PyErr_Clear(); /* there are only a few of them: without one it looks every time */
}

static void
clock_unwatch(State *st)
{
    if (st->clock_watcher >= 0 && st->time_dict != NULL && st->loops_dict != NULL) {
        PyDict_Unwatch(st->clock_watcher, st->time_dict);
        PyDict_Unwatch(st->clock_watcher, st->loops_dict);
        PyDict_ClearWatcher(st->clock_watcher);
        PyErr_Clear();
    }
    st->clock_watcher = -1;
}
#else
static int
clock_is_real(State *st)
{
    uint64_t time = ((PyDictObject *)st->time_dict)->ma_version_tag;
    uint64_t loops = ((PyDictObject *)st->loops_dict)->ma_version_tag;
    if (time != st->time_version || loops != st->loops_version) {
        st->time_version = time;
        st->loops_version = loops;
        st->clock_real = (char)clock_look(st);
    }
    return st->clock_real;
}

static void
clock_watch(State *Py_UNUSED(st))
{
}

static void
clock_unwatch(State *Py_UNUSED(st))
{
}
#endif

/* What the loop's own time() reads, at the moment at which this module is loaded. */
static int
load_clock(State *st)
{
    PyObject *loops = PyImport_ImportModule("asyncio.base_events");
    st->time_module = PyImport_ImportModule("time");
    if (loops == NULL || st->time_module == NULL) {
        Py_XDECREF(loops);
        return -1;
    }
    st->loops_dict = Py_NewRef(PyModule_GetDict(loops));
    st->time_dict = Py_NewRef(PyModule_GetDict(st->time_module));
    Py_DECREF(loops);
    st->monotonic = PyObject_GetAttrString(st->time_module, "monotonic");
    if (st->monotonic == NULL) {
        return -1;
    }
    if (!PyCFunction_CheckExact(st->monotonic)) { /* replaced before this was loaded */
        Py_SETREF(st->monotonic, Py_NewRef(Py_None));
    }
    clock_watch(st);
    return 0;
}

/* Record the second that is over. Whatever the caller is about to change comes after it. */
static double
engine_sample(Engine *engine, double now)
{
    PyObject *when = PyFloat_FromDouble(now);
    PyObject *result =
        when == NULL ? NULL : PyObject_CallMethodOneArg(slow_path(engine), engine->core->st->s_sample, when);
    Py_XDECREF(when);
    if (result == NULL) {
        return -1.0;
    }
    Py_DECREF(result);
    return now;
}

/* -1.0 with an exception: the loop's clock, or the sample, has failed. */
static double
engine_now(Engine *engine)
{
    double result;
    if (engine->direct_clock && clock_is_real(engine->core->st)) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        result = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    }
    else {
        PyObject *now = PyObject_CallNoArgs(engine->time);
        if (now == NULL) {
            return -1.0;
        }
        result = PyFloat_AsDouble(now);
        Py_DECREF(now);
        if (result == -1.0 && PyErr_Occurred()) {
            return -1.0;
        }
    }
    return result >= engine->sample_at ? engine_sample(engine, result) : result;
}
