/* Claims: lists of them, and their Python type. */

/* -- lists of claims ------------------------------------------------------------------------- */

static void
list_insert(List *list, Claim *claim, Claim *after)
{
    Py_INCREF(claim);
    claim->prev = after;
    claim->next = after == NULL ? list->first : after->next;
    if (claim->prev == NULL) {
        list->first = claim;
    }
    else {
        claim->prev->next = claim;
    }
    if (claim->next == NULL) {
        list->last = claim;
    }
    else {
        claim->next->prev = claim;
    }
    list->length++;
}

/* The reference of the list moves to the caller. */
static void
list_remove(List *list, Claim *claim)
{
    if (claim->prev == NULL) {
        list->first = claim->next;
    }
    else {
        claim->prev->next = claim->next;
    }
    if (claim->next == NULL) {
        list->last = claim->prev;
    }
    else {
        claim->next->prev = claim->prev;
    }
    claim->prev = claim->next = NULL;
    list->length--;
}

static void
clear_list(List *list)
{
    while (list->first != NULL) {
        Claim *claim = list->first;
        list_remove(list, claim);
        claim->state = ABANDONED;
        Py_DECREF(claim);
    }
}

/* -- Claim ----------------------------------------------------------------------------------- */

static PyObject *
Claim_get_state(Claim *claim, void *Py_UNUSED(closure))
{
    return Py_NewRef(claim->st->claim_states[claim->state]);
}

static PyObject *
Claim_get_slot(Claim *claim, void *Py_UNUSED(closure))
{
    return newref_or_none((PyObject *)claim->slot);
}

static int
Claim_set_slot(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    if (claim->state == HOLDING) { /* the core relies on it */
        PyErr_SetString(PyExc_AttributeError, "the slot of a claim that holds it is fixed");
        return -1;
    }
    if (value == Py_None) {
        value = NULL;
    }
    else if (value == NULL || !PyObject_TypeCheck(value, claim->st->slot_type)) {
        PyErr_SetString(PyExc_TypeError, "slot must be a Slot or None");
        return -1;
    }
    Py_XSETREF(claim->slot, (Slot *)Py_XNewRef(value));
    return 0;
}

static PyObject *
Claim_get_task(Claim *claim, void *Py_UNUSED(closure))
{
    return newref_or_none(claim->task);
}

static int
Claim_set_task(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    if (claim->state == WAITING) { /* the core finds it by its task */
        PyErr_SetString(PyExc_AttributeError, "the task of a claim that waits is fixed");
        return -1;
    }
    Py_CLEAR(claim->key);
    Py_XSETREF(claim->task, value == Py_None ? NULL : Py_XNewRef(value));
    return 0;
}

static PyObject *
Claim_get_deadline(Claim *claim, void *Py_UNUSED(closure))
{
    return isnan(claim->deadline) ? Py_NewRef(Py_None) : PyFloat_FromDouble(claim->deadline);
}

