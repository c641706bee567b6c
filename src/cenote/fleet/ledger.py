"""What the members of a fleet and its ledger say to each other.

A ledger is where a fleet keeps its budget: a file, Redis, PostgreSQL. It knows one row for each
member (one pool in one event loop of one process) and charges it for what it may have. Every ledger
does what `reference.ReferenceLedger` does; `tests/fleet/test_conformance.py` compares them.

The invariants:

- I1: the charges together are never more than the budget. Only `sync` raises a charge, atomically.
  A member that says it has more than its row says is believed: nobody's charge is raised until this
  debt is paid.
- I2: a member never has more than it is charged. It raises its `max_size` after the reply that has
  raised the charge, and lowers it before the request that lowers the charge. A request that was
  overtaken by a later one, by `seq`, changes nothing.
- I3: a lease ends for the member (0.99 of its time after it was sent) before it ends for the ledger
  (all of it after it has arrived). Each looks at its own clock; clocks are never compared, so all
  times here are seconds from now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..events import Word


class LedgerError(Exception):
    """The ledger cannot be reached, or does not answer in time: the members go on without it."""


class LedgerConfigError(LedgerError):
    """The ledger refuses to work as it is configured, such as with a foreign file or a wrong
    password. It will not change by itself; the text says what to do."""


class FleetState(Word):
    """The state of the circuit breaker of a fleet."""

    ACTIVE = "ACTIVE"  # everybody judges for himself
    SUSPECT = "SUSPECT"  # one member has found the backend down: all others look and vote
    INACTIVE = "INACTIVE"  # down for everybody: one member at a time makes a probe


@dataclass(frozen=True, slots=True)
class FleetCircuit:
    """The circuit breaker of a fleet, as the ledger knows it.

    Attributes:
        state: See `FleetState`.
        epoch: Every change counts it up; a vote, a claim or a verdict that was made for another
            epoch changes nothing, and news of an older epoch is to be ignored.
        next_in: SUSPECT: seconds until votes that are missing are not waited for any more, so that
            `judge` may be worth a call. INACTIVE: seconds until the next probe may be claimed.
            Otherwise 0.
        prober: The member that makes the probe now; None if nobody does.
    """

    state: FleetState = FleetState.ACTIVE
    epoch: int = 0
    next_in: float = 0.0
    prober: str | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """What a member reports to the ledger, every `beat` (a fifth of the ttl) or at some event.

    Attributes:
        member: Who it is: one pool in one event loop of one process; unique, never used again.
        seq: One more than in the request before; a request with an older one changes nothing.
        keep: What it keeps: the larger of its `max_size` and what it has (opening, open, closing).
        need: The most it had in use and waited for at once in the last half second.
        floor: What it always gets: `max(1, min_size)`.
        ceiling: What it can use at most: the `max_size` of its options.
        budget: The budget it was given; the smallest of all living members counts.
        host: Name of the machine; `process` is the id of the process there, `pool` the name.
        since: When it joined, as `time.time()` of its own machine; only to be shown.
        audit: Whether what it has can be counted at the server after it has fallen silent.
        breaker: The state of its circuit breaker, to be shown; None if it takes no part in the
            circuit breaker of the fleet.
        epoch: The newest epoch of the fleet's circuit breaker that it knows. A ledger that knows
            only an older one has lost its state, and goes on from here.
        making: How many it opens at once at most: an audit does not see what is being opened.
    """

    member: str
    seq: int
    keep: int
    need: int
    floor: int
    ceiling: int
    budget: int
    host: str
    process: int
    pool: str
    since: float = 0.0
    audit: bool = False
    breaker: str | None = None
    epoch: int = 0
    making: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """What the ledger answers to a `Sync`.

    Attributes:
        accepted: False: a later request was faster, and this one has changed nothing.
        held: What the member may have now: its charge.
        target: What it should have. With less it will get more as soon as there is room; with more
            it gives back, but only as long as somebody needs it: see `owed` and `lend`.
        owed: How many others need, and cannot get before somebody gives back; with what is charged
            beyond the budget.
        lend: Whether somebody has less than the target: then permission that is not used goes back.
        share: What it may have if the ledger cannot be reached any more: its equal part.
        lasts: Seconds for which this grant is good, `math.inf` if the ledger notices by itself when
            a member dies.
        used: What everybody is charged together.
        budget: The budget that counts: the smallest of the living.
        processes: How many processes there are, this one included.
        silent: Members whose lease has ended and who are charged until they are audited; told to
            one member at a time, which counts what they have and calls `settle`.
        circuit: The circuit breaker of the fleet.
    """

    accepted: bool
    held: int
    target: int
    owed: int
    lend: bool
    share: int
    lasts: float
    used: int
    budget: int
    processes: int
    silent: tuple[str, ...] = ()
    circuit: FleetCircuit = field(default_factory=FleetCircuit)


@dataclass(frozen=True, slots=True)
class News:
    """What a ledger sends without being asked. News may be lost: the next beat repairs it.

    Attributes:
        member: The member that should sync now, for there is room for it, or others are short and
            it has more than its part. None: this is about `circuit`.
        circuit: The circuit breaker of the fleet has changed; for everybody.
    """

    member: str | None = None
    circuit: FleetCircuit | None = None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One row of a ledger, to be shown.

    Attributes:
        member: As in `Sync`, like everything that is not explained here.
        held: What it is charged.
        silent: Its lease has ended, and nobody has counted what it has.
    """

    member: str
    host: str
    process: int
    pool: str
    held: int
    need: int
    since: float
    breaker: str | None
    silent: bool = False


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """What a ledger is made of.

    Attributes:
        url: Where it is; empty for the file of this host.
        name: The name of the fleet: fleets of different names have nothing to do with each other.
        ttl: Seconds until a member that sends nothing any more has lost what it had.
        path: The file of this host; None for the default.
    """

    url: str = field(repr=False)  # it may have a password
    name: str
    ttl: float
    path: str | None = None

    @property
    def beat(self) -> float:
        """Seconds between two requests of a member to which nothing happens."""
        return self.ttl / 5


