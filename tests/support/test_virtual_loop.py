import asyncio
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from cenote.testing import Deadlocked, VirtualLoop, advance, now, settle
from cenote.testing.virtual_loop import START

pytestmark = pytest.mark.virtual_time


async def test_a_long_sleep_takes_no_real_time() -> None:
    started = time.monotonic()
    await asyncio.sleep(86_400)
    assert now() == START + 86_400
    assert time.monotonic() - started < 3600


async def test_timers_fire_in_order_each_at_its_own_time() -> None:
    fired: list[float] = []
    for delay in (0.3, 0.1, 7.0, 0.2):
        asyncio.get_running_loop().call_later(delay, lambda: fired.append(now()))
    await asyncio.sleep(10)
    assert fired == [START + delay for delay in (0.1, 0.2, 0.3, 7.0)]


async def test_a_timer_beyond_the_precision_of_the_clock_fires() -> None:
    await asyncio.sleep(1e12)
    assert now() >= START + 1e12


async def test_settle_runs_a_long_chain_and_does_not_move_time() -> None:
    steps = 0

    async def walk() -> None:
        nonlocal steps
        for _ in range(1000):
            await asyncio.sleep(0)
            steps += 1
        await asyncio.sleep(1)
        steps = -1

    task = asyncio.create_task(walk())
    await settle()
    assert (steps, now()) == (1000, START)
    await task


async def test_the_loop_itself_settles_and_advances() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    task = asyncio.create_task(asyncio.sleep(5))
    await loop.settle()
    assert not task.done()
    await loop.advance(5)
    assert task.done()
    assert loop.time() == START + 5


async def test_settlers_do_not_wait_for_one_another() -> None:
    await asyncio.gather(settle(), settle(), settle())
    assert now() == START


async def test_a_cancelled_settler_does_not_disturb_the_others() -> None:
    first, second = asyncio.create_task(settle()), asyncio.create_task(settle())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()


async def test_advance_fires_what_is_due_in_order_and_nothing_later() -> None:
    fired: list[tuple[str, float]] = []

    async def ticker(name: str, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            fired.append((name, now() - START))

    tickers = [asyncio.create_task(ticker("slow", 1.0)), asyncio.create_task(ticker("fast", 0.75))]
    await advance(2.0)
    assert fired == [("fast", 0.75), ("slow", 1.0), ("fast", 1.5), ("slow", 2.0)]
    assert now() == START + 2.0
    for task in tickers:
        task.cancel()


async def test_advance_settles_what_its_last_timer_started() -> None:
    done = asyncio.Event()

    async def late() -> None:
        await asyncio.sleep(3)
        for _ in range(50):
            await asyncio.sleep(0)
        done.set()

    task = asyncio.create_task(late())
    await advance(2.999)
    assert not done.is_set()
    await advance(0.001)
    assert done.is_set()
    await task


async def test_rounding_delays_no_timer() -> None:
    nap = asyncio.create_task(asyncio.sleep(0.6))
    await advance(0.3)
    await advance(0.3)
    assert now() < START + 0.6  # by a rounding error
    assert nap.done()


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan])
async def test_advance_refuses_what_it_cannot_reach(seconds: float) -> None:
    with pytest.raises(ValueError, match="cannot advance"):
        await advance(seconds)


def test_advance_on_another_loop_says_so() -> None:
    with pytest.raises(RuntimeError, match="VirtualLoop"):
        asyncio.run(advance(1))


# In the next five the outside takes a little real time: the virtual hour must not pass meanwhile.


async def test_an_executor_job_is_waited_for() -> None:
    async with asyncio.timeout(3600):
        await asyncio.to_thread(time.sleep, 0.02)
    await asyncio.sleep(3600)  # an idle worker thread is no reason to be slow
    assert START + 3600 < now() < START + 3660


async def test_a_thread_is_waited_for() -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def work() -> None:
        time.sleep(0.02)
        loop.call_soon_threadsafe(event.set)

    thread = threading.Thread(target=work)
    thread.start()
    async with asyncio.timeout(3600):
        await event.wait()
    thread.join()
    assert now() < START + 60


async def test_a_thread_that_ends_in_silence_is_not_waited_for() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    asyncio.get_running_loop().call_later(0.01, release.set)
    await asyncio.sleep(3600)
    thread.join()
    assert now() >= START + 3600


async def test_a_socket_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with theirs, say_hello(theirs):
        async with asyncio.timeout(3600):
            reader, writer = await asyncio.open_connection(sock=ours)
            assert await reader.readline() == b"hello\n"
            writer.close()
            await writer.wait_closed()
    assert now() < START + 60


def say_hello(output: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "print('hello')"], stdout=output)


async def test_a_child_process_is_waited_for() -> None:
    async with asyncio.timeout(3600):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('hello')", stdout=asyncio.subprocess.PIPE
        )
        assert await child.communicate() == (b"hello\n", None)
    assert now() < START + 60


async def test_time_can_be_advanced_past_an_open_socket() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    nap = asyncio.create_task(asyncio.sleep(3600))
    await settle()
    await advance(3600)
    assert nap.done()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("forever", [asyncio.Event().wait, lambda: asyncio.sleep(math.inf)])
def test_a_hang_is_an_error_that_says_who_waits_where(
    forever: Callable[[], Awaitable[object]],
) -> None:
    async def hang() -> None:
        await forever()

    async def main() -> None:
        await asyncio.create_task(hang(), name="stuck")

    loop = VirtualLoop()
    task = loop.create_task(main(), name="main")
    with pytest.raises(Deadlocked) as caught:
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    report = str(caught.value)
    assert "2 tasks wait" in report
    assert "'main' waits in main (test_virtual_loop.py:" in report
    assert "'stuck' waits in hang (test_virtual_loop.py:" in report


def test_a_hang_of_one_task_counts_one() -> None:
    with (
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
        pytest.raises(Deadlocked, match=r"^1 task waits, no timer is set"),
    ):
        runner.run(asyncio.Event().wait())
