"""The circuit breaker of a pool: who passes, what the strategy is told, and how it is switched."""

from __future__ import annotations

from functools import partial
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from .. import errors
from .._core import Claim
from ..events import EventKind
from ..mask import explained
from ..states import CircuitState, ClaimState

if TYPE_CHECKING:
    from .engine import Engine


class Circuit:
    """Asks and informs the strategy; the core counts who may pass."""

    __slots__ = ("_engine", "failure", "since")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self.since: float | None = None  # loop time of the last switch
        # The last failure that was reported, in words: its traceback has the variables of others.
        self.failure: str | None = None

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
        core.set_circuit(state)
        self.since = engine.time()
        engine.signals.log(
            WARNING if state is CircuitState.INACTIVE else INFO,
            "circuit breaker %s -> %s", before, state,
            event=EventKind.STATE_CHANGED, reason=str(state),
        )  # fmt: skip
        if state is CircuitState.INACTIVE:
            self.refuse_all()
        if engine.subscribers:
            engine.signals.emit(EventKind.STATE_CHANGED, reason=state)
        engine.signals.changed()
        engine.advance()

    def refuse_all(self) -> None:
        """Fail every claim that waits or was granted something."""
        for claim in self._engine.core.pending():
            if claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED:
                self._engine.claims.fail(claim, self.unavailable())

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
            raise self.unavailable()

    def unavailable(self) -> errors.ServiceUnavailableError:
        """The error of an acquire that may not pass."""
        engine = self._engine
        since = None if self.since is None else engine.time() - self.since
        core = engine.core
        return errors.unavailable(
            engine.name, core.circuit, since, self.failure, core.recovering_limit
        )

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
        self.failure = explained(error)
        strategy = engine.strategy
        if strategy is None:
            return
        try:
            engine.call_out(strategy.report_failure, engine.pool, error)
        except BaseException as raised:
            engine.contain(raised, "the strategy failed in report_failure()")
