"""The circuit breaker of a pool: who passes, what the strategy learns, how it is switched."""

from __future__ import annotations

from functools import partial
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any, Final

from .. import messages
from .._core import Claim
from ..breaker import is_settled
from ..errors import ServiceUnavailableError
from ..events import EventKind, RefusalReason
from ..mask import explained
from ..states import CircuitState, ClaimState

if TYPE_CHECKING:
    from .engine import Engine


ACTIVE: Final = CircuitState.ACTIVE  # looked up for every return
WORDS: Final = {  # as everybody else calls the states
    CircuitState.ACTIVE: "closed",
    CircuitState.INACTIVE: "open",
    CircuitState.RECOVERING: "half-open",
}


class Circuit:
    """Asks and informs the strategy; the core counts who may pass."""

    __slots__ = ("_engine", "_failures", "broken", "cause", "failed", "failure", "since")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self.since: float | None = None  # loop time of the last switch
        self.broken: float | None = None  # loop time at which it left ACTIVE; None: it is ACTIVE
        # The last failure that was reported, in words: its traceback has the variables of others.
        self.failure: str | None = None
        self.failed: float | None = None  # loop time of that
        self._failures = 0  # how many were reported since the last switch
        self.cause: str | None = None  # the failure before the last switch, if there was one

    # -- switching ---------------------------------------------------------------------------------

    def switch(self, state: CircuitState) -> None:
        """Switch now, or at the end of the step that is under way."""
        engine = self._engine
        engine.check_loop()
        if engine.core.busy and engine.loop is not None:
            engine.steps.defer(partial(self.switch, state))
        else:
            engine.step(self.switch_to, state)

    def switch_to(self, state: CircuitState) -> None:
        """Switch, in a step. INACTIVE fails everybody that waits."""
        engine = self._engine
        core = engine.core
        if core.circuit is state:
            return
        before = core.circuit
        now = engine.history.catch_up()
        core.set_circuit(state)
        self.since = now
        if before is CircuitState.ACTIVE:
            self.broken = now
        engine.signals.log(
            WARNING if state is CircuitState.INACTIVE else INFO,
            "circuit breaker %s -> %s (%s): %s", before, state, WORDS[state], self._why(now),
            event=EventKind.STATE_CHANGED, reason=str(state),
        )  # fmt: skip
        if state is CircuitState.ACTIVE:
            self.broken = None
        self.cause = self.failure if self._failures else None
        self._failures = 0
        if state is CircuitState.INACTIVE:
            self.refuse_all()
        engine.signals.note(EventKind.STATE_CHANGED, reason=state)
        engine.signals.changed()
        engine.advance()

    def refuse_all(self) -> None:
        """Fail every claim that waits or was granted something."""
        for claim in self._engine.core.pending():
            if claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED:
                self._engine.claims.refuse(claim, RefusalReason.CIRCUIT, self.unavailable())

    def _why(self, now: float) -> str:
        """Why it was switched, and what follows, for the log."""
        state = self._engine.core.circuit
        if state is CircuitState.ACTIVE:
            if self.broken is None:
                return "every acquire passes"
            return f"every acquire passes again, after {messages.seconds(now - self.broken)}"
        if state is CircuitState.RECOVERING:
            limit = self._engine.core.recovering_limit
            return f"{limit} acquire{'s' * (limit > 1)} at a time may pass as a probe"
        count, failure = self._failures, (self.failure or "").removesuffix(".")
        if not count:
            why = "no failure was reported since the last change"
        elif count == 1:
            why = f"1 failure since the last change: {failure}"
        else:
            why = f"{count} failures since the last change, the last one: {failure}"
        wait = self.retry_after()
        if wait is None:
            return f"{why}; no probe is due, pool.recover() or pool.activate() lets acquires pass"
        return f"{why}; the next probe is due in {messages.seconds(wait)}"

    # -- passing -----------------------------------------------------------------------------------

    def admit(self, claim: Claim) -> bool:
        """Whether this claim may pass; an open breaker asks its strategy whether to recover."""
        core = self._engine.core
        if core.admit(claim):
            return True
        if core.circuit is CircuitState.INACTIVE and self._should_recover():
            self.switch_to(CircuitState.RECOVERING)
            return core.admit(claim)
        return False

    def admit_or_raise(self, claim: Claim) -> None:
        """Raise ServiceUnavailableError if this claim may not pass."""
        if not self.admit(claim):
            error = self.unavailable()
            raise self._engine.accounts.refused(claim, RefusalReason.CIRCUIT, error)

    def unavailable(self) -> ServiceUnavailableError:
        """The error of an acquire that may not pass."""
        engine = self._engine
        since = None if self.since is None else engine.time() - self.since
        core = engine.core
        return messages.unavailable(
            engine.name,
            core.circuit,
            since,
            self.failure,
            core.recovering_limit,
            self.retry_after(),
        )

    def retry_after(self) -> float | None:
        """Seconds until the strategy would let a probe pass; None: not known, or by hand only."""
        engine = self._engine
        ask = getattr(engine.strategy, "retry_after", None)
        if ask is None:
            return None
        try:
            answer = engine.call_out(ask)
            return None if answer is None else float(answer)
        except BaseException as raised:
            engine.contain(raised, "the strategy failed in retry_after()")
            return None

    def _should_recover(self) -> bool:
        engine = self._engine
        ask = getattr(engine.strategy, "should_recover", None)
        if ask is None:
            return False
        try:
            return bool(engine.call_out(ask))
        except BaseException as raised:
            engine.contain(raised, "the strategy failed in should_recover()")
            return False

    # -- reports -----------------------------------------------------------------------------------

    def report_success(self, probe: int) -> None:
        """Report a return without complaint; `probe` is that of its lease."""
        engine = self._engine
        strategy = engine.strategy
        if is_settled(strategy) and engine.core.circuit is ACTIVE:
            return
        if strategy is None or not engine.core.reports(probe):
            return
        try:
            engine.call_out(strategy.report_success, engine.pool)
        except BaseException as raised:
            engine.contain(raised, "the strategy failed in report_success()")

    def report_failure(self, error: BaseException, probe: int | None) -> None:
        """Report a failure. `probe` is that of the lease that failed; None: there was no lease, and
        it counts in any case."""
        engine = self._engine
        if not isinstance(error, Exception):
            return  # a cancellation says nothing about the backend
        if probe is not None and not engine.core.reports(probe):
            return
        # What was in use when the breaker opened fails as well, and is not why it is open.
        if probe is None or engine.core.circuit is not CircuitState.INACTIVE or not self.failure:
            self.failure, self.failed = explained(error), engine.time()
        self._failures += 1
        strategy = engine.strategy
        if strategy is None:
            return
        try:
            engine.call_out(strategy.report_failure, engine.pool, error)
        except BaseException as raised:
            engine.contain(raised, "the strategy failed in report_failure()")
