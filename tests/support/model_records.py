"""What the naive pool of `model.py` is made of, and the options with which it is tried."""

from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True)
class Options:
    async_factory: bool = False
    before_acquire: str = "none"  # none, sync, async
    before_release: str = "none"
    destructor: str = "none"
    lifo: bool = False
    min_size: int = 0
    max_size: int = 1
    max_uses: int | None = None
    max_waiting: int | None = None
    max_creating: int | None = None
    lane_size: int | None = None  # a lane for two of three acquires; None: there is none
    lane_priority: int = 0
    queue_target: float | None = None
    queue_interval: float = 2.0
    recovering_limit: int = 1
    reuse_after_cancel: bool = False


@dataclass(eq=False)
class Thing:
    """A resource."""

    label: str  # who made it: an acquire, or the pool, counted
    generation: int
    uses: int = 0
    rested: bool = False  # not new any more: before_acquire looks at it


@dataclass(eq=False)
class Rest:
    """One stay of a thing in the pool: a thing that was out meanwhile rests anew."""

    thing: Thing


@dataclass(eq=False)
class Creation:
    generation: int


@dataclass(eq=False)
class Claim:
    """One acquire. state: new, waiting, granted, inspected, holding, over."""

    name: str
    timeout: float | None
    in_block: bool
    trying: bool = False  # a try_acquire(): one that gives nothing is not counted as begun
    state: str = "new"
    outcome: str | None = None
    began: float = 0.0
    since: float = 0.0
    turn: int = 0
    queued_at: float = 0.0
    laned: bool = False  # it goes through the lane
    has_lane_place: bool = False
    seen: list[Rest] = field(default_factory=list)
    thing: Thing | None = None  # granted, looked at by before_acquire, or held
    approved: bool = False  # an async before_acquire has accepted the thing
    permit: bool = False  # granted the right to create
    cancelled: bool = False  # its task will see that as soon as it runs
    leaving: bool = False  # its block is about to be left

    @property
    def deadline(self) -> float:
        return self.began + self.timeout if self.timeout else inf


def in_lane(name: str, options: Options) -> bool:
    """Whether this acquire goes through the lane: two of three do, if there is one."""
    return options.lane_size is not None and int(name.split()[-1]) % 3 > 0


def unlucky(name: str, failing: set[int]) -> bool:
    """Whether the factory fails for this acquire: the last word of its name is its number."""
    return int(name.split()[-1]) % 3 in failing
