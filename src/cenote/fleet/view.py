"""What extras see of the fleets of this process: what each pool was lent, and who else is there.

`share_of()` reads what the ledger has answered last, in any thread, and asks nobody; `look_at()`
asks the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import observe
from .board import FleetHolder as FleetHolder
from .fleet import Fleet as Fleet
from .fleet import living as living
from .lease import LeaseState
from .ledger import LedgerError as LedgerError
from .ledger import MemberRow as MemberRow
from .loan import MemberLoan

if TYPE_CHECKING:
    from ..pool import Pool


@dataclass(frozen=True, slots=True)
class Share:
    """What a pool has of the budget of its fleet, as the ledger gave it last.

    Attributes:
        fleet: The name of the fleet.
        member: What the ledger calls this pool.
        held: How many resources it may have now.
        target: How many it should have; None before the first answer.
        need: The most it had in use and waited for at once, as the ledger knows it.
        reachable: Whether the ledger answers.
        budget: The budget that counts: the smallest of all processes.
        used: What all processes may have together; None before the first answer.
        processes: How many processes there are; None before the first answer.
        circuit: The state of the circuit breaker of the fleet; None before the first answer.
    """

    fleet: str
    member: str
    held: int
    target: int | None
    need: int
    reachable: bool
    budget: int
    used: int | None
    processes: int | None
    circuit: str | None


def share_of(pool: Pool[Any]) -> Share | None:
    """Return what a pool was lent; None if it is in no fleet. It may be called in any thread."""
    loan = observe.loan_of(pool)
    if not isinstance(loan, MemberLoan):
        return None
    lease, config = loan.lease, loan.config
    grant = lease.grant
    return Share(
        fleet=config.name,
        member=loan.member,
        held=lease.size,
        target=None if grant is None else grant.target,
        need=lease.told,
        reachable=lease.state is LeaseState.LEASED and lease.failing_since is None,
        budget=config.budget if grant is None else grant.budget,
        used=None if grant is None else grant.used,
        processes=None if grant is None else grant.processes,
        circuit=None if grant is None else str(grant.circuit.state),
    )


async def look_at(fleet: Fleet) -> tuple[list[MemberRow], list[FleetHolder]]:
    """Ask the ledger for every pool of every process, the oldest first, and for the longest holders
    of all of them, where the ledger knows them.

    Raises:
        LedgerError: It does not answer within a second.
    """
    return await fleet.look()
