"""The dashboard without a browser: what it sends, what it costs, and what it leaves behind."""

import asyncio
import base64
import gc
import hashlib
import json
import re
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

import cenote
from cenote.extras.dashboard import Dashboard, asgi, history, text
from cenote.extras.dashboard import collector as collecting
from cenote.extras.dashboard.tiles import Tiles
from cenote.observe import SlotView
from tests.support.clock import advance, settle
from tests.support.kit import Gate, Thing, line
from tests.support.viewer import AGAIN, TOKEN, Viewer, ask, press, scope, until, watching

app = cenote.dashboard.app
IDLE, ACTIVE, CREATING, HOOK, DESTROYING = range(5)


def use_virtual_clocks(monkeypatch):
    """The clocks of the system stand still, compared with the loop's."""
    now = asyncio.get_running_loop().time
    for module in (collecting, history):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=now, monotonic=now))


# -- the door ------------------------------------------------------------------------------------


def test_importing_cenote_does_not_import_the_dashboard():
    code = (
        "import sys, cenote\n"
        "assert not any(name.startswith('cenote.extras') for name in sys.modules)\n"
        "assert not hasattr(cenote, 'dashbord')\n"
        "from cenote import dashboard\n"
        "assert dashboard is cenote.dashboard and callable(cenote.serve_dashboard)\n"
        "assert 'cenote.extras.prometheus' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cenote_dashboard_is_an_app():
    assert isinstance(cenote.dashboard, Dashboard)
    assert isinstance(cenote.dashboard.app(), Dashboard)


async def test_the_page_is_whole_and_lets_nothing_else_in():
    status, headers, body = await ask(cenote.dashboard, "GET", "/")
    assert status == 200
    page = body.decode()
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "/*" + "dark*/" not in page
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert int(headers["content-length"]) == len(body)


async def test_every_route_has_its_answer():
    dashboard = app()
    assert (await ask(dashboard, "HEAD", "/"))[::2] == (200, b"")
    assert (await ask(dashboard, "GET", "/other"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/", "GET, HEAD"),
        ("POST", "", "GET, HEAD"),
        ("HEAD", "/events", "GET"),
        ("GET", "/control", "POST"),
        ("GET", "/logout", "POST"),
    ],
)
async def test_another_method_is_told_which_ones_are_allowed(method, path, allowed):
    status, headers, _ = await ask(app(), method, path)
    assert (status, headers["allow"]) == (405, allowed)


async def test_too_many_fields_are_refused():
    query = "&".join(f"field{number}=1" for number in range(9))
    status, _, body = await ask(app(), "GET", "/events", query=query)
    assert (status, json.loads(body)) == (400, {"error": "The address has too many fields."})


@pytest.mark.parametrize("whole", [True, False])
async def test_the_dashboard_may_be_mounted(whole):
    """Some servers give the whole path, some only what is below the mount."""
    dashboard = app()
    prefix = "/ops/pools" if whole else ""
    status, headers, _ = await ask(dashboard, "GET", prefix, root="/ops/pools")
    assert (status, headers["location"]) == (307, "/ops/pools/")
    assert (await ask(dashboard, "GET", prefix + "/", root="/ops/pools"))[0] == 200
    assert (await ask(dashboard, "GET", prefix + "/x", root="/ops/pools"))[0] == 404


async def test_lifespan_is_answered_and_websockets_are_refused():
    said = []
    stages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive():
        return {"type": next(stages)}

    async def send(message):
        said.append(message["type"])

    await app()({"type": "lifespan"}, receive, send)
    await app()({"type": "websocket"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        *(
            ({name: value}, error, f"^{name} must ")
            for name in ("token", "control_token")
            for value, error in (
                ("", ValueError),
                ("with space, but long enough", ValueError),
                ("schlüssel, der lang genug ist", ValueError),
                ("fifteen-letters", ValueError),
                (7, TypeError),
                (b"bytes that are long", TypeError),
            )
        ),
        ({"authorize": "me"}, TypeError, "^authorize must be callable, not str"),
        ({"public": 1}, TypeError, "^public must be True or False, not int"),
        ({"public": "yes"}, TypeError, "^public must be True or False, not str"),
        ({"public": True, "token": TOKEN}, ValueError, "public=True .* token"),
        ({"public": True, "authorize": bool}, ValueError, "public=True .* authorize"),
        ({"hosts": "example.com"}, TypeError, "hosts"),
        ({"hosts": [1]}, TypeError, "hosts"),
        ({"hosts": ["a b"]}, ValueError, "hosts"),
        ({"hosts": ["http://a"]}, ValueError, "hosts"),
        ({"hosts": None}, TypeError, "hosts"),
        ({"interval": 0}, ValueError, "interval"),
        ({"interval": float("nan")}, ValueError, "interval"),
        ({"interval": "1"}, TypeError, "interval"),
    ],
)
async def test_bad_options_are_named(options, error, words):
    with pytest.raises(error, match=words):
        cenote.dashboard.app(**options)
    with pytest.raises(error, match=words):
        await cenote.serve_dashboard(port=0, **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"host": 1}, TypeError, "host must"),
        ({"port": -1}, ValueError, "port must"),
        ({"port": 65536}, ValueError, "port must"),
        ({"port": "80"}, TypeError, "port must"),
    ],
)
async def test_bad_addresses_are_named(options, error, words):
    with pytest.raises(error, match=words):
        await cenote.serve_dashboard(**options)


