"""What a viewer of the dashboard is sent: pools, tiles, events, and no credentials."""

import asyncio
import gc
import json
import time
import weakref

import pytest

import cenote
from cenote.extras.dashboard import collector as collecting
from cenote.extras.dashboard import text
from cenote.extras.dashboard.statements import Running
from cenote.extras.dashboard.tiles import Tiles
from cenote.observe import SlotView
from cenote.testing import advance, settle
from tests.support.kit import Gate, Thing, line
from tests.support.viewer import (
    ACTIVE,
    CREATING,
    DESTROYING,
    HOOK,
    IDLE,
    until,
    use_virtual_clocks,
    watching,
)

app = cenote.dashboard.app


async def test_slots_holders_and_waiters_are_shown(make_pool):
    pool = make_pool(Thing, max_size=2, name="main")
    a = await pool.acquire()
    b, place = await pool.acquire(), line()
    task = asyncio.create_task(pool.acquire(timeout=9), name="patient")
    await settle()
    async with watching(app()) as viewer:
        assert viewer.states == [ACTIVE, ACTIVE]
        assert {row[3] for row in viewer.tiles.values()} == {"test"}
        assert any(
            row[4].endswith(f"test_dashboard_view.py:{place}") for row in viewer.tiles.values()
        )
        ((name, where, since, deadline, lane),) = viewer.details["waiters"]
        assert lane is None
        assert name == "patient"
        assert "test_dashboard_view.py:" in where
        assert deadline - since == pytest.approx(9000, abs=2)
        summary = viewer.pool("main")
        assert (summary["active"], summary["waiting"], summary["max"]) == (2, 1, 2)
    pool.release(a)
    pool.release(b)
    pool.release(await task)


async def test_a_pinned_connection_shows_its_reason(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    database = cenote.Database(url, max_size=2)
    async with database, database.transaction(), watching(app()) as viewer:
        pinned = [row for row in viewer.tiles.values() if row[1] == ACTIVE]
        assert [row[5] for row in pinned] == ["in a transaction"]
        assert viewer.pool(url)["active"] == 1


@pytest.mark.virtual_time
async def test_every_state_has_its_tile(make_pool):
    opening, checking, ending = Gate(Thing), Gate(), Gate()
    pool = make_pool(opening, before_release=checking, destructor=ending, max_size=3, name="p")
    async with watching(app()) as viewer:
        first = asyncio.create_task(pool.acquire(), name="first")
        await advance(1)
        assert viewer.states == [CREATING]
        opening.open()
        thing = await first
        await advance(1)
        assert viewer.states == [ACTIVE]
        released = pool.release(thing)
        await advance(1)
        assert viewer.states == [HOOK]
        checking.open()
        await released
        await advance(1)
        assert viewer.states == [IDLE]
        assert viewer.tiles[0][6] == 1  # use
        retired = pool.retire()
        await advance(1)
        assert viewer.states == [DESTROYING]
        ending.open()
        await retired
        await advance(1)
        assert viewer.states == []
        assert viewer.pool("p")["destroyed"] == {"retired": 1}
        kinds = [event[1] for event in viewer.events]
        assert kinds == ["opened", "created", "destroyed"]


@pytest.mark.virtual_time
async def test_only_what_changed_is_sent(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing, min_size=50, max_size=50)
    await pool.open()
    async with watching(app(interval=0.5)) as viewer:
        assert len(viewer.messages[0]["details"]["tiles"]) == 50
        await advance(0.5)
        viewer.messages.clear()
        thing = await pool.acquire()
        await advance(0.5)
        (message,) = viewer.messages
        assert len(message["details"]["tiles"]) == 1
        assert "full" not in message
        pool.release(thing)


@pytest.mark.virtual_time
@pytest.mark.parametrize("uptime", [0.0, 900.0, 1e6])
async def test_distributions_and_samples_are_sent(make_pool, monkeypatch, uptime):
    """Until it is opened, a pool reads the clock of the machine, which may just have started."""
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: uptime)
        pool = make_pool(Thing, max_size=1, name="timed")
    use_virtual_clocks(monkeypatch)
    async with watching(app(), query="name=timed") as viewer:
        for _ in range(10):
            async with pool.acquire():
                await advance(0.2)
        await advance(1)
        await until(lambda: sum(viewer.details["waits"]) == 10)
        assert sum(viewer.details["holds"]) == 10
        assert viewer.details["waits"][0] == 10  # at once
        bounds = viewer.messages[0]["bounds"]
        (bucket,) = [index for index, count in enumerate(viewer.details["holds"]) if count]
        assert bounds[bucket - 1] <= 0.2 < bounds[bucket]
        samples = [
            sample
            for message in viewer.messages
            for sample in message.get("samples", {}).get(str(viewer.pool("timed")["id"]), ())
        ]
        assert max(sample[1] for sample in samples) == pytest.approx(5, abs=1)
        await advance(400)
        assert sum(viewer.details["holds"]) == 0  # old news


