"""What a pool lets others know: events, log lines, and futures for those that wait for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import ERROR
from typing import TYPE_CHECKING, Any

from ..events import EventKind, PoolEvent, Subscription, task_name
from ..log import log, raise_later

if TYPE_CHECKING:
    from .engine import Engine


class Signals:
    """Subscribers, the log, and the futures of open()."""

    __slots__ = ("_changes", "_engine")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._changes: list[asyncio.Future[None]] = []  # of the open() calls that wait

    def subscribe(self, callback: Callable[[PoolEvent], object]) -> Subscription:
        """Call this with every event from now on."""
        subscription = Subscription(callback)
        self._engine.subscribers += (subscription,)
        return subscription

    def unsubscribe(self, condition: Callable[[Subscription], bool]) -> None:
        """End the subscriptions for which this is true."""
        engine = self._engine
        engine.subscribers = tuple(each for each in engine.subscribers if not condition(each))

    def emit(
        self,
        kind: EventKind,
        resource: Any = None,
        task: asyncio.Task[Any] | None = None,
        *,
        duration: float | None = None,
        reason: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Call every subscriber with this event. To be called only if there is one: making an event
        costs more than most of what it is about."""
        engine = self._engine
        event = PoolEvent(
            kind=kind,
            pool=engine.pool,
            time=engine.time(),
            resource=resource,
            task=None if task is None else task_name(task),
            duration=duration,
            reason=reason,
            error=error,
        )
        for subscription in engine.subscribers:
            try:
                engine.call_out(subscription.callback, event)
            except BaseException as raised:
                self.contain(raised, f"a subscriber failed on {kind!r}")

    def contain(self, error: BaseException, what: str) -> None:
        """Log what a subscriber or a strategy has raised in the middle of a step, which goes on.
        What would end the program (KeyboardInterrupt, SystemExit) ends it, in a step of its own."""
        self.log(ERROR, "%s", what, error=error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise_later(error, self._engine.loop)

    def log(
        self, level: int, text: str, *arguments: object,
        error: BaseException | None = None, **fields: object,
    ) -> None:  # fmt: skip
        """Log a line about this pool, whose repr comes first in it. Nothing is raised."""
        engine = self._engine
        fields["pool"] = engine.name
        log(level, f"%r: {text}", engine.pool, *arguments,
            error=error, fields=fields, loop=engine.loop, stacklevel=2)  # fmt: skip

    def changed(self) -> None:
        """Wake the open() calls that wait."""
        changes, self._changes = self._changes, []
        for future in changes:
            if not future.done():
                future.set_result(None)

    async def next_change(self) -> None:
        """Wait for the next call of `changed`."""
        future = asyncio.get_running_loop().create_future()
        self._changes.append(future)
        await future
