"""The contract between C and Python, checked from both sides."""

import ast
import asyncio
import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest

import cenote
from cenote._fast import contract, fastpath
from cenote.events import EventKind, Subscription
from cenote.states import AcquireState
from cenote.testing import settle

NATIVE = Path(cenote.__file__).parent / "_native"
# What C looks up by a name that is written at the call, and where that has to be. The C API calls
# what users call, and the steps of an acquire are a generator to Python.
WRITTEN = {
    ("pool", "close"): cenote.Pool,
    ("pool", "discard"): cenote.Pool,
    ("pool", "strategy"): cenote.Pool,
    ("pool", "subscribe"): cenote.Pool,
    ("claim->steps", "close"): Generator,
    ("claim->steps", "throw"): Generator,
    ("kinds", "ACQUIRED"): EventKind,
    ("kinds", "RELEASED"): EventKind,
    ("kinds", "WAITING"): EventKind,
    ("subscription", "callback"): Subscription,
    ("st->time_module", "monotonic"): time,
}

PAUSED, SLOW, OVER = AcquireState.PAUSED, AcquireState.SLOW, AcquireState.OVER
native_only = pytest.mark.skipif(cenote.core != "native", reason="the pure core is in use")


@native_only
def test_contract_lists_every_name_that_c_uses():
    from cenote._core import native

    listed = {(each.__name__, name) for each in contract.PROTOCOLS for name in contract.names(each)}
    assert {*native.names()} <= listed


@native_only
def test_c_uses_every_foreign_name_of_contract():
    """Of loop, task and future nothing is listed that nobody uses."""
    from cenote._core import native

    foreign = contract.Loop, contract.Task, contract.Future
    listed = {(each.__name__, name) for each in foreign for name in contract.names(each)}
    assert listed <= {*native.names()}


def test_c_writes_no_other_name_of_python():
    """Whatever is not in the contract is public, or of a type that C itself makes."""
    lookup = r"PyObject_(?:CallMethod|[A-Z]\w*AttrString)\(([^;\"]+), \"(\w+)\""
    found = {
        found
        for path in NATIVE.glob("*.c")
        for found in re.findall(lookup, path.read_text("utf-8"))
        if not found[0].startswith("(PyObject *)")  # of a type that C makes
    }
    assert found == WRITTEN.keys()
    for (_, name), owner in WRITTEN.items():
        assert hasattr(owner, name), name


def test_fast_path_uses_of_an_engine_what_is_listed():
    source = Path(fastpath.__file__).read_text("utf-8")
    used = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("engine", "self._engine")
    }
    calls = used - {*dir(fastpath.EngineBase)}
    listed = contract.names(contract.SlowPath)
    assert calls <= listed
    by_c = re.findall(r"st->s_(\w+)", "".join(map(Path.read_text, NATIVE.glob("*.c"))))
    assert listed <= calls | {*by_c}


@native_only
def test_both_engines_have_the_same_fields():
    from cenote._core import native

    fields, fields_of_c = ({name for name in dir(base) if not name.startswith("_")}
                           for base in (fastpath.EngineBase, native.EngineBase))  # fmt: skip
    assert fields == fields_of_c


def test_a_class_that_lacks_a_name_is_refused_by_name():
    complete = dict.fromkeys(contract.names(contract.SlowPath))
    contract.provides(contract.SlowPath)(type("Complete", (), complete))
    for name in complete:
        lacking = {each: None for each in complete if each != name}
        with pytest.raises(TypeError, match=f"Lacking lacks {name} of SlowPath"):
            contract.provides(contract.SlowPath)(type("Lacking", (), lacking))


def test_names_of_a_protocol_are_its_own():
    assert contract.names(contract.Future) == {"done", "set_result"}
    assert contract.names(contract.Waiter) == {"over", "inspection", "inspected", "wake"}


async def test_every_waiter_of_a_pool_keeps_the_contract(make_pool):
    pool = make_pool(object, max_size=1)
    async with pool.acquire():
        waiting = asyncio.ensure_future(pool.acquire())
        await settle()
        waiter = pool._engine.core.first.waiter
        for name in contract.names(contract.Waiter):
            assert hasattr(waiter, name), name
    pool.release(await waiting)


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_subscriber_does_not_change_which_code_waits(make_pool, timeout):
    waiters, events = [], []
    for subscribe in (False, True):
        pool = make_pool(object, max_size=1)
        if subscribe:
            pool.subscribe(lambda event: events.append((event.kind, event.task, event.duration)))
        async with pool.acquire():
            task = asyncio.create_task(take(pool, timeout), name="waiter")
            await settle()
            claim = pool._engine.core.first
            waiters.append((type(claim.waiter), claim.waiter is claim, claim.deadline is None))
        await task
    assert waiters[0] == waiters[1]
    assert waiters[0][1] is (cenote.core == "native")
    assert ("waiting", "waiter", None) in events
    assert [kind for kind, task, _ in events if task == "waiter"] == [
        "waiting",
        "acquired",
        "released",
    ]


WATCHING = {
    "nothing": {},
    "hold_warning": {"hold_warning": 60.0},
    "sync before_acquire": {"before_acquire": lambda resource: True},
    "sync before_release": {"before_release": lambda resource: True},
    "async destructor": {"destructor": lambda resource: asyncio.sleep(0)},
    "strategy": {"strategy": cenote.ConsecutiveFailures(3)},
}


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize("watching", WATCHING)
async def test_watching_does_not_change_which_code_waits(make_pool, watching, subscribed, timeout):
    pool = make_pool(object, max_size=1, **WATCHING[watching])
    if subscribed:
        pool.subscribe(lambda event: None)
    async with pool.acquire():
        acquire = pool.acquire(timeout=timeout)
        task = asyncio.ensure_future(acquire)
        await settle()
        assert acquire.stage is (PAUSED if cenote.core == "native" else SLOW)
    pool.release(await task)
    assert acquire.stage is OVER


async def take(pool, timeout):
    async with pool.acquire(timeout=timeout):
        pass
