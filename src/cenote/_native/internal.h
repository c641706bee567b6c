/* The core of cenote in C: the same decisions as machine.py, and the fast path around them.
 *
 * Rules of this file:
 *
 * - `Core` calls nobody, as in machine.py: its functions neither run hooks nor log, and they are
 *   consistent before anything that may run other code. A Py_DECREF may run any code: references
 *   are dropped last. What allocates an object may start the garbage collector, and so a finalizer:
 *   nothing that was read before is believed afterwards.
 * - Whatever is called from outside is a step (step.c): it holds a reference to the core, it
 *   raises `busy`, and what finalizers, clocks and log handlers ask of the pool meanwhile is put off.
 * - `Acquire` and `FastPath` are the fast path of the runtime. They call sync hooks between take and
 *   hold, notify subscribers of acquired and released, and delegate whatever suspends or fails to the
 *   slow path: contract.py names what it calls.
 * - Ownership: the core owns all slots until they are GONE; besides, the ring owns idle slots and the
 *   table leased ones. Two lists own the claims that wait or are granted, and the heap of deadlines owns
 *   those that are in it. `prev`, `next`, `same_resource`,
 *   `before` and `after` are borrowed from those owners.
 */

#ifndef CENOTE_INTERNAL_H
#define CENOTE_INTERNAL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "../include/cenote.h"
#include "compat.h"
#include "law.h"

#define SPARE 64         /* acquire objects kept for reuse */
#define FIRST_CAPACITY 8 /* of the ring and of the table of leases */
#define LARGE_TABLE 64   /* of leases: one with as many places shrinks when it is empty */
#define LONGEST 1e8      /* seconds: as in pool/hooks.py */
#define EVENT_FIELDS 9   /* of events.PoolEvent */

typedef struct State State;
typedef struct Claim Claim;
typedef struct Core Core;
typedef struct Lane Lane;

/* It has no pointer to the state of the module: there are many, most of them idle. */
typedef struct {
    PyObject_HEAD const void *owner; /* the Core it belongs to: only compared */
    PyObject *resource;              /* NULL before it is opened and after it is gone */
    Claim *holder;                   /* owned; who holds it, while LEASED */
    union {
        Lane *lane;              /* borrowed from the core; of which it has a place, on its way back */
        PyObject *same_resource; /* while LEASED; borrowed Slot: next older with the identical resource */
    };
    PyObject *before, *after; /* borrowed Slots: its neighbours in the list of the core */
    double expires_at;
    double idle_since;
    long long idle_seq;
    long long uses;
    long long probe;
    uint32_t generation; /* the lowest bits of what the core had when it was made */
    char state;
    char fresh;
    char told;   /* its destructor is being called, or was */
    char listed; /* in the list of the core */
} Slot;

struct Claim {
    PyObject_HEAD State *st;
    const void *owner;  /* the Core in which it waits, is granted or holds: only compared */
    Slot *slot;         /* owned; granted and not yet used, or held */
    Claim *prev, *next; /* borrowed; in the list of waiters, of granted claims or of a lane */
    Lane *lane;         /* owned; NULL: it goes through none */
    PyObject *error, *task, *code, *reason, *waiter;
    PyObject *key;   /* of its task among those that wait: an int, since a task may have any hash */
    double deadline; /* NaN: no limit */
    double began, since;
    double queued_at; /* since when it could have been served */
    long long probe, queue_seq, seen_idle, lease_seq;
    Core *timed_by; /* borrowed; in whose heap of deadlines it is, or NULL */
    Py_ssize_t place;
    long long deadline_seq; /* of two with the same deadline, the one that was added first */
    int instruction;
    int state;
    int stage; /* of Acquire only: see acquire_law */
    char in_block, warned;
    char uncounted; /* it has begun, and how it ends is not counted yet */
    char placed;    /* it has a place of its lane */
    char parked;    /* it waits for one, beside the queue */
    char chosen;    /* its turn has come, or a factory runs for it: it is not shed */
    char over;      /* what drove it has ended by an exception: see pool/tidying.py */
    /* Of Acquire only; a mere claim leaves them NULL. */
    struct FastPath *pool; /* owned */
    PyObject *result;      /* the resource, between __await__ and the step that returns it */
    PyObject *steps;       /* the slow path, if it is driven as a coroutine or was begun in C */
    double timeout;        /* NaN: no limit */
    double wait_timeout;   /* of the time in the queue; NaN: no limit */
    /* Of a wait in C: see wait.c. */
    PyObject *future, *pause; /* while it is suspended: what wakes it, and what it is driven by */
    long long failures;       /* of the factory, before this wait */
    char own_waiter;          /* it has waited here: it is what is woken, unless pool/waiter.py took over */
    char driven;              /* its slow path is being driven: what that calls cannot drive it, too */
};

