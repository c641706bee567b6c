"""Pools of other threads, and of loops that are gone, on the dashboard."""

import asyncio
import threading

import pytest

import cenote
from cenote.extras.dashboard import asgi
from cenote.extras.dashboard import collector as collecting
from tests.support.kit import Thing
from tests.support.viewer import ACTIVE, TOKEN, press, until, watching
from tests.support.waiting import WAIT

app = cenote.dashboard.app


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
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT)


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
