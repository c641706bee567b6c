"""After `os.fork()` the sessions of a database stay the parent's: the child neither uses nor ends
them, and has connections of its own."""

import os
from collections.abc import Iterator

import pytest

from tests.support import backends
from tests.support.backends import Backend
from tests.support.running import run_forking, running
from tests.support.servers import MariaDBServer, PostgresServer

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.own_loop,
    pytest.mark.driver,
]

PRELUDE = """
import asyncio, gc, logging, os, sys, warnings
import cenote

logging.getLogger("cenote").addHandler(logging.NullHandler())
warnings.simplefilter("ignore", cenote.TransactionScopeWarning)
url, session = sys.argv[1:]
db = cenote.Database(url, min_size=2, max_size=2)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def wait(child):
    say("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

async def ask():
    return await db.fetch_val(session) if session else None

async def child_uses():
    say("child", await db.fetch_val("select 41 + 1"))
    if session:
        say("own session", await ask() not in sessions)
    async with db.transaction():
        say("own transaction", db.in_transaction)

sessions = set()

async def prepare():
    async with db.transaction():
        sessions.add(await ask())
        sessions.add(await asyncio.create_task(ask()))

async def parent_goes_on():
    before = {*sessions}
    await prepare()
    say("parent", await db.fetch_val("select 1 + 1"), "same sessions", sessions == before)
    await db.close()
"""


@pytest.fixture(scope="module")
def postgres_with_tls() -> Iterator[PostgresServer]:
    yield from running(PostgresServer, tls=True)


@pytest.fixture(scope="module")
def mariadb_with_tls() -> Iterator[MariaDBServer]:
    yield from running(MariaDBServer, tls=True)


@pytest.fixture(params=["asyncpg", "psycopg", "mysql"])
def encrypted(request: pytest.FixtureRequest) -> Backend:
    name = request.param
    pytest.importorskip("asyncmy" if name == "mysql" else name)
    server = "mariadb_with_tls" if name == "mysql" else "postgres_with_tls"
    return getattr(backends, name)(request.getfixturevalue(server))  # type: ignore[no-any-return]


def run_script(backend: Backend, url: str, script: str) -> list[str]:
    return run_forking(PRELUDE, script, [url, backend.session])


CHILDREN = {
    "closes": 'asyncio.run(db.close()); say("closed", db.closed)',
    "uses and closes": "asyncio.run(child_uses()); asyncio.run(db.close())",
    "uses": "asyncio.run(child_uses())",
    "lets go": "del globals()['db']; gc.collect()",
}


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("what", CHILDREN)
def test_the_child_leaves_the_sessions_of_its_parent_alone(
    backend: Backend, what: str, place: str
) -> None:
    check(backend, backend.url, what, place)


@pytest.mark.parametrize("what", ["closes", "lets go"])
def test_the_child_sends_no_goodbye_by_tls(encrypted: Backend, what: str) -> None:
    check(encrypted, f"{encrypted.url}?sslmode=require", what, "outside")


def check(backend: Backend, url: str, what: str, place: str) -> None:
    lines = run_script(
        backend,
        url,
        f"""
        def fork():
            child = os.fork()
            if child == 0:
                {CHILDREN[what]}
                if {place == "inside"}:
                    os._exit(0)
                gc.collect()
                sys.exit(0)
            wait(child)

        async def main():
            await db.open()  # a fork while a thread of SQLite opens one may leave a lock behind
            await prepare()
            if {place == "inside"}:
                fork()

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        if {place == "outside"}:
            fork()
        loop.run_until_complete(parent_goes_on())
        loop.close()
        """,
    )
    expected = ["child ended with 0", "parent 2 same sessions True"]
    if what == "closes":
        expected.insert(0, "closed True")
    elif what.startswith("uses"):
        own = ["own session True"] if backend.session else []
        expected[:0] = ["child 42", *own, "own transaction True"]
    assert lines == expected


@pytest.mark.parametrize("end", ["os._exit(0)", "asyncio.run(db.close()); os._exit(0)"])
def test_what_the_parent_has_open_goes_on(backend: Backend, end: str) -> None:
    """A transaction, a statement and a stream, while the loop of the parent runs."""
    lines = run_script(
        backend,
        backend.url,
        f"""
        async def main():
            await db.execute("create table forked (a int)")
            rows = " union all ".join(f"select {{i}} as a" for i in range(300))
            try:
                async with db.transaction() as tx:
                    await db.execute("insert into forked values (1)")
                    async with await tx.prepare("insert into forked values (?)") as insert:
                        stream = tx.iterate(rows)
                        await anext(stream)
                        child = os.fork()
                        if child == 0:
                            say("inside", tx.is_open, db._loop_databases)
                            del stream, insert
                            gc.collect()
                            {end}
                        wait(child)
                        say("rest of the stream", len([row async for row in stream]))
                        await insert.execute([2])
                say("rows", await db.fetch_val("select count(*) from forked"))
            finally:
                await db.execute("drop table forked")
            await db.close()

        asyncio.run(main())
        """,
    )
    assert lines == [
        "inside False {}",
        "child ended with 0",
        "rest of the stream 299",
        "rows 2",
    ]


def test_the_child_has_a_database_in_memory_of_its_own() -> None:
    backend = Backend("sqlite", "sqlite:///:memory:", None)
    lines = run_script(
        backend,
        backend.url,
        """
        async def in_child():
            try:
                await db.execute("select * from t")
            except Exception as error:
                say(error)
            await db.execute("create table t (a int)")
            await db.close()

        async def main():
            async with db.transaction():
                await db.execute("create table t (a int)")
                child = os.fork()
                if child == 0:
                    asyncio.run(in_child())
                    os._exit(0)
                wait(child)
                await db.execute("insert into t values (1)")
            say("rows", await db.fetch_val("select count(*) from t"))
            await db.close()

        asyncio.run(main())
        """,
    )
    assert lines == ["no such table: t", "child ended with 0", "rows 1"]