typedef struct {
    Claim *first, *last;
    Py_ssize_t length;
} List;

/* One priority in the queue. */
typedef struct Level {
    struct Level *higher, *lower;
    Claim *last; /* borrowed; of this priority in the queue */
    long long priority;
} Level;

struct Lane {
    PyObject_HEAD const void *owner; /* the Core it belongs to: only compared */
    PyObject *name;
    Level *level;                 /* of the core */
    List parked;                  /* those that wait for a place, the oldest first */
    long long used;               /* places that are taken */
    long long queued;             /* by claims in the queue */
    long long max_size, priority; /* max_size LLONG_MAX: no limit */
    long long acquired;
    double wait_time, max_wait_time;
};

struct Core {
    PyObject_HEAD State *st;
    /* the ring of idle slots */
    Slot **ring;
    Py_ssize_t head, idle, capacity; /* capacity is a power of two */
    /* leased slots by identity of their resource: open addressing, newest of the twins */
    Slot **table;
    Py_ssize_t used, mask;
    Slot *slots;    /* a list that owns all that are not GONE: nothing is lost with a reference */
    PyObject *stop; /* the StopIteration that hands over every resource, or NULL: see core_stop */
    List waiters, granted;
    Level normal;     /* of the claims without a lane; the others are malloced, in one list with it */
    PyObject *lanes;  /* list of all lanes */
    long long parked; /* claims that wait for a place of their lane: not in `waiters` */
    double queue_target, queue_interval; /* queue_target NaN: nothing is shed */
    double standing_since;               /* loop time since which nobody was served in less than the target */
    double now;              /* loop time of the last call that gave it: kept up where lanes need it */
    PyObject *waiting_tasks; /* dict: address of a task -> claim */
    double max_idle;         /* NaN: none */
    double wait_time, max_wait_time, hold_time, max_hold_time;
    long long min_size, max_size, max_uses; /* max_uses 0: no limit */
    long long max_creating;                 /* permits out at once; LLONG_MAX: no limit */
    long long count, opening, closing, out;
    long long begun, acquired, released;
    long long peak;    /* most active and waiting since the last look */
    long long ceiling; /* what max_size may be raised to by itself; below it, it does not count */
    long long recovering_limit, recovery, probes_in_use, waiters_without_probe;
    long long generation, queue_seqs, idle_seqs;
    int phase, circuit;
    int busy;          /* depth of the steps under way; 0 while a hook runs: see Steps.step() */
    Claim **deadlines; /* a heap that owns its claims: see deadlines.c */
    Py_ssize_t timed, timed_capacity;
    long long deadline_seqs;
    double alarm_at;      /* loop time of the timer for the deadlines, which Python sets; inf: none */
    PyObject *histograms; /* a tuple of Histograms, or NULL: no exporter wants any */
    char lifo, sync_factory, overloaded;
};

typedef struct {
    long long count;
    double sum; /* of the seconds */
} Bucket;

/* See histograms.c. */
typedef struct {
    PyObject_HEAD Py_ssize_t length; /* of the bounds; there is one bucket more */
    double *bounds;
    Bucket *waits, *holds;
} Histograms;

/* What the fast path reads and Python writes: the base of pool.Engine, which has the methods of
 * contract.SlowPath. */
typedef struct {
    PyObject_HEAD Core *core;
    PyObject *loop, *time, *before_acquire, *before_release, *strategy;
    PyObject *on_acquired, *on_released, *on_waiting; /* tuples: who wants these events */
    PyObject *hold_warning, *acquire_timeout;
    PyObject *pool_ref;                       /* a weak reference to the pool */
    PyObject *find_caller;                    /* None: caller.c does it */
    double skip_check_within, suspect_before; /* see fastpath.py */
    double next_sweep;                        /* when maintenance looks again; inf: not at all */
    double sample_at;                         /* when the second under way ends; inf: not sampled */
    long long max_waiting;                    /* -1: no limit */
    long long factory_failures;               /* in total */
    unsigned long thread;
    char direct_clock;  /* the loop's time is the monotonic clock */
    char direct_future; /* the loop's futures are asyncio's */
    char must_tidy;     /* a step was broken off: see pool/steps.py */
} Engine;

