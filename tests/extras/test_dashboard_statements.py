"""What the dashboard shows of the statements of a database, and what it never shows."""

import asyncio
import gc
import json
import threading
import weakref

import pytest

import cenote
from cenote.extras.dashboard import statements
from cenote.extras.dashboard.statements import Totals, shape_of
from cenote.extras.task_names import TaskNames
from cenote.sql.dialects import MYSQL, POSTGRESQL, SQLITE
from cenote.sql.parsing.tokens import tokens
from tests.support.viewer import ACTIVE, scope, until, watching

app = cenote.dashboard.app


@pytest.fixture
def database(tmp_path):
    return cenote.Database(f"sqlite:///{tmp_path}/x.db", max_size=2, name="shop")


async def test_a_running_statement_is_shown_with_its_connection(database):
    begun, release = threading.Event(), threading.Event()

    def nap(_):
        begun.set()
        release.wait(10)
        return 1

    database.create_function("nap", 1, nap)
    application = app()
    async with database:
        await database.execute("create table orders (id int, note text)")
        await database.execute("insert into orders values (1, 'geheim')")
        task = asyncio.create_task(
            database.fetch_all(
                "select nap(?), 'geheim' from orders\n union select 42, 'x'", ["parameter"]
            )
        )
        await asyncio.to_thread(begun.wait, 10)
        async with watching(application) as viewer:
            (row,) = [row for row in viewer.tiles.values() if row[1] == ACTIVE]
            assert row[7] == "select nap(?), ? from orders union select ?, ?"
            assert row[8] <= viewer.messages[0]["now"]
            release.set()
            await task
            await until(lambda: all(row[7] is None for row in viewer.tiles.values()))
            sent = json.dumps(viewer.messages)
            assert "geheim" not in sent
            assert "parameter" not in sent


class Nap:
    """The function `nap()` of a database, which returns when it is let go."""

    def __init__(self, database):
        self.begun, self.release = threading.Event(), threading.Event()
        database.create_function("nap", 0, self)

    def __call__(self):
        self.begun.set()
        self.release.wait(10)
        return 1

    async def during(self, statement, look):
        """What `look` returns while the statement runs."""
        self.begun.clear()
        self.release.clear()
        task = asyncio.create_task(statement)
        try:
            await asyncio.to_thread(self.begun.wait, 10)
            return await look()
        finally:
            self.release.set()
            await task


NAP = "select nap() as nap"


async def in_a_handle(database, tx):
    await tx.fetch_val(NAP)


async def in_a_joined_task(database, tx):
    async with tx.join():
        await database.fetch_val(NAP)


@pytest.mark.parametrize("run", [in_a_handle, in_a_joined_task])
async def test_a_statement_of_another_task_is_shown_with_the_transaction(database, run):
    nap = Nap(database)
    async with database, watching(app()) as viewer, database.transaction() as tx:

        async def look():
            others = [asyncio.create_task(tx.execute("select 'geheim'")) for _ in range(2)]
            await until(lambda: any(row[7] for row in viewer.tiles.values()))
            shown = [(row[3], row[5], row[7]) for row in viewer.tiles.values()]
            nap.release.set()
            await asyncio.gather(*others)
            return shown

        assert await nap.during(run(database, tx), look) == [("test", "in a transaction", NAP)]
        await until(lambda: all(row[7] is None for row in viewer.tiles.values()))


async def test_a_statement_under_wait_for_is_shown_with_the_transaction(database):
    """On 3.11 another task runs it."""
    nap = Nap(database)
    async with database, watching(app()) as viewer:

        async def work():
            async with database.transaction():
                await asyncio.wait_for(database.fetch_val(NAP), 30)

        async def look():
            await until(lambda: any(row[7] == NAP for row in viewer.tiles.values()))

        await nap.during(work(), look)


async def test_a_statement_beside_a_stream_has_its_own_connection(database):
    nap = Nap(database)
    async with database, watching(app()) as viewer:
        await database.execute("create table t (a text)")
        await database.execute("insert into t values ('b'), ('b')")

        async def work():
            async with database.iterate("select a from t where a <> 'geheim'") as stream:
                await stream.start()
                await database.fetch_val(NAP)

        async def look():
            await until(lambda: any(row[7] == NAP for row in viewer.tiles.values()))
            return {row[5]: row[7] for row in viewer.tiles.values()}

        streaming = "stream is open (select a from t where a <> ?)"
        assert await nap.during(work(), look) == {None: NAP, streaming: None}


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.virtual_time
async def test_the_reason_of_a_pin_shows_no_data(database, shown):
    """It names the statement or stream that is open, with its text."""
    async with database, watching(app(statements=shown)) as viewer:
        async with await database.prepare("select 'geheim'"):
            await until(lambda: any(row[5] for row in viewer.tiles.values()))
            (reason,) = [row[5] for row in viewer.tiles.values() if row[5]]
            assert reason == ("statement is open (select ?)" if shown else "statement is open")
            late = [asyncio.create_task(database.pool.acquire(timeout=1)) for _ in range(2)]
            done = await asyncio.gather(*late, return_exceptions=True)
            assert isinstance(done[1], cenote.AcquireTimeoutError)
            await until(lambda: any(event[1] == "timeout" for event in viewer.events))
            database.pool.release(done[0])
        (line,) = [event[3] for event in viewer.events if event[1] == "timeout"]
        assert line.endswith(", statement is open")
        assert "geheim" not in json.dumps(viewer.messages)


