"""The arguments: what is accepted, what is refused, and that nothing happens before opening."""

import asyncio
import decimal
import fractions
import inspect
import math

import pytest

import cenote
from cenote import ConsecutiveFailures, FailureRate, Pool
from tests.support.kit import RecordingStrategy, Thing

HOOKS = ["destructor", "healthcheck", "before_acquire", "before_release"]
DURATIONS = [
    "healthcheck_interval",
    "queue_interval",
    "create_timeout",
    "hook_timeout",
    "destructor_timeout",
]
LIMITS = [
    "acquire_timeout",
    "queue_target",
    "max_lifetime",
    "max_idle",
    "hold_warning",
]  # None: no limit
NUMBERS = {"min_size": 0, "max_size": 1, "recovering_limit": 1}  # with the least that is allowed
OPTIONAL_NUMBERS = {"max_waiting": 0, "max_creating": 1, "max_uses": 1}
FLAGS = ["lifo", "reuse_after_cancel"]

DEFAULTS = {
    "destructor": None,
    "healthcheck": None,
    "before_acquire": None,
    "before_release": None,
    "min_size": 0,
    "max_size": 10,
    "healthcheck_interval": 0.0,
    "acquire_timeout": None,
    "create_timeout": 60.0,
    "hook_timeout": 5.0,
    "destructor_timeout": 10.0,
    "max_waiting": None,
    "max_creating": None,
    "queue_target": None,
    "queue_interval": 1.0,
    "max_lifetime": None,
    "max_idle": None,
    "max_uses": None,
    "hold_warning": None,
    "lifo": False,
    "strategy": None,
    "recovering_limit": 1,
    "reuse_after_cancel": False,
    "skip_frames": (),
    "fleet": None,
    "name": None,
}


def refused(error, argument, build, *args, **options):
    with pytest.raises(error) as caught:
        build(*args, **options)
    assert type(caught.value) is error
    assert str(caught.value).startswith(argument)


# -- the signature -------------------------------------------------------------------------------


def test_the_arguments_have_their_defaults():
    factory, *others = inspect.signature(Pool).parameters.values()
    assert factory.name == "factory"
    assert factory.default is inspect.Parameter.empty
    assert {other.name: other.default for other in others} == DEFAULTS
    assert {other.kind for other in others} == {inspect.Parameter.KEYWORD_ONLY}


def test_the_factory_may_be_positional_and_nothing_else():
    Pool(Thing)
    Pool(factory=Thing)
    with pytest.raises(TypeError):
        Pool(Thing, print)
    with pytest.raises(TypeError):
        Pool()


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="maximum_size"):
        Pool(Thing, maximum_size=3)


def make_database(_, **options):
    return cenote.Database("sqlite:///:memory:", **options)


@pytest.mark.parametrize(("make", "owner"), [(Pool, "Pool()"), (make_database, "Database()")])
@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("max_sise", "max_size"), ("maxsize", "max_size"), ("pool_size", "max_size"),
        ("timeout", "acquire_timeout"), ("healthcheck_intervall", "healthcheck_interval"),
    ],
)  # fmt: skip
def test_an_unknown_argument_names_the_nearest_that_is_known(make, owner, given, near):
    with pytest.raises(TypeError) as caught:
        make(Thing, **{given: 3})
    assert str(caught.value) == f"{owner} has no option {given!r} (did you mean {near}?)"


@pytest.mark.parametrize(("make", "owner"), [(Pool, "Pool()"), (make_database, "Database()")])
def test_unknown_arguments_like_no_option_are_refused(make, owner):
    with pytest.raises(TypeError) as caught:
        make(Thing, xyz=1, min_sise=2)
    assert str(caught.value) == f"{owner} has no option 'xyz', 'min_sise' (did you mean min_size?)"


def test_a_database_names_its_own_options_too():
    with pytest.raises(TypeError, match=r"'pasword' \(did you mean password\?\)$"):
        make_database(Thing, pasword="x")


