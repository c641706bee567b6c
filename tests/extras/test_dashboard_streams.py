"""The streams of the dashboard: what they cost, how they end, and how the next one goes on."""

import asyncio

import pytest

import cenote
from cenote.extras.dashboard import asgi
from cenote.extras.dashboard import collector as collecting
from cenote.testing import advance, settle
from tests.support.kit import Thing
from tests.support.viewer import AGAIN, Viewer, scope, until, use_virtual_clocks, watching

app = cenote.dashboard.app


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


@pytest.mark.virtual_time
async def test_the_rounds_stop_when_the_last_viewer_leaves(make_pool, monkeypatch):
    make_pool(Thing)
    rounds = []
    original = collecting.Collector._round
    monkeypatch.setattr(
        collecting.Collector, "_round", lambda self: (rounds.append(1), original(self))
    )
    async with watching(app()):
        await until(lambda: len(rounds) > 2)
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
    kinds = [event[1] for event in viewer.events]
    assert kinds == ["opened", "created", "state_changed"]  # each once
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
