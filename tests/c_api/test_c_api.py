"""The C API, from C: `c_api/probe.c` exposes it, `examples/c_extension` uses it in earnest."""

import asyncio
import gc
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import zlib
from pathlib import Path

import pytest

import cenote
from tests.conftest import POOLS
from tests.support.clock import advance, settle
from tests.support.extensions import compile_extension, compiler, load
from tests.support.kit import Thing, drop, obtain, raising, started, styled

pytestmark = pytest.mark.skipif(
    cenote.core == "pure", reason="the core is pure: the C API belongs to the native core"
)

PROBE = Path(__file__).with_name("probe.c")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "c_extension"
SOURCE = str(Path(cenote.__file__).parent.parent)
ALL = "factory destructor healthcheck before_acquire before_release"
CHECKS = ["healthcheck", "before_acquire", "before_release"]


# -- building ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def probe_path(tmp_path_factory):
    return compile_extension(PROBE, tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="session")
def probe(probe_path):
    return load(probe_path)


@pytest.fixture(scope="session")
def buffers_path(tmp_path_factory):
    return compile_extension(EXAMPLE / "buffers.c", tmp_path_factory.mktemp("buffers"))


@pytest.fixture(scope="session")
def buffers(buffers_path):
    return load(buffers_path)


@pytest.fixture
def keep(request):
    """The ledger of a pool that was made in C is checked, too."""
    pools = request.node.stash.setdefault(POOLS, [])

    def keep(pool):
        pools.append(pool)
        return pool

    return keep


@pytest.fixture
def make_c(keep, probe):
    """A pool with the C handlers that are named, and its plan."""

    def make(handlers=ALL, **options):
        plan = probe.Plan()
        return keep(probe.pool_new_c(plan, handlers, options)), plan

    return make


def called(plan):
    return [name for name, _ in plan.log]


def only(log, name):
    """The argument of the only entry."""
    [(found, argument)] = log
    assert found == name
    return argument


def forget(box):
    """Let go of an unclosed pool that only this box refers to."""
    with pytest.warns(ResourceWarning, match="unclosed"):
        drop(box)
    gc.collect()  # the warning referred to it


