"""`db.listen()`: notifications of PostgreSQL, on both drivers."""

import asyncio
import dataclasses
import gc
import pickle
from typing import Any

import pytest

import cenote
from cenote import Notification
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import watching
from tests.support.held import loop_database_of, settled
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

POSTGRESQL = ("asyncpg", "psycopg")
ODD = ["plain", "with space", 'quo"te', "Ä; select pg_sleep(9) --", "x" * 63]


listening = pytest.mark.parametrize("backend", POSTGRESQL, indirect=True)
silent = pytest.mark.parametrize("backend", ["sqlite", "mysql"], indirect=True)


async def notify(db: Any, channel: str, payload: str = "") -> None:
    await db.execute("select pg_notify(?, ?)", [channel, payload])


async def take(listener: Any, count: int = 1) -> list[Any]:
    async with asyncio.timeout(WAIT):
        return [await anext(listener) for _ in range(count)]


async def listening_session(db: Any) -> int:
    """The server's process of the connection that listens."""
    (holder,) = [each for each in db.pool.holders() if "listening" in (each.reason or "")]
    raw = holder.resource.raw
    return int(raw.get_server_pid() if hasattr(raw, "get_server_pid") else raw.info.backend_pid)


@listening
async def test_a_notification_has_channel_payload_and_process(backend: Backend) -> None:
    async with backend.database() as db, db.listen("news") as listener:
        async with db.transaction():
            await notify(db, "news", "extra, extra")
            pid = await db.fetch_val("select pg_backend_pid()")
        (note,) = await take(listener)
        assert note == Notification("notification", "news", "extra, extra", pid)
        with pytest.raises(dataclasses.FrozenInstanceError):
            note.payload = "other"
        assert pickle.loads(pickle.dumps(note)) == note


@listening
async def test_the_loop_gives_notifications_in_order(backend: Backend) -> None:
    """Those of its channels, and no others; the names mean exactly what they say."""
    async with backend.database() as db:
        heard: list[tuple[str, str]] = []
        started = asyncio.Event()

        async def read() -> None:
            listener = db.listen(*ODD)
            await listener.start()
            started.set()
            async for note in listener:
                heard.append((note.channel, note.payload))
                if note.payload == "last":
                    break

        task = asyncio.create_task(read())
        async with asyncio.timeout(WAIT):
            await started.wait()
            for number, channel in enumerate(ODD):
                await notify(db, channel, f"number {number}")
                await notify(db, channel.upper() + "?" if len(channel) < 60 else "other", "no")
            await notify(db, ODD[0], "last")
            await task
        assert heard == [*((c, f"number {n}") for n, c in enumerate(ODD)), (ODD[0], "last")]


@listening
async def test_many_listeners_share_one_connection(backend: Backend) -> None:
    async with backend.database(max_size=2) as db:
        listeners = [db.listen("all", f"own {number}") for number in range(5)]
        await asyncio.gather(*(each.start() for each in listeners))
        assert db.pool.active_count == 1
        (holder,) = db.pool.holders()
        assert holder.reason is not None
        assert holder.reason.startswith("listening on all, own 0, own 1")
        await notify(db, "all", "to everybody")
        for number in range(5):
            await notify(db, f"own {number}", str(number))
        for number, each in enumerate(listeners):
            assert [note.payload for note in await take(each, 2)] == ["to everybody", str(number)]
        for each in listeners[1:]:
            await each.aclose()
        await eventually(lambda: db.pool.holders()[0].reason == "listening on all, own 0")
        await notify(db, "own 1", "to nobody")
        await notify(db, "own 0", "to the last")
        assert [note.payload for note in await take(listeners[0])] == ["to the last"]
        await listeners[0].aclose()
        await settled(db)


@listening
async def test_it_survives_a_killed_session(backend: Backend) -> None:
    """And says so, to each listener once."""
    async with (
        watching(backend) as watcher,
        backend.database() as db,
        db.listen("news") as one,
        db.listen("news", "more") as two,
    ):
        for turn in range(3):
            session = await listening_session(db)
            await watcher.kill(session)
            for listener in (one, two):
                (note,) = await take(listener)
                assert note == Notification("reconnected", "", "", 0)
            assert await listening_session(db) != session
            await notify(db, "news", f"turn {turn}")
            for listener in (one, two):
                assert [note.payload for note in await take(listener)] == [f"turn {turn}"]
        assert db.pool.active_count == 1


@listening
async def test_it_waits_for_a_server_that_is_away(backend: Backend, proxy: FaultProxy) -> None:
    async with (
        backend.database(backend.url_through(proxy.host, proxy.port), strategy=None) as db,
        backend.database() as direct,
        db.listen("news") as listener,
    ):
        proxy.refuse()
        proxy.reset()
        before = proxy.connections
        await eventually(lambda: proxy.connections >= before + 2)  # it tries, and tries again
        with pytest.raises(Exception):  # noqa: B017 -- a new one gets the driver's error
            await db.listen("other").start()
        proxy.refuse(False)
        assert [note.kind for note in await take(listener)] == ["reconnected"]
        await notify(direct, "news", "again")
        assert [note.payload for note in await take(listener)] == ["again"]


@listening
async def test_a_server_that_went_silent_is_left(backend: Backend, proxy: FaultProxy) -> None:
    """Nothing arrives, not even the end: the ping finds out."""
    async with (
        backend.database(
            backend.url_through(proxy.host, proxy.port),
            ping_after_idle=0.0,
            hook_timeout=0.2,
            destructor_timeout=0.2,
            strategy=None,
        ) as db,
        db.listen("news") as listener,
    ):
        proxy.black_hole()
        waiting = asyncio.create_task(take(listener))
        await eventually(lambda: not db.pool.active_count)
        proxy.black_hole(False)
        assert [note.kind for note in await waiting] == ["reconnected"]
        await eventually(lambda: not db.pool.stats().destroying)