/* The base of a pool: its face, as far as that needs no waiting. */
typedef struct FastPath {
    PyObject_HEAD Engine *engine; /* NULL before __init__, never afterwards */
} FastPath;

/* A hook in C: the fast path calls its function, Python calls the object. */
typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *handlers; /* owns the data */
    void *data;
    const char *name;
    int (*function)(PyObject *resource, void *data);
    char is_check; /* it has a verdict; a destructor has none */
} Check;

/* Objects first, and nothing but objects before `spare`: module_traverse walks them. */
struct State {
    PyTypeObject *slot_type, *claim_type, *core_type, *acquire_type, *steps_type, *engine_type,
        *fastpath_type, *done_type, *handlers_type, *check_type, *ticket_type, *watcher_type, *lane_type,
        *histograms_type;
    PyObject *done; /* the awaitable of what is done already */
    PyObject *slot_states[SLOT_STATES], *claim_states[CLAIM_STATES], *acquire_states[ACQUIRE_STATES],
        *handovers[HANDOVERS], *phases[PHASES], *circuits[CIRCUITS];
    PyObject *pool_class;         /* cenote.Pool, given by adopt() */
    PyObject *illegal;            /* errors.IllegalTransition */
    PyObject *current_tasks;      /* asyncio's dict loop -> task, or NULL where there is none */
    PyObject *current_task;       /* asyncio.current_task */
    PyObject *running_loop;       /* asyncio._get_running_loop, asked where there is no such dict */
    PyObject *future, *loop_only; /* asyncio.Future, and the names of its arguments */
    PyObject *unset, *retire, *check_timeout, *caller, *internal;
    PyObject *last_code; /* the last caller that was found to be outside */
    PyObject *time_module, *time_dict, *monotonic, *loops_dict; /* see clock.c */
    PyObject *s_monotonic, *s_time;
    PyTypeObject *event_type, *subscription_type; /* of events.py */
    PyObject *spare_event;                        /* nobody has kept it, and its fields are empty */
    PyObject *s_begin, *s_check_loop, *s_admit_or_raise, *s_obtain, *s_leave, *s_advance, *s_settle,
        *s_examine, *s_refuse, *s_held, *s_report_success, *s_expect, *s_wake, *s_leased, *s_completed,
        *s_try_acquire_slow, *s_start_ticket, *s_acquired, *s_released, *s_waiting, *s_get_name, *s_contain,
        *s_check_deadlock, *s_set_alarm, *s_sample, *s_create_future, *s_interrupted, *s_done, *s_set_result,
        *s_broken_off, *s_defer_return, *s_ended, *s_get_loop, *s_is_closed, *s_cancel;
    Claim *spare[SPARE];
    int spares;
    int ended;             /* the module is being cleared: nothing is kept any more */
    Py_ssize_t running_at; /* where a thread's state has its running loop; 0: unknown, -1: nowhere */
    Py_ssize_t event_offsets[EVENT_FIELDS], callback_offset;
    uint64_t time_version, loops_version; /* of the dicts when they were looked at, before 3.12 */
    unsigned long clock_changes;          /* the same, from 3.12 on */
    int clock_watcher;
    char clock_real; /* what was seen then */
};

/* -- what one file uses of another: all of them are one translation unit (unity.c) ------------- */

typedef struct Watcher Watcher;   /* a listener or a strategy in C */
typedef struct Handlers Handlers; /* the C handlers of a pool */
typedef struct Data Data;         /* the user data of a C handler */

static struct PyModuleDef module_def;

/* The object that has the methods of contract.SlowPath. Borrowed. */
static inline PyObject *
slow_path(Engine *engine)
{
    return (PyObject *)engine;
}

static inline Engine *
engine_of(Claim *claim)
{
    return claim->pool->engine;
}

/* base.c */
static PyObject *newref_or_none(PyObject *object);
static PyObject *get_object(PyObject *self, void *offset);
static int set_object(PyObject *self, PyObject *value, void *offset);
static int illegal(State *st, const char *machine, PyObject *state, const char *event);
static inline int check_slot(Slot *slot, int event);
static inline int check_claim(Claim *claim, int event);
static double optional_seconds(PyObject *value);
static PyObject *import_from(const char *module, const char *name);
static int add_type(PyObject *module, PyTypeObject **place, PyType_Spec *spec, PyTypeObject *base);