# -- what is shown -------------------------------------------------------------------------------


async def test_slots_holders_and_waiters_are_shown(make_pool):
    pool = make_pool(Thing, max_size=2, name="main")
    a = await pool.acquire()
    b, place = await pool.acquire(), line()
    task = asyncio.create_task(pool.acquire(timeout=9), name="patient")
    await settle()
    async with watching(app()) as viewer:
        assert viewer.states == [ACTIVE, ACTIVE]
        assert {row[3] for row in viewer.tiles.values()} == {"test"}
        assert any(row[4].endswith(f"test_dashboard.py:{place}") for row in viewer.tiles.values())
        ((name, where, since, deadline),) = viewer.details["waiters"]
        assert name == "patient"
        assert "test_dashboard.py:" in where
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
async def test_distributions_and_samples_are_sent(make_pool, monkeypatch):
    pool = make_pool(Thing, max_size=1, name="p")
    use_virtual_clocks(monkeypatch)
    async with watching(app()) as viewer:
        for _ in range(10):
            async with pool.acquire():
                await advance(0.2)
        await advance(1)
        assert sum(viewer.details["waits"]) == sum(viewer.details["holds"]) == 10
        assert viewer.details["waits"][0] == 10  # at once
        bounds = viewer.messages[0]["bounds"]
        (bucket,) = [index for index, count in enumerate(viewer.details["holds"]) if count]
        assert bounds[bucket - 1] <= 0.2 < bounds[bucket]
        samples = [
            sample
            for message in viewer.messages
            for sample in message.get("samples", {}).get(str(viewer.pool("p")["id"]), ())
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
        await asyncio.sleep(0.3)
        changes = viewer.details["breaker"]["changes"]
        assert [change[1] for change in changes] == ["INACTIVE", "ACTIVE"]
        assert viewer.pool("p")["state"] == "ACTIVE"


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
        await asyncio.sleep(0.6)
        assert len(viewer.ids) == 1
        del pool
        gc.collect()
        assert alive() is None
        await asyncio.sleep(0.6)
        assert viewer.ids == []


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
        await asyncio.sleep(0.3)
        assert viewer.details["breaker"]["failure"].startswith("OSError: cannot reach")
        assert "geheim" not in json.dumps(viewer.messages)


# -- what it costs -------------------------------------------------------------------------------


async def test_pools_are_observed_only_while_watched(make_pool):
    pool = make_pool(Thing)
    application = app()
    assert pool._engine.subscribers == ()
    async with watching(application):
        assert len(pool._engine.subscribers) == 1
        async with watching(application):
            assert len(pool._engine.subscribers) == 1
        assert len(pool._engine.subscribers) == 1
    assert pool._engine.subscribers == ()
    async with watching(application):
        assert len(pool._engine.subscribers) == 1
    assert pool._engine.subscribers == ()


async def test_the_rounds_stop_when_the_last_viewer_leaves(make_pool, monkeypatch):
    make_pool(Thing)
    rounds = []
    original = collecting.Collector._round
    monkeypatch.setattr(
        collecting.Collector, "_round", lambda self: (rounds.append(1), original(self))
    )
    async with watching(app()):
        await asyncio.sleep(1)
        assert len(rounds) > 2
    seen = len(rounds)
    await asyncio.sleep(5)
    assert len(rounds) == seen


@pytest.mark.virtual_time
async def test_a_slow_viewer_gets_the_latest_and_nothing_piles_up(make_pool):
    pool = make_pool(Thing, max_size=1, name="p")
    application = app()
    async with watching(application) as slow, watching(application) as fast:
        slow.free.clear()
        told = len(slow.messages)
        for _ in range(40):
            async with pool.acquire():
                await advance(0.25)
        slow.free.set()
        await settle()
        assert len(slow.messages) - told <= 2  # the one that stuck, and the latest
        assert slow.pool("p")["acquired"] == fast.pool("p")["acquired"] == 40
        assert slow.events == fast.events


@pytest.mark.virtual_time
async def test_a_viewer_that_never_reads_is_dropped(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing)
    application = app()
    async with watching(application) as viewer:
        viewer.free.clear()
        await advance(asgi.SEND_TIMEOUT + 2)
        assert pool._engine.subscribers == ()
        assert application._collector().viewers == 0


async def test_too_many_viewers_are_refused(monkeypatch):
    monkeypatch.setattr(asgi, "VIEWERS", 1)
    application = app()
    async with watching(application), watching(application) as second:
        assert second.status == 503


# -- one stream after the other ------------------------------------------------------------------


async def stream(application, viewer, query=""):
    """One answer to `GET /events`, from its head to its end."""
    viewer.messages.clear()
    await application(scope("GET", "/events", query=query), viewer.receive, viewer.send)


@pytest.mark.virtual_time
async def test_a_stream_ends_and_the_next_one_goes_on(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing, min_size=3, max_size=3, name="p")
    await pool.open()
    application, viewer = app(), Viewer()
    task = asyncio.create_task(stream(application, viewer))
    await advance(asgi.STREAM - 1)
    assert not task.done()
    await advance(1)
    await task
    assert viewer.ended
    assert viewer.raw.endswith(AGAIN)

    pool.deactivate()  # while no stream is open
    number = viewer.pool("p")["id"]
    task = asyncio.create_task(stream(application, viewer, f"pool={number}&after={viewer.last}"))
    await advance(0.5)
    assert not any("full" in message for message in viewer.messages)
    assert not any("tiles" in message.get("details", {}) for message in viewer.messages)
    assert viewer.pool("p")["state"] == "INACTIVE"
    assert [event[1] for event in viewer.events] == ["state_changed"]
    viewer.hang_up.set()
    await task


@pytest.mark.parametrize("after", ["", "-", "x", "0123456789abcdef-7", "-7", "²-²"])
async def test_a_bookmark_of_elsewhere_begins_anew(make_pool, after):
    make_pool(Thing, name="p")
    async with watching(app(), f"after={after}&pool=1") as viewer:
        assert viewer.messages[0]["full"]
        assert "tiles" in viewer.messages[0]["details"]


@pytest.mark.virtual_time
async def test_a_page_that_does_not_come_back_is_forgotten(make_pool):
    pool = make_pool(Thing)
    application, viewer = app(), Viewer()
    task = asyncio.create_task(stream(application, viewer))
    await advance(asgi.STREAM + 0.5)
    await task
    assert len(pool._engine.subscribers) == 1
    await advance(collecting.LINGER)
    assert pool._engine.subscribers == ()


@pytest.mark.virtual_time
@pytest.mark.parametrize("interval", [0.25, 10])
async def test_a_page_without_news_gets_a_heartbeat(interval):
    async with watching(app(interval=interval)) as viewer:
        viewer.messages.clear()
        await advance(asgi.HEARTBEAT + 0.5)
        assert viewer.messages == [{}]


async def test_uvicorn_ends_a_stream_when_it_stops(make_pool):
    pool = make_pool(Thing)
    viewer = Viewer()
    task = asyncio.create_task(stream(app(), viewer))
    await settle()
    task.cancel(msg=asgi.UVICORN_STOPS)
    await task
    assert viewer.ended
    assert task.cancelling() == 0
    assert pool._engine.subscribers == ()


async def test_a_browser_that_does_not_read_is_not_waited_for(make_pool):
    make_pool(Thing)
    viewer = Viewer()
    task = asyncio.create_task(stream(app(), viewer))
    await settle()
    viewer.free.clear()
    task.cancel(msg=asgi.UVICORN_STOPS)
    await task
    assert not viewer.ended


async def test_every_other_cancellation_is_passed_on(make_pool):
    pool = make_pool(Thing)
    viewer = Viewer()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await stream(app(), viewer)
    assert not viewer.ended
    assert pool._engine.subscribers == ()


# -- other threads -------------------------------------------------------------------------------


class Elsewhere:
    """An event loop in a thread of its own."""

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="engine room")
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)


