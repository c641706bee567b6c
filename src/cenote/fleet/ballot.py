"""The circuit breaker of a fleet: votes, the claim of the probe, and its verdict.

Every change counts the epoch up. What was decided for another epoch changes nothing: a slow vote
does not open a breaker that has closed meanwhile, and a probe that came back late does not close
one that somebody else is probing.

Votes are counted by host, so that one host that is cut off does not take the others with it. All
hosts with members count, those that say nothing included. A host is down if more of its members say
down than up, and at least two of them if it has two. The breaker opens when more than half of all
hosts are down; or after `PATIENCE`, when more than half of those that have voted are, two at least
if there are two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .ledger import FleetCircuit, FleetState

PATIENCE: Final = 0.5  # seconds for which votes that are missing are waited for
SUSPECT_FOR: Final = 3.0  # seconds after which a suspicion without a majority is dropped
PROBE_EVERY: Final = 1.0  # seconds from one probe of the fleet to the next
PROBE_LEASE: Final = 3.0  # seconds after which somebody else may claim the probe


@dataclass(slots=True)
class Ballot:
    """The state that a ledger keeps. Times are those of the ledger's clock."""

    state: FleetState = FleetState.ACTIVE
    epoch: int = 0
    since: float = 0.0  # of the suspicion
    retry: float = 0.0  # no probe before this
    prober: str | None = None
    leased_until: float = 0.0  # of the prober
    votes: dict[str, bool] = field(default_factory=dict)  # by member; True: down

    def seen(self, now: float) -> FleetCircuit:
        """What members get to know."""
        wait = 0.0
        if self.state is FleetState.SUSPECT:
            wait = self.since + PATIENCE - now
            if wait <= 0:
                wait = self.since + SUSPECT_FOR - now
        elif self.state is FleetState.INACTIVE:
            wait = (self.leased_until if self._is_leased(now) else self.retry) - now
        prober = self.prober if self._is_leased(now) else None
        return FleetCircuit(self.state, self.epoch, max(0.0, wait), prober)

    def learn(self, epoch: int) -> bool:
        """A member knows a newer epoch: this state was lost. Returns whether it has changed."""
        if epoch <= self.epoch:
            return False
        self._change(FleetState.ACTIVE)
        self.epoch = epoch + 1
        return True

    def vote(
        self, member: str, hosts: Mapping[str, str], epoch: int, down: bool, now: float
    ) -> bool:
        """A member has judged. `hosts`: the host of every member that takes part. Returns whether
        the state has changed."""
        if epoch != self.epoch or member not in hosts or self.state is FleetState.INACTIVE:
            return False
        began = False
        if self.state is FleetState.ACTIVE:
            if not down:
                return False
            self._change(FleetState.SUSPECT)
            self.since, began = now, True
        self.votes[member] = down
        return self.judge(hosts, now) or began

    def judge(self, hosts: Mapping[str, str], now: float) -> bool:
        """Count the votes. Returns whether the state has changed."""
        if self.state is not FleetState.SUSPECT:
            return False
        if self._has_majority(hosts, now):
            self._change(FleetState.INACTIVE)
            self.retry = now + PROBE_EVERY
            return True
        if now >= self.since + SUSPECT_FOR:
            self._change(FleetState.ACTIVE)
            return True
        return False

    def claim(self, member: str, epoch: int, now: float) -> bool:
        """A member wants to make the probe. Returns whether it has got it."""
        if (
            epoch != self.epoch
            or self.state is not FleetState.INACTIVE
            or now < self.retry
            or self._is_leased(now)
        ):
            return False
        self.epoch += 1
        self.prober, self.leased_until = member, now + PROBE_LEASE
        return True

    def verdict(self, member: str, epoch: int, up: bool, now: float) -> bool:
        """The probe has ended. Returns whether the state has changed."""
        if (
            epoch != self.epoch
            or self.state is not FleetState.INACTIVE
            or member != self.prober
            or not self._is_leased(now)
        ):
            return False
        self._change(FleetState.ACTIVE if up else FleetState.INACTIVE)
        if not up:
            self.retry = self.leased_until - PROBE_LEASE + PROBE_EVERY
            self.leased_until = 0.0
        return True

    def _change(self, state: FleetState) -> None:
        self.state = state
        self.epoch += 1
        self.prober = None
        self.votes.clear()

    def _is_leased(self, now: float) -> bool:
        return self.prober is not None and now < self.leased_until

    def _has_majority(self, hosts: Mapping[str, str], now: float) -> bool:
        every = set(hosts.values())
        spoken = [host for host in every if any(hosts.get(m) == host for m in self.votes)]
        down = [host for host in spoken if self._is_down(host, hosts)]
        if 2 * len(down) > len(every):
            return True
        late = now >= self.since + PATIENCE
        return late and len(down) >= min(2, len(every)) and 2 * len(down) > len(spoken)

    def _is_down(self, host: str, hosts: Mapping[str, str]) -> bool:
        members = [member for member, where in hosts.items() if where == host]
        votes = [self.votes[member] for member in members if member in self.votes]
        downs = sum(votes)
        return 2 * downs > len(votes) and downs >= min(2, len(members))