/* slot.c */
static Slot *ring_at(Core *core, Py_ssize_t index);
static int ring_reserve(Core *core);
static void ring_append(Core *core, Slot *slot);
static void ring_prepend(Core *core, Slot *slot);
static Slot *ring_pop_first(Core *core);
static Slot *ring_pop_last(Core *core);
static void ring_remove(Core *core, Py_ssize_t index);
static Py_ssize_t table_find(Core *core, PyObject *resource);
static int table_reserve(Core *core);
static void table_add(Core *core, Slot *slot);
static void table_remove(Core *core, Slot *slot);
static PyObject *core_take_back_stop(Core *core, PyObject *resource);
static PyObject *stop_with(PyObject *result);
static PyObject *core_stop(Core *core, Slot *slot, PyObject *result);

/* claim.c */
static void list_insert(List *list, Claim *claim, Claim *after);
static void list_remove(List *list, Claim *claim);
static void clear_list(List *list);
static void claim_start(Claim *claim, State *st);
static int Claim_traverse(Claim *claim, visitproc visit, void *arg);
static int Claim_clear(Claim *claim);
static void Claim_dealloc(Claim *claim);

/* core.c */
static void core_release_probe(Core *core, long long *probe);
static long long core_total(Core *core);
static long long core_room(Core *core);
static long long core_excess(Core *core);
static inline void core_note_peak(Core *core);
static void core_unlist(Slot *slot);
static Slot *core_new_slot(Core *core);
static void core_fail_slot(Core *core, Slot *slot);
static Slot *core_take(Core *core, double before);
static const char *core_unfit(Core *core, Slot *slot, double now);
static int core_put(Core *core, Slot *slot, double now, const char **reason);
static int core_ungrant(Core *core, Claim *claim);
static int core_wait(Core *core, Claim *claim, double now);
static int core_without_probe(Core *core, Claim *claim);
static Claim *core_grant(Core *core, double now);
static int core_hold(Core *core, Claim *claim, Slot *slot, double now, double waited);
static Claim *core_reclaim(Core *core, Slot *slot, double now);
static int core_end(Core *core, Claim *claim, int event);
static long long core_demand(Core *core);
static long long core_shortage(Core *core);
static int core_reports(Core *core, long long probe);