async def test_the_breaker_and_its_history(make_pool):
    pool = make_pool(Thing, strategy=cenote.ConsecutiveFailures(), name="p")
    pool.deactivate()  # before anybody watched
    async with watching(app()) as viewer:
        breaker = viewer.details["breaker"]
        assert breaker["strategy"] == "ConsecutiveFailures"
        assert [change[1] for change in breaker["changes"]] == ["INACTIVE"]
        pool.activate()
        await until(lambda: len(viewer.details["breaker"]["changes"]) == 2)
        changes = viewer.details["breaker"]["changes"]
        assert [change[1] for change in changes] == ["INACTIVE", "ACTIVE"]
        assert viewer.pool("p")["state"] == "ACTIVE"


@pytest.mark.virtual_time
async def test_what_was_before_the_page_is_shown(make_pool, monkeypatch):
    """One opens the page after the alarm: the incident is over, and on the page."""
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing, max_size=1, name="p", strategy=cenote.ConsecutiveFailures())
    thing = await pool.acquire()
    impatient = [asyncio.create_task(pool.acquire(timeout=2)) for _ in range(3)]
    await advance(3)
    await asyncio.gather(*impatient, return_exceptions=True)
    pool.deactivate()
    await advance(5)
    pool.activate()
    pool.release(thing)
    await advance(300)
    async with watching(app()) as viewer:
        number = viewer.pool("p")["id"]
        (samples,) = [message["samples"][str(number)] for message in viewer.messages[:1]]
        assert len(samples) == 308
        assert [sample[2] for sample in samples[:3]] == [3, 3, 0]  # waiting
        assert [sample[4] for sample in samples[:4]] == [0, 0, 3, 0]  # timed out
        kinds = [
            (event[1], event[3] if event[1] == "state_changed" else event[5])
            for event in viewer.events
        ]
        assert kinds == [
            ("opened", 1),
            ("created", 1),
            ("timeout", 3),
            ("state_changed", "INACTIVE"),
            ("state_changed", "ACTIVE"),
        ]
        states = [change[1] for change in viewer.details["breaker"]["changes"]]
        assert states == ["INACTIVE", "ACTIVE"]


@pytest.mark.virtual_time
async def test_a_storm_on_the_page_is_one_line(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing, max_size=1, name="p")
    thing = await pool.acquire()
    async with watching(app()) as viewer:
        for _ in range(4):
            with pytest.raises(TimeoutError):
                await pool.acquire(timeout=0)
            await advance(1)
        lines = [event for event in viewer.events if event[1] == "timeout"]
        assert [event[5] for event in lines] == [1, 2, 3, 4]  # how often
        assert len({event[7] for event in lines}) == 1  # the same line
    pool.release(thing)


