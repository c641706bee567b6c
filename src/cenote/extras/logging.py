"""Log lines for events that pools do not log by themselves.

    attach(pool, db)    # these; without arguments all pools of the process

Every line of cenote comes from the logger `cenote`, and those about a pool have fields for
structured logs, see `FIELDS`. Credentials in an error are masked in every line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from .. import observe
from ..log import PREFIX, log
from ..log import logger as cenote_logger
from ..mask import explained
from ..messages import seconds
from ..observe import EventKind
from ..pool import Pool
from .tracking import PoolTracker, Target

KINDS: Final = tuple(EventKind)
# Without the events of every acquire, and without those that the pool logs by itself.
DEFAULT: Final = (
    EventKind.OPENED, EventKind.CLOSED, EventKind.CREATED, EventKind.DESTROYED, EventKind.TIMEOUT,
    EventKind.CANCELLED, EventKind.FAILED, EventKind.REFUSED, EventKind.REJECTED,
    EventKind.CHECK_FAILED,
)  # fmt: skip
FIELDS: Final = tuple(
    PREFIX + name for name in ("pool", "event", "task", "seconds", "reason", "error", "lane")
)  # attributes of the log records
# What comes next, where neither the kind nor the error says so.
NEXT: Final = {
    EventKind.REJECTED: "the resource is destroyed",
    EventKind.CHECK_FAILED: "the resource is destroyed",
    EventKind.FAILED: "the slot is free for the next",
    EventKind.CREATE_FAILED: "the slot is free for the next",
}


def attach(
    *targets: Target,
    level: int = logging.INFO,
    kinds: Iterable[str] = DEFAULT,
    logger: logging.Logger = cenote_logger,
) -> Callable[[], None]:
    """Log events of pools and databases; return the function that stops it.

    Args:
        targets: The pools and databases; all pools of the process if there are none.
        level: The level of the lines.
        kinds: The kinds of events to log.
        logger: The logger that gets the lines.

    Raises:
        TypeError: A target is neither a pool nor a database.
        ValueError: A kind is unknown.
    """
    wanted = frozenset([kinds] if isinstance(kinds, str) else kinds)
    if unknown := wanted.difference(KINDS):
        raise ValueError(f"kinds must be of {', '.join(KINDS)}, not {', '.join(sorted(unknown))}")

    def listen(pool: Pool[Any], name: str) -> Callable[[observe.PoolEvent], None]:
        def hear(event: observe.PoolEvent) -> None:
            if logger.isEnabledFor(level):
                log(level, "%s", sentence(event, name), fields=fields(event, name), to=logger)

        pool.subscribe(hear, kinds=wanted)  # the others cost nothing
        return hear

    tracker = PoolTracker(targets, listen)

    def detach() -> None:
        for pool, hear in tracker.close():
            observe.unsubscribe(pool, hear)

    return detach


def sentence(event: observe.PoolEvent, name: str) -> str:
    """Return the event as one line of text: what happened, why, and what comes next."""
    parts = [f"pool {name!r}: {event.kind}"]
    if event.reason is not None:
        parts.append(f"({event.reason})")
    if event.task is not None:
        parts.append(f"by task {event.task!r}")
    if event.lane is not None:
        parts.append(f"in lane {event.lane!r}")
    if event.duration is not None:
        parts.append(f"after {seconds(event.duration)}")
    if event.error is not None:
        parts.append(f"with {' '.join(explained(event.error).split())}")
    line = " ".join(parts)
    following = NEXT.get(event.kind)
    return line if following is None else f"{line.removesuffix('.')}; {following}"


def fields(event: observe.PoolEvent, name: str) -> dict[str, Any]:
    """Return the event as values for structured logs: strings, numbers and None.

    The keys are those of `FIELDS`, without the prefix.
    """
    return {
        "pool": name,
        "event": str(event.kind),
        "task": event.task,
        "seconds": event.duration,
        "reason": None if event.reason is None else str(event.reason),
        "error": None if event.error is None else type(event.error).__name__,
        "lane": event.lane,
    }