@pytest.mark.parametrize("kind", [cenote.ConsecutiveFailures, cenote.FailureRate, Thing])
def test_a_strategy_that_is_a_class_is_refused(kind):
    name = kind.__name__
    text = f"strategy must be an object, not the class {name}: write strategy={name}(...)"
    pool, kept = Pool(Thing), cenote.ConsecutiveFailures()
    pool.strategy = kept

    def set_it():
        pool.strategy = kind

    for give in (
        lambda: Pool(Thing, strategy=kind),
        lambda: make_database(Thing, strategy=kind),
        set_it,
    ):
        with pytest.raises(TypeError) as caught:
            give()
        assert str(caught.value) == text
    assert pool.strategy is kept


def test_a_pool_is_generic():
    assert Pool[Thing](Thing).count == 0


# -- hooks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [None, 42, "factory", object()])
def test_a_factory_that_is_not_callable_is_refused(bad):
    refused(TypeError, "factory", Pool, bad)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("bad", [42, "hook", True, object()])
def test_a_hook_that_is_not_callable_is_refused(hook, bad):
    refused(TypeError, hook, Pool, Thing, **{hook: bad})


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_may_be_none_or_any_callable(hook):
    class Callable:
        def __call__(self, resource):
            return True

    for good in (None, print, lambda _: True, Callable(), Thing):
        Pool(Thing, **{hook: good})


# -- durations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", DURATIONS + LIMITS)
@pytest.mark.parametrize("bad", [-1, -0.001, -math.inf, math.nan])
def test_a_duration_that_is_negative_or_nan_is_refused(argument, bad):
    refused(ValueError, argument, Pool, Thing, **{argument: bad})


@pytest.mark.parametrize("argument", DURATIONS + LIMITS)
@pytest.mark.parametrize("bad", ["1", b"1", True, False, [1], 1j, object()])
def test_a_duration_of_the_wrong_type_is_refused(argument, bad):
    refused(TypeError, argument, Pool, Thing, **{argument: bad})


@pytest.mark.parametrize("argument", DURATIONS)
def test_a_duration_must_be_a_finite_number(argument):
    refused(ValueError, argument, Pool, Thing, **{argument: math.inf})
    refused(TypeError, argument, Pool, Thing, **{argument: None})


@pytest.mark.parametrize("argument", LIMITS)
def test_a_limit_may_be_none_or_infinite(argument):
    Pool(Thing, **{argument: None})
    Pool(Thing, **{argument: math.inf})


@pytest.mark.parametrize("argument", DURATIONS + LIMITS)
@pytest.mark.parametrize("good", [0, 3, 2.5, decimal.Decimal("1.5"), fractions.Fraction(1, 2)])
def test_a_duration_may_be_any_real_number(argument, good):
    Pool(Thing, **{argument: good})


@pytest.mark.parametrize("argument", DURATIONS + LIMITS)
def test_a_number_too_large_for_a_float_is_refused(argument):
    refused(ValueError, argument, Pool, Thing, **{argument: 10**400})


# -- whole numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("argument", "least"), [*NUMBERS.items(), *OPTIONAL_NUMBERS.items()])
def test_a_number_below_its_least_is_refused(argument, least):
    Pool(Thing, **{argument: least})
    refused(ValueError, argument, Pool, Thing, **{argument: least - 1})
    refused(ValueError, argument, Pool, Thing, **{argument: -100})


@pytest.mark.parametrize("argument", [*NUMBERS, *OPTIONAL_NUMBERS])
@pytest.mark.parametrize("bad", [1.0, 2.5, "1", True, False, math.nan, math.inf, [1]])
def test_a_number_of_the_wrong_type_is_refused(argument, bad):
    refused(TypeError, argument, Pool, Thing, **{argument: bad})


@pytest.mark.parametrize("argument", NUMBERS)
def test_a_number_that_must_not_be_none_refuses_it(argument):
    refused(TypeError, argument, Pool, Thing, **{argument: None})


def test_min_size_must_not_exceed_max_size():
    refused(ValueError, "min_size", Pool, Thing, min_size=3, max_size=2)
    refused(ValueError, "min_size", Pool, Thing, min_size=11)
    Pool(Thing, min_size=2, max_size=2)


