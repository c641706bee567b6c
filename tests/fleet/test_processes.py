"""Real processes on the ledger of this host and a real PostgreSQL that lets in no more than the
budget: one connection too many is an error in the server's log."""

import asyncio
import contextlib
import itertools
import signal

import pytest

from cenote.testing import FaultProxy
from tests.support.fleet_process import FleetProcess
from tests.support.waiting import WAIT

pytest.importorskip("asyncpg")
pytestmark = [
    pytest.mark.real_time("talks to real processes and servers"),
    pytest.mark.driver,
    pytest.mark.once,  # the processes have loops of their own
]

BUDGET = 12
numbers = itertools.count(1)


class Site:
    """A server with a role for so many connections, and processes that share them."""

    def __init__(self, server, directory, budget=BUDGET):
        self.budget = budget
        self.server = server
        self.path = str(directory / "fleet")
        self.role = f"worker{next(numbers)}"
        self.stack = contextlib.AsyncExitStack()
        self.began = 0

    async def __aenter__(self):
        import asyncpg

        self.watcher = await asyncpg.connect(self.server.url)
        await self.watcher.execute(f"create role {self.role} login connection limit {self.budget}")
        self.began = len(self.log())
        return self

    async def __aexit__(self, kind, *_):
        await self.stack.aclose()
        await self.watcher.close()
        if kind is None:
            assert self.refusals() == []

    def log(self):
        return (self.server.directory / "log").read_text(errors="replace")

    def refusals(self):
        """What the server has refused since the beginning."""
        return [line for line in self.log()[self.began :].splitlines() if "too many" in line]

    async def process(self, most=10, least=1, database=None, **options):
        """`database`: the URL of the server, if not its socket."""
        options = {"budget": self.budget, "ttl": 2.0, "path": self.path, "name": "shop", **options}
        url = (database or self.server.url).replace("postgres@", f"{self.role}@")
        process = FleetProcess(url, least=least, most=most, **options)
        return await self.stack.enter_async_context(process)

    async def two_processes(self, **options):
        return await asyncio.gather(self.process(**options), self.process(**options))

    async def sessions(self):
        return await self.watcher.fetchval(
            "select count(*) from pg_stat_activity where usename = $1", self.role
        )


async def until(condition):
    """Wait until what this coroutine function returns is true."""
    async with asyncio.timeout(WAIT):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
def site(postgres_server, tmp_path):
    return Site(postgres_server, tmp_path)


async def counts(*processes):
    return [await each.count() for each in processes]


async def has(process, number):
    return (await process.count())["occupied"] >= number


async def has_open(process, number):
    return (await process.count())["open"] >= number


async def test_what_one_process_does_not_use_another_has(site):
    async with site:
        first, second = await site.two_processes()
        await first.ask("work", 20, 0.05)
        await until(lambda: has(first, 10))
        await first.ask("work", 0, 0.05)
        await second.ask("work", 20, 0.05)
        await until(lambda: has(second, 10))
        assert (await first.count())["occupied"] <= 2
        for process in (first, second):
            assert (await process.count())["errors"] == []


async def test_a_killed_process_returns_what_it_had(site):
    async with site:
        first, second = await site.two_processes()
        await first.ask("work", 20, 0.05)
        await until(lambda: has(first, 10))
        await second.ask("work", 20, 0.05)
        await until(lambda: has(second, 6))
        await first.kill()
        await until(lambda: has(second, 10))
        assert len(await second.ask("members")) == 1
        assert (await second.count())["errors"] == []


async def test_a_paused_process_keeps_what_it_had(site):
    async with site:
        first, second = await site.two_processes(ttl=0.5)
        for process in (first, second):
            await process.ask("work", 20, 0.05)
        await until(lambda: has(first, 6))
        await until(lambda: has(second, 6))
        first.signal(signal.SIGSTOP)
        await asyncio.sleep(1.5)  # three times the ttl: with this ledger only death ends a lease
        try:
            members = await second.ask("members")
            assert sum(each for _, each in members) <= BUDGET
            assert len(members) == 2
        finally:
            first.signal(signal.SIGCONT)
        before = await first.count()
        await until(lambda: serves(first))
        assert before["errors"] == (await second.count())["errors"] == []


