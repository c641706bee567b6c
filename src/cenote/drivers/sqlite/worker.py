"""A thread that runs functions for an event loop, in the order in which they were posted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

R = TypeVar("R")

Job = tuple[asyncio.Future[Any] | None, Callable[..., Any], tuple[Any, ...]]


class Worker:
    """One daemon thread and its queue.

    The thread does not refer to its worker. It ends after `stop()`, which a worker that is
    collected posts, and it does not keep the program alive. A forked child has no such thread:
    what is posted there is never run. `after` is called in the thread after each function, before
    its result is delivered.
    """

    __slots__ = ("_queue", "thread")

    def __init__(self, name: str, after: Callable[[], object] = lambda: None) -> None:
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        arguments = (self._queue, after)
        self.thread: Thread = Thread(target=_work, args=arguments, name=name, daemon=True)
        self.thread.start()

    def call(self, function: Callable[..., R], *arguments: Any) -> asyncio.Future[R]:
        """Run the function in the thread; the future of the running loop gets its result."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.put((future, function, arguments))
        return future

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run the function in the thread; its result and its error are dropped."""
        self._queue.put((None, function, arguments))

    def stop(self) -> None:
        """End the thread after everything that was posted before. It may be called repeatedly."""
        self._queue.put(None)

    def __del__(self) -> None:
        self._queue.put(None)  # reentrant, and never blocks


def _work(queue: SimpleQueue[Job | None], after: Callable[[], object]) -> None:
    while (job := queue.get()) is not None:
        future, function, arguments = job
        result: Any = None
        error: BaseException | None = None
        try:
            result = function(*arguments)
        except BaseException as raised:
            error = raised
        after()
        if future is not None:
            try:
                future.get_loop().call_soon_threadsafe(_deliver, future, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more
        # While the thread waits for the next job it keeps nothing of this one alive.
        del job, future, function, arguments, result, error


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # which no future accepts
        refused = RuntimeError("a function in the thread of a connection raised StopIteration")
        refused.__cause__ = error
        future.set_exception(refused)
    else:
        future.set_exception(error)