/* lanes.c */
static inline void queue_remove(Core *core, Claim *claim);
static void core_stand(Core *core, Claim *claim, double since, Claim *near);
static int core_sheds(Core *core, Claim *claim, double now);
static int core_enter(Claim *claim);
static void core_park(Core *core, Claim *claim);
static void core_unpark(Core *core, Claim *claim);
static void core_vacate(Core *core, Claim *claim, Claim *near);
static inline void core_leave_lane(Core *core, Slot *slot);
static void levels_free(Core *core);
static PyObject *Core_add_lane(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_enter(Core *core, PyObject *object);

/* core_methods.c */
static Slot *as_slot(Core *core, PyObject *object);
static Claim *as_claim(Core *core, PyObject *object);
static PyObject *Core_take(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_take_this(Core *core, PyObject *object);
static PyObject *Core_permit_for_pool(Core *core, PyObject *Py_UNUSED(ignored));
static PyObject *Core_permit(Core *core, PyObject *ignored);
static PyObject *Core_open_slot(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_fail_slot(Core *core, PyObject *object);
static PyObject *put(Core *core, PyObject *const *args, int looked_at);
static PyObject *Core_put(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_put_back(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_untake(Core *core, PyObject *object);
static PyObject *Core_unfit(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_retire(Core *core, PyObject *object);
static PyObject *Core_finish(Core *core, PyObject *object);
static PyObject *Core_admit(Core *core, PyObject *object);
static PyObject *Core_dismiss(Core *core, PyObject *object);
static PyObject *Core_reserve(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_ask_again(Core *core, PyObject *object);
static PyObject *Core_wait(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_choose(Core *core, PyObject *seconds);
static PyObject *Core_grant(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_hold(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_reclaim(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_fail(Core *core, PyObject *const *args, Py_ssize_t nargs);
static PyObject *Core_leave(Core *core, PyObject *object);
static PyObject *Core_set_circuit(Core *core, PyObject *state);
static PyObject *Core_move(Core *core, PyObject *event);
static PyObject *Core_disown(Core *core, PyObject *Py_UNUSED(ignored));

/* clock.c */
static void clock_unwatch(State *Py_UNUSED(st));
static int load_clock(State *st);
static double engine_now(Engine *engine);

/* caller.c */
static PyObject *look_up_task(PyObject *tasks, PyObject *loop);
static PyObject *engine_task(Engine *engine);
static int claim_note_caller(Claim *claim);

/* step.c */
static inline Core *step_begin(Engine *engine);
static inline int step_pause(Core *core);
static inline void step_resume(Core *core, int busy);
static void engine_broken_off(Engine *engine, Core *core);
static inline void step_end(Engine *engine, Core *core, int failed);
static void lose_hold(Core *core, Claim *claim);

/* hooks.c */
static int is_awaitable(PyObject *object);
static void explain(const char *what);
static PyObject *check_call(Check *check, PyObject *resource);
static PyObject *ask(Core *core, PyObject *hook, PyObject *resource);
static int claim_wake(Claim *claim);
static int engine_advance(Engine *engine);
static int engine_contain(Engine *engine, PyObject *error, PyObject *what);
static int engine_report_success(Engine *engine, long long probe);
static int skips_check(Engine *engine, Slot *slot, double now);
static PyObject *iterate(PyObject *awaitable);

/* events.c */
static int load_events(State *st);
static int engine_tell(Engine *engine, PyObject *subscribers, PyObject *kind, Claim *claim, Slot *slot,
                       double now, double duration);
static int tell_of_wait(Engine *engine, Claim *claim);
static int engine_report_hold(Engine *engine, Claim *claim, Slot *slot, double now, double waited);

/* deadlines.c */
static int deadline_reserve(Core *core);
static void deadline_add(Core *core, Claim *claim);
static inline void deadline_remove(Claim *claim);
static void deadlines_clear(Core *core);
static PyObject *Core_add_deadline(Core *core, PyObject *object);
static PyObject *Core_remove_deadline(Core *core, PyObject *object);
static PyObject *Core_expired(Core *core, PyObject *time);
static PyObject *Core_next_deadline(Core *core, PyObject *Py_UNUSED(ignored));

/* wait.c */
static int can_wait(Engine *engine, Claim *claim);
static int wait_begin(Claim *claim);
static PyObject *wait_interrupted(Claim *claim);
static int wait_delegate(Claim *claim, int at, Slot *slot, PyObject *answer);
static PyObject *wait_step(Claim *claim);

/* returns.c */
static PyObject *engine_give_back(Engine *engine, Slot *slot, int clean);
static int engine_check_loop(Engine *engine);
static PyObject *engine_return(Engine *engine, Slot *slot, int clean);

/* acquire.c */
static Claim *acquire_new(FastPath *pool);
static void raise_thrown(PyObject *args);
static int used_before(void);
static inline int acquire_after(State *st, int stage, int event);
static inline int acquire_move(Claim *claim, int event);
static PyObject *module_acquire_after(PyObject *module, PyObject *args);
static inline void acquire_end(Claim *claim);
static int acquire_serve(Claim *claim, Engine *engine, Core *core, Slot *slot, double now, double waited);
static PyObject *acquire_step(Claim *claim, int by_interpreter);
static PyObject *Acquire_throw(Claim *claim, PyObject *args);
static PyObject *Acquire_close(Claim *claim, PyObject *Py_UNUSED(ignored));

/* awaitables.c */
static PyObject *steps_new(Claim *claim);

/* engine.c */
static PyObject *engine_pool(Engine *engine);
static PyObject *give_back(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* fastpath.c */
static int fastpath_ready(FastPath *pool);
static PyObject *FastPath_try_acquire(FastPath *pool, PyObject *Py_UNUSED(ignored));
static PyObject *FastPath_release(FastPath *pool, PyObject *resource);
static PyObject *adopt(PyObject *module, PyObject *object);

/* capi_objects.c */
static void data_free(Data *data);
static PyObject *check_new(State *st, Handlers *handlers, const char *name,
                           int (*function)(PyObject *, void *));
static PyObject *Watcher_report_success(Watcher *self, PyObject *pool);

/* capi.c */
static int add_capi(PyObject *module, State *st);

#endif /* CENOTE_INTERNAL_H */
