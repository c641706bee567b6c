"""Tickets: an acquire of the C API, whose end is reported to a callback in C."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .._fast import give_back
from .loop import current_task

if TYPE_CHECKING:
    from .engine import Engine


class Tickets:
    """Drives the acquires of the C API, each in a task."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine

    def start(self, acquire: Any, ticket: Any) -> asyncio.Task[None]:
        """Not loop.create_task: an eager task would call back at once."""
        loop = asyncio.get_running_loop()
        task = asyncio.Task(self._drive(acquire, ticket), loop=loop)
        # Cancelled before its first step, the coroutine never runs.
        task.add_done_callback(lambda _: ticket.complete(None, asyncio.CancelledError()))
        return task

    async def _drive(self, acquire: Any, ticket: Any) -> None:
        engine = self._engine
        task = current_task()
        try:
            resource = await acquire
            if task is not None and task.cancelling():  # by a sync hook: too late to be thrown in
                if acquire.slot is not None:  # a subscriber may have released it
                    engine.step(give_back, engine, acquire.slot)
                raise asyncio.CancelledError
        except BaseException as error:
            if isinstance(error, GeneratorExit) and current_task() is not task:
                raise  # collected: the loop is gone
            told = error
            if (
                task is not None
                and task.cancelling()
                and not isinstance(error, asyncio.CancelledError)
            ):
                told = asyncio.CancelledError()  # as ticket_cancel has promised
                told.__cause__ = error
            ticket.complete(None, told)
            if not isinstance(error, Exception):
                raise
        else:
            ticket.complete(resource, None)