def python(code, *, path, options=(), **environment):
    """What a fresh interpreter says."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "CENOTE"))
    }
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**inherited, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


# -- importing -----------------------------------------------------------------------------------


def last_line(done):
    assert done.returncode == 1, (done.returncode, done.stderr)
    return done.stderr.strip().splitlines()[-1]


def test_import_says_that_cenote_is_not_installed(probe_path):
    code = f"import sys; sys.path.insert(0, {str(probe_path.parent)!r}); import probe"
    done = python(code, path=[], options=["-I", "-S"])
    assert last_line(done) == (
        "ImportError: this extension needs cenote, which is not installed: pip install cenote"
    )


def test_import_says_that_the_core_is_pure(probe_path):
    done = python("import probe", path=[SOURCE, probe_path.parent], CENOTE_PURE="1")
    line = last_line(done)
    assert line.startswith("ImportError: this extension needs the native core of cenote")
    assert "unset CENOTE_PURE" in line


def test_import_says_that_cenote_is_too_old(tmp_path):
    header = Path(cenote.get_include(), "cenote.h").read_text()
    newer, changes = re.subn(r"#define CENOTE_ABI \d+", "#define CENOTE_ABI 99", header)
    assert changes == 1
    (tmp_path / "cenote.h").write_text(newer)
    compile_extension(PROBE, tmp_path, include=tmp_path)
    done = python("import probe", path=[SOURCE, tmp_path])
    assert re.fullmatch(
        r"ImportError: this extension was compiled for C API 99 of cenote, "
        r"the installed one has \d+: upgrade cenote",
        last_line(done),
    )


FAKES = {
    "needs another module": (
        "import no_such_module",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "fails": ("raise OSError('disk')", "OSError: disk"),
    "is something else": (
        "x = 1",
        "ImportError: this extension needs cenote, and what was imported under that name is "
        "something else",
    ),
    "has no table": (
        "core = 'native'",
        "ImportError: this extension needs the C API of cenote, which the installed one does not "
        "have: upgrade cenote",
    ),
}


@pytest.mark.parametrize(("content", "line"), FAKES.values(), ids=FAKES)
def test_import_says_what_is_wrong_with_a_cenote(probe_path, tmp_path, content, line):
    (tmp_path / "cenote.py").write_text(content)
    assert last_line(python("import probe", path=[tmp_path, probe_path.parent])) == line


def test_import_succeeds_with_a_native_core(probe):
    abi, size, fits = probe.table()
    assert abi >= 1
    assert size > 0
    assert fits


def test_the_header_is_clean_in_cpp(tmp_path):
    (tmp_path / "unit.cpp").write_text('#include "cenote.h"\nint f() { return cenote_import(); }\n')
    command = [*compiler("CXX", "c++"), "-std=c++14", f"-I{cenote.get_include()}", "-fsyntax-only"]
    done = subprocess.run([*command, "unit.cpp"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- making pools --------------------------------------------------------------------------------


async def test_a_pool_of_c_handlers_is_an_ordinary_pool(make_c):
    pool, _ = make_c(name="made in C", max_size=3)
    assert type(pool) is cenote.Pool
    assert repr(pool) == "<Pool 'made in C' new ACTIVE: 0 active, 0 idle, 0 waiting, max 3>"
    async with pool:
        async with pool.acquire() as resource:
            assert resource == b"resource"
            [holder] = pool.holders()
            assert holder.resource is resource
            assert holder.file == __file__
            assert holder.task == "test"
        assert pool.stats().created == pool.stats().acquired == pool.stats().released == 1


async def test_a_pool_of_python_callables(probe, keep):
    seen = []
    options = {"destructor": seen.append, "max_size": 2, "name": "callables"}
    pool = keep(probe.pool_new(Thing, options))
    assert type(pool) is cenote.Pool
    assert (pool.name, pool.max_size) == ("callables", 2)
    thing = await pool.acquire()
    pool.discard(thing)
    assert seen == [thing]
    assert options == {"destructor": seen.append, "max_size": 2, "name": "callables"}


async def test_the_options_may_be_null(probe, keep):
    pools = [keep(probe.pool_new(Thing, probe.NULL))]
    pools.append(keep(probe.pool_new_c(probe.Plan(), "factory", probe.NULL)))
    for pool in pools:
        assert pool.max_size == 10
        pool.release(await pool.acquire())


async def test_a_pool_of_async_callables(probe, keep):
    pool = keep(probe.pool_new(styled("async", Thing), probe.NULL))
    assert isinstance(await pool.acquire(), Thing)
    pool.release(pool.holders()[0].resource)


def test_a_bad_option_is_named(probe):
    with pytest.raises(ValueError, match="max_size"):
        probe.pool_new(Thing, {"max_size": 0})
    with pytest.raises(TypeError, match="colour"):
        probe.pool_new(Thing, {"colour": "blue"})
    with pytest.raises(TypeError, match="factory"):
        probe.pool_new(3, probe.NULL)


@pytest.mark.parametrize(
    ("factory", "options"), [("probe.NULL", "probe.NULL"), ("object", "[]"), ("object", "3")]
)
def test_wrong_arguments_of_pool_new_raise(probe_path, factory, options):
    code = f"import probe\nprobe.pool_new({factory}, {options})"
    done = python(code, path=[SOURCE, probe_path.parent])
    assert re.match(r"(Type|Value|System)Error: ", last_line(done))


@pytest.mark.parametrize("hook", ["destructor", *CHECKS])
@pytest.mark.parametrize("handlers", [ALL, "factory"])
def test_options_with_hooks_are_refused(probe, hook, handlers):
    plan, options = probe.Plan(), {hook: print}
    with pytest.raises(TypeError, match=hook):
        probe.pool_new_c(plan, handlers, options)
    assert options == {hook: print}
    assert plan.freed == 1


def test_options_with_a_factory_are_refused(probe):
    plan = probe.Plan()
    with pytest.raises(TypeError, match="factory"):
        probe.pool_new_c(plan, ALL, {"factory": print})
    assert plan.freed == 1


@pytest.mark.parametrize("handlers", [None, "", "destructor"])
def test_handlers_need_a_factory(probe, handlers):
    plan = probe.Plan()
    with pytest.raises(ValueError, match="need a factory"):
        probe.pool_new_c(plan, handlers, {})
    assert plan.freed == 1


@pytest.mark.parametrize("given", [[], 3, "max_size"])
def test_options_of_c_handlers_must_be_a_dict(probe, given):
    plan = probe.Plan()
    with pytest.raises((TypeError, SystemError)):
        probe.pool_new_c(plan, ALL, given)
    assert plan.freed == 1


def test_pool_check_knows_pools_from_others(probe):
    assert probe.pool_check(cenote.Pool(Thing)) == 1
    assert probe.pool_check(probe.pool_new_c(probe.Plan(), ALL, {})) == 1
    for other in (None, 3, Thing(), cenote.Pool, probe.NULL, probe.Plan()):
        assert probe.pool_check(other) == 0


def test_a_subclass_is_a_pool(probe):
    class Special(cenote.Pool):
        pass

    assert probe.pool_check(Special(Thing)) == 1


@pytest.mark.parametrize("what", [cenote.Pool(Thing), 3])
def test_pool_check_keeps_an_exception(probe, what):
    assert probe.pool_check_keeps_exception(what)


# -- the five handlers ---------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_each_of_the_five_handlers_is_called(make_c):
    pool, plan = make_c(healthcheck_interval=10.0)
    resource = await pool.acquire()
    assert plan.log == [("factory", None)]
    pool.release(resource)
    assert plan.log[1:] == [("before_release", resource)]
    await advance(10.0)
    assert plan.log[2:] == [("healthcheck", resource)]
    assert await pool.acquire() is resource
    assert plan.log[3:] == [("before_acquire", resource)]
    pool.discard(resource)
    assert plan.log[4:] == [("destructor", resource)]


async def test_all_but_the_factory_may_be_left_out(make_c):
    pool, plan = make_c("factory", healthcheck_interval=10.0)
    pool.release(await pool.acquire())
    pool.release(await pool.acquire())
    await pool.close()
    assert called(plan) == ["factory"]


@pytest.mark.real_time("the clock of the virtual loop is a Python function")
@pytest.mark.parametrize("through", ["python", "c", "block"])
async def test_c_hooks_run_without_any_python_function(make_c, probe, through):
    pool, plan = make_c()
    pool.release(await pool.acquire())
    plan.log.clear()
    seen = []

    def profile(frame, event, argument):
        if event == "call":
            seen.append(frame.f_code)

    sys.setprofile(profile)
    try:
        if through == "python":
            resource = await pool.acquire()
            pool.release(resource)
        elif through == "c":
            resource = await probe.acquire(pool, -1.0)
            probe.release(pool, resource)
        else:
            async with pool.acquire() as resource:
                pass
    finally:
        sys.setprofile(None)
    assert seen == []
    assert plan.log == [("before_acquire", resource), ("before_release", resource)]


async def test_a_c_factory_that_raises(make_c, probe):
    pool, plan = make_c()
    plan.factory, plan.error = probe.RAISE, OSError("down")
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    plan.factory = probe.WELL
    pool.release(await pool.acquire())


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("SILENT", SystemError, "the C factory of a cenote pool failed without an exception"),
        ("NO", cenote.PoolError, "None"),
        ("CONTRADICT", OSError, "down"),
    ],
)
async def test_a_c_factory_that_does_wrong(make_c, probe, mode, error, message):
    pool, plan = make_c()
    plan.factory, plan.error = getattr(probe, mode), OSError("down")
    with pytest.raises(error, match=message):
        await pool.acquire()
    with pytest.raises(error, match=message):
        pool.try_acquire()
    assert pool.count == 0
    plan.factory = probe.WELL
    pool.release(await pool.acquire())


async def test_c_strategies_and_listeners_are_not_interchangeable(make_c, probe):
    pool, plan = make_c()
    assert probe.set_strategy(pool, plan, "success failure") == 0
    with pytest.raises(TypeError, match="is no listener"):
        pool.strategy.hear(None)
    listener = keep_listener(pool, probe)
    with pytest.raises(TypeError, match="is no strategy"):
        listener.report_success(pool)
    with pytest.raises(TypeError, match="is no strategy"):
        listener.report_failure(pool, OSError())
    assert listener.should_recover() is False


def keep_listener(pool, probe):
    """The object behind a C listener."""
    probe.subscribe(pool, probe.Plan())
    return pool._engine.subscribers[-1].callback.__self__


async def test_a_c_factory_may_return_an_awaitable(make_c, probe):
    pool, plan = make_c()
    plan.factory, plan.given = probe.GIVE, styled("async", Thing)()
    assert isinstance(await pool.acquire(), Thing)
    pool.release(pool.holders()[0].resource)


@pytest.mark.virtual_time
@pytest.mark.parametrize("hook", CHECKS)
async def test_a_c_check_that_says_no(make_c, probe, hook, caplog):
    pool, plan = make_c(healthcheck_interval=10.0)
    resource = await pool.acquire()
    setattr(plan, hook, probe.NO)
    pool.release(resource)
    await advance(10.0 if hook == "healthcheck" else 0.0)
    if hook == "before_acquire":
        assert await pool.acquire() is not resource
        pool.release(pool.holders()[0].resource)
    assert called(plan)[:4].count("destructor") == 1
    reason = "check_failed" if hook == "healthcheck" else "rejected"
    assert pool.stats().destroyed == {reason: 1}
    assert caplog.text == ""
    setattr(plan, hook, probe.WELL)


@pytest.mark.virtual_time
@pytest.mark.parametrize("hook", CHECKS)
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("RAISE", "OSError: broken wire"),
        ("CONTRADICT", "OSError: broken wire"),
        ("SILENT", "SystemError: the C {} of a cenote pool failed without an exception"),
    ],
)
async def test_a_c_check_that_fails_rejects_and_is_logged(
    make_c, probe, hook, mode, message, caplog
):
    pool, plan = make_c(healthcheck_interval=10.0)
    resource = await pool.acquire()
    setattr(plan, hook, getattr(probe, mode))
    plan.error = OSError("broken wire")
    pool.release(resource)
    await advance(10.0 if hook == "healthcheck" else 0.0)
    if hook == "before_acquire":
        assert await pool.acquire() is not resource
        pool.release(pool.holders()[0].resource)
    assert message.format(hook) in caplog.text
    assert pool.stats().created - pool.count == 1
    setattr(plan, hook, probe.WELL)


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("RAISE", OSError, "stuck"),
        ("CONTRADICT", OSError, "stuck"),
        ("SILENT", SystemError, "the C destructor of a cenote pool failed without an exception"),
    ],
)
async def test_a_c_destructor_that_fails(make_c, probe, mode, error, message):
    pool, plan = make_c()
    plan.destructor, plan.error = getattr(probe, mode), OSError("stuck")
    with pytest.raises(error, match=message):
        pool.discard(await pool.acquire())
    assert pool.count == 0
    resource = await pool.acquire()
    with pytest.raises(error, match=message):
        probe.discard(pool, resource, probe.NULL)
    pool.release(await pool.acquire())
    with pytest.raises(ExceptionGroup):
        await pool.close()


async def test_a_waiter_gets_what_a_c_hook_has_accepted(make_c):
    pool, plan = make_c(max_size=1)
    resource = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(resource)
    assert await waiter is resource
    assert called(plan) == ["factory", "before_release", "before_acquire"]
    pool.release(resource)


# -- user data -----------------------------------------------------------------------------------


async def test_user_data_lives_as_long_as_the_pool(probe):
    plan = probe.Plan()
    pool = probe.pool_new_c(plan, ALL, {})
    pool.release(await pool.acquire())
    await pool.close()
    gc.collect()
    assert plan.freed == 0
    del pool
    gc.collect()
    assert plan.freed == 1
    assert called(plan)[-1] == "destructor"


def test_user_data_of_an_unused_pool_is_freed(probe):
    plan = probe.Plan()
    probe.pool_new_c(plan, ALL, {})
    gc.collect()
    assert plan.freed == 1


@pytest.mark.parametrize("options", [{"max_size": 0}, {"colour": "blue"}, {"min_size": "few"}])
def test_user_data_is_freed_if_the_constructor_fails(probe, options):
    plan = probe.Plan()
    with pytest.raises((TypeError, ValueError)):
        probe.pool_new_c(plan, ALL, options)
    gc.collect()
    assert plan.freed == 1


def test_user_data_is_freed_with_a_cycle(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(plan, ALL, {})]
    box[0].subscribe(lambda event, pool=box[0]: pool)
    drop(box)
    assert plan.freed == 1


async def test_an_unclosed_pool_is_emptied_by_its_c_destructor(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(plan, ALL, {})]
    box[0].release(await box[0].acquire())
    forget(box)
    assert called(plan) == ["factory", "before_release", "destructor"]
    assert plan.freed == 1


def test_user_data_is_freed_after_the_loop(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(plan, ALL, {})]
    asyncio.run(obtain(box[0]))
    forget(box)
    assert plan.freed == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda probe, plan: probe.pool_new_c(plan, None, {}),
        lambda probe, plan: probe.pool_new_c(plan, ALL, {"colour": "blue"}),
        lambda probe, plan: probe.acquire_call(cenote.Pool(Thing), -1.0, plan, False),
        lambda probe, plan: probe.acquire_call(cenote.Pool(Thing), -1.0, plan),
        lambda probe, plan: probe.subscribe(3, plan),
        lambda probe, plan: probe.set_strategy(cenote.Pool(Thing), plan, "success"),
    ],
)
def test_the_free_function_may_call_anything_after_a_failed_call(probe, call):
    """Found by fuzzing: it was called with the exception set."""
    plan, seen = probe.Plan(), []
    plan.at_free = lambda plan: seen.append(probe.pool_check(cenote.Pool(Thing)))
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"\w"):
        call(probe, plan)
    assert seen == [1]
    assert plan.freed == 1


async def test_an_exception_of_what_frees_user_data_is_reported(make_c, probe, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    pool, _ = make_c()
    plan = probe.Plan()
    plan.at_free, plan.leaves = raising(OSError("stuck")), True
    probe.set_strategy(pool, plan, "success failure")
    assert probe.set_strategy(pool, probe.NULL, None) == 0
    assert (plan.freed, reported) == (1, [OSError])


def test_user_data_may_be_left_out(probe):
    with pytest.raises(ValueError, match="max_size"):
        probe.pool_new_c(probe.NULL, "factory", {"max_size": 0})


# -- acquire -------------------------------------------------------------------------------------


async def test_acquire_gives_an_awaitable(make_c, probe):
    pool, _ = make_c()
    resource = await probe.acquire(pool, -1.0)
    assert resource == b"resource"
    assert pool.active_count == 1
    [holder] = pool.holders()
    assert holder.file == __file__
    assert probe.release(pool, resource) == 0


async def test_acquire_is_a_context_manager(make_c, probe):
    pool, _ = make_c()
    async with probe.acquire(pool, -1.0) as resource:
        assert resource == b"resource"
        assert (pool.active_count, pool.idle_count) == (1, 0)
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_acquire_works_on_a_pool_of_python(make_pool, probe):
    pool = make_pool(styled("async", Thing))
    async with probe.acquire(pool, math.inf) as thing:
        assert isinstance(thing, Thing)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("default", "given", "expected"),
    [(3.0, -1.0, 3.0), (3.0, 2.0, 2.0), (3.0, 0.0, 0.0), (None, 5.0, 5.0), (3.0, math.inf, None)],
)
async def test_the_timeout_of_acquire(make_c, probe, default, given, expected):
    pool, _ = make_c(max_size=1, acquire_timeout=default)
    resource = await pool.acquire()

    async def wait():
        began = asyncio.get_running_loop().time()
        try:
            pool.release(await probe.acquire(pool, given))
        except cenote.AcquireTimeoutError:
            return asyncio.get_running_loop().time() - began

    task = await started(wait())
    await advance(100.0)
    assert task.done() is (expected is not None)
    pool.release(resource)
    assert await task == expected


async def test_a_timeout_that_is_no_number(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    with pytest.raises(ValueError, match="nan"):
        probe.acquire(pool, math.nan)
    with pytest.raises(ValueError, match="nan"):
        probe.acquire_call(pool, math.nan, plan)
    assert (plan.log, plan.freed) == ([], 1)


# -- acquire_call --------------------------------------------------------------------------------
# The probe itself sees to it that no callback is called inside of acquire_call.


@pytest.mark.parametrize("state", ["new", "idle"])
async def test_acquire_call_gives_a_resource_later(make_c, probe, state):
    pool, _ = make_c()
    if state == "idle":
        pool.release(await pool.acquire())
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    assert (plan.log, plan.freed) == ([], 0)
    await settle()
    resource = only(plan.log, "resource")
    assert plan.freed == 1
    assert pool.active_count == 1
    [holder] = pool.holders()
    assert holder.resource is resource
    assert holder.file == __file__
    pool.release(resource)


async def test_acquire_call_waits_its_turn(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plans = [probe.Plan() for _ in range(3)]
    for plan in plans:
        probe.acquire_call(pool, math.inf, plan)
    await settle()
    assert probe.waiting_count(pool) == 3
    for plan in plans:
        assert (plan.log, plan.freed) == ([], 0)
        pool.release(resource)
        await settle()
        assert only(plan.log, "resource") is resource
        assert plan.freed == 1
    pool.release(resource)


async def test_acquire_call_with_an_async_factory(make_pool, probe):
    pool = make_pool(styled("async", Thing))
    plan = probe.Plan()
    probe.acquire_call(pool, 5.0, plan)
    await settle()
    pool.release(only(plan.log, "resource"))


@pytest.mark.skipif(
    not hasattr(asyncio, "eager_task_factory"), reason="eager tasks came with Python 3.12"
)
async def test_acquire_call_calls_later_even_if_tasks_are_eager(make_c, probe):
    pool, _ = make_c()
    pool.release(await pool.acquire())
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    assert plan.log == []
    await settle()
    pool.release(only(plan.log, "resource"))


async def test_the_callback_may_release_at_once(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    plan.call = lambda name, resource: probe.release(pool, resource)
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert called(plan) == ["resource"]
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_the_callback_may_acquire_again(make_c, probe):
    pool, _ = make_c(max_size=1)
    plans = [probe.Plan() for _ in range(5)]
    rest = iter(plans[1:])

    def again(name, resource):
        probe.release(pool, resource)
        if (plan := next(rest, None)) is not None:
            plan.call = again
            probe.acquire_call(pool, -1.0, plan)

    plans[0].call = again
    probe.acquire_call(pool, -1.0, plans[0])
    await settle()
    assert [(called(plan), plan.freed) for plan in plans] == [(["resource"], 1)] * 5


@pytest.mark.virtual_time
async def test_acquire_call_times_out(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    probe.acquire_call(pool, 5.0, plan)
    await advance(4.9)
    assert plan.log == []
    await advance(0.1)
    error = only(plan.log, "error")
    assert isinstance(error, cenote.AcquireTimeoutError)
    assert [holder.resource for holder in error.holders] == [resource]
    assert plan.freed == 1
    pool.release(resource)
    await settle()
    assert called(plan) == ["error"]


async def test_acquire_call_reports_the_error_of_the_factory(make_c, probe):
    pool, handlers = make_c()
    handlers.factory, handlers.error = probe.RAISE, OSError("down")
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert only(plan.log, "error") is handlers.error
    assert plan.freed == 1


async def test_acquire_call_reports_a_closed_pool_and_an_open_breaker(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plans = [probe.Plan() for _ in range(4)]
    probe.acquire_call(pool, -1.0, plans[0])
    await settle()
    pool.deactivate()
    probe.acquire_call(pool, -1.0, plans[1])
    await settle()
    pool.activate()
    probe.acquire_call(pool, -1.0, plans[2])
    await settle()
    await pool.close()
    probe.acquire_call(pool, -1.0, plans[3])
    await settle()
    errors = [type(only(plan.log, "error")) for plan in plans]
    unavailable, closed = cenote.ServiceUnavailableError, cenote.PoolClosedError
    assert errors == [unavailable, unavailable, closed, closed]
    assert [plan.freed for plan in plans] == [1] * 4
    pool.release(resource)


async def test_cancel_before_it_runs(make_c, probe):
    pool, handlers = make_c()
    plan = probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    assert probe.ticket_cancel(ticket) == 1
    assert plan.log == []
    await settle()
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert plan.freed == 1
    assert probe.ticket_cancel(ticket) == 0
    assert handlers.log == []


async def test_cancel_while_it_waits(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan, next_plan = probe.Plan(), probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    probe.acquire_call(pool, -1.0, next_plan)
    await settle()
    assert probe.ticket_cancel(ticket) == 1
    assert probe.ticket_cancel(ticket) == 1  # it has not heard of the first one yet
    assert plan.log == []
    await settle()
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert plan.freed == 1
    assert probe.ticket_cancel(ticket) == 0
    assert pool.stats().cancelled == 1
    pool.release(resource)
    await settle()
    assert only(next_plan.log, "resource") is resource
    pool.release(resource)


async def test_cancel_after_it_was_handed_a_resource(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    pool.release(resource)
    assert probe.ticket_cancel(ticket) == 1
    await settle()
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_cancel_after_the_end(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert probe.ticket_cancel(ticket) == 0
    assert probe.ticket_cancel(ticket) == 0
    await settle()
    assert (called(plan), plan.freed) == (["resource"], 1)
    pool.release(plan.log[0][1])


async def test_cancel_inside_the_callback(make_c, probe):
    pool, _ = make_c()
    plan, answers = probe.Plan(), []
    plan.call = lambda name, resource: answers.append(probe.ticket_cancel(ticket))
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert answers == [0]
    assert (called(plan), plan.freed) == (["resource"], 1)
    pool.release(plan.log[0][1])


@pytest.mark.parametrize("where", ["factory", "before_acquire"])
async def test_cancel_inside_a_hook_keeps_its_word(make_c, probe, where):
    pool, handlers = make_c()
    if where == "before_acquire":
        pool.release(await pool.acquire())
    plan, answers = probe.Plan(), []

    def cancel(name, resource):
        if name == where:
            answers.append(probe.ticket_cancel(ticket))

    handlers.call = cancel
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    [(end, argument)] = plan.log
    assert answers == [end == "error"]
    if end == "resource":
        pool.release(argument)


@pytest.mark.parametrize("where", ["factory", "before_acquire"])
@pytest.mark.parametrize("error", [OSError, SystemError])
async def test_cancel_inside_a_hook_that_fails_keeps_its_word(make_c, probe, where, error):
    """Found by fuzzing: the callback heard of the hook's error instead."""
    pool, handlers = make_c(max_size=1)
    if where == "before_acquire":
        pool.release(await pool.acquire())
    plan, answers = probe.Plan(), []

    def cancel(name, resource):
        if name == where:
            handlers.call = None
            answers.append(probe.ticket_cancel(ticket))

    handlers.call = cancel
    setattr(handlers, where, probe.SILENT if error is SystemError else probe.RAISE)
    handlers.error = OSError
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert answers == [1]
    heard = only(plan.log, "error")
    assert isinstance(heard, asyncio.CancelledError)
    if where == "factory":
        assert isinstance(heard.__cause__, error)
    setattr(handlers, where, probe.WELL)
    pool.release(await pool.acquire())


