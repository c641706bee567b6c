"""The journal of a pool: its last 200 events, in 256 bytes each.

What happens often is one entry with a count: a thousand refusals in an outage must not drive out
the entry that says why. Acquires and returns are only counted; see `samples.py`.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from ..events import EventKind
from ..states import CircuitState

EVENTS: Final = 200  # entries that are kept
OPEN: Final = 16  # of them, so many may still grow
GROUP: Final = 60.0  # seconds that an entry may cover,
PAUSE: Final = 5.0  # and that may be between two events of one entry
TEXT: Final = 140  # bytes
TASK: Final = 32  # bytes

# Each of these is an entry of its own.
SINGLE: Final = frozenset({EventKind.OPENED, EventKind.CLOSED, EventKind.HELD_LONG})
# The switches of a breaker from the first opening to the end of the outage are two entries: probes
# that fail every second would drive out everything else.
LASTING: Final = EventKind.STATE_CHANGED

_HEAD = struct.Struct("<QQddfIBB")  # see _packed()
_KINDS: Final = tuple(EventKind)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}


class Entry(NamedTuple):
    """What happened, once or several times. Times are of the pool's clock."""

    number: int  # counts from 1
    changed: int  # grows with every event of the journal
    kind: EventKind
    first: float
    last: float
    times: int  # how often
    task: str | None  # of the first
    text: str | None  # of the first: a reason, an error in masked words
    duration: float | None  # of the first


class _Group:
    """An entry that may still grow."""

    __slots__ = ("changed", "count", "duration", "first", "kind", "last", "number", "task", "text")

    def __init__(
        self,
        number: int,
        kind: EventKind,
        now: float,
        task: bytes,
        text: bytes,
        duration: float | None,
    ) -> None:
        self.number = number
        self.changed = number
        self.kind = kind
        self.first = self.last = now
        self.count = 1
        self.task = task
        self.text = text
        self.duration = duration

    def packed(self) -> bytes:
        duration = math.nan if self.duration is None else self.duration
        return b"".join((
            _HEAD.pack(
                self.number, self.changed, self.first, self.last, duration, self.count,
                _NUMBERS[self.kind], len(self.task),
            ),
            self.task,
            self.text,
        ))  # fmt: skip


class Journal:
    """The last entries of one pool."""

    __slots__ = ("_open", "_past", "changed")

    def __init__(self) -> None:
        self.changed: int = 0  # how many events there were
        self._past: deque[bytes] = deque(maxlen=EVENTS - OPEN)
        self._open: dict[tuple[EventKind, str | None], _Group] = {}

    def grows(self, kind: EventKind, reason: str | None, now: float) -> bool:
        """Count an event to the entry it belongs to; False: it needs an entry of its own."""
        group = self._open.get((kind, reason))
        if group is None:
            return False
        if kind is not LASTING and (now - group.last > PAUSE or now - group.first > GROUP):
            return False
        self.changed += 1
        group.changed = self.changed
        group.count += 1
        group.last = now
        return True

    def add(
        self,
        kind: EventKind,
        reason: str | None,
        now: float,
        task: str | None = None,
        text: str | None = None,
        duration: float | None = None,
    ) -> None:
        """Begin an entry."""
        self.changed += 1
        group = _Group(self.changed, kind, now, _cut(task, TASK), _cut(text, TEXT), duration)
        key = kind, reason
        before = self._open.pop(key, None)
        if before is not None:
            self._past.append(before.packed())
        restored = reason == CircuitState.ACTIVE and kind is LASTING
        if restored:
            for key in [key for key in self._open if key[0] is LASTING]:
                self._past.append(self._open.pop(key).packed())
        if restored or kind in SINGLE:
            self._past.append(group.packed())
            return
        if len(self._open) >= OPEN:
            oldest = min(self._open, key=lambda key: self._open[key].last)
            self._past.append(self._open.pop(oldest).packed())
        self._open[key] = group

    def since(self, changed: int) -> list[Entry]:
        """Return the entries that are new or have grown since then, the oldest first."""
        if changed >= self.changed:
            return []
        found = [*self._entries()]
        return sorted(entry for entry in found if entry.changed > changed)

    def _entries(self) -> Iterator[Entry]:
        for packed in [*self._past, *[group.packed() for group in self._open.values()]]:
            number, changed, first, last, duration, count, kind, task = _HEAD.unpack_from(packed)
            end = _HEAD.size + task
            yield Entry(
                number,
                changed,
                _KINDS[kind],
                first,
                last,
                count,
                packed[_HEAD.size : end].decode("utf-8", "ignore") or None,
                packed[end:].decode("utf-8", "ignore") or None,
                None if math.isnan(duration) else duration,
            )


def _cut(text: str | None, most: int) -> bytes:
    """Return at most so many bytes; what was cut ends in an ellipsis."""
    if not text:
        return b""
    given = text[: most + 1].encode("utf-8", "replace")
    if len(given) <= most:
        return given
    return given[: most - 3].decode("utf-8", "ignore").encode() + "\u2026".encode()