# -- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", FLAGS)
@pytest.mark.parametrize("bad", [0, 1, None, "yes"])
def test_a_flag_must_be_a_bool(argument, bad):
    refused(TypeError, argument, Pool, Thing, **{argument: bad})


@pytest.mark.parametrize("bad", [42, b"name", object(), ["name"]])
def test_a_name_must_be_a_string(bad):
    refused(TypeError, "name", Pool, Thing, name=bad)


def test_a_strategy_needs_its_two_methods():
    class Half:
        def report_success(self, source): ...

    for bad in (42, "strategy", object(), Half()):
        refused(TypeError, "strategy", Pool, Thing, strategy=bad)
        pool = Pool(Thing)
        refused(TypeError, "strategy", setattr, pool, "strategy", bad)
        assert pool.strategy is None
    assert isinstance(Pool(Thing, strategy=RecordingStrategy()).strategy, RecordingStrategy)


@pytest.mark.parametrize("method", ["report_success", "report_failure", "should_recover"])
def test_a_strategy_with_async_methods_is_refused(method):
    """Nobody would await them, and a coroutine of should_recover() is true."""

    async def asynchronous(self, *reported): ...

    kind = type("Slow", (RecordingStrategy,), {method: asynchronous})
    text = rf"strategy must have plain methods: Slow\.{method}\(\) is async"
    with pytest.raises(TypeError, match=text):
        Pool(Thing, strategy=kind())
    with pytest.raises(TypeError, match=text):
        cenote.Database("sqlite://", strategy=kind())


@pytest.mark.parametrize("bad", [None, 42, "callback"])
def test_a_subscriber_must_be_callable(bad):
    refused(TypeError, "callback", Pool(Thing).subscribe, bad)


@pytest.mark.parametrize(
    ("error", "bad"),
    [(ValueError, -1), (ValueError, math.nan), (TypeError, "1"), (TypeError, True)],
)
async def test_a_bad_timeout_of_acquire_is_refused(make_pool, error, bad):
    pool = make_pool(Thing)
    refused(error, "timeout", pool.acquire, timeout=bad)
    refused(error, "timeout", pool.acquire, bad)
    assert pool.count == 0


@pytest.mark.parametrize("good", [None, math.inf, 0, 3, 2.5, 1e300])
async def test_a_good_timeout_of_acquire_is_taken(make_pool, good):
    pool = make_pool(Thing)
    async with pool.acquire(timeout=good):
        pass
    async with pool.acquire(good):
        pass


@pytest.mark.parametrize(
    ("error", "bad"),
    [(ValueError, -1), (ValueError, math.nan), (TypeError, "1"), (TypeError, True)],
)
async def test_a_bad_drain_of_close_is_refused(make_pool, error, bad):
    pool = make_pool(Thing)
    await pool.open()
    with pytest.raises(error, match=r"^drain"):
        await pool.close(drain=bad)
    assert not pool.closed


@pytest.mark.parametrize("error", [42, "error", OSError])
async def test_a_bad_error_of_discard_is_refused(make_pool, error):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    refused(TypeError, "error", pool.discard, thing, error)
    assert pool.active_count == 1
    pool.release(thing)


async def test_bad_sizes_of_resize_are_refused(make_pool):
    pool = make_pool(Thing, min_size=1, max_size=3)
    refused(ValueError, "min_size", pool.resize, min_size=-1)
    refused(ValueError, "max_size", pool.resize, max_size=-1)
    refused(ValueError, "min_size", pool.resize, max_size=0)
    refused(ValueError, "ceiling", pool.resize, ceiling=-1)
    refused(ValueError, "min_size", pool.resize, min_size=4)
    refused(ValueError, "min_size", pool.resize, min_size=3, max_size=2)
    refused(TypeError, "max_size", pool.resize, max_size=2.0)
    refused(TypeError, "max_size", pool.resize, max_size=None)
    assert (pool.min_size, pool.max_size) == (1, 3)
    with pytest.raises(TypeError):
        pool.resize(1, 3)