async def test_a_hook_that_raises_generator_exit_loses_no_slot(make_c, probe):
    """Found by fuzzing: the acquire stayed in the queue, and was handed the next resource."""
    pool, handlers = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    probe.acquire_call(pool, math.inf, plan)
    await settle()
    handlers.before_acquire, handlers.error = probe.RAISE, GeneratorExit
    asyncio.get_running_loop().set_exception_handler(lambda loop, report: None)
    pool.release(resource)
    await settle()
    assert isinstance(only(plan.log, "error"), GeneratorExit)
    assert (pool.waiting_count, pool.active_count, pool._engine.core.granted_count) == (0, 0, 0)
    handlers.before_acquire = probe.WELL
    pool.release(await pool.acquire(timeout=0))


@pytest.mark.parametrize("kind", ["opened", "acquired"])
@pytest.mark.parametrize("verb", ["send", "close"])
async def test_a_listener_may_drive_the_acquire_of_its_event(make_c, probe, kind, verb):
    """Found by fuzzing: it was begun twice, or its missing result crashed the interpreter."""
    pool, _ = make_c(max_size=2)
    if kind == "acquired":
        pool.release(await pool.acquire())
    plan, heard = probe.Plan(), []

    def drive(name, argument):
        if argument == kind and not heard:
            heard.append(argument)
            try:
                acquire.send(None) if verb == "send" else acquire.close()
            except StopIteration as stop:
                heard.append(stop.value)

    plan.call = drive
    subscription = probe.subscribe(pool, plan)
    acquire = probe.acquire(pool, math.inf)
    with pytest.raises((RuntimeError, StopIteration)) as raised:
        acquire.send(None)
    plan.call = None
    assert heard[0] == kind
    assert "was used before" in str(raised.value)
    for holder in pool.holders():
        pool.release(holder.resource)
    probe.unsubscribe(subscription)
    assert pool.active_count == 0


