/* What the core is made of: structs, the ring of idle slots, the table of leases, lists of claims. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { OPENING, RESERVED, IDLE, LEASED, CLOSING, GONE, SLOT_STATES };
enum { ASKING, WAITING, GRANTED, HOLDING, ENDED, FAILED, ABANDONED, CLAIM_STATES };
enum { NEW, OPEN, DRAINING, CLOSED, PHASES };
enum { ACTIVE, INACTIVE, RECOVERING, CIRCUITS };

static const char *const slot_names[] = {"OPENING", "RESERVED", "IDLE", "LEASED", "CLOSING", "GONE"};
static const char *const claim_names[] = {"ASKING", "WAITING", "GRANTED", "HOLDING",
                                          "ENDED",  "FAILED",  "ABANDONED"};
static const char *const phase_names[] = {"NEW", "OPEN", "DRAINING", "CLOSED"};
static const char *const circuit_names[] = {"ACTIVE", "INACTIVE", "RECOVERING"};

#define SPARE 64          /* acquire objects kept for reuse */
#define FIRST_CAPACITY 8  /* of the ring and of the table of leases */
#define EVENT_FIELDS 8    /* of observe.PoolEvent */

typedef struct State State;
typedef struct Claim Claim;

typedef struct {
    PyObject_HEAD
    State *st;
    const void *owner;  /* the Core it belongs to: only compared */
    PyObject *resource; /* NULL before it is opened and after it is gone */
    PyObject *stop;     /* the StopIteration that hands the resource over, or NULL: see slot_stop */
    Claim *lease;       /* owned; who holds it, while LEASED */
    PyObject *twin;     /* borrowed Slot: next older leased slot with the identical resource */
    PyObject *before, *after; /* borrowed Slots: its neighbours in the list of the core */
    double expires_at;
    double idle_since;
    long long idle_order;
    long long generation;
    long long uses;
    long long probe;
    int state;
    char fresh;
    char told; /* its destructor is being called, or was */
    char listed; /* in the list of the core */
} Slot;

struct Claim {
    PyObject_HEAD
    State *st;
    const void *owner; /* the Core in which it waits, is granted or holds: only compared */
    Slot *slot; /* owned; granted and not yet used, or held */
    Claim *prev, *next; /* borrowed; in the list of waiters or of granted claims */
    PyObject *error, *task, *code, *reason, *waiting;
    PyObject *key; /* of its task among those that wait: an int, since a task may have any hash */
    double deadline; /* NaN: for ever */
    double began, since;
    long long probe, turn, before, number;
    int instruction;
    int state;
    char in_block, warned, used;
    char over; /* what drove it has ended by an exception: see tidying.py */
    /* Of Acquire only; a mere claim leaves them NULL. */
    PyObject *front;  /* owned */
    PyObject *result; /* the resource, between __await__ and the step that returns it */
    PyObject *steps;  /* the slow path, if it is driven as a coroutine or was begun in C */
    double timeout;   /* NaN: for ever */
    /* Of a wait in C: see native_wait.h. */
    PyObject *future, *pause; /* while it is suspended: what wakes it, and what it is driven by */
    Py_ssize_t place;         /* in the heap of deadlines, from 1; 0: it is not there */
    long long failures;       /* of the factory, before this wait */
    char must_wait;           /* from its first step on */
    char plain;               /* it waits here, or did */
};

typedef struct {
    Claim *first, *last;
    Py_ssize_t length;
} List;

typedef struct {
    PyObject_HEAD
    State *st;
    /* the ring of idle slots */
    Slot **ring;
    Py_ssize_t head, idle, capacity; /* capacity is a power of two */
    /* leased slots by identity of their resource: open addressing, newest of the twins */
    Slot **table;
    Py_ssize_t used, mask;
    Slot *slots; /* a list that owns all that are not GONE: nothing is lost with a reference */
    List waiters, granted;
    PyObject *waiting_tasks; /* dict: address of a task -> claim */
    double max_idle;         /* NaN: none */
    double wait_time, max_wait_time, hold_time, max_hold_time;
    long long min_size, max_size, max_uses; /* max_uses 0: no limit */
    long long count, opening, closing, out;
    long long acquired, released;
    long long recovering_limit, recovery, probes, unplaced;
    long long generation, turns, idle_orders;
    int phase, circuit;
    int busy; /* depth of the steps under way; 0 while a hook runs: see Bound._step() */
    char lifo, sync_factory;
} Core;