async def serves(process):
    return (await process.count())["served"] > 0


async def test_a_deploy_works_without_an_error(site):
    async with site:
        old = await asyncio.gather(*(site.process() for _ in range(2)))
        for process in old:
            await process.ask("work", 10, 0.05)
        await until(lambda: everybody_serves(old))
        new = await asyncio.gather(*(site.process() for _ in range(2)))
        for process in new:
            await process.ask("work", 10, 0.05)
        await until(lambda: everybody_serves(new))
        for process in old:
            assert (await process.count())["errors"] == []
        await asyncio.gather(*(process.ask("close") for process in old))
        await until(lambda: all_have(new, 6))
        for process in new:
            assert (await process.count())["errors"] == []


async def everybody_serves(processes):
    return all([await serves(each) for each in processes])


async def all_have(processes, number):
    return all([await has(each, number) for each in processes])


async def test_more_processes_than_budget_take_turns(postgres_server, tmp_path):
    async with Site(postgres_server, tmp_path, 2) as site:
        processes = await asyncio.gather(*(site.process(least=0) for _ in range(4)))
        for process in processes:
            await process.ask("work", 2, 0.05)
        seen = set()

        async def all_served():
            for process in processes:
                if await serves(process):
                    seen.add(process.pid)
            return len(seen) == len(processes)

        await until(all_served)
        assert await site.sessions() <= 2


async def test_who_is_paused_beyond_the_ttl_is_counted(postgres_server, redis_server, tmp_path):
    """With Redis only the server knows what a silent process has."""
    async with Site(postgres_server, tmp_path) as site:
        options = {"url": redis_server.url, "path": None, "ttl": 1.0, "name": site.role}
        first, second = await site.two_processes(**options)
        await first.ask("work", 20, 0.05)
        await until(lambda: has_open(first, 10))
        first.signal(signal.SIGSTOP)
        await second.ask("work", 20, 0.05)

        async def is_silent():
            return len(await second.ask("silent")) == 1

        async def is_full():
            return await site.sessions() == BUDGET

        await until(is_silent)
        await until(is_full)  # and nobody is refused
        first.signal(signal.SIGCONT)
        await until(lambda: serves(first))
        await until(lambda: has(second, 6))
        assert (await first.count())["errors"] == (await second.count())["errors"] == []


async def test_what_a_paused_process_was_opening_stays_charged(
    postgres_server, redis_server, tmp_path
):
    """The server does not know yet whose they are, and finishes them when the process goes on."""
    with FaultProxy(postgres_server.host, postgres_server.port) as line:
        async with Site(postgres_server, tmp_path) as site:
            await site.watcher.execute(f"alter role {site.role} password 'secret'")
            await site.watcher.execute(f"alter role {site.role} set log_statement = 'all'")
            options = {"url": redis_server.url, "path": None, "ttl": 1.0, "name": site.role}
            url = postgres_server.tcp_url(user=site.role, password="secret")
            url = url.replace(f":{postgres_server.port}/", f":{line.port}/")
            first = await site.process(**options, database=url)
            second = await site.process(most=BUDGET, **options)
            line.hold_replies()
            await first.ask("work", 20, 0.05)
            await until(lambda: has(first, 5))
            assert (await first.count())["open"] == 1  # four are being opened, which is the most
            first.signal(signal.SIGSTOP)
            line.hold_replies(False)
            await second.ask("work", 20, 0.05)

            async def is_counted_often():
                return site.log()[site.began :].count("where application_name like") >= 6

            await until(is_counted_often)
            await until(lambda: has_open(second, BUDGET - 1 - 4))
            assert await site.sessions() == BUDGET - 4
            first.signal(signal.SIGCONT)
            await until(lambda: serves(first))
            await until(lambda: has_open(second, 6))
            assert (await first.count())["errors"] == (await second.count())["errors"] == []


async def test_a_forked_child_is_a_member_of_its_own(site):
    async with site:
        first = await site.process()
        await first.ask("work", 5, 0.05)
        await until(lambda: serves(first))
        assert await first.ask("fork") == [7, 1]
        await until(lambda: serves(first))
        assert len(await first.ask("members")) == 1
        assert (await first.count())["errors"] == []
