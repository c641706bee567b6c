"""Which task a statement belongs to, and which transaction it was started in."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator
from contextvars import Context, ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakSet, ref

from ..observe import task_name
from .states import SessionState

if TYPE_CHECKING:
    from .per_loop import LoopDatabase
    from .session import Session
    from .transaction import Transaction

    AnyTransaction: TypeAlias = "Transaction | RawTransaction"

Task = asyncio.Task[Any]

HELD = (SessionState.IN_TRANSACTION, SessionState.LOST)  # in which a raw transaction is open

# wait_for() starts a task until 3.11.
WAIT_FOR_STARTS_A_TASK: Final = sys.version_info < (3, 12)


class RawTransaction:
    """One that a task began with a statement of its own, for tasks that it starts inside."""

    __slots__ = ("__weakref__", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def is_open(self) -> bool:
        return self._session.state in HELD

    @property
    def task_name(self) -> str:
        return task_name(self._session.task)

    def _open_session(self) -> Session:
        return self._session

    def is_of(self, loop_db: object) -> bool:
        return self._session.loop_db is loop_db


class Scope(ref["AnyTransaction"]):
    """A transaction that is open where a task is started. A weak reference: a context lives on with
    every task and timer that was started in it."""

    __slots__ = ("outer",)

    outer: Scope | None


scope: ContextVar[Scope | None] = ContextVar("cenote.scope", default=None)


def enter_scope(transaction: AnyTransaction) -> None:
    """Make the transaction the one that is open where tasks are started from now on."""
    if _acting:
        _everywhere(_enter, transaction)
        return
    here, outer = Scope(transaction), scope.get()
    here.outer = outer if outer is None else _open_one(outer)
    scope.set(here)


def leave_scope(transaction: AnyTransaction) -> None:
    """If the context is the one that entered it; in another one it is over all the same."""
    if _acting:
        _everywhere(_leave, transaction)
    elif (here := scope.get()) is not None and here() is transaction:
        scope.set(here.outer)


def forget_scope(loop_db: LoopDatabase) -> None:
    """The running task was warned of the transactions of this one."""
    _everywhere(_forget, loop_db)


def _enter(transaction: AnyTransaction) -> None:
    here = Scope(transaction)
    here.outer = _open_one(scope.get())
    scope.set(here)


def _leave(transaction: AnyTransaction) -> None:
    here = scope.get()
    if here is not None and here() is transaction:
        scope.set(here.outer)


def _forget(loop_db: LoopDatabase) -> None:
    kept = [each for each in open_transactions() if not each.is_of(loop_db)]
    scope.set(None)
    for transaction in reversed(kept):
        _enter(transaction)


def _everywhere(change: Callable[[Any], None], argument: Any) -> None:
    """In the running task, and in those for which it acts."""
    change(argument)
    for context in _waiting_contexts():
        try:
            context.run(change, argument)
        except RuntimeError:
            pass  # a task that was given the context of its parent: done above


def open_transactions() -> Iterator[AnyTransaction]:
    """Those in which the running task was started, the innermost first."""
    here = scope.get()
    while here is not None:
        transaction = here()
        if transaction is not None and transaction.is_open:
            yield transaction
        here = here.outer


def _open_one(here: Scope | None) -> Scope | None:
    """This scope, or the innermost one around it whose transaction is open."""
    while here is not None and ((transaction := here()) is None or not transaction.is_open):
        here = here.outer
    return here


if WAIT_FOR_STARTS_A_TASK:
    _current_tasks: dict[Any, Task] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    _release_waiter = asyncio.tasks._release_waiter  # type: ignore[attr-defined]

    def _note_started() -> WeakSet[Task]:
        """The tasks that wait_for() itself starts, for coroutines. Afterwards they look the same as
        a task that it was given, so they are noted by the function that it calls for both."""
        ensure_future: Any = asyncio.tasks.ensure_future
        if hasattr(ensure_future, "started_by_wait_for"):
            return ensure_future.started_by_wait_for  # type: ignore[no-any-return]
        started: WeakSet[Task] = WeakSet()
        wait_for = asyncio.tasks.wait_for.__code__

        @wraps(ensure_future)
        def note(coro_or_future: Any, **options: Any) -> Any:
            future = ensure_future(coro_or_future, **options)
            if future is not coro_or_future and sys._getframe(1).f_code is wait_for:
                started.add(future)
            return future

        note.started_by_wait_for = started  # type: ignore[attr-defined]
        asyncio.tasks.ensure_future = note
        return started

    _started = _note_started()
    _acting: Collection[Any] = _started.data  # type: ignore[attr-defined]  # it is never replaced

    def acting_task(loop_db: LoopDatabase) -> Task | None:
        """The running task; of one that wait_for() has started, the task that waits there, unless
        it holds something itself."""
        task = _current_tasks.get(loop_db.loop)  # current_task() is slow on 3.11
        if not _acting:
            return task
        while task is not None and task not in loop_db.sessions and task not in loop_db.joined:
            parent = _waiting_parent(task)
            if parent is None:
                break
            task = parent[0]
        return task

    def _waiting_contexts() -> Iterator[Context]:
        """Of the tasks for which the running one acts."""
        task = _current_tasks.get(asyncio._get_running_loop())
        while task is not None and (parent := _waiting_parent(task)) is not None:
            task, context = parent
            yield context

    def _waiting_parent(task: Any) -> tuple[Task, Context] | None:
        for callback, _ in task._callbacks or ():
            if type(callback) is partial and callback.func is _release_waiter:
                if task not in _started:
                    return None
                for wake_up, context in callback.args[0]._callbacks or ():
                    parent = getattr(wake_up, "__self__", None)
                    if isinstance(parent, asyncio.Task):
                        return parent, context
        return None

else:
    _acting = ()

    def acting_task(loop_db: LoopDatabase) -> Task | None:
        """The running task."""
        return asyncio.current_task(loop_db.loop)

    def _waiting_contexts() -> Iterator[Context]:
        return iter(())
