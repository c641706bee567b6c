"""A task takes part in the transaction of another one for a while."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import PoolError
from ..observe import task_name
from .scope import enter_scope, leave_scope
from .session import Session

if TYPE_CHECKING:
    from .transaction import Transaction


class Join:
    """Inside of it the task's plain statements run in the transaction of another task."""

    __slots__ = ("_session", "_task", "_transaction")

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._session: Session | None = None
        self._task: Any = None

    async def __aenter__(self) -> Transaction:
        session = self._transaction._open_session()
        loop_db = session.loop_db
        task = loop_db.current_task()
        joined = loop_db.joined_by(task)
        present = loop_db.sessions.get(task) if joined is None else joined._session
        if present is session:
            return self._transaction  # it is inside already
        if present is not None:
            held = present.pin_reason() if joined is None else "it joined another transaction"
            raise PoolError(
                f"task {task_name(task)!r} has a connection already ({held}); "
                f"end that before join()"
            )
        self._session, self._task = session, task
        loop_db.joined[task] = self._transaction
        task.add_done_callback(self._leave)
        enter_scope(self._transaction)
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._task.remove_done_callback(self._leave)
            self._leave(self._task)
            leave_scope(self._transaction)

    def _leave(self, task: Any) -> None:
        self._transaction.unjoin(task)
