"""Runs `async def` tests, each on a loop of its own, and looks at what they leave behind."""

import asyncio
import contextlib
import functools
import gc
import inspect
import signal
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import cenote
from cenote.pool import registry
from cenote.testing import Deadlocked, VirtualLoop, imbalance, settle
from tests.support import backends
from tests.support.backends import Backend
from tests.support.faults import FACTOR
from tests.support.rooms import ROOMS, room_of
from tests.support.running import running
from tests.support.servers import MariaDBServer, MySQLServer, PgBouncer, PostgresServer, RedisServer

Loop = asyncio.AbstractEventLoop
AsyncTest = Callable[..., Coroutine[Any, Any, None]]

POOLS = pytest.StashKey[list[cenote.Pool[Any]]]()

# A slow machine is not a failure. `make test` says the same of the same code each time; with
# CENOTE_FACTOR, as in `make check`, every run looks elsewhere.
hypothesis.settings.register_profile("cenote", deadline=None, derandomize=FACTOR == 1)
hypothesis.settings.load_profile("cenote")

# Of a run in the background of a script the programs that it starts would inherit to be deaf.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def core() -> str:
    return cenote.core


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What watches every pool of the process sees those of the test, and not what others left."""
    monkeypatch.setattr(registry, "_forkables", weakref.WeakSet())


@pytest.fixture
def make_pool(request: pytest.FixtureRequest) -> Callable[..., cenote.Pool[Any]]:
    """Builds a pool whose ledger is checked after the test, unless `check_ledger=False`."""
    pools = request.node.stash.setdefault(POOLS, [])

    def make(*args: Any, check_ledger: bool = True, **options: Any) -> cenote.Pool[Any]:
        pool = cenote.Pool(*args, **options)
        if check_ledger:
            pools.append(pool)
        return pool

    return make


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    yield from running(RedisServer)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    yield from running(PostgresServer)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    yield from running(MariaDBServer)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySQLServer]:
    """A real MySQL, which is not MariaDB."""
    yield from running(MySQLServer)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    if reason := PgBouncer.missing():
        pytest.skip(reason)
    with PgBouncer(postgres_server) as server:
        yield server


@pytest.fixture(params=["mariadb", "mysql"])
def mysql(request: pytest.FixtureRequest) -> Backend:
    """Both kinds of server of one driver; a real MySQL that is not there is skipped."""
    pytest.importorskip("asyncmy")
    return backends.mysql(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture(params=["sqlite", "asyncpg", "psycopg", "mysql"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Each database in turn; what is not installed is skipped, and says so."""
    name = request.param
    if name == "sqlite":
        return backends.sqlite(tmp_path)
    pytest.importorskip("asyncmy" if name == "mysql" else name)
    if name == "mysql":
        real = request.config.getoption("mysql") is not None
        return backends.mysql(request.getfixturevalue("mysql_server" if real else "mariadb_server"))
    make = backends.asyncpg if name == "asyncpg" else backends.psycopg
    return make(request.getfixturevalue("postgres_server"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=["virtual", "stock", "uvloop"],
        default="virtual",
        help="the event loop of the async tests (default: virtual)",
    )
    parser.addoption(
        "--exhibits",
        action="store_true",
        help="run the long tests too, those in tests/exhibits and those marked as exhibits",
    )
    parser.addoption(
        "--mysql",
        metavar="PATH",
        nargs="?",
        const=str(MySQLServer.root()),
        help="run what uses MariaDB by `backend` on the real MySQL in this tree (see `make mysql`)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if tree := config.getoption("mysql"):
        MySQLServer.tree = Path(tree)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name in ROOMS[room_of(item.path)]:
            item.add_marker(name)
        marker = item.get_closest_marker("real_time")
        if marker is not None and not marker.args:
            raise pytest.UsageError(f"{item.nodeid}: real_time must say why: real_time('...')")
    unfit = set()
    if config.getoption("loop") != "virtual":
        unfit.add("virtual_time")
    named = any("tests/exhibits" in Path(argument).as_posix() for argument in config.args)
    if not config.getoption("exhibits") and not named:
        unfit.add("exhibit")
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unfit)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_collection_finish() -> None:
    # Makes the collection after every async test cheap: what exists by now is not looked at.
    gc.collect()
    if hasattr(gc, "freeze"):  # not on PyPy
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        run(pyfuncitem, test, arguments)
        return True
    given = getattr(test, "hypothesis", None)
    # Unwrapped, because the parameters of a test share it, and each has pools of its own.
    if given is not None and inspect.iscoroutinefunction(inner := inspect.unwrap(given.inner_test)):
        given.inner_test = synchronous(pyfuncitem, inner)
    return None


def synchronous(item: pytest.Function, test: AsyncTest) -> Callable[..., None]:
    @functools.wraps(test)
    def example(**arguments: Any) -> None:
        run(item, test, arguments)

    return example


def run(item: pytest.Function, test: AsyncTest, arguments: dict[str, Any]) -> None:
    pools = item.stash.get(POOLS, [])
    faults: list[dict[str, Any]] = []
    loop = new_loop(item)

    def note(loop: Loop, fault: dict[str, Any]) -> None:
        faults.append(fault)
        # uvloop only reports what a signal handler raises, such as the end of pytest's patience.
        if isinstance(fault.get("exception"), pytest.fail.Exception):
            loop.stop()

    loop.set_exception_handler(note)
    try:
        loop.run_until_complete(loop.create_task(whole(test, arguments, pools), name="test"))
    except BaseException:
        if faults:
            item.add_report_section("call", "event loop", describe(faults))
        abandon(loop, pools)
        raise
    finally:
        pools.clear()
        shut(loop)
    # Tasks report an exception that nobody retrieved when they are collected.
    gc.collect()
    if faults:
        pytest.fail(f"the event loop reported:\n{describe(faults)}", pytrace=False)


def new_loop(item: pytest.Function) -> Loop:
    name = item.config.getoption("loop")
    if name == "uvloop":
        import uvloop

        loop: Loop = uvloop.new_event_loop()
        return loop
    if name == "stock" or item.get_closest_marker("real_time"):
        return asyncio.SelectorEventLoop()
    return VirtualLoop()


async def whole(test: AsyncTest, arguments: dict[str, Any], pools: list[cenote.Pool[Any]]) -> None:
    await test(**arguments)
    for pool in pools:
        await pool.close()
    await settle()
    for pool in pools:
        if wrong := imbalance(pool):
            pytest.fail(wrong, pytrace=False)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        lines = "\n".join(f"  {task!r}" for task in left)
        pytest.fail(f"the test left {len(left)} tasks behind:\n{lines}", pytrace=False)


def abandon(loop: Loop, pools: list[cenote.Pool[Any]]) -> None:
    """After a failed test: no second error may hide the first."""

    async def close(pool: cenote.Pool[Any]) -> None:
        async with asyncio.timeout(5):
            await pool.close()

    for pool in pools:
        with contextlib.suppress(Exception):
            loop.run_until_complete(close(pool))


def shut(loop: Loop) -> None:
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            with contextlib.suppress(Deadlocked):
                loop.run_until_complete(asyncio.wait(left, timeout=5))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def describe(faults: list[dict[str, Any]]) -> str:
    return "\n".join(f"  {fault}" for fault in faults)