# -- the built-in strategies ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ConsecutiveFailures, FailureRate])
@pytest.mark.parametrize(
    ("error", "argument", "bad"),
    [
        (ValueError, "recovery_timeout", -1),
        (ValueError, "recovery_timeout", math.inf),
        (ValueError, "recovery_timeout", math.nan),
        (TypeError, "recovery_timeout", "30"),
        (ValueError, "max_recovery_timeout", -1),
        (ValueError, "max_recovery_timeout", 10),  # below recovery_timeout
        (ValueError, "success_threshold", 0),
        (TypeError, "success_threshold", 1.5),
        (TypeError, "success_threshold", True),
    ],
)
def test_bad_arguments_of_both_strategies_are_refused(kind, error, argument, bad):
    refused(error, argument, kind, **{argument: bad})


@pytest.mark.parametrize(
    ("error", "bad"), [(ValueError, 0), (ValueError, -1), (TypeError, 2.5), (TypeError, None)]
)
def test_the_failure_threshold_is_checked(error, bad):
    refused(error, "failure_threshold", ConsecutiveFailures, bad)


@pytest.mark.parametrize(
    ("error", "argument", "bad"),
    [
        (ValueError, "threshold", 0),
        (ValueError, "threshold", 1.1),
        (ValueError, "threshold", -0.5),
        (ValueError, "threshold", math.nan),
        (TypeError, "threshold", "half"),
        (ValueError, "window", 0),
        (ValueError, "window", -1),
        (ValueError, "window", math.inf),
        (ValueError, "minimum_calls", 0),
        (TypeError, "minimum_calls", 2.5),
    ],
)
def test_bad_arguments_of_failure_rate_are_refused(error, argument, bad):
    refused(error, argument, FailureRate, **{argument: bad})


def test_good_arguments_of_the_strategies_are_taken():
    ConsecutiveFailures(1, 0, 1, max_recovery_timeout=0)
    FailureRate(1, 1, 1, 0, 1, max_recovery_timeout=0)


# -- a pool before it is opened ------------------------------------------------------------------


def test_the_constructor_calls_no_hook_and_needs_no_loop():
    calls = []
    pool = Pool(
        lambda: calls.append("factory") or Thing(),
        destructor=calls.append,
        healthcheck=calls.append,
        before_acquire=calls.append,
        before_release=calls.append,
        min_size=3,
        healthcheck_interval=1,
        max_idle=1,
        hold_warning=1,
    )
    assert calls == []
    assert pool.count == 0
    del pool  # and nobody has to close it
    assert calls == []


def test_a_pool_can_be_looked_at_without_a_loop():
    pool = Pool(Thing, name="db", min_size=1, max_size=4)
    assert (pool.name, pool.min_size, pool.max_size) == ("db", 1, 4)
    assert (pool.count, pool.idle_count, pool.active_count, pool.waiting_count) == (0, 0, 0, 0)
    assert pool.holders() == []
    assert pool.stats().created == 0
    assert not pool.closed
    assert "'db'" in repr(pool)


def test_an_empty_pool_is_true():
    pool = Pool(Thing)
    assert len(pool) == 0
    assert bool(pool) is True


async def test_a_closed_pool_is_true(make_pool):
    pool = make_pool(Thing)
    await pool.close()
    assert bool(pool) is True


def test_acquire_by_itself_does_nothing():
    calls = []
    pool = Pool(lambda: calls.append(1))
    asked = pool.acquire()
    assert isinstance(asked, cenote.Acquire)
    assert calls == []
    del asked
    assert pool.waiting_count == 0


def test_a_pool_made_without_a_loop_works_in_one():
    pool = Pool(Thing, min_size=1)

    async def main():
        async with pool:
            assert pool.count == 1
            async with pool.acquire() as thing:
                assert isinstance(thing, Thing)

    asyncio.run(main())


@pytest.mark.parametrize(
    "option", ["max_size", "max_uses", "max_waiting", "max_creating", "recovering_limit"]
)
def test_a_number_too_large_to_count_names_its_argument(option):
    with pytest.raises(ValueError, match=option):
        cenote.Pool(Thing, **{option: 10**30})
