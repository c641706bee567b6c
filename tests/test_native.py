"""Which core is in use, and what the types of the native one promise the garbage collector."""

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import weakref

import pytest

import cenote
from cenote import _core

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
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_where_there_is_a_compiler_the_core_is_native():
    wanted = (
        sys.implementation.name == "cpython"
        and HAS_COMPILER
        and os.environ.get("CENOTE_PURE") != "1"
    )
    assert cenote.core == ("native" if wanted else "pure")


def test_the_pure_core_can_be_chosen():
    result = run("import cenote; print(cenote.core)", CENOTE_PURE="1")
    assert result.stdout == "pure\n", result.stderr


def test_the_header_is_where_get_include_says():
    assert os.path.isfile(os.path.join(cenote.get_include(), "cenote.h"))


@native_only
def test_the_types_are_those_of_the_native_module():
    from cenote._core import native

    assert (_core.Core, _core.Acquire) == (native.Core, native.Acquire)
    assert issubclass(cenote.Pool, native.Front)


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
def test_a_cycle_through_a_waiter_of_a_closed_loop_is_collected():
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


MISUSE = """
import cenote
from cenote import _core
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
for type_ in (_core.Claim, _core.Core, _core.Slot, _core.Acquire, _core.Front):
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
print("fine")
"""


@native_only
def test_it_works_in_subinterpreters():
    result = run(SUBINTERPRETER)
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stderr
