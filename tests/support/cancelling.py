"""Cancels a task at each of its suspensions in turn."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class CancelledAt:
    """Runs it in the task that awaits this, and cancels the task when it suspends for the nth time;
    the answer is whether it came so far."""

    def __init__(self, number: int, work: Coroutine[Any, Any, Any]) -> None:
        self.number = number
        self.work = work

    def __await__(self) -> Generator[Any, None, bool]:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        raised: BaseException | None = None
        count = 0
        while True:
            try:
                awaited = self.work.send(None) if raised is None else self.work.throw(raised)
            except StopIteration:
                return count >= self.number
            count += 1
            if count == self.number:
                loop.call_soon(task.cancel)
            raised = None
            try:
                yield awaited
            except BaseException as error:
                raised = error


async def cancelled_at(number: int, work: Coroutine[Any, Any, Any]) -> bool:
    return await CancelledAt(number, work)
