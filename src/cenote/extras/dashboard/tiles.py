"""The slots as rows of the page; a slot keeps its place as long as it lives."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ...messages import without_text
from ...observe import SlotView
from . import text
from .statements import Running

STATES: Final = ["idle", "active", "creating", "hook", "destroying"]
IDLE, ACTIVE, CREATING, HOOK, DESTROYING = range(5)
STREAM: Final = "stream is open"  # the pin reason of one
NOTHING: Final[Mapping[int, Running]] = {}

# As it is sent: place, state, since in ms, task, caller, pin reason, uses; of a connection the
# statement that runs now, and since when; and the lane.
Row = list[Any]


class Tiles:
    """The rows of one pool, and when each of them last changed.

    The pool lists slots that are idle, held, or being created by a task. Slots in a hook or being
    destroyed are only counted; they are taken to be slots that were listed a moment ago.
    """

    def __init__(self) -> None:
        self.changed: int = 0  # tick of the last change
        self._places: dict[int, int] = {}  # key of the slot -> its place
        self._rows: list[Row | None] = []  # by place
        self._ticks: list[int] = []  # by place: when its row changed
        self._free: list[int] = []  # places, a heap
        self._unknown = 0  # keys for slots that were never seen: -1, -2, ...

    def __len__(self) -> int:
        return len(self._rows)

    def since(self, tick: int) -> list[Row]:
        """Return the rows that changed after that tick; `[place]` for a place that is free now."""
        return [
            [place] if row is None else row
            for place, (row, changed) in enumerate(zip(self._rows, self._ticks, strict=True))
            if changed > tick
        ]

    def update(
        self,
        slots: Iterable[SlotView],
        *,
        tick: int,
        now: int,
        offset: float,
        creating: int,
        hooked: int,
        destroying: int,
        running: Mapping[int, Running] = NOTHING,
        explain: Callable[[str], str] = without_text,
    ) -> None:
        """Take in the slots; `now` is in ms, `offset` leads from pool time to wall time, in s;
        `running` is by the id of the task that holds the connection; `explain`
        makes of the reason of a pin what is shown of it."""
        seen = {slot.key: slot for slot in slots}
        held = Counter(slot.task_id for slot in seen.values())
        listed = sum(slot.state == "creating" for slot in seen.values())
        left = {CREATING: creating - listed, HOOK: hooked, DESTROYING: destroying}
        unlisted, gone = self._unlisted([key for key in self._places if key not in seen], left)
        for key in gone:
            self._free_place(self._places.pop(key), tick)
        for key, state in unlisted.items():
            self._set(key, [state, now, None, None, None, self._uses(key), None, None, None], tick)
        for slot in seen.values():
            since = now if slot.since is None else round((slot.since + offset) * 1000)
            known = running.get(slot.task_id)
            said, begun = (None, None) if known is None else (known.text, known.since)
            if held[slot.task_id] > 1 and (slot.reason or "").startswith(STREAM):
                said = begun = None  # it runs on the other connection of this task
            if begun is not None:  # the method was called before it had waited for the connection
                begun = max(begun, since)
            row = [
                STATES.index(slot.state),
                since,
                None if slot.task is None else text.clean(slot.task),
                text.place(slot.code, slot.instruction),
                None if slot.reason is None else text.clean(explain(slot.reason)),
                slot.uses,
                said,
                begun,
                None if slot.lane is None else text.clean(slot.lane),
            ]
            self._set(slot.key, row, tick)
        self._trim(tick)

    def _unlisted(self, lost: list[int], left: dict[int, int]) -> tuple[dict[int, int], list[int]]:
        """Return the states of slots that are not listed any more, and those that are gone."""
        found: dict[int, int] = {}
        undecided = []
        for key in lost:
            row = self._rows[self._places[key]]
            before = IDLE if row is None else row[1]
            if left.get(before, 0) > 0:
                left[before] -= 1
                found[key] = before
            else:
                undecided.append((key, before))
        gone = []
        for key, before in undecided:
            # What was in the destructor is gone; what was elsewhere is in a hook, or there.
            state = None if before == DESTROYING else next(
                (state for state in (HOOK, DESTROYING) if left[state] > 0), None
            )  # fmt: skip
            if state is None:
                gone.append(key)
            else:
                left[state] -= 1
                found[key] = state
        for state, count in left.items():
            for _ in range(count):
                self._unknown -= 1
                found[self._unknown] = state
        return found, gone

    def _uses(self, key: int) -> int | None:
        row = self._rows[self._places[key]] if key in self._places else None
        return None if row is None else row[6]

    def _set(self, key: int, row: Row, tick: int) -> None:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._take_place()
        old = self._rows[place]
        # Where the beginning is not known, the time at which it was first seen stays.
        if old is not None and row[0] == old[1] and row[0] >= CREATING:
            row[1] = old[2]
        row.insert(0, place)
        if old != row:
            self._rows[place] = row
            self._ticks[place] = self.changed = tick

    def _take_place(self) -> int:
        if self._free and self._free[0] < len(self._rows):
            return heapq.heappop(self._free)
        self._free.clear()
        self._rows.append(None)
        self._ticks.append(0)
        return len(self._rows) - 1

    def _free_place(self, place: int, tick: int) -> None:
        self._rows[place] = None
        self._ticks[place] = self.changed = tick
        heapq.heappush(self._free, place)

    def _trim(self, tick: int) -> None:
        while self._rows and self._rows[-1] is None:
            self._rows.pop()
            self._ticks.pop()
            self.changed = tick
