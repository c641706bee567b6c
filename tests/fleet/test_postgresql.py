"""Fleets in PostgreSQL: several hosts, each with a file of its own, on a real server."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

import cenote
from cenote.fleet import postgresql
from cenote.fleet.hosts import session_prefix
from cenote.fleet.ledger import LedgerConfig, LedgerConfigError, LedgerError
from cenote.fleet.loading import new_ledger
from cenote.fleet.postgresql import HostNotes
from cenote.fleet.view import share_of
from cenote.testing import FaultProxy
from tests.support.pool_load import Load
from tests.support.servers import PASSWORD, PostgresServer
from tests.support.waiting import WAIT, eventually

BUDGET = 20


class Backend:
    """What the pools of all hosts connect to."""

    def __init__(self):
        self.there = set()
        self.most = 0

    def connect(self):
        thing = object()
        self.there.add(thing)
        self.most = max(self.most, len(self.there))
        return thing


class World:
    """Hosts, each with processes, of which each has one pool."""

    def __init__(self, url, tmp_path, name):
        self.url, self.tmp_path, self.name = url, tmp_path, name
        self.backend = Backend()
        self.stack = contextlib.AsyncExitStack()

    async def __aenter__(self):
        await self.stack.__aenter__()
        return self

    async def __aexit__(self, *what):
        await self.stack.__aexit__(*what)

    def fleet(self, host, **options):
        fleet = cenote.Fleet(self.url, **{"budget": BUDGET, "name": self.name, "ttl": 5, **options})
        ledger = replace(fleet._config.ledger, path=str(self.tmp_path / host))
        fleet._config = replace(fleet._config, ledger=ledger, host=host)
        return fleet

    async def pool(self, host, fleet=None, **options):
        pool = cenote.Pool(
            self.backend.connect, destructor=self.backend.there.discard,
            fleet=fleet or self.fleet(host), **{"max_size": BUDGET, "name": host, **options},
        )  # fmt: skip
        await self.stack.enter_async_context(pool)
        return pool


@pytest.fixture(params=["asyncpg", "psycopg"])
def url(request, postgres_server):
    pytest.importorskip(request.param)
    return postgres_server.tcp_url().replace("postgresql:", f"postgresql+{request.param}:")


@pytest.fixture
def world(url, tmp_path, request):
    return World(url, tmp_path, request.node.name.translate(str.maketrans("[]", ".."))[-64:])


async def sessions(world):
    """The sessions of the fleet at the server."""
    async with cenote.Database(world.url, max_size=1) as db:
        rows = await db.fetch_all(
            "select pid from pg_stat_activity "
            "where left(application_name, 16) = ? and datname = current_database()",
            [session_prefix(world.name)],
        )
    return {row[0] for row in rows}


async def kill(world, *processes):
    async with cenote.Database(world.url, max_size=1) as db:
        for process in processes:
            await db.fetch_val("select pg_terminate_backend(?)", [process])


def ledger_of(fleet):
    """The ledger of a fleet in the running loop."""
    (loop_fleet,) = fleet._loops.values()
    return loop_fleet.ledger


async def test_one_host_has_all_it_needs(world):
    async with world:
        pool = await world.pool("one")
        load = Load(pool, BUDGET)
        await eventually(lambda: pool.active_count == BUDGET)
        await load.end()


async def test_a_new_host_has_its_first_resource_without_waiting(world, monkeypatch):
    monkeypatch.setattr(postgresql, "ORPHANED", 1000.0)  # until then it takes the floor at most
    async with world:
        fleet = world.fleet("one", ttl=1000)  # nothing comes of a beat
        async with asyncio.timeout(WAIT):
            pool = await world.pool("one", fleet, min_size=2)
        assert (pool.count, pool.max_size) == (2, 2)


async def test_resources_move_from_host_to_host(world):
    async with world:
        one, two = await world.pool("one"), await world.pool("two")
        for first, second in [(one, two), (two, one), (one, two)]:
            load = Load(first, BUDGET)
            await eventually(lambda: first.active_count >= BUDGET - 1)  # noqa: B023
            await load.end()
            assert second.max_size <= BUDGET
        assert world.backend.most <= BUDGET


@pytest.mark.parametrize(
    "hosts", [["one", "two"], ["one", "two", "two", "two"]], ids=["alike", "unlike"]
)
async def test_the_budget_is_shared_by_processes_and_not_by_hosts(world, hosts):
    async with world:
        pools = [await world.pool(host) for host in hosts]
        stop = asyncio.Event()

        async def traffic(pool):
            while not stop.is_set():
                async with pool.acquire():
                    await asyncio.sleep(0.002)

        tasks = [asyncio.create_task(traffic(pool)) for pool in pools for _ in range(BUDGET)]
        await eventually(lambda: {pool.max_size for pool in pools} == {BUDGET // len(pools)})
        stop.set()
        await asyncio.gather(*tasks)
        assert world.backend.most <= BUDGET


async def test_a_host_has_one_session_whatever_its_processes(world):
    async with world:
        pools = [await world.pool(host) for host in ("one", "one", "one", "two", "two")]
        await eventually(lambda: all(pool.max_size for pool in pools))
        looking = world.fleet("one")
        await eventually_async(lambda: hosts_of(looking), {"one", "two"})
        assert len(await sessions(world)) == 2
        assert sum(each.held for each in await looking.members()) <= BUDGET
    await eventually_async(lambda: sessions(world), set())


async def hosts_of(fleet):
    return {each.host for each in await fleet.members()}


async def eventually_async(ask, expected):
    while await ask() != expected:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_session_that_is_killed_is_made_again(world):
    async with world:
        one, two = await world.pool("one"), await world.pool("two")
        load = Load(one, BUDGET - 1)
        await eventually(lambda: one.active_count == BUDGET - 1)
        before = await sessions(world)
        await kill(world, *before)
        while len((await sessions(world)) - before) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await load.end()
        load = Load(two, BUDGET - 1)
        await eventually(lambda: two.active_count == BUDGET - 1)
        await load.end()
        assert world.backend.most <= BUDGET


async def test_a_good_session_is_made_again_at_once(world, monkeypatch):
    """Others leave its locks alone for a second only."""
    async with world:
        fleet = world.fleet("one", ttl=1)
        await world.pool("one", fleet)
        before = await sessions(world)
        await asyncio.sleep(1.5 * ledger_of(fleet).beat)  # it has worked for longer than a beat
        monkeypatch.setattr(postgresql.random, "uniform", lambda low, high: 1e6 * high)
        await kill(world, *before)
        while not (await sessions(world)) - before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_next_process_takes_over_when_one_leaves(world):
    async with world:
        first, second = world.fleet("one"), world.fleet("one")
        leaving = await world.pool("one", first)
        staying = await world.pool("one", second)
        other = await world.pool("two")
        load = Load(staying, 8)
        await eventually(lambda: staying.active_count == 8)
        wish = Load(other, BUDGET)
        assert ledger_of(first)._agent is not None
        await leaving.close()
        await eventually(lambda: ledger_of(second)._session is not None)
        await eventually(lambda: other.active_count == BUDGET - 8)
        assert world.backend.most <= BUDGET
        await load.end()
        await eventually(lambda: other.active_count == BUDGET - 1)
        await wish.end()


async def test_the_next_process_takes_over_when_one_dies(world):
    async with world:
        first, second = world.fleet("one"), world.fleet("one")
        dying = await world.pool("one", first)
        staying = await world.pool("one", second)
        other = await world.pool("two")
        load = Load(staying, 8)
        await eventually(lambda: staying.active_count == 8)
        wish = Load(other, BUDGET)
        ledger = ledger_of(first)
        session = ledger._session
        assert dying.count == 0
        ledger._agent.cancel()
        ledger._let_go()  # the locks of a process end with it, and so does its session
        session.end()
        await eventually(lambda: ledger_of(second)._session is not None)
        await eventually(lambda: other.active_count >= BUDGET - 8 - 1)
        assert world.backend.most <= BUDGET
        await load.end()
        await wish.end()


async def test_without_the_server_all_go_on_and_come_back(tmp_path):
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    with PostgresServer() as server:
        world = World(server.tcp_url(), tmp_path, "away")
        async with world:
            fleet = world.fleet("one", ttl=1)
            one = await world.pool("one", fleet)
            await one.release(await one.acquire())
            await eventually(lambda: one.max_size == BUDGET)
            server.stop()
            for _ in range(3):
                await one.release(await one.acquire())
            await eventually(lambda: ledger_of(fleet)._session is None)
            await one.release(await one.acquire())
            server.start()
            await eventually(lambda: ledger_of(fleet)._session is not None)
            await eventually(lambda: one.max_size == BUDGET)
            assert len(await fleet.members()) == 1


async def opening(url, tmp_path):
    ledger = new_ledger(LedgerConfig(url, "wrong", 5.0, str(tmp_path / "one")))
    await ledger.open(lambda news: None)


async def test_a_pooler_in_transaction_mode_is_refused(pgbouncer, tmp_path):
    with pytest.raises(LedgerConfigError, match="is a pooler in transaction mode") as caught:
        await opening(pgbouncer.url, tmp_path)
    assert PASSWORD not in str(caught.value)


async def test_a_wrong_password_is_said_at_once(url, tmp_path):
    with pytest.raises(LedgerConfigError, match="password authentication failed"):
        await opening(url.replace("//app:", "//nobody:"), tmp_path)


@pytest.mark.parametrize("ttl", [5.0, 50.0])
async def test_a_server_that_is_away_is_said(tmp_path, ttl):
    fleet = World("postgresql://app@127.0.0.1:1/app", tmp_path, "away").fleet("one", ttl=ttl)
    with pytest.raises(LedgerError, match=r"127\.0\.0\.1"):
        await fleet.members()


async def test_a_new_process_without_any_answer_has_its_floor(postgres_server, tmp_path):
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        proxy.black_hole()
        place = f"{postgres_server.host}:{postgres_server.port}"
        url = postgres_server.tcp_url().replace(place, f"{proxy.host}:{proxy.port}")
        async with World(url, tmp_path, "silent") as world:
            pool = await world.pool("one", world.fleet("one"))
            assert pool.max_size == 1


async def test_who_joins_a_host_without_a_session_has_its_floor(postgres_server, tmp_path):
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        place = f"{postgres_server.host}:{postgres_server.port}"
        url = postgres_server.tcp_url().replace(place, f"{proxy.host}:{proxy.port}")
        async with World(url, tmp_path, "joining") as world:
            first = await world.pool("one", world.fleet("one", ttl=1))
            await eventually(lambda: first.max_size == BUDGET)
            proxy.black_hole()
            await eventually(lambda: not share_of(first).reachable)
            second = await world.pool("one", world.fleet("one", ttl=1), min_size=2)
            assert second.max_size == 2


def test_a_wrong_url_is_refused_before_anything_is_connected(tmp_path):
    with pytest.raises(ValueError, match="url has the unknown option 'x'"):
        new_ledger(LedgerConfig("postgresql://app@db/app?x=1", "wrong", 5.0, None))


async def test_a_session_that_is_lost_for_long_is_said(url, tmp_path):
    ledger = new_ledger(LedgerConfig(url, "lost", 5.0, str(tmp_path / "one")))
    await ledger.open(lambda news: None)
    others = await ledger._others()
    now = ledger._clock()
    ledger._check(others)
    others.last = replace(others.last, pool=HostNotes(lost=now - 1).encode(), since=now - 100)
    ledger._check(others)  # there is a session, or will be: an agent that is paused has one
    others.last = replace(others.last, pool=HostNotes(lost=now - 3).encode())
    with pytest.raises(LedgerError, match="no session at the server for 3 s"):
        ledger._check(others)
    await ledger.close()


async def test_closing_is_no_failure_of_the_session(url, tmp_path, caplog):
    ledger = new_ledger(LedgerConfig(url, "closing", 5.0, str(tmp_path / "one")))
    await ledger.open(lambda news: None)
    failed = asyncio.Event()

    async def note_loss(error=""):
        failed.set()

    async def clear():
        """Closing waits for this; the agent decides meanwhile."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ledger._stirred.set()
            await failed.wait()

    ledger._note_loss = note_loss
    ledger._clearing = asyncio.create_task(clear())
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT):
        await ledger.close()
    assert failed.is_set()
    assert caplog.messages == []


def test_servers_behind_sockets_have_files_of_their_own():
    names = {
        new_ledger(LedgerConfig(url, "shop", 5.0))._config.name
        for url in (
            "postgresql://app@/shop?host=/run/one",
            "postgresql://app@/shop?host=/run/two",
            "postgresql://app@/shop?host=/run/two&port=5433",
            "postgresql://app@db/shop",
            "postgresql://app@db:5433/shop",
            "postgresql://app@db/other",
        )
    }
    assert len(names) == 6