typedef struct {
    PyObject_HEAD
    Core *core;
    PyObject *loop, *time, *before_acquire, *before_release, *strategy, *subscribers;
    PyObject *hold_warning, *acquire_timeout;
    Claim **deadlines; /* a heap of those who wait in C; borrowed */
    Py_ssize_t timed, room;
    double alarm;          /* loop time at which the timer for them comes; inf: none is set */
    double trust, doubted; /* see front.py */
    double due_at;         /* when maintenance looks again; inf: not at all */
    long long max_waiting; /* -1: no limit */
    unsigned long thread;
    char direct_clock;  /* the loop's time is the monotonic clock */
    char direct_future; /* the loop's futures are asyncio's */
    char doubtful;      /* a step was broken off: see Bound._broken_off() */
} Front;

/* A hook in C: the fast path calls its function, Python calls the object. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *handlers; /* owns the data */
    void *data;
    const char *name;
    int (*function)(PyObject *resource, void *data);
    char is_check; /* it has a verdict; a destructor has none */
} Check;

/* Objects first, and nothing but objects before `spare`: module_traverse walks them. */
struct State {
    PyTypeObject *slot_type, *claim_type, *core_type, *acquire_type, *steps_type, *front_type,
        *done_type, *handlers_type, *check_type, *ticket_type, *watcher_type;
    PyObject *done; /* the awaitable of what is done already */
    PyObject *slot_states[SLOT_STATES], *claim_states[CLAIM_STATES], *phases[PHASES],
        *circuits[CIRCUITS];
    PyObject *illegal;       /* errors.IllegalTransition */
    PyObject *current_tasks; /* asyncio's dict loop -> task, or NULL where there is none */
    PyObject *current_task;  /* asyncio.current_task */
    PyObject *future, *loop_only; /* asyncio.Future, and the names of its arguments */
    PyObject *unset, *check_timeout, *caller, *internal;
    PyObject *last_code; /* the last caller that was found to be outside */
    PyObject *time_module, *time_dict, *monotonic, *loops_dict; /* see native_clock.h */
    PyObject *s_monotonic, *s_time;
    PyTypeObject *event_type, *subscription_type; /* of observe, from the first event on */
    PyObject *spare_event; /* nobody has kept it, and its fields are empty */
    PyObject *s_enter, *s_check_loop, *s_admit_or_raise, *s_obtain, *s_leave, *s_advance, *s_settle,
        *s_examine, *s_refuse, *s_held, *s_report_success, *s_expect, *s_wake,
        *s_leased, *s_completed, *s_try_acquire_slow, *s_start_ticket, *s_acquired, *s_released,
        *s_get_name, *s_contain, *s_check_circle, *s_set_alarm, *s_factory_failures,
        *s_create_future, *s_interrupted, *s_done, *s_set_result, *s_broken_off, *s_defer_return;
    Claim *spare[SPARE];
    int spares;
    int ended; /* the module is being cleared: nothing is kept any more */
    Py_ssize_t event_offsets[EVENT_FIELDS], callback_offset;
    uint64_t time_version, loops_version; /* of the dicts when they were looked at, before 3.12 */
    unsigned long clock_changes;          /* the same, from 3.12 on */
    int clock_watcher;
    char clock_real; /* what was seen then */
};

/* -- small things ---------------------------------------------------------------------------- */

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

/* -- the ring -------------------------------------------------------------------------------- */

static Slot *
ring_at(Core *core, Py_ssize_t index)
{
    return core->ring[(core->head + index) & (core->capacity - 1)];
}

static int
ring_reserve(Core *core)
{
    if (core->idle < core->capacity) {
        return 0;
    }
    Py_ssize_t capacity = core->capacity == 0 ? FIRST_CAPACITY : core->capacity * 2;
    Slot **ring = PyMem_New(Slot *, capacity);
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < core->idle; i++) {
        ring[i] = ring_at(core, i);
    }
    PyMem_Free(core->ring);
    core->ring = ring;
    core->head = 0;
    core->capacity = capacity;
    return 0;
}

