"""What a pool lets others know: events, log lines, and futures for those that wait for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import DEBUG, ERROR
from typing import TYPE_CHECKING, Any

from ..events import EventKind, PoolEvent, Subscription, task_name
from ..log import log, logger, raise_later
from ..mask import explained

if TYPE_CHECKING:
    from .engine import Engine

FREQUENT = EventKind.ACQUIRED, EventKind.RELEASED, EventKind.WAITING


class Signals:
    """Subscribers, the log, and the futures of open()."""

    __slots__ = ("_changes", "_engine")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._changes: list[asyncio.Future[None]] = []  # of the open() calls that wait

    def subscribe(
        self, callback: Callable[[PoolEvent], object], kinds: frozenset[EventKind] | None = None
    ) -> Subscription:
        """Call this with every event of these kinds from now on; None: of every kind."""
        subscription = Subscription(callback, kinds)
        self.set((*self._engine.subscribers, subscription))
        return subscription

    def set(self, subscribers: tuple[Subscription, ...]) -> None:
        """Let these be the subscribers. The fast path has a tuple of its own for each of its
        kinds, so that a kind that nobody wants costs nothing."""
        engine = self._engine
        engine.subscribers = subscribers
        engine.on_acquired, engine.on_released, engine.on_waiting = (
            tuple(each for each in subscribers if each.wants(kind)) for kind in FREQUENT
        )

    def unsubscribe(self, condition: Callable[[Subscription], bool]) -> None:
        """End the subscriptions for which this is true."""
        engine = self._engine
        self.set(tuple(each for each in engine.subscribers if not condition(each)))

    def note(
        self,
        kind: EventKind,
        resource: Any = None,
        task: asyncio.Task[Any] | None = None,
        *,
        lane: str | None = None,
        duration: float | None = None,
        reason: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Record this event in the history, and call the subscribers, if there are any.

        For all that happens less often than an acquire; of those, `emit` alone is called.
        """
        engine = self._engine
        engine.history.note(kind, task, duration, reason, error)
        if engine.subscribers:
            self.emit(
                kind, resource, task, lane=lane, duration=duration, reason=reason, error=error
            )

    def emit(
        self,
        kind: EventKind,
        resource: Any = None,
        task: asyncio.Task[Any] | None = None,
        *,
        lane: str | None = None,
        duration: float | None = None,
        reason: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Call every subscriber with this event. To be called only if there is one: making an event
        costs more than most of what it is about."""
        engine = self._engine
        wanting = [each for each in engine.subscribers if each.wants(kind)]
        if not wanting:
            return
        event = PoolEvent(
            kind=kind,
            pool=engine.pool,
            time=engine.time(),
            resource=resource,
            task=None if task is None else task_name(task),
            duration=duration,
            reason=reason,
            error=error,
            lane=lane,
        )
        for subscription in wanting:
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
        error: BaseException | None = None, about: str | None = None, **fields: object,
    ) -> None:  # fmt: skip
        """Log a line about this pool, whose repr comes first in it. Nothing is raised."""
        engine = self._engine
        fields["pool"] = engine.name
        if about is not None:
            fields["error"] = about
        log(level, f"%r: {text}", engine.pool, *arguments,
            error=error, fields=fields, loop=engine.loop, stacklevel=2)  # fmt: skip

    def explain(
        self, level: int, error: BaseException, follows: str = "", *arguments: object, what: str
    ) -> None:
        """Log in one line what has failed, why, and what follows. The traceback, which is mostly
        cenote's own, comes with it at the level DEBUG only."""
        text = f"%s failed: %s{'; ' * bool(follows)}{follows}"
        why = explained(error).removesuffix("." * bool(follows))
        if logger.isEnabledFor(DEBUG) or not isinstance(error, Exception):
            self.log(level, text, what, why, *arguments, error=error)
        else:
            kind = type(error).__name__
            self.log(level, text, what, why, *arguments, about=kind)

    def changed(self) -> None:
        """Wake the open() calls that wait."""
        changes, self._changes = self._changes, []
        for future in changes:
            if not future.done():
                future.set_result(None)

    def next_change(self) -> asyncio.Future[None]:
        """The next call of `changed` ends it. To be asked for before what may bring the change:
        with eager tasks a hook may be over when the call that began it returns."""
        future = asyncio.get_running_loop().create_future()
        self._changes.append(future)
        return future