@pytest.mark.virtual_time
async def test_a_saturated_pool_names_the_longest_holders(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing, max_size=2, name="p")
    a = await pool.acquire()
    await advance(2)
    b = await pool.acquire()
    begin = asyncio.get_running_loop().time()
    waiter = asyncio.create_task(pool.acquire())
    await advance(10)
    async with watching(app()) as viewer:
        summary = viewer.pool("p")
        assert begin <= summary["saturated"] / 1000 <= begin + 1
        (first, second) = summary["top"]
        assert (first[0], first[2]) == ("test", round((begin - 2) * 1000))
        assert "test_dashboard_view.py:" in first[1]
        assert second[2] == round(begin * 1000)
        pool.release(a)
        await advance(1)
        assert viewer.pool("p")["saturated"] is None
        assert viewer.pool("p")["top"] == []
    pool.release(b)
    pool.release(await waiter)


@pytest.mark.virtual_time
async def test_an_open_breaker_says_since_when_and_until(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)

    def fail():
        raise ConnectionRefusedError("connect to db:5432 refused")

    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=8.0)
    pool = make_pool(fail, name="p", strategy=strategy)
    with pytest.raises(ConnectionRefusedError):
        await pool.acquire()
    begin = round(asyncio.get_running_loop().time() * 1000)
    async with watching(app()) as viewer:
        summary = viewer.pool("p")
        assert (summary["state"], summary["since"]) == ("INACTIVE", begin)
        assert summary["failure"] == "ConnectionRefusedError: connect to db:5432 refused"
        assert viewer.details["breaker"]["failed"] == begin
        assert summary["retry"] == pytest.approx(begin + strategy.retry_after() * 1000, abs=100)
        await advance(9)
        with pytest.raises(ConnectionRefusedError):
            await pool.acquire()  # the probe
        await advance(1)
        summary = viewer.pool("p")
        assert (summary["state"], summary["since"]) == ("INACTIVE", begin)  # all the time
        assert viewer.details["breaker"]["failed"] == pytest.approx(begin + 9000, abs=100)
        pool.activate()
        await advance(1)
        assert viewer.pool("p")["retry"] is None


async def test_the_chosen_pool_is_found_again_by_name(make_pool):
    make_pool(Thing, name="a")
    b = make_pool(Thing, name="b", max_size=7)
    await b.open()
    application = app()
    async with watching(application) as viewer:
        first, second = viewer.pool("a")["id"], viewer.pool("b")["id"]
        assert viewer.details["id"] == first
    async with watching(application, f"pool={second}&name=b") as viewer:
        assert viewer.details["id"] == second
    async with watching(application, f"pool={first}&name=b") as viewer:  # after a restart
        assert viewer.details["id"] == second
    async with watching(application, "pool=junk&name=gone") as viewer:
        assert viewer.details["id"] == first


@pytest.mark.virtual_time
async def test_pools_come_and_go(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    async with watching(app()) as viewer:
        assert viewer.ids == []
        pool = make_pool(Thing, name="late")
        await advance(1)
        assert viewer.pool("late")["phase"] == "new"
        await pool.close()
        await advance(1)
        assert viewer.pool("late")["phase"] == "closed"
        assert len(viewer.ids) == 1
        await advance(collecting.FAREWELL + 1)
        assert viewer.ids == []
        await advance(1)
        assert viewer.ids == []


async def test_a_pool_is_not_kept_alive():
    async with watching(app()) as viewer:
        pool = cenote.Pool(Thing, name="short")
        alive = weakref.ref(pool)
        await until(lambda: len(viewer.ids) == 1)
        del pool
        gc.collect()
        assert alive() is None
        await until(lambda: viewer.ids == [])


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("connect to postgresql://app:geheim@db:5432/x failed", "postgresql://***@db:5432/x"),
        ("redis://:geheim@cache", "redis://***@cache"),
        ("redis://geheim@cache", "redis://***@cache"),
        ("mysql://u:ge/heim@h/d", "mysql://***@h/d"),
        ("password=geheim host=db", "password=*** host=db"),
        ('{"password": "geheim", "user": "app"}', '"user": "app"'),
        ("PGPASSWORD='geheim x' psql", "PGPASSWORD=*** psql"),
        ("api_key: geheim", "api_key: ***"),
        ("two\nlines\x00", "two lines "),
        ("x" * 1000, "x" * 239 + "…"),
        ("http://db/path", "http://db/path"),
    ],
)
def test_no_credentials_are_shown(said, shown):
    cleaned = text.clean(said)
    assert shown in cleaned
    assert "geheim" not in cleaned


