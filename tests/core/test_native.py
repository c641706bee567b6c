"""Which core is in use, and what the types of the native one promise the garbage collector."""

import asyncio
import gc
import importlib.machinery
import os
import shutil
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

import pytest

import cenote
from cenote import _core, _fast

HAS_COMPILER = any(
    shutil.which(name) for name in ((sysconfig.get_config_var("CC") or "cc").split()[0], "cc")
)
native_only = pytest.mark.skipif(
    cenote.core != "native", reason="the pure core is in use (CENOTE_PURE=1, or not compiled)"
)


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_core_is_native_where_there_is_a_compiler():
    wanted = (
        sys.implementation.name == "cpython"
        and HAS_COMPILER
        and os.environ.get("CENOTE_PURE") != "1"
    )
    assert cenote.core == ("native" if wanted else "pure")


def test_the_pure_core_can_be_chosen():
    result = run("import cenote; print(cenote.core)", CENOTE_PURE="1")
    assert result.stdout == "pure\n", result.stderr


def copy_without_native(folder):
    """The package as an installation without a compiler has it."""
    package = Path(cenote.__file__).parent
    compiled = [f"*{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    unwanted = shutil.ignore_patterns("__pycache__", "build_failure.txt", *compiled)
    shutil.copytree(package, folder / "cenote", ignore=unwanted)
    return folder / "cenote" / "_core" / "build_failure.txt"


def test_a_failed_compilation_is_said_on_import(tmp_path):
    copy_without_native(tmp_path).write_text("the compiler is on holiday\n")
    code = "import cenote; print(cenote.__file__, cenote.core)"
    result = run(code, PYTHONPATH=str(tmp_path), CENOTE_PURE="")
    assert result.stdout == f"{tmp_path / 'cenote' / '__init__.py'} pure\n", result.stderr
    assert "RuntimeWarning: cenote runs on its pure core" in result.stderr
    assert "the compiler is on holiday" in result.stderr


@pytest.mark.parametrize(("failed", "pure"), [(False, ""), (True, "1")])
def test_a_pure_core_that_was_wanted_is_silent(tmp_path, failed, pure):
    record = copy_without_native(tmp_path)
    if failed:
        record.write_text("the compiler is on holiday\n")
    result = run("import cenote; print(cenote.core)", PYTHONPATH=str(tmp_path), CENOTE_PURE=pure)
    assert (result.returncode, result.stdout, result.stderr) == (0, "pure\n", "")


@native_only
def test_without_the_gil_the_native_core_is_refused():
    """As with PYTHON_GIL=0 on a free-threaded build, where loading does not switch it on."""
    code = "import sys; sys._is_gil_enabled = lambda: False; import cenote; print(cenote.core)"
    result = run(code, CENOTE_PURE="")
    assert result.stdout == "pure\n", result.stderr
    assert "RuntimeWarning: cenote runs on its pure core" in result.stderr
    assert "PYTHON_GIL=0" in result.stderr


def test_the_header_is_where_get_include_says():
    assert os.path.isfile(os.path.join(cenote.get_include(), "cenote.h"))


@native_only
def test_the_types_are_those_of_the_native_module():
    from cenote._core import native

    assert (_core.Core, _fast.Acquire) == (native.Core, native.Acquire)
    assert issubclass(cenote.Pool, native.FastPath)


class Thing:
    pass


CYCLES = {
    "an idle resource": lambda pool, thing: setattr(thing, "pool", pool),
    "a subscriber": lambda pool, thing: pool.subscribe(lambda event: (pool, thing)),
    "a strategy": lambda pool, thing: setattr(pool, "strategy", Strategy(pool, thing)),
}


class Strategy:
    def __init__(self, *held):
        self.held = held

    def report_success(self, source):
        pass

    def report_failure(self, source, error):
        pass


@pytest.mark.parametrize("cycle", CYCLES.values(), ids=CYCLES)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_cycle_is_collected(cycle):
    pool = cenote.Pool(Thing)
    async with pool.acquire() as thing:
        cycle(pool, thing)
    seen = weakref.ref(pool), weakref.ref(thing)
    del pool, thing
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_cycle_through_a_leased_resource_is_collected():
    pool = cenote.Pool(Thing)
    thing = await pool.acquire()
    thing.pool = pool
    seen = weakref.ref(pool), weakref.ref(thing)
    del pool, thing
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_cycle_through_an_orphaned_waiter_is_collected():
    loop = asyncio.new_event_loop()

    async def main():
        pool = cenote.Pool(Thing, max_size=1)
        thing = await pool.acquire()
        thing.pool = pool
        thing.waiter = asyncio.ensure_future(pool.acquire())
        thing.waiter._log_destroy_pending = False
        await asyncio.sleep(0)
        assert pool.waiting_count == 1
        return weakref.ref(pool), weakref.ref(thing)

    seen = loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


class Hook:
    """A hook of which the pool is an attribute."""

    pool = None

    def __call__(self, resource=None):
        return Thing() if resource is None else None


@pytest.mark.parametrize(
    "name", ["factory", "destructor", "healthcheck", "before_acquire", "before_release"]
)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_cycle_through_a_hook_is_collected(name):
    hook = Hook()
    options = {"factory": Thing, name: hook}
    pool = hook.pool = cenote.Pool(options.pop("factory"), **options)
    async with pool.acquire() as thing:
        pass
    seen = weakref.ref(pool), weakref.ref(hook), weakref.ref(thing)
    del pool, hook, thing, options
    gc.collect()
    assert [reference() for reference in seen] == [None, None, None]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_cycle_through_an_acquire_is_collected():
    pool = cenote.Pool(Thing)
    thing = await pool.acquire()
    thing.unused, thing.used = pool.acquire(), pool.acquire()
    thing.other = await thing.used
    seen = weakref.ref(pool), weakref.ref(thing), weakref.ref(thing.other)
    del pool, thing
    gc.collect()
    assert [reference() for reference in seen] == [None, None, None]


@native_only
async def test_the_core_reports_idle_active_and_waiting(make_pool):
    pool = make_pool(Thing, max_size=3)
    held = [await pool.acquire() for _ in range(3)]
    waiter = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    assert waiter in {
        claim.task for claim in gc.get_referents(pool._engine.core) if is_claim(claim)
    }
    waiter.cancel()
    await asyncio.wait([waiter])
    await pool.release(held[0])
    reported = {slot.resource for slot in gc.get_referents(pool._engine.core) if is_slot(slot)}
    assert reported == set(held)
    for thing in held[1:]:
        await pool.release(thing)
    claim = _core.Claim()
    slot = pool._engine.core.take()
    pool._engine.core.reserve(claim, slot)
    assert claim in gc.get_referents(pool._engine.core)
    assert slot in gc.get_referents(claim)
    pool._engine.core.ask_again(claim)
    pool._engine.core.put(slot, 0.0)


def is_claim(thing):
    return isinstance(thing, _core.Claim)


def is_slot(thing):
    return isinstance(thing, _core.Slot)


MISUSE = """
import cenote
from cenote import _core, _fast
core = _core.Core(min_size=0, max_size=2, max_uses=None, max_idle=None, lifo=False,
                  recovering_limit=1, sync_factory=True)
wrong = [None, 3, "x", object(), core, _core.Claim()]
calls = 0
for name in dir(core):
    method = getattr(core, name)
    if name.startswith("_") or not callable(method):
        continue
    for args in [(), *[(a,) for a in wrong], *[(a, b) for a in wrong for b in wrong],
                 *[(a, b, 1.0) for a in wrong for b in wrong]]:
        calls += 1
        try:
            method(*args)
        except (TypeError, ValueError, RuntimeError, AttributeError):
            pass
for type_ in (_core.Claim, _core.Core, _core.Slot, _fast.Acquire, _fast.FastPath):
    try:
        type_(1, 2, 3)
    except TypeError:
        pass
print("survived", calls > 500)
"""


@native_only
def test_wrong_arguments_to_the_core_do_not_crash():
    result = run(MISUSE)
    assert (result.returncode, result.stdout) == (0, "survived True\n"), result.stderr


# Each ends in an exception, or does nothing; none takes the process with it.
STRANGE = """
import asyncio, gc, cenote
from cenote import _core, _fast

def new():
    return _core.Core(min_size=0, max_size=2, max_uses=None, max_idle=None, lifo=False,
                      recovering_limit=1, sync_factory=True)

def lease(core):
    slot, claim = core.permit(), _core.Claim()
    core.open_slot(slot, object())
    core.hold(claim, slot, 0.0)
    return slot, claim

def attempt(act, *args):
    try:
        act(*args)
    except (TypeError, ValueError, RuntimeError, AttributeError, OverflowError, StopIteration):
        pass

one, other = new(), new()
slot, claim = lease(one)
lease(other)
attempt(other.reclaim, slot)  # of another core
attempt(setattr, claim, "slot", None)  # by which it is found
attempt(one.reclaim, slot)
for thing in (one, slot, claim, _core.Claim()):
    for name in dir(thing):
        if not name.startswith("__"):
            for value in (None, "x", 2**70, thing):
                attempt(setattr, thing, name, value)
            attempt(delattr, thing, name)
            attempt(getattr, thing, name)

async def main():
    async with cenote.Pool(object, max_size=3) as pool:
        acquire = pool.acquire()
        thing = await acquire
        attempt(setattr, acquire, "slot", None)
        await acquire.__aexit__(None, None, None)
        for act in (acquire.send, acquire.throw, next, iter, type(acquire).__await__):
            attempt(act, None)
            attempt(act, acquire)
        for args in ((), (1,), (1, 2), (None, None, 3)):
            attempt(acquire.throw, *args)
            attempt(acquire.__aexit__, *args)
    bare = _fast.FastPath()
    for act in (bare.acquire, bare.try_acquire, len, repr):
        attempt(act)
    attempt(bare.release, thing)
    engine = _fast.EngineBase()
    attempt(_fast.give_back, engine, slot)
    attempt(engine.skips_check, slot, 0.0)
    attempt(setattr, bare, "_engine", 3)
    bare._engine = engine
    attempt(bare.try_acquire)
    engine.core = new()
    attempt(_fast.give_back, engine, slot)
    attempt(_fast.give_back, engine, None, True)
    attempt(_fast.give_back, bare, slot)
    attempt(engine.skips_check, slot, None)
    attempt(bare.try_acquire)
    attempt(bare.acquire().send, None)
    attempt(bare.release, thing)
    for name in dir(engine):
        if not name.startswith("__"):
            for value in (None, 3, "x", ()):
                attempt(setattr, engine, name, value)
                attempt(bare.try_acquire)
                attempt(lambda: bare.acquire().send(None))

asyncio.run(main())
del one, other, slot, claim
gc.collect()
print("survived")
"""


@native_only
def test_strange_use_of_the_internals_does_not_crash():
    result = run(STRANGE)
    assert (result.returncode, result.stdout) == (0, "survived\n"), result.stderr


async def test_a_pool_has_room_for_attributes_and_uses_none(make_pool):
    pool = make_pool(object, max_size=1)
    assert pool.__dict__ == {}
    pool.note = "mine"
    async with pool.acquire():
        assert pool.__dict__ == {"note": "mine"}
    alias = cenote.Pool[Thing]
    typed = alias(Thing)
    assert typed.__orig_class__ == alias
    assert typed.__dict__ == {}
    await typed.close()


async def test_a_subclass_may_override_what_the_pool_has(make_pool):
    calls = []

    class Counting(cenote.Pool):
        def try_acquire(self):
            calls.append("try_acquire")
            return super().try_acquire()

        def acquire(self, timeout=None):
            calls.append("acquire")
            return super().acquire(timeout)

    pool = Counting(object, max_size=1)
    async with pool:
        pool.release(pool.try_acquire())
        async with pool.acquire():
            pass
    assert calls == ["try_acquire", "acquire"]


@native_only
def test_the_class_of_a_pool_has_its_fast_methods_itself():
    for name in ("acquire", "try_acquire", "release"):
        assert vars(cenote.Pool)[name].__objclass__ is cenote.Pool
    with pytest.raises(TypeError):
        _fast.adopt(object)
    with pytest.raises(TypeError):
        _fast.adopt(3)


# The module is loaded again beside the first one, used, and dropped, alone and in cycles with what
# it made. In a sanitizer's build this also shows that nothing looks at a module that is gone.
RELOAD = """
import gc, importlib.util, weakref
import cenote
from cenote._core import native

def load():
    module = importlib.util.module_from_spec(native.__spec__)
    native.__spec__.loader.exec_module(module)
    return module

def use(module, cycle):
    core = module.Core(min_size=0, max_size=2, max_uses=None, max_idle=None, lifo=False,
                       recovering_limit=1, sync_factory=True)
    class Front(module.FastPath):
        pass
    front = Front()
    front._engine = module.EngineBase()
    front._engine.core = core
    waiting, unused, slot = module.Claim(), front.acquire(), core.permit()
    core.open_slot(slot, object())
    core.put(slot, 0.0)
    core.wait(waiting)
    if cycle:
        waiting.pin([module, core, front, slot])
        unused.pin([module, unused, front])

for cycle in (False, True) * 3:
    module = load()
    assert module.Core is not native.Core
    use(module, cycle)
    seen = [weakref.ref(module), weakref.ref(module.Core), weakref.ref(module.Acquire)]
    del module
    gc.collect()
    assert [each() for each in seen] == [None] * 3, (cycle, seen)
print("collected")
"""


@native_only
def test_a_module_that_is_loaded_again_is_collected():
    result = run(RELOAD)
    assert (result.returncode, result.stdout) == (0, "collected\n"), result.stderr


ANEW = """
import asyncio, gc, importlib, sys
import cenote

async def use(package):
    async with package.Pool(object, max_size=1) as pool:
        async def hold():
            async with pool.acquire():
                await asyncio.sleep(0)
        await asyncio.gather(*(hold() for _ in range(5)))

importlib.reload(sys.modules["cenote._core.native"])
asyncio.run(use(cenote))
first = cenote
for name in [name for name in sys.modules if name.partition(".")[0] == "cenote"]:
    del sys.modules[name]
import cenote
assert cenote.Pool is not first.Pool
assert cenote.core == first.core == "native"
asyncio.run(use(first))
asyncio.run(use(cenote))
del first
gc.collect()
asyncio.run(use(cenote))
print("both work")
"""


@native_only
def test_the_package_can_be_imported_anew():
    result = run(ANEW)
    assert (result.returncode, result.stdout) == (0, "both work\n"), result.stderr


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
CODE = '''
import asyncio, cenote
async def main():
    async with cenote.Pool(object, max_size=2) as pool:
        async with pool.acquire(), pool.acquire():
            assert pool.active_count == 2
asyncio.run(main())
assert cenote.core == "native"
'''
import cenote
for _ in range(3):
    interpreter = interpreters.create()
    error = interpreters.run_string(interpreter, CODE)
    assert error is None, error
    interpreters.destroy(interpreter)
exec(CODE)
# Not beyond this: 3.12.1 itself aborts at its end if asyncio was used in an interpreter before.
import os
print("fine", flush=True)
os._exit(0)
"""


@native_only
def test_the_module_works_in_subinterpreters():
    result = run(SUBINTERPRETER)
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stderr
