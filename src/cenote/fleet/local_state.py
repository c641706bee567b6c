"""What is in the file of a local ledger, as bytes: the reference ledger, and who sits where.

A seat is the place of one event loop; what happens to it happens to its members. The text is JSON,
so that a person can read the file. What is written here is bound to `ledger_file.VERSION`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from .ballot import Ballot
from .ledger import FleetState, Sync
from .reference import LedgerRow, ReferenceLedger

# Of a `Sync`, in the order of its fields.
_SYNC: Final = (
    "member", "seq", "keep", "need", "floor", "ceiling", "budget", "host", "process", "pool",
    "since", "audit", "breaker", "epoch", "making",
)  # fmt: skip
_of_sync: Final = attrgetter(*_SYNC)
_of_ballot: Final = attrgetter("epoch", "since", "retry", "prober", "leased_until", "votes")


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one event loop.

    Attributes:
        process: The id of its process, to be shown.
        number: How many seats were taken before: it differs for each member that sat here.
    """

    process: int
    number: int


@dataclass(slots=True)
class LocalState:
    """All of it.

    Attributes:
        ledger: Decides; a row ends when its seat does.
        seats: By the number of their locks.
        homes: The seat of each member.
        taken: How many seats were taken so far.
    """

    ledger: ReferenceLedger
    seats: dict[int, Seat] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)
    taken: int = 0

    @classmethod
    def new(cls, beat: float, epoch: int = 0) -> LocalState:
        """Nobody is there. `epoch`: where the circuit breaker goes on."""
        return cls(ReferenceLedger(math.inf, beat, learns=False, ballot=Ballot(epoch=epoch)))

    def seat(self, at: int, process: int) -> None:
        """Somebody sits down."""
        self.seats[at] = Seat(process, self.taken)
        self.taken += 1

    def clear(self, dead: Iterable[int], now: float) -> None:
        """These seats are empty: their members have lost what they had."""
        gone = {at for at in dead if self.seats.pop(at, None) is not None}
        if gone:
            lost = [member for member, home in self.homes.items() if home in gone]
            self.ledger.drop(lost, now)

    def after(self, seat: int, many: int) -> list[int]:
        """The seats that follow this one, as if they stood in a circle."""
        others = sorted(at for at in self.seats if at != seat)
        later = [at for at in others if at > seat]
        return (later + others[: len(others) - len(later)])[:many]

    def before(self, seat: int, many: int) -> list[int]:
        """The seats that this one follows."""
        others = sorted((at for at in self.seats if at != seat), reverse=True)
        earlier = [at for at in others if at < seat]
        return (earlier + others[: len(others) - len(earlier)])[:many]

    def encode(self) -> bytes:
        """This as bytes."""
        ledger, ballot = self.ledger, self.ledger.ballot
        content = {
            "taken": self.taken,
            "seats": [[at, each.process, each.number] for at, each in self.seats.items()],
            "lines": ledger.lines,
            "rows": [
                [*_of_sync(row.last), row.charge, row.line, row.asked, self.homes[member]]
                for member, row in ledger.rows.items()
            ],
            "ballot": [str(ballot.state), *_of_ballot(ballot)],
        }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, text: bytes, beat: float) -> LocalState:
        """What `encode` has made of it."""
        content: dict[str, Any] = json.loads(text)
        state, *ballot = content["ballot"]
        ledger = ReferenceLedger(
            math.inf, beat, learns=False, ballot=Ballot(FleetState(state), *ballot)
        )
        ledger.lines = content["lines"]
        homes = {}
        for *fields, charge, line, asked, home in content["rows"]:
            sync = Sync(*fields)
            ledger.rows[sync.member] = LedgerRow(sync, charge, line, math.inf, asked)
            homes[sync.member] = home
        seats = {at: Seat(process, number) for at, process, number in content["seats"]}
        return cls(ledger, seats, homes, content["taken"])
