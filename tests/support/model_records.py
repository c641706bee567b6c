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
    lanes: tuple[tuple[int | None, int], ...] = ()  # at most two: sizes and priorities
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
    lane: int | None = None  # the number of the lane that it goes through
    has_lane_place: bool = False
    chosen: bool = False  # its turn has come once, or a factory runs for it: it is not shed
    seen: list[Rest] = field(default_factory=list)
    thing: Thing | None = None  # granted, looked at by before_acquire, or held
    approved: bool = False  # an async before_acquire has accepted the thing
    permit: bool = False  # granted the right to create
    cancelled: bool = False  # its task will see that as soon as it runs
    leaving: bool = False  # its block is about to be left

    @property
    def deadline(self) -> float:
        return self.began + self.timeout if self.timeout else inf


def lane_of(name: str, options: Options) -> int | None:
    """Which lane this acquire goes through: two of three go through one, if there are any."""
    turn = int(name.split()[-1]) % 3
    return turn % len(options.lanes) if options.lanes and turn else None


def unlucky(name: str, failing: set[int]) -> bool:
    """Whether the factory fails for this acquire: the last word of its name is its number."""
    return int(name.split()[-1]) % 3 in failing