@pytest.mark.parametrize("verb", ["send", "close"])
async def test_a_listener_may_drive_the_acquire_that_has_waited(make_c, probe, verb):
    """Found in review: whoever awaited it was given None."""
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    acquire = probe.acquire(pool, math.inf)
    assert asyncio.isfuture(acquire.send(None))
    plan, heard = probe.Plan(), []

    def drive(name, kind):
        if kind == "acquired" and not heard:
            heard.append(kind)
            try:
                acquire.send(None) if verb == "send" else acquire.close()
            except StopIteration as stop:
                heard.append(stop.value)

    plan.call = drive
    subscription = probe.subscribe(pool, plan)
    pool.release(resource)
    with pytest.raises(RuntimeError, match="was used before"):
        acquire.send(None)
    plan.call = None
    heard.clear()
    for holder in pool.holders():
        pool.release(holder.resource)
    probe.unsubscribe(subscription)
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_the_ticket_may_be_dropped(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    gc.collect()
    assert plan.freed == 0
    pool.release(resource)
    await settle()
    assert only(plan.log, "resource") is resource
    pool.release(resource)


@pytest.mark.parametrize(
    ("mode", "kind", "message"),
    [
        ("RAISE", KeyError, "mine"),
        ("CONTRADICT", KeyError, "mine"),
        ("SILENT", SystemError, "the C completion callback .* failed without an exception"),
    ],
)
async def test_a_callback_that_fails_is_reported(make_c, probe, monkeypatch, mode, kind, message):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable))
    pool, _ = make_c()
    plan = probe.Plan()
    plan.completion, plan.error = getattr(probe, mode), KeyError("mine")
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    [unraisable] = reported
    assert unraisable.exc_type is kind
    assert re.search(message, str(unraisable.exc_value))
    assert (called(plan), plan.freed) == (["resource"], 1)
    assert pool.active_count == 1  # it was told of it, and it is its own
    pool.release(plan.log[0][1])
    reported.clear()