/* Both steal nothing: the reference moves from or to the caller. Room was reserved. */
static void
ring_append(Core *core, Slot *slot)
{
    core->ring[(core->head + core->idle) & (core->capacity - 1)] = slot;
    core->idle++;
}

static void
ring_prepend(Core *core, Slot *slot)
{
    core->head = (core->head - 1) & (core->capacity - 1);
    core->ring[core->head] = slot;
    core->idle++;
}

static Slot *
ring_pop_first(Core *core)
{
    Slot *slot = core->ring[core->head];
    core->head = (core->head + 1) & (core->capacity - 1);
    core->idle--;
    return slot;
}

static Slot *
ring_pop_last(Core *core)
{
    core->idle--;
    return ring_at(core, core->idle);
}

static void
ring_remove(Core *core, Py_ssize_t index)
{
    Py_ssize_t mask = core->capacity - 1;
    if (index == 0) {
        ring_pop_first(core);
        return;
    }
    for (Py_ssize_t i = index; i + 1 < core->idle; i++) {
        core->ring[(core->head + i) & mask] = core->ring[(core->head + i + 1) & mask];
    }
    core->idle--;
}

/* -- the table of leases --------------------------------------------------------------------- */

static Py_ssize_t
table_index(PyObject *resource, Py_ssize_t mask)
{
    uint64_t bits = (uint64_t)(uintptr_t)resource >> 4;
    return (Py_ssize_t)((bits * 0x9E3779B97F4A7C15ull) >> 20) & mask;
}

/* Where the newest slot with this resource is, or the free place where it would be. */
static Py_ssize_t
table_find(Core *core, PyObject *resource)
{
    Py_ssize_t i = table_index(resource, core->mask);
    while (core->table[i] != NULL && core->table[i]->resource != resource) {
        i = (i + 1) & core->mask;
    }
    return i;
}

static int
table_reserve(Core *core)
{
    if (core->table != NULL && core->used * 2 <= core->mask) {
        return 0;
    }
    Py_ssize_t size = core->table == NULL ? FIRST_CAPACITY : (core->mask + 1) * 2;
    Slot **old = core->table;
    Py_ssize_t old_size = old == NULL ? 0 : core->mask + 1;
    Slot **table = PyMem_Calloc(size, sizeof(Slot *));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    core->table = table;
    core->mask = size - 1;
    for (Py_ssize_t i = 0; i < old_size; i++) {
        if (old[i] != NULL) {
            core->table[table_find(core, old[i]->resource)] = old[i];
        }
    }
    PyMem_Free(old);
    return 0;
}

/* The reference to the slot moves into the table. Room was reserved. */
static void
table_add(Core *core, Slot *slot)
{
    Py_ssize_t i = table_find(core, slot->resource);
    slot->twin = (PyObject *)core->table[i];
    if (core->table[i] == NULL) {
        core->used++;
    }
    core->table[i] = slot;
}

/* The reference to the slot moves to the caller. */
static void
table_remove(Core *core, Slot *slot)
{
    Py_ssize_t i = table_find(core, slot->resource);
    Slot *newest = core->table[i];
    if (newest != slot) {
        while (newest->twin != (PyObject *)slot) {
            newest = (Slot *)newest->twin;
        }
        newest->twin = slot->twin;
    }
    else if (slot->twin != NULL) {
        core->table[i] = (Slot *)slot->twin;
    }
    else {
        /* Close the gap: whatever was pushed beyond it by a collision moves back. */
        Py_ssize_t gap = i;
        core->table[gap] = NULL;
        core->used--;
        for (i = (i + 1) & core->mask; core->table[i] != NULL; i = (i + 1) & core->mask) {
            Py_ssize_t home = table_index(core->table[i]->resource, core->mask);
            if (((i - home) & core->mask) >= ((i - gap) & core->mask)) {
                core->table[gap] = core->table[i];
                core->table[i] = NULL;
                gap = i;
            }
        }
    }
    slot->twin = NULL;
}

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