static int
Claim_set_deadline(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    if (claim->timed_by != NULL) { /* its place in the heap is due to it */
        PyErr_SetString(PyExc_AttributeError, "the deadline of a claim is fixed while it is timed");
        return -1;
    }
    double deadline = value == NULL ? Py_NAN : optional_seconds(value);
    if (deadline == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    claim->deadline = deadline;
    return 0;
}

static PyObject *
Claim_get_timeout(Claim *claim, void *Py_UNUSED(closure))
{
    return isnan(claim->timeout) ? Py_NewRef(Py_None) : PyFloat_FromDouble(claim->timeout);
}

static PyObject *
Claim_get_wait_timeout(Claim *claim, void *Py_UNUSED(closure))
{
    return isnan(claim->wait_timeout) ? Py_NewRef(Py_None) : PyFloat_FromDouble(claim->wait_timeout);
}

/* Who is woken, and knows of the wait: the slow part, or the claim itself if it waits in C. */
static PyObject *
Claim_get_waiter(Claim *claim, void *Py_UNUSED(closure))
{
    if (claim->waiter == NULL && claim->own_waiter) {
        return Py_NewRef(claim);
    }
    return newref_or_none(claim->waiter);
}

static int
Claim_set_waiter(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    Py_XSETREF(claim->waiter, value == NULL || value == Py_None ? NULL : Py_NewRef(value));
    return 0;
}

/* Of a claim that waits in C: no async hook looks at its slot. */
static PyObject *
Claim_get_nothing(Claim *Py_UNUSED(claim), void *Py_UNUSED(closure))
{
    Py_RETURN_NONE;
}

/* Fixed from the moment on at which the core knows the claim. */
static int
Claim_set_lane(Claim *claim, PyObject *value, void *Py_UNUSED(closure))
{
    if (claim->state != ASKING || claim->placed) {
        PyErr_SetString(PyExc_AttributeError, "the lane of a claim is fixed when it has begun");
        return -1;
    }
    if (value == NULL || (value != Py_None && !PyObject_TypeCheck(value, claim->st->lane_type))) {
        PyErr_SetString(PyExc_TypeError, "lane must be a Lane or None");
        return -1;
    }
    Py_XSETREF(claim->lane, value == Py_None ? NULL : (Lane *)Py_NewRef(value));
    return 0;
}

static PyObject *
Claim_wake(Claim *claim, PyObject *Py_UNUSED(ignored))
{
    return claim_wake(claim) < 0 ? NULL : Py_NewRef(Py_None);
}

/* pin(reason): why its holder keeps what it holds; None if nothing pins it. */
static PyObject *
Claim_pin(Claim *claim, PyObject *reason)
{
    Py_XSETREF(claim->reason, reason == Py_None ? NULL : Py_NewRef(reason));
    Py_RETURN_NONE;
}

static PyMethodDef claim_methods[] = {
    {"pin", (PyCFunction)Claim_pin, METH_O, NULL},
    {"wake", (PyCFunction)Claim_wake, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef claim_getset[] = {
    {"next", get_object, NULL, NULL, (void *)offsetof(Claim, next)},
    {"previous", get_object, NULL, NULL, (void *)offsetof(Claim, prev)},
    {"error", get_object, set_object, NULL, (void *)offsetof(Claim, error)},
    {"code", get_object, set_object, NULL, (void *)offsetof(Claim, code)},
    {"reason", get_object, NULL, NULL, (void *)offsetof(Claim, reason)},
    {"lane", get_object, (setter)Claim_set_lane, NULL, (void *)offsetof(Claim, lane)},
    {"waiter", (getter)Claim_get_waiter, (setter)Claim_set_waiter, NULL, NULL},
    {"inspection", (getter)Claim_get_nothing, NULL, NULL, NULL},
    {"inspected", (getter)Claim_get_nothing, NULL, NULL, NULL},
    {"state", (getter)Claim_get_state, NULL, NULL, NULL},
    {"slot", (getter)Claim_get_slot, (setter)Claim_set_slot, NULL, NULL},
    {"task", (getter)Claim_get_task, (setter)Claim_set_task, NULL, NULL},
    {"deadline", (getter)Claim_get_deadline, (setter)Claim_set_deadline, NULL, NULL},
    {"timeout", (getter)Claim_get_timeout, NULL, NULL, NULL},
    {"wait_timeout", (getter)Claim_get_wait_timeout, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef claim_members[] = {
    {"began", Py_T_DOUBLE, offsetof(Claim, began), 0, NULL},
    {"since", Py_T_DOUBLE, offsetof(Claim, since), 0, NULL},
    {"probe", Py_T_LONGLONG, offsetof(Claim, probe), 0, NULL},
    {"placed", Py_T_BOOL, offsetof(Claim, placed), Py_READONLY, NULL},
    {"parked", Py_T_BOOL, offsetof(Claim, parked), Py_READONLY, NULL},
    {"chosen", Py_T_BOOL, offsetof(Claim, chosen), Py_READONLY, NULL},
    {"queued_at", Py_T_DOUBLE, offsetof(Claim, queued_at), Py_READONLY, NULL},
    {"queue_seq", Py_T_LONGLONG, offsetof(Claim, queue_seq), Py_READONLY, NULL},
    {"failures", Py_T_LONGLONG, offsetof(Claim, failures), 0, NULL},
    {"over", Py_T_BOOL, offsetof(Claim, over), 0, NULL},
    {"uncounted", Py_T_BOOL, offsetof(Claim, uncounted), 0, NULL},
    {"lease_seq", Py_T_LONGLONG, offsetof(Claim, lease_seq), Py_READONLY, NULL},
    {"seen_idle", Py_T_LONGLONG, offsetof(Claim, seen_idle), 0, NULL},
    {"instruction", Py_T_INT, offsetof(Claim, instruction), 0, NULL},
    {"in_block", Py_T_BOOL, offsetof(Claim, in_block), 0, NULL},
    {"warned", Py_T_BOOL, offsetof(Claim, warned), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void
claim_start(Claim *claim, State *st)
{
    claim->st = st;
    claim->owner = NULL;
    claim->slot = NULL;
    claim->prev = claim->next = NULL;
    claim->error = claim->task = claim->code = claim->reason = claim->waiter = claim->key = NULL;
    claim->lane = NULL;
    claim->placed = claim->parked = claim->chosen = 0;
    claim->queued_at = 0.0;
    claim->pool = NULL;
    claim->result = claim->steps = NULL;
    claim->deadline = claim->timeout = claim->wait_timeout = Py_NAN;
    claim->began = claim->since = 0.0;
    claim->probe = claim->queue_seq = claim->seen_idle = claim->lease_seq = 0;
    claim->instruction = 0;
    claim->state = ASKING;
    claim->stage = FRESH;
    claim->in_block = claim->warned = claim->own_waiter = 0;
    claim->over = claim->uncounted = claim->driven = 0;
    claim->future = claim->pause = NULL;
    claim->timed_by = NULL;
    claim->failures = 0;
}

static PyObject *
Claim_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Claim", names)) {
        return NULL;
    }
    PyObject *module = PyType_GetModuleByDef(type, &module_def);
    Claim *claim = module == NULL ? NULL : (Claim *)type->tp_alloc(type, 0);
    if (claim != NULL) {
        claim_start(claim, PyModule_GetState(module));
    }
    return (PyObject *)claim;
}

static int
Claim_traverse(Claim *claim, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(claim));
    Py_VISIT(claim->slot);
    Py_VISIT(claim->error);
    Py_VISIT(claim->task);
    Py_VISIT(claim->code);
    Py_VISIT(claim->reason);
    Py_VISIT(claim->waiter);
    Py_VISIT(claim->lane);
    Py_VISIT(claim->pool);
    Py_VISIT(claim->result);
    Py_VISIT(claim->steps);
    Py_VISIT(claim->future);
    Py_VISIT(claim->pause);
    return 0;
}

static int
Claim_clear(Claim *claim)
{
    Py_CLEAR(claim->future);
    Py_CLEAR(claim->pause);
    Py_CLEAR(claim->slot);
    Py_CLEAR(claim->error);
    Py_CLEAR(claim->key);
    Py_CLEAR(claim->task);
    Py_CLEAR(claim->code);
    Py_CLEAR(claim->reason);
    Py_CLEAR(claim->waiter);
    Py_CLEAR(claim->lane);
    Py_CLEAR(claim->result);
    Py_CLEAR(claim->steps);
    return 0;
}

/* Of an acquire that the collector takes apart, and that somebody may still find and use: it is OVER.
 * It keeps its pool, through which nothing leads back to it once that is cleared, too. */
static int
Acquire_clear(Claim *claim)
{
    claim->stage = OVER;
    return Claim_clear(claim);
}

static void
Claim_dealloc(Claim *claim)
{
    PyTypeObject *type = Py_TYPE(claim);
    PyObject_GC_UnTrack(claim);
    Claim_clear(claim);
    Py_CLEAR(claim->pool);
    /* Not claim->st: when a module is collected with what it made, its state may be gone by now. */
    PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
    State *st = module == NULL ? NULL : PyModule_GetState(module);
    if (st != NULL && type == st->acquire_type && st->spares < SPARE && !st->ended) {
        st->spare[st->spares++] = claim; /* it keeps its type: see acquire_new */
        return;
    }
    type->tp_free(claim);
    Py_DECREF(type);
}

static PyType_Slot claim_slots[] = {
    {Py_tp_doc, "One acquire: it may wait, is granted a slot, and holds it until the return."},
    {Py_tp_new, Claim_new},
    {Py_tp_methods, claim_methods},
    {Py_tp_getset, claim_getset},
    {Py_tp_members, claim_members},
    {Py_tp_traverse, Claim_traverse},
    {Py_tp_clear, Claim_clear},
    {Py_tp_dealloc, Claim_dealloc},
    {0, NULL},
};

static PyType_Spec claim_spec = {
    .name = "cenote._core.native.Claim",
    .basicsize = sizeof(Claim),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_BASETYPE,
    .slots = claim_slots,
};
