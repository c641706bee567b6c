"""Opening a pool, and undoing an open() that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import messages
from ..errors import Undone
from ..events import DestroyReason
from ..mask import explained
from ..states import CircuitState, Phase
from .operation import Operation

if TYPE_CHECKING:
    from .engine import Engine


class Opening:
    """The open() calls of a pool."""

    __slots__ = ("_engine", "_undoing")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._undoing: Operation | None = None  # a failed open() is being undone

    async def open(self, least: int) -> None:
        """Create `min_size` resources, or `least` if that is more: then they are not restored
        later. Raises what the first factory that failed has raised, and leaves nothing behind."""
        engine = self._engine
        core = engine.core
        while self._undoing is not None:
            await self._undoing.wait()
        await engine.steps.turn()
        engine.step(engine.enter)
        failures: list[BaseException] = []
        listeners = engine.creations.listeners
        listeners.append(failures)
        try:
            await engine.lending.begun()
            while core.count < self._wanted(least):
                if failures:
                    raise failures[0]
                if core.phase is not Phase.OPEN:
                    raise engine.closing.error()
                if core.circuit is CircuitState.INACTIVE:
                    raise engine.circuit.unavailable()
                self._check_room()
                change = engine.signals.next_change()
                engine.step(engine.creations.fill, least)
                await change
        except BaseException as error:
            listeners.remove(failures)
            # Another open() goes on, unless it gets the same failure.
            if failures or isinstance(error, Exception) or not listeners:
                await self._undo()
            raise
        listeners.remove(failures)

    def _wanted(self, least: int) -> int:
        """How many there shall be: no more than are lent, but one at least if it is asked for."""
        core = self._engine.core
        wanted = max(core.min_size, least)
        return wanted if self._engine.lending.loan is None else min(wanted, max(1, core.max_size))

    def _check_room(self) -> None:
        """Raise AcquireTimeoutError if the backend has been full for `acquire_timeout`."""
        engine = self._engine
        limit, full = engine.acquire_timeout, engine.creations.full
        if full is None or limit is None or engine.time() < engine.creations.full_since + limit:
            return
        core = engine.core
        counts = core.active, core.idle_count, core.waiting
        said = explained(full)
        raise messages.acquire_timeout(
            engine.name, limit, counts, (), "", deadlock=False, full=said
        ) from full

    async def _undo(self) -> None:
        """Destroy what was created; a pool that is not used otherwise is new again."""
        engine = self._engine
        core = engine.core
        if core.phase is not Phase.OPEN:
            return
        engine.maintenance.paused = True
        undoing = self._undoing = Operation()
        undoing.begin()
        try:
            if not core.waiting:
                for work in [*engine.creations.tasks.values()]:
                    work.cut(Undone())
            while engine.creations.tasks and not core.waiting:
                await engine.signals.next_change()
            destroy = engine.destructions.destroy_idle
            await engine.step(destroy, DestroyReason.OPEN_FAILED, core.idle_slots()).wait()
        finally:
            engine.maintenance.paused = False
            self._undoing = None
            undoing.end()
            if core.phase is Phase.OPEN and not (core.total or core.pending()):
                core.move("unopen")
                engine.binding.unbind()