class Ledger(Protocol):
    """The connection of one event loop to a ledger; several members use it.

    A module that offers one has a function `new_ledger(config: LedgerConfig) -> Ledger`, and is
    listed in `loading.py` by the schemes of its URLs. Every method may raise `LedgerError`, and
    then may or may not have taken effect. A method that is cancelled leaves the ledger usable.
    """

    async def open(self, news: Callable[[News], object]) -> None:
        """Connect. `news` is called in the event loop, until `close`; it does not raise. After a
        connection was lost the ledger connects again by itself, at the latest when it is asked."""

    async def close(self) -> None:
        """Disconnect. Members that did not `leave` lose what they had as if they had died."""

    def forsake(self) -> None:
        """In the child of a fork: let go of everything that belongs to the parent, untouched."""

    async def sync(self, request: Sync) -> Grant:
        """Report what a member has and needs; return what it may have. The first makes its row;
        so does one after its row was lost."""
        ...

    async def leave(self, member: str, seq: int) -> None:
        """Remove a row, after everything that it was charged for is gone."""

    async def rows(self) -> list[MemberRow]:
        """Every member, the oldest first."""
        ...

    async def settle(self, member: str, counted: int) -> None:
        """The result of an audit: a silent member has this many resources, and may have more that
        are being opened, see `Sync.making`. Changes nothing if it is not silent any more."""

    async def vote(self, member: str, epoch: int, *, down: bool) -> FleetCircuit:
        """Say what a member has found out about the backend: ACTIVE and `down`: SUSPECT from now
        on; SUSPECT: counted by host. Returns the circuit breaker after that, as all of these do."""
        ...

    async def judge(self) -> FleetCircuit:
        """Count the votes again; to be called after the `next_in` of SUSPECT."""
        ...

    async def claim(self, member: str, epoch: int) -> FleetCircuit:
        """Ask for the probe. The caller has it if it is the `prober` of what is returned, in the
        epoch that is returned."""
        ...

    async def verdict(self, member: str, epoch: int, *, up: bool) -> FleetCircuit:
        """Say what the probe has found, for the epoch of its claim."""
        ...