@pytest.mark.real_time("another thread has a loop of its own")
async def test_a_pool_of_another_thread_is_shown():
    with Elsewhere() as elsewhere:
        pool = cenote.Pool(Thing, max_size=2, name="away")

        async def acquire():
            return await pool.acquire()

        thing = elsewhere.run(acquire())
        application = app(control_token=TOKEN, interval=0.05)
        async with watching(application) as viewer:
            await until(lambda: viewer.states == [ACTIVE])
            await until(lambda: viewer.pool("away")["thread"] == "engine room")
            assert len(pool._engine.subscribers) == 1
            status, _ = await press(application, viewer, "deactivate", "away")
            assert (status, pool.state) == (200, "INACTIVE")
            await until(lambda: any(event[1] == "state_changed" for event in viewer.events))
        await until(lambda: pool._engine.subscribers == ())

        async def finish():
            pool.release(thing)
            await pool.close()

        elsewhere.run(finish())


@pytest.mark.real_time("another thread has a loop of its own")
async def test_a_loop_that_does_not_answer_is_shown(monkeypatch):
    monkeypatch.setattr(collecting, "STALLED", 0.2)
    monkeypatch.setattr(asgi, "LOOP_TIMEOUT", 0.2)
    unblock = threading.Event()
    with Elsewhere() as elsewhere:
        pool = cenote.Pool(Thing, name="stuck")
        elsewhere.run(pool.open())
        application = app(control_token=TOKEN, interval=0.05)
        async with watching(application) as viewer:
            await until(lambda: viewer.pool("stuck")["thread"] == "engine room")
            elsewhere.loop.call_soon_threadsafe(unblock.wait)
            await until(lambda: viewer.pool("stuck")["stalled"])
            status, said = await press(application, viewer, "deactivate", "stuck")
            assert status == 503
            assert "does not answer" in said["error"]
            unblock.set()
            await until(lambda: viewer.pool("stuck")["stalled"] is None)
        elsewhere.run(pool.close())


@pytest.mark.real_time("another thread has a loop of its own")
async def test_a_pool_whose_loop_is_gone_takes_no_orders():
    pool = cenote.Pool(Thing, name="orphan")
    with Elsewhere() as elsewhere:
        elsewhere.run(pool.open())
    application = app(control_token=TOKEN)
    async with watching(application) as viewer:
        assert viewer.pool("orphan")["phase"] == "open"
        status, said = await press(application, viewer, "deactivate", "orphan")
        assert status == 409
        assert "closed by now" in said["error"]
    pool._forsake()


# -- places --------------------------------------------------------------------------------------


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
