"""Lanes of the pools of other libraries: what is acquired inside `with lane:` goes through it."""

from __future__ import annotations

from typing import Any, Protocol, cast

from .. import messages
from ..events import LaneStats
from ..messages import label
from ..options import checked_lane
from ..pool import Lane, Pool
from ..sql.lanes import EnteredLane, innermost


class Adapter(Protocol):
    """The pool of another library that is a `cenote.Pool` inside."""

    @property
    def pool(self) -> Pool[Any]:
        """That pool, or its successor."""
        ...


class PoolLane(EnteredLane):
    """A part of the work of a pool, with a limit and a priority; `lane()` of the pool makes it.

    Inside `with lane:` or `async with lane:` every connection that is taken from the pool goes
    through the lane, also in the tasks that are started there.
    """

    owner: PoolLanes

    @property
    def active_count(self) -> int:
        """Connections that are out."""
        return self.here().active_count

    @property
    def waiting_count(self) -> int:
        """Tasks that wait for a connection."""
        return self.here().waiting_count

    def stats(self) -> LaneStats:
        """A frozen snapshot of the counts and totals."""
        return self.here().stats()

    def here(self) -> Lane[Any]:
        """This lane in the `cenote.Pool` that there is now."""
        pool = self.owner.adapter.pool
        return pool.lane(self.name, max_size=self.max_size, priority=self.priority)

    def __repr__(self) -> str:
        limit = "no limit" if self.max_size is None else f"max {self.max_size}"
        return (
            f"<PoolLane {self.name!r} of {self.owner.adapter.pool!r}: {limit}, "
            f"priority {self.priority}>"
        )


class PoolLanes:
    """The lanes of one pool of another library, by name."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._lanes: dict[str, PoolLane] = {}

    def get(self, name: str, max_size: int | None, priority: int) -> PoolLane:
        """The lane of this name, which is made if there is none.

        Raises `ValueError` if it was made with other options, or an argument is bad.
        """
        text, most, rank = checked_lane(name, max_size, priority)
        known = self._lanes.get(text)
        if known is None:
            known = self._lanes[text] = PoolLane(self, text, most, rank)
        elif (known.max_size, known.priority) != (most, rank):
            owner = label(self.adapter.pool.name)
            raise messages.other_lane(owner, text, (known.max_size, known.priority), (most, rank))
        return known

    def entered(self) -> Lane[Any] | Pool[Any]:
        """What the running code acquires from: the innermost lane it is in, or the pool."""
        lane = cast("PoolLane | None", innermost(self))
        return self.adapter.pool if lane is None else lane.here()