def test_acquire_call_needs_a_running_loop(probe):
    pool, plan = cenote.Pool(Thing), probe.Plan()
    with pytest.raises(RuntimeError, match="no running event loop"):
        probe.acquire_call(pool, -1.0, plan)
    gc.collect()
    assert (plan.log, plan.freed) == ([], 1)


async def test_acquire_call_needs_a_callback(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    with pytest.raises(ValueError, match="callback"):
        probe.acquire_call(pool, -1.0, plan, False)
    assert plan.freed == 1


async def test_acquire_call_needs_no_user_data(make_c, probe):
    pool, _ = make_c(max_size=1)
    with pytest.raises(TypeError):
        probe.acquire_call(pool, "soon", probe.NULL)
    with pytest.raises(TypeError):
        probe.acquire_call(3, -1.0, probe.NULL)


def run_and_close(main, last):
    """Run `main`, register `last` so late that what it starts has no step, and close the loop."""
    loop = asyncio.SelectorEventLoop()
    loop.set_exception_handler(lambda loop, report: None)  # of tasks that are destroyed

    async def both():
        await main()
        loop.call_soon(last)

    loop.run_until_complete(both())
    loop.close()


def nothing():
    pass


@pytest.mark.filterwarnings("ignore:coroutine 'Tickets._drive' was never awaited:RuntimeWarning")
def test_user_data_is_freed_if_its_loop_never_runs(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(probe.Plan(), ALL, {})]

    async def main():
        box[0].release(await box[0].acquire())

    def last():
        box.append(probe.acquire_call(box[0], -1.0, plan))

    run_and_close(main, last)
    assert len(box) == 2
    forget(box)
    assert (plan.log, plan.freed) == ([], 1)


@pytest.mark.parametrize("first", ["ticket", "pool"])
def test_user_data_is_freed_if_its_loop_closes_while_waiting(probe, first):
    plan = probe.Plan()
    box = [probe.pool_new_c(probe.Plan(), ALL, {"max_size": 1})]
    tickets = []

    async def main():
        await box[0].acquire()
        tickets.append(probe.acquire_call(box[0], -1.0, plan))
        await settle()
        assert box[0].waiting_count == 1

    run_and_close(main, nothing)
    assert plan.log == []
    if first == "ticket":
        drop(tickets)
    forget([box.pop(), tickets.pop() if tickets else None])
    assert (plan.log, plan.freed) == ([], 1)


def test_asyncio_run_cancels_what_still_waits(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(probe.Plan(), ALL, {"max_size": 1})]

    async def main():
        await box[0].acquire()
        ticket = probe.acquire_call(box[0], -1.0, plan)
        await settle()
        return ticket

    ticket = asyncio.run(main())
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert plan.freed == 1
    assert probe.ticket_cancel(ticket) == 0
    plan.log.clear()
    del ticket
    forget(box)


# -- try_acquire, release, discard, close, counts ------------------------------------------------


async def test_try_acquire_gives_a_resource_or_none(make_c, probe):
    pool, plan = make_c(max_size=1)
    resource = probe.try_acquire(pool)
    assert resource == b"resource"
    assert probe.try_acquire(pool) is probe.NULL
    assert probe.release(pool, resource) == 0
    assert probe.try_acquire(pool) is resource
    assert called(plan) == ["factory", "before_release", "before_acquire"]
    assert probe.release(pool, resource) == 0
    pool.deactivate()
    assert probe.try_acquire(pool) is probe.NULL
    pool.activate()
    await pool.close()
    assert probe.try_acquire(pool) is probe.NULL


async def test_try_acquire_raises_the_error_of_the_factory(make_c, probe):
    pool, plan = make_c()
    plan.factory, plan.error = probe.RAISE, OSError("down")
    with pytest.raises(OSError, match="down"):
        probe.try_acquire(pool)


async def test_release_refuses_what_is_not_held(make_c, probe):
    pool, plan = make_c()
    resource = await pool.acquire()
    assert probe.release(pool, resource) == 0
    plan.log.clear()
    for wrong in (resource, object(), None, probe.NULL):
        with pytest.raises(cenote.NotAcquiredError):
            probe.release(pool, wrong)
        with pytest.raises(cenote.NotAcquiredError):
            probe.discard(pool, wrong, probe.NULL)
    assert plan.log == []
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_release_leaves_the_reference_of_the_caller(make_c, probe):
    pool, plan = make_c()
    resource = await pool.acquire()
    counts = set()
    for _ in range(5):
        probe.release(pool, resource)
        plan.log.clear()
        counts.add(sys.getrefcount(resource))
        assert await pool.acquire() is resource
    assert len(counts) == 1
    probe.release(pool, resource)


async def test_release_goes_on_in_the_loop_with_async_hooks(make_pool, probe):
    pool = make_pool(Thing, before_release=styled("async", lambda thing: True))
    thing = await pool.acquire()
    assert probe.release(pool, thing) == 0
    assert pool.active_count == 1
    await settle()
    assert pool.idle_count == 1


async def test_discard_destroys_with_and_without_error(make_c, probe):
    pool, plan = make_c()
    strategy, error = probe.Plan(), OSError("broken")
    probe.set_strategy(pool, strategy, "success failure")
    assert probe.discard(pool, await pool.acquire(), probe.NULL) == 0
    assert strategy.log == []
    assert probe.discard(pool, await pool.acquire(), error) == 0
    assert strategy.log == [("failure", error)]
    assert called(plan) == ["factory", "destructor"] * 2
    assert pool.stats().destroyed == {"discarded": 2}


async def test_discard_takes_an_exception_and_nothing_else(make_c, probe):
    pool, _ = make_c()
    resource = await pool.acquire()
    with pytest.raises(TypeError, match="error must be an exception"):
        probe.discard(pool, resource, "broken")
    assert pool.active_count == 1
    pool.release(resource)


async def test_close_closes_the_pool_for_good(make_c, probe):
    pool, plan = make_c()
    pool.release(await pool.acquire())
    await probe.close(pool)
    assert called(plan)[-1] == "destructor"
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire()
    await asyncio.create_task(probe.close(pool))


async def test_counts_are_those_of_the_pool(make_c, probe):
    pool, _ = make_c(max_size=2)

    def counts():
        found = tuple(
            getattr(probe, name)(pool)
            for name in ("count", "idle_count", "active_count", "waiting_count")
        )
        seen = (pool.count, pool.idle_count, pool.active_count, pool.waiting_count)
        assert found == seen
        return found

    assert counts() == (0, 0, 0, 0)
    one, two = await pool.acquire(), await pool.acquire()
    probe.acquire_call(pool, -1.0, waiter := probe.Plan())
    await settle()
    assert counts() == (2, 0, 2, 1)
    pool.release(one)
    await settle()
    pool.release(two)
    assert counts() == (2, 1, 1, 0)
    pool.release(only(waiter.log, "resource"))


async def test_counts_may_be_read_in_any_thread_and_nothing_else(make_c, probe):
    pool, _ = make_c()
    resource = await pool.acquire()
    seen, plan = [], probe.Plan()

    def other():
        seen.append(probe.count(pool) == probe.active_count(pool) == 1)
        seen.append(probe.idle_count(pool) == probe.waiting_count(pool) == 0)
        seen.append(probe.state(pool) == probe.CENOTE_ACTIVE)
        for call in (
            lambda: probe.release(pool, resource),
            lambda: probe.discard(pool, resource, probe.NULL),
            lambda: probe.set_state(pool, probe.CENOTE_INACTIVE),
            lambda: probe.try_acquire(pool),
            lambda: probe.acquire_call(pool, -1.0, plan),
        ):
            try:
                call()
            except RuntimeError:
                seen.append(True)
            else:
                seen.append(call)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    gc.collect()
    assert seen == [True] * 8
    assert plan.freed == 1
    pool.release(resource)


# -- events --------------------------------------------------------------------------------------


async def test_a_subscription_lasts_until_it_is_ended(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    subscription = probe.subscribe(pool, plan)
    pool.release(await pool.acquire())
    kinds = ["opened", "created", "acquired", "released"]
    assert plan.log == [("event", kind) for kind in kinds]
    assert probe.unsubscribe(subscription) == 0
    pool.release(await pool.acquire())
    assert len(plan.log) == 4
    assert probe.unsubscribe(subscription) == 0
    assert plan.freed == 0
    del subscription
    gc.collect()
    assert plan.freed == 1


async def test_dropping_a_subscription_does_not_end_it(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.subscribe(pool, plan)
    gc.collect()
    pool.release(await pool.acquire())
    assert len(plan.log) == 4
    assert plan.freed == 0
    await pool.close()
    gc.collect()
    assert called(plan)[-1] == "event"
    assert plan.log[-1] == ("event", "closed")
    assert plan.freed == 1


@pytest.mark.parametrize("mode", ["RAISE", "SILENT", "CONTRADICT"])
async def test_a_listener_that_fails_is_logged(make_c, probe, caplog, mode):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.subscribe(pool, plan)
    plan.listener, plan.error = getattr(probe, mode), OSError("deaf")
    pool.release(await pool.acquire())
    text = "the C listener of a cenote pool failed" if mode == "SILENT" else "OSError: deaf"
    assert text in caplog.text
    assert pool.idle_count == 1


def test_subscribe_with_wrong_arguments(probe):
    for pool, listener, error in ((cenote.Pool(Thing), False, ValueError), (3, True, TypeError)):
        plan = probe.Plan()
        with pytest.raises(error):
            probe.subscribe(pool, plan, listener)
        assert plan.freed == 1


async def test_unsubscribe_calls_nothing_but_subscriptions(make_c, probe):
    pool, _ = make_c()
    called = []
    wrong = {"NULL": probe.NULL, "int": 3, "NoneType": None, "Pool": pool, "type": dict,
             "function": pool.subscribe(called.append),
             "builtin_function_or_method": called.clear}  # fmt: skip
    for kind, each in wrong.items():
        with pytest.raises(TypeError, match=f"a subscription of subscribe is needed, not {kind}"):
            probe.unsubscribe(each)
    pool.release(await pool.acquire())
    assert len(called) == 4
    plan = probe.Plan()
    subscription = probe.subscribe(pool, plan)
    subscription()  # Python may end it, too
    pool.release(await pool.acquire())
    assert plan.log == []


# -- the breaker ---------------------------------------------------------------------------------


async def test_the_state_and_its_transitions(make_c, probe):
    pool, _ = make_c()
    states = {
        probe.CENOTE_INACTIVE: cenote.CircuitState.INACTIVE,
        probe.CENOTE_RECOVERING: cenote.CircuitState.RECOVERING,
        probe.CENOTE_ACTIVE: cenote.CircuitState.ACTIVE,
    }
    assert probe.state(pool) == probe.CENOTE_ACTIVE
    for number, state in states.items():
        assert probe.set_state(pool, number) == 0
        assert probe.state(pool) == number
        assert pool.state is state
        assert probe.set_state(pool, number) == 0
    for wrong in (-1, 3, 1000):
        with pytest.raises(ValueError, match="is no state"):
            probe.set_state(pool, wrong)
    assert probe.state(pool) == probe.CENOTE_ACTIVE


async def test_a_c_strategy_gets_successes_and_failures(make_c, probe):
    pool, handlers = make_c(name="watched")
    plan = probe.Plan()
    assert probe.set_strategy(pool, plan, "success failure recover") == 0
    pool.release(await pool.acquire())
    assert plan.log == [("success", "watched")]
    plan.log.clear()
    handlers.before_release = probe.NO
    pool.release(await pool.acquire())
    assert isinstance(only(plan.log, "failure"), cenote.PoolError)
    plan.log.clear()
    handlers.factory, handlers.error = probe.RAISE, OSError("down")
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    assert plan.log == [("failure", handlers.error)]


async def test_a_release_reaches_a_c_strategy_without_python(make_c, probe):
    pool, _ = make_c()
    plan, seen = probe.Plan(), []
    probe.set_strategy(pool, plan, "success failure")
    pool.release(await pool.acquire())
    async with pool.acquire() as resource:
        sys.setprofile(lambda frame, event, argument: seen.append((event, frame.f_code.co_name)))
        try:
            pool.release(resource)
        finally:
            sys.setprofile(None)
    assert called(plan) == ["success", "success"]
    ours = {"time", "name"}  # of the virtual clock, and what the probe asks the pool for
    assert {name for event, name in seen if event == "call"} <= ours


async def test_leases_from_before_the_recovery_reach_no_c_strategy(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.set_strategy(pool, plan, "success failure")
    old = await pool.acquire()
    pool.recover()
    pool.release(old)
    assert plan.log == []
    pool.release(await pool.acquire())
    assert called(plan) == ["success"]


async def test_a_c_strategy_may_replace_itself(make_c, probe):
    pool, _ = make_c()
    first, second = probe.Plan(), probe.Plan()
    first.call = lambda *_: probe.set_strategy(pool, second, "success failure")
    probe.set_strategy(pool, first, "success failure")
    pool.release(await pool.acquire())
    first.call = None
    assert (called(first), first.freed) == (["success"], 1)
    pool.release(await pool.acquire())
    assert called(second) == ["success"]


async def test_a_c_strategy_may_switch_the_pool(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()

    def switch(name, argument):
        if name == "failure":
            probe.set_state(pool, probe.CENOTE_INACTIVE)
        elif name == "success" and probe.state(pool) == probe.CENOTE_RECOVERING:
            probe.set_state(pool, probe.CENOTE_ACTIVE)

    plan.call = switch
    probe.set_strategy(pool, plan, "success failure recover")
    probe.discard(pool, await pool.acquire(), OSError("broken"))
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    assert called(plan) == ["failure", "recover"]
    plan.recover = probe.NO  # which is "yes" here
    async with pool.acquire():
        assert probe.state(pool) == probe.CENOTE_RECOVERING
    assert probe.state(pool) == probe.CENOTE_ACTIVE
    plan.call = None
    pool.strategy = None


async def test_recovery_is_manual_without_should_recover(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.set_strategy(pool, plan, "success failure")
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    assert pool.state is cenote.CircuitState.INACTIVE
    pool.recover()
    pool.release(await pool.acquire())
    assert called(plan) == ["success"]


@pytest.mark.parametrize("mode", ["RAISE", "SILENT", "CONTRADICT"])
async def test_a_c_strategy_that_fails_is_logged(make_c, probe, caplog, mode):
    pool, _ = make_c()
    plan = probe.Plan()
    plan.success = plan.failure = plan.recover = getattr(probe, mode)
    plan.error = OSError("no idea")
    probe.set_strategy(pool, plan, "success failure recover")
    text = "the C strategy of a cenote pool failed" if mode == "SILENT" else "OSError: no idea"

    def logged(what):
        found = what in caplog.text and text in caplog.text
        caplog.clear()
        return found

    pool.release(await pool.acquire())
    assert logged("report_success")
    pool.discard(await pool.acquire(), OSError("broken"))
    assert logged("report_failure")
    pool.deactivate()
    caplog.clear()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    assert logged("should_recover")
    assert pool.state is cenote.CircuitState.INACTIVE


async def test_a_strategy_is_freed_when_it_is_replaced(make_c, probe):
    pool, _ = make_c()
    first, second, third = probe.Plan(), probe.Plan(), probe.Plan()
    probe.set_strategy(pool, first, "success failure")
    probe.set_strategy(pool, second, "success failure")
    assert (first.freed, second.freed) == (1, 0)
    probe.set_strategy(pool, third, None)
    assert (second.freed, third.freed) == (1, 1)
    assert pool.strategy is None
    pool.release(await pool.acquire())
    assert first.log + second.log + third.log == []


@pytest.mark.parametrize("names", ["", "success", "failure", "recover"])
def test_a_strategy_needs_both_reports(probe, names):
    pool, plan = cenote.Pool(Thing), probe.Plan()
    with pytest.raises(ValueError, match="needs report_success and report_failure"):
        probe.set_strategy(pool, plan, names)
    assert plan.freed == 1
    assert pool.strategy is None


# -- what is no pool -----------------------------------------------------------------------------

CALLS = {
    "acquire": lambda probe, pool: probe.acquire(pool, -1.0),
    "try_acquire": lambda probe, pool: probe.try_acquire(pool),
    "release": lambda probe, pool: probe.release(pool, 3),
    "discard": lambda probe, pool: probe.discard(pool, 3, probe.NULL),
    "close": lambda probe, pool: probe.close(pool),
    "count": lambda probe, pool: probe.count(pool),
    "idle_count": lambda probe, pool: probe.idle_count(pool),
    "active_count": lambda probe, pool: probe.active_count(pool),
    "waiting_count": lambda probe, pool: probe.waiting_count(pool),
    "state": lambda probe, pool: probe.state(pool),
    "set_state": lambda probe, pool: probe.set_state(pool, 0),
}
WITH_DATA = {
    "acquire_call": lambda probe, pool, plan: probe.acquire_call(pool, -1.0, plan),
    "subscribe": lambda probe, pool, plan: probe.subscribe(pool, plan),
    "set_strategy": lambda probe, pool, plan: probe.set_strategy(pool, plan, "success failure"),
}


@pytest.mark.parametrize("wrong", [None, 3, "pool", cenote.Pool, "NULL"])
@pytest.mark.parametrize("call", CALLS)
async def test_what_is_no_pool_is_refused(probe, call, wrong):
    name = "NULL" if wrong == "NULL" else type(wrong).__name__
    with pytest.raises(TypeError, match=f"a cenote.Pool is needed, not {name}"):
        CALLS[call](probe, probe.NULL if wrong == "NULL" else wrong)


@pytest.mark.parametrize("wrong", [None, 3, "NULL"])
@pytest.mark.parametrize("call", WITH_DATA)
async def test_what_is_no_pool_is_refused_and_data_freed(probe, call, wrong):
    plan = probe.Plan()
    with pytest.raises(TypeError, match=r"a cenote\.Pool is needed"):
        WITH_DATA[call](probe, probe.NULL if wrong == "NULL" else wrong, plan)
    assert (plan.log, plan.freed) == ([], 1)


@pytest.mark.parametrize("call", CALLS)
async def test_a_pool_without_its_constructor_is_refused(probe, call):
    with pytest.raises(RuntimeError, match="not initialized"):
        CALLS[call](probe, cenote.Pool.__new__(cenote.Pool))


@pytest.mark.parametrize("wrong", [None, 3, "NULL", cenote.Pool(Thing)])
def test_what_is_no_ticket_is_refused(probe, wrong):
    name = "NULL" if wrong == "NULL" else type(wrong).__name__
    with pytest.raises(TypeError, match=f"a ticket of acquire_call is needed, not {name}"):
        probe.ticket_cancel(probe.NULL if wrong == "NULL" else wrong)


TICKET_OF_A_CLOSED_LOOP = """
import asyncio, warnings, cenote, probe
warnings.simplefilter("ignore")
for steps in range(2):
    pool, plan = cenote.Pool(object, max_size=1), probe.Plan()

    async def main():
        await pool.acquire()
        ticket = probe.acquire_call(pool, 5.0, plan)
        for _ in range(steps):
            await asyncio.sleep(0)
        return ticket

    loop = asyncio.new_event_loop()
    ticket = loop.run_until_complete(main())
    loop.close()
    print(probe.ticket_cancel(ticket), plan.log)
"""


def test_a_ticket_of_a_closed_loop_is_not_cancelled(probe_path):
    done = python(TICKET_OF_A_CLOSED_LOOP, path=[SOURCE, probe_path.parent])
    assert done.stdout == "0 []\n0 []\n", done.stderr


TICKET_OF_AN_EARLIER_IMPORT = """
import asyncio, sys, cenote, probe
old = cenote.Pool(object, max_size=1)
for name in [name for name in sys.modules if name.partition(".")[0] == "cenote"]:
    del sys.modules[name]
import cenote
assert not isinstance(old, cenote.Pool)

async def main():
    async with old:
        resource, plan = await old.acquire(), probe.Plan()
        ticket = probe.acquire_call(old, 5.0, plan)
        await asyncio.sleep(0)
        print(probe.ticket_cancel(ticket))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        print(plan.log)
        probe.set_strategy(old, plan, "success failure")
        probe.unsubscribe(probe.subscribe(old, plan))
        old.release(resource)
        print(plan.log[1:])

asyncio.run(main())
"""


def test_cenote_may_be_imported_anew(probe_path):
    done = python(TICKET_OF_AN_EARLIER_IMPORT, path=[SOURCE, probe_path.parent])
    heard = "1\n[('error', CancelledError())]\n[('success', None)]\n"
    assert done.stdout == heard, done.stderr


# -- nothing leaks -------------------------------------------------------------------------------


async def test_references_do_not_grow(make_c, probe):
    pool, handlers = make_c(max_size=1)
    resource = await pool.acquire()
    pool.release(resource)
    plan = probe.Plan()

    async def round_trip():
        probe.release(pool, await probe.acquire(pool, -1.0))
        probe.release(pool, probe.try_acquire(pool))
        plan.call = lambda name, resource: probe.release(pool, resource)
        probe.acquire_call(pool, -1.0, plan)
        await settle()
        plan.call = None
        held = probe.try_acquire(pool)
        ticket = probe.acquire_call(pool, -1.0, plan)
        await settle()
        probe.ticket_cancel(ticket)
        await settle()
        probe.release(pool, held)
        probe.set_strategy(pool, plan, "success failure recover")
        probe.unsubscribe(probe.subscribe(pool, plan))
        probe.set_strategy(pool, plan, None)
        plan.log.clear()
        handlers.log.clear()

    def references():
        gc.collect()
        return [sys.getrefcount(each) for each in (resource, plan, handlers, pool)]

    for _ in range(3):
        await round_trip()
    before, freed = references(), plan.freed
    for _ in range(50):
        await round_trip()
    assert references() == before
    assert plan.freed == freed + 50 * 5


# -- the example ---------------------------------------------------------------------------------


async def test_a_buffer_is_memory(buffers, keep):
    arena = buffers.Arena(100)
    pool = keep(arena.pool(max_size=2, name="memory"))
    assert repr(pool).startswith("<Pool 'memory' new")
    async with pool.acquire() as buffer:
        assert len(buffer) == 100
        with memoryview(buffer) as view:
            assert bytes(view) == bytes(100)
            view[:5] = b"hello"
            assert bytes(view[:6]) == b"hello\0"
    async with pool.acquire() as again:
        assert again is buffer
        assert bytes(again) == bytes(100)
    with pytest.raises(BufferError, match="given back"):
        memoryview(buffer)
    assert (arena.size, arena.made, arena.lent, arena.returned, arena.freed) == (100, 1, 1, 2, 0)
    await pool.close()
    assert arena.freed == 1


async def test_a_buffer_that_was_overrun_is_destroyed(buffers, keep):
    arena = buffers.Arena(64)
    pool = keep(arena.pool())
    async with pool.acquire() as buffer:
        buffers.overrun(buffer)
    assert (arena.overruns, arena.freed, pool.count) == (1, 1, 0)
    assert pool.stats().rejected == 1
    async with pool.acquire() as buffer:
        pass
    buffers.overrun(buffer)
    async with pool.acquire() as other:
        assert other is not buffer
    assert (arena.overruns, arena.freed) == (2, 2)
    with pytest.raises(TypeError):
        buffers.overrun(buffer)


@pytest.mark.virtual_time
async def test_the_healthcheck_looks_at_the_guard(buffers, keep):
    arena = buffers.Arena(64)
    pool = keep(arena.pool(healthcheck_interval=10.0))
    async with pool.acquire() as buffer:
        pass
    await advance(10.0)
    assert (arena.checked, arena.overruns) == (1, 0)
    buffers.overrun(buffer)
    await advance(10.0)
    assert (arena.checked, arena.overruns, arena.freed) == (2, 1, 1)
    assert pool.stats().destroyed == {"check_failed": 1}


async def test_a_view_keeps_its_memory(buffers, keep, caplog):
    arena = buffers.Arena(64)
    pool = keep(arena.pool())
    buffer = await pool.acquire()
    view = memoryview(buffer)
    pool.release(buffer)
    assert "with 1 memoryviews open" in caplog.text
    assert pool.stats().destroyed == {"rejected": 1}
    view[0] = 1  # nobody else has it
    assert arena.freed == 0
    view.release()
    assert arena.freed == 1


async def test_a_buffer_may_outlive_its_pool(buffers):
    arena = buffers.Arena(64)
    box = [arena.pool()]
    buffer = await box[0].acquire()
    forget(box)
    assert bytes(buffer) == bytes(64)
    assert arena.freed == 0
    del buffer
    assert arena.freed == 1


async def test_checksum_runs_and_may_be_cancelled(buffers, keep):
    pool = keep(buffers.Arena(64).pool(max_size=1))
    heard = []
    for data in (b"", b"hello", bytes(range(256)) * 3):
        buffers.checksum(pool, data, lambda crc, error: heard.append((crc, error)))
        await settle()
        assert heard.pop() == (zlib.crc32(data), None)
    async with pool.acquire():
        ticket = buffers.checksum(pool, b"", lambda crc, error: heard.append((crc, error)))
        await settle()
        assert buffers.cancel(ticket) is True
        await settle()
        assert buffers.cancel(ticket) is False
    [(crc, error)] = heard
    assert crc is None
    assert isinstance(error, asyncio.CancelledError)


async def test_checksum_with_the_wrong_pool(buffers, make_pool, monkeypatch):
    pool, heard, reported = make_pool(Thing), [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    with pytest.raises(TypeError, match=r"a cenote\.Pool is needed"):
        buffers.checksum(3, b"", print)
    buffers.checksum(pool, b"", heard.append)
    await settle()
    assert (heard, reported) == ([], [TypeError])
    assert pool.idle_count == 1


@pytest.mark.parametrize("size", [0, -1, sys.maxsize])
def test_an_arena_needs_a_size(buffers, size):
    with pytest.raises(ValueError, match="no size for a buffer"):
        buffers.Arena(size)


def test_the_demo_of_the_example_runs(buffers_path):
    demo = shutil.copy(EXAMPLE / "demo.py", buffers_path.parent)
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-W", "error", demo]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0
    assert "100 tasks used 8 buffers at once; 0 of them found" in done.stdout
    assert "20 of them were checksums in C" in done.stdout
    assert "because of a write too far: 4" in done.stdout
    assert "hears: CancelledError" in done.stdout
    assert "found by the healthcheck: 1" in done.stdout
    [made, freed] = re.findall(r"allocated: (\d+), freed: (\d+)", done.stdout)[0]
    assert made == freed


def test_setup_builds_the_example(tmp_path):
    pytest.importorskip("setuptools", reason="setuptools is not installed: setup.py cannot run")
    compiler()
    for name in ("buffers.c", "setup.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": SOURCE, "CFLAGS": "-Werror"}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"buffers{sysconfig.get_config_var('EXT_SUFFIX')}").exists()


def test_the_tutorial_can_be_followed(tmp_path):
    text = (ROOT / "docs" / "c-api.md").read_text()
    tutorial = text.partition("## From an empty folder")[2].partition("\n## ")[0]
    files = re.findall(r"`(\S+)`\.\*\*\n\n```\w+\n(.*?)```", tutorial, re.DOTALL)
    assert [name for name, _ in files] == ["scratch.c", "setup.py", "try.py"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    compile_extension(tmp_path / "scratch.c", tmp_path)
    command = [sys.executable, "-W", "error", "try.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [printed] = re.findall(r"It prints:\n\n```text\n(.*?)```", tutorial, re.DOTALL)
    assert done.stdout == printed