async def test_no_credentials_are_sent(make_pool):
    def fail():
        raise OSError("cannot reach postgresql://app:geheim@db/x")

    pool = make_pool(fail, name="postgresql://app:geheim@db/x")
    with pytest.raises(OSError, match="geheim"):
        await pool.acquire()
    async with watching(app()) as viewer:
        with pytest.raises(OSError, match="geheim"):
            await pool.acquire()
        await until(lambda: viewer.details["breaker"]["failure"])
        assert viewer.details["breaker"]["failure"].startswith("OSError: cannot reach")
        assert "geheim" not in json.dumps(viewer.messages)


def test_a_statement_runs_no_longer_than_its_connection_is_held():
    """Its method was called before: it waited for the connection."""
    tiles = Tiles()
    views = [SlotView(1, "active", 7.0, 1, task_id=1), SlotView(2, "active", 7.0, 1, task_id=2)]
    running = {1: Running("select 1", 5000), 2: Running("select 2", 9000)}
    tiles.update(
        views, tick=1, now=9999, offset=0.0, creating=0, hooked=0, destroying=0, running=running
    )
    assert [row[7:9] for row in tiles._rows] == [["select 1", 7000], ["select 2", 9000]]


class Board:
    """Tiles, and the tick."""

    def __init__(self):
        self.tiles, self.tick = Tiles(), 0

    def show(self, *slots, hooked=0, destroying=0, creating=0):
        self.tick += 1
        views = [SlotView(key, state, 0.0, 1) for key, state in slots]
        self.tiles.update(
            views,
            tick=self.tick,
            now=self.tick,
            offset=0.0,
            creating=creating + sum(state == "creating" for _, state in slots),
            hooked=hooked,
            destroying=destroying,
        )
        return [row and row[1] for row in self.tiles._rows]


def test_a_slot_keeps_its_place():
    board = Board()
    assert board.show((1, "idle"), (2, "active"), (3, "idle")) == [IDLE, ACTIVE, IDLE]
    assert board.show((3, "active"), (1, "idle")) == [IDLE, None, ACTIVE]
    assert board.show((3, "active"), (1, "idle"), (4, "creating")) == [IDLE, CREATING, ACTIVE]
    assert board.show((4, "idle")) == [None, IDLE]
    assert board.show((4, "idle"), (5, "idle"), (6, "idle")) == [IDLE, IDLE, IDLE]
    assert board.show() == []
    assert board.show((7, "idle")) == [IDLE]


def test_what_is_only_counted_stays_where_it_was():
    board = Board()
    board.show((1, "active"), (2, "active"))
    assert board.show((2, "active"), hooked=1) == [HOOK, ACTIVE]
    assert board.show((2, "active"), hooked=1) == [HOOK, ACTIVE]
    assert board.tiles.since(2) == []  # nothing changed
    assert board.show((2, "active"), destroying=1) == [DESTROYING, ACTIVE]
    assert board.show(hooked=1, destroying=1) == [DESTROYING, HOOK]
    assert board.show((2, "idle")) == [None, IDLE]


def test_what_was_never_seen_has_a_tile_all_the_same():
    board = Board()
    assert board.show(creating=2, destroying=1) == [CREATING, CREATING, DESTROYING]
    assert sorted(board.show((1, "idle"), creating=1)) == [IDLE, CREATING]