@listening
async def test_a_new_listener_finds_a_server_that_went_silent(
    backend: Backend, proxy: FaultProxy
) -> None:
    """What it asks is not answered, so the connection is made again, for the others as well."""
    async with (
        backend.database(
            backend.url_through(proxy.host, proxy.port),
            hook_timeout=0.2,
            destructor_timeout=0.2,
            strategy=None,
        ) as db,
        backend.database() as direct,
        db.listen("news") as listener,
    ):
        proxy.half_open()
        async with asyncio.timeout(WAIT), db.listen("more") as other:
            assert [note.kind for note in await take(listener)] == ["reconnected"]
            for each in (listener, other):
                await notify(direct, min(each.channels), "again")
                assert [note.payload for note in await take(each)] == ["again"]
        await eventually(lambda: not db.pool.stats().destroying)


@listening
async def test_a_listener_that_has_ended_is_not_started_again(backend: Backend) -> None:
    """It would get nothing, and the program would not know."""
    async with backend.database() as db:
        ended = await db.listen("news").start()
        await ended.aclose()
        with pytest.raises(cenote.PoolError, match=r"listener on news has ended: call db\.listen"):
            await ended.start()
        with pytest.raises(cenote.PoolError, match="has ended"):
            async with ended:
                pass
        left = await db.listen("news").start()
    with pytest.raises(cenote.PoolClosedError):
        await left.start()


@listening
async def test_the_end_of_the_database_ends_the_loop(backend: Backend) -> None:
    async with backend.database() as db:
        listener, unread = db.listen("news"), db.listen("news")
        await listener.start()
        await unread.start()
        task = asyncio.create_task(_read_all(listener))
        await asyncio.sleep(0)
        await notify(db, "news", "last words")
        await eventually(lambda: "last words" in str(unread._notes))
        await db.close()
        async with asyncio.timeout(WAIT):
            assert await task == ["last words"]
            assert await _read_all(unread) == ["last words"]
        with pytest.raises(cenote.PoolClosedError):
            await db.listen("news").start()


async def _read_all(listener: Any) -> list[str]:
    return [note.payload async for note in listener]


@listening
async def test_aclose_ends_the_loop_of_another_task(backend: Backend) -> None:
    async with backend.database() as db:
        listener = await db.listen("news").start()
        task = asyncio.create_task(_read_all(listener))
        await asyncio.sleep(0)
        await listener.aclose()
        await listener.aclose()
        assert await task == []
        with pytest.raises(StopAsyncIteration):
            await anext(listener)
        await settled(db)
        never = db.listen("news")
        await never.aclose()
        assert await _read_all(never) == []


@listening
async def test_a_collected_listener_gives_the_connection_back(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with asyncio.timeout(WAIT):
            listener = await db.listen("news").start()
            del listener
            gc.collect()
            assert await db.fetch_val("select 1") == 1


@listening
async def test_a_slow_consumer_is_told_and_bounded(backend: Backend) -> None:
    async with backend.database() as db, db.listen("news", limit=3) as listener:
        other = await db.listen("news").start()
        for number in range(4):
            await notify(db, "news", str(number))
        assert [note.payload for note in await take(other, 4)] == ["0", "1", "2", "3"]
        assert [note.payload for note in await take(listener, 3)] == ["0", "1", "2"]
        with pytest.raises(cenote.PoolError, match="3 notifications were not read"):
            await anext(listener)
        with pytest.raises(StopAsyncIteration):
            await anext(listener)
        await other.aclose()


@listening
async def test_two_readers_of_one_listener_are_refused(backend: Backend) -> None:
    async with backend.database() as db, db.listen("news") as listener:
        reading = asyncio.create_task(anext(listener))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="two tasks at once"):
            await anext(listener)
        reading.cancel()
        await asyncio.wait([reading])
        await notify(db, "news", "kept")
        assert [note.payload for note in await take(listener)] == ["kept"]


@listening
async def test_a_loop_that_ends_leaves_nothing(backend: Backend) -> None:
    db = cenote.Database(backend.url)

    async def main() -> Any:
        await db.listen("news").start()
        listener = await db.listen("more").start()
        return loop_database_of(db), listener

    loop_db, _listener = await asyncio.to_thread(asyncio.run, main())
    assert not loop_db.connections
    await db.close()


@listening
async def test_listening_needs_a_pool(backend: Backend) -> None:
    async with backend.database(pooled=False) as db:
        with pytest.raises(cenote.PoolError, match="a separate Database"):
            db.listen("news")


@silent
async def test_other_drivers_say_that_they_cannot(backend: Backend) -> None:
    async with backend.database() as db:
        assert "listen" not in db.capabilities
        with pytest.raises(cenote.PoolError, match="listen\\(\\) is for PostgreSQL"):
            db.listen("news")


@pytest.mark.parametrize(
    ("error", "channels", "options"),
    [
        (TypeError, [], {}),
        (TypeError, [["a", "b"]], {}),
        (TypeError, [b"a"], {}),
        (ValueError, [""], {}),
        (ValueError, ["a\0b"], {}),
        (ValueError, ["x" * 64], {}),
        (ValueError, ["a"], {"limit": 0}),
        (TypeError, ["a"], {"limit": "many"}),
    ],
)
def test_bad_arguments_of_listen_are_refused(
    error: type[Exception], channels: list[Any], options: Any
) -> None:
    db = cenote.Database("postgresql://app@localhost/shop")
    with pytest.raises(error, match=r"channel|limit"):
        db.listen(*channels, **options)