async def test_the_statements_that_take_longest_come_first(database):
    application = app()
    async with database:
        await database.execute("create table t (a int)")
        for number in range(3):
            await database.execute("insert into t values (?)", [number])
            await database.fetch_all(f"select {number} from t")
        with pytest.raises(Exception, match="no such table"):
            await database.fetch_all("select 1 from missing")
        async with watching(application) as viewer:
            told = {row[0]: row for row in viewer.details["slowest"]}
    assert told["insert into t values (?)"][1] == 3
    assert told["select ? from t"][1] == 3
    assert told["select ? from missing"][4] == 1
    times = [row[1] * row[2] for row in viewer.details["slowest"]]
    assert times == sorted(times, reverse=True)
    for _, _, mean, longest, _ in told.values():
        assert 0 < mean <= longest


async def test_statements_can_be_switched_off(database):
    application = app(statements=False)
    async with database:
        await database.fetch_all("select 1")
        async with watching(application) as viewer:
            await database.fetch_all("select 2")
            assert "slowest" not in viewer.details
        assert not database._observers


async def test_without_a_dashboard_no_statement_is_observed(database, tmp_path):
    async with database:
        await database.fetch_all("select 1")
        assert not database._observers
        async with await cenote.serve_dashboard(port=0):
            assert len(database._observers) == 1
            later = cenote.Database(f"sqlite:///{tmp_path}/later.db", max_size=1)
            async with later:
                await later.fetch_all("select 1")
                assert len(later._observers) == 1
        assert not database._observers
        assert not later._observers


async def test_a_dropped_dashboard_observes_nothing_more(database, tmp_path):
    application = app()
    async with database:
        await database.fetch_all("select 1")
        async with watching(application):
            assert len(database._observers) == 1
        dropped = weakref.ref(application)
        del application
        gc.collect()
        assert dropped() is None
        assert not database._observers
        later = cenote.Database(f"sqlite:///{tmp_path}/later.db", max_size=1)
        async with later:
            await later.fetch_all("select 1")
            assert not later._observers


async def test_the_texts_that_are_counted_are_bounded(database, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(statements.time, "monotonic", lambda: float(next(clock)))
    totals = Totals(database)
    dear = totals("SELECT", "select a from dear")
    for number in range(5 * statements.TEXTS):
        totals("SELECT", f"select a from t{number}")(None)
    dear(None)
    assert len(totals._totals) <= statements.TEXTS
    assert totals.slowest()[0][0] == "select a from dear"
    assert len(totals.slowest()) == statements.SHOWN
    assert totals.running() == {}


@pytest.mark.parametrize(
    ("dialect", "said", "shown"),
    [
        (SQLITE, "select a where b = 'geheim' and c = 12.5", "select a where b = ? and c = ?"),
        (SQLITE, "select  a\n  from t -- geheim\n where b", "select a from t where b"),
        (SQLITE, 'select "a 1" from t1', 'select "a 1" from t1'),
        (POSTGRESQL, "select $tag$geheim$tag$, $1::int", "select ?, $1::int"),
        (POSTGRESQL, "update t set a = E'it\\'s geheim'", "update t set a = ?"),
        (MYSQL, "select 'it\\'s geheim' from t", "select \u2026"),
        (SQLITE, "select 'not closed geheim", "select ?"),
        (SQLITE, "", ""),
    ],
)  # fmt: skip
def test_data_in_the_text_is_not_shown(dialect, said, shown):
    assert shape_of(said, dialect) == shown


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRESQL, MYSQL])
def test_of_a_long_text_the_beginning_is_looked_at(dialect, monkeypatch):
    """A script of megabytes would hold up the event loop, and fill the cache."""
    seen = []
    monkeypatch.setattr(statements, "tokens", lambda *of: seen.append(of[0]) or tokens(*of))
    rows = ", ".join(f"({number}, 'geheim {number}')" for number in range(50_000))
    shown = shape_of(f"insert into orders values {rows}", dialect)
    assert shown.startswith("insert into orders values (?, ?), (?, ?), ")
    assert shown.endswith("\u2026")
    assert len(shown) <= 240
    assert max(map(len, seen)) <= statements.LOOKED_AT
    for end in range(statements.LOOKED_AT - 12, statements.LOOKED_AT + 12):  # cut off anywhere
        said = f"select{' ' * (end - 17)}'geheim', 12345"
        assert not {*shape_of(said, dialect)} & {*"ghim12345"}


async def test_a_request_names_its_task(make_pool):
    pool = make_pool(object, max_size=1)
    seen = []

    async def shop(request, receive, send):
        async with pool.acquire():
            seen.extend(holder.task for holder in pool.holders())

    task = asyncio.current_task()
    before = task.get_name()
    await TaskNames(shop)(scope("GET", "/orders/17", query="token=geheim"), None, None)
    assert seen == ["GET /orders/17"]
    assert task.get_name() == before

    async def fail(request, receive, send):
        raise ValueError

    with pytest.raises(ValueError):
        await TaskNames(fail)(scope("GET", "/" + 500 * "x"), None, None)
    assert task.get_name() == before
