"""Transactions: blocks, savepoints, and the handle by which several tasks share one."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Container, Iterable
from logging import DEBUG
from operator import methodcaller
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .. import errors
from ..errors import PoolError
from ..log import log
from ..observe import task_name
from .binding import Lease
from .driver import ISOLATIONS, Isolation, Link
from .notes import note_rows
from .pin import Pin
from .scope import enter_scope, leave_scope
from .statement import Statement, Stream, prepare

if TYPE_CHECKING:
    from .branch import Branch
    from .database import Database


class Transaction:
    """`async with db.transaction() as tx:`; inside another one it is a savepoint.

    The methods of the handle may be called from any task: they run inside this transaction, one
    at a time.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_cut",
        "_database",
        "_entered",
        "_isolation",
        "_lease",
        "_older",
        "_savepoint",
        "_unused",
        "is_open",
        "read_only",
        "task",
    )

    def __init__(self, database: Database, isolation: Any, read_only: Any) -> None:
        self._database = database
        self._isolation = check_isolation(isolation)
        if not isinstance(read_only, bool):
            raise TypeError(f"read_only must be True or False, not {read_only!r}")
        self.read_only = read_only
        self._unused = True  # nobody has entered it
        self._lease: Lease | None = None
        self._savepoint: str | None = None
        self._older: Container[Pin] = ()  # what was open before it
        self._entered = False
        self._block = False  # of `async with`, not of begin()
        self._cut = False  # ended by the end of its task, or by closing the database
        self.is_open = False
        self.task: Any = None  # that entered it

    def __del__(self) -> None:
        if getattr(self, "_unused", False):  # also of one that could not be made
            text = "db.transaction() was never entered: write `async with db.transaction():`"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)

    @property
    def task_name(self) -> str:
        return "?" if self.task is None else task_name(self.task)

    def is_of(self, branch: object) -> bool:
        return self._lease is not None and self._lease.branch is branch

    # -- begin and end ---------------------------------------------------------------------------

    async def start(self) -> None:
        self._unused = False
        if self._entered:
            raise RuntimeError("this transaction was used before; call db.transaction() for each")
        branch = self._database._branch()
        lease = branch.lease()
        if lease is not None and (lease.transactions or lease.check().in_transaction):
            await self._set_savepoint(lease)
        else:
            await branch.watched("BEGIN", "BEGIN", self._begin(branch, lease))

    async def _begin(self, branch: Branch, lease: Lease | None) -> None:
        if lease is None:
            lease = await branch.new_lease()
        try:
            self._enter(lease)
            await lease.run_alone(lambda link: link.begin(self._isolation, self.read_only), None)
            if lease.ended:
                raise branch.gone()
            if lease.link is None:
                raise errors.transaction_lost("rolled_back", "its connection was lost")
        except BaseException:
            lease.settle()
            raise
        self._entered_in(lease)

    async def _set_savepoint(self, lease: Lease) -> None:
        if self._isolation is not None or self.read_only:
            raise ValueError(
                "a transaction inside another is a savepoint: isolation and read_only belong to "
                "the outermost one"
            )
        self._enter(lease)

        def set_it(link: Link) -> Awaitable[object]:
            self._older = {*lease.pins}
            self._savepoint = f"cenote_{len(lease.transactions) + 1}"
            return link.execute(f"SAVEPOINT {self._savepoint}", None)  # type: ignore[no-any-return]

        await lease.run_alone(set_it, None)
        self._entered_in(lease)
        if self.task is not lease.task:
            self.task.add_done_callback(self._task_done)

    def _enter(self, lease: Lease) -> None:
        self._entered = True
        self._lease = lease
        lease.check()
        self._older = {*lease.pins}

    def _entered_in(self, lease: Lease) -> None:
        self.is_open = True
        self.task = lease.branch.current_task()
        lease.transactions.append(self)
        lease.settle()
        enter_scope(self)

    def _task_done(self, task: Any) -> None:
        """Of a savepoint: its task is over, and nobody will end it."""
        lease = self._lease
        if lease is not None and self in lease.transactions:
            if lease.link is not None:
                lease.link.broken = True
            lease.lose("rolled_back", f"task {task_name(task)!r} ended in a savepoint of it", None)
            lease.settle()

    def admits(self, task: Any, *blocks: Transaction | None) -> bool:
        """Whether statements of this task, or by the handle of one of these blocks, are inside."""
        return self.task is task or self in blocks

    async def commit(self) -> None:
        lease = self._open_lease()
        try:
            await self._inner_blocks_over(lease)
            if (lost := lease.lost) is not None:
                if self._savepoint is None:
                    await self._roll_back_all(lease)  # what goes on in its place, if anything does
                raise lost.error()
            self.is_open = False
            if self._savepoint is None:
                await self._commit(lease)
            else:
                await self._release_savepoint(lease)
        except BaseException as error:
            self._broken_off(lease, error)
            raise
        finally:
            self._over(lease)

    async def _inner_blocks_over(self, lease: Lease) -> None:
        """Blocks of other tasks inside this one end first."""
        task = lease.branch.current_task()
        try:
            while (inner := lease.inner_block()) is not None and inner is not self:
                if inner.task is task:
                    raise PoolError(
                        "another savepoint was begun inside this one and is still open: "
                        "leave blocks in the reverse order"
                    )
                await lease.outside(task, inner)
        except PoolError:
            await (self._roll_back_all(lease) if self._savepoint is None else self._undo(lease))
            raise
        if not self.is_open:
            raise lease.branch.gone()

    async def _commit(self, lease: Lease) -> None:
        lease.check_alive()
        link = lease.link
        try:
            committed = await lease.run(
                lambda link: link.commit(), None, verb="COMMIT", ending=self
            )
        except Exception as error:
            if self in lease.transactions:  # it was not begun
                await self._roll_back_all(lease)
                raise
            lease.lost = None
            if lease.link is None and not isinstance(error, PoolError):
                raise errors.transaction_lost(
                    "unknown", "its connection was lost during COMMIT"
                ) from error
            if link is not None and link is lease.link and link.in_transaction:  # refused
                await self._roll_back_quietly(lease)
            raise
        if not committed:
            raise errors.transaction_lost(
                "rolled_back", "a statement in it had failed, so the server rolled back"
            )

    async def _release_savepoint(self, lease: Lease) -> None:
        text = f"RELEASE SAVEPOINT {self._savepoint}"
        try:
            await lease.run(lambda link: link.execute(text, None), None, ending=self)
        except Exception:
            if lease.link is not None and lease.lost is None:
                await self._undo(lease)
            raise

    def cut_streams(self, lease: Lease) -> None:
        """It is about to end, and it is the turn of that: what is open in it ends first."""
        self.is_open = False
        lease.cut_streams(self._older)

    def begin_to_end(self, lease: Lease) -> None:
        """The statement that ends all of it is sent: its end is no loss."""
        if self._savepoint is None and self in lease.transactions:
            lease.transactions.remove(self)

    async def rollback(self) -> None:
        """The whole of it, or back to its savepoint."""
        lease = self._open_lease()
        try:
            if lease.link is not None and self._savepoint is None:
                await self._roll_back_all(lease)
            elif lease.link is not None and lease.lost is None:
                await self._undo(lease)
        except BaseException as error:
            self._broken_off(lease, error)
            raise
        finally:
            self._over(lease)

    async def _undo(self, lease: Lease) -> None:
        """Back to its savepoint."""
        name = self._savepoint
        self.is_open = False
        self._cut_inner(lease)

        async def undo(link: Link) -> None:
            await link.execute(f"ROLLBACK TO SAVEPOINT {name}", None)
            await link.execute(f"RELEASE SAVEPOINT {name}", None)

        try:
            await lease.run(undo, None, ending=self)
        except Exception as error:
            if lease.link is not None:  # what must not stay in it is still there
                lease.link.broken = True
                lease.lose("rolled_back", "a savepoint in it could not be rolled back", error)
            raise

    async def _roll_back_all(self, lease: Lease) -> None:
        self._cut_inner(lease)
        await self._roll_back_quietly(lease)

    async def _roll_back_quietly(self, lease: Lease) -> None:
        """A connection that breaks now is rolled back by its server."""
        if self in lease.transactions:
            lease.transactions.remove(self)
        lease.lost = None
        lease.rolls_back()
        self.is_open = False
        try:
            await lease.run(lambda link: link.rollback(), None, verb="ROLLBACK", ending=self)
        except Exception as error:
            log(DEBUG, "%s: rollback failed: %r", lease.branch.label, error)
            lease.drop(error)
            lease.lost = None

    def _broken_off(self, lease: Lease, error: BaseException) -> None:
        """Cancelled, perhaps before it was its turn: then it is open on the server."""
        if isinstance(error, Exception):
            return
        if self._savepoint is None:
            lease.break_off()
        elif lease.link is not None:
            lease.link.broken = True
            lease.lose("rolled_back", "the end of a savepoint in it was cancelled", error)

    def _over(self, lease: Lease) -> None:
        self.is_open = False
        leave_scope(self)
        self.task.remove_done_callback(self._task_done)
        if self in lease.transactions:
            self._cut_inner(lease)
            lease.transactions.remove(self)
        lease.let_in()
        lease.end_blocks()
        if not lease.transactions:
            lease.lost = None
        lease.settle()

    def _cut_inner(self, lease: Lease) -> None:
        """Savepoints inside this one, of other tasks: they end with it."""
        if self in lease.transactions:
            first = lease.transactions.index(self) + 1
            for inner in lease.transactions[first:]:
                inner.cut_off()
            del lease.transactions[first:]
            lease.let_in()

    def unjoin(self, task: Any) -> None:
        if self._lease is not None:
            self._lease.branch.joined.pop(task, None)

    def rolled_back_by(self, task: Any) -> None:
        """By db.rollback(); its own task knows of it."""
        self.is_open = False
        self._cut = self.task is not task

    def cut_off(self) -> None:
        """Its task or the outer one is over, or the database is closed."""
        self.is_open = False
        self._cut = True

    async def __aenter__(self) -> Self:
        self._block = True
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_open:
            if self._cut and error is None and self._lease is not None:
                raise self._lease.branch.gone()  # nobody may think that it was committed
            return  # rolled back inside
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except Exception as raised:  # the one that leaves the block goes on
            log(DEBUG, "the transaction was not rolled back in order", error=raised)

    # -- sharing ---------------------------------------------------------------------------------

    def join(self) -> Join:
        """`async with tx.join():` puts this task's plain statements into the transaction."""
        return Join(self)

    async def execute(self, sql: str, parameters: Any = None) -> int:
        """Run a statement inside; the number of rows that it matched."""
        return await self._run("execute", sql, parameters)  # type: ignore[no-any-return]

    async def execute_many(self, sql: str, parameters: Iterable[Any]) -> None:
        """Run a statement once for each element of `parameters`: all of it or nothing."""
        query, text, rows = self._database._many(sql, parameters)
        lease = self._open_lease()
        lease.check()
        if not rows:
            return
        try:
            await lease.run(lambda link: link.execute_many(text, rows), query, transaction=self)
        except Exception as error:
            note_rows(error, len(rows))
            raise

    async def fetch_all(self, sql: str, parameters: Any = None) -> list[Any]:
        """All rows."""
        return await self._run("fetch_all", sql, parameters)  # type: ignore[no-any-return]

    async def fetch_one(self, sql: str, parameters: Any = None) -> Any:
        """The first row, or None."""
        return await self._run("fetch_one", sql, parameters)

    async def fetch_val(self, sql: str, parameters: Any = None) -> Any:
        """The first value of the first row, or None."""
        return await self._run("fetch_val", sql, parameters)

    def iterate(self, sql: str, parameters: Any = None) -> Stream:
        """An async iterator over the rows; it has `aclose()`."""
        query = self._database._query(sql)
        text, arguments = query.bind(parameters)
        return Stream(self._database, query, text, arguments, owner=self)

    async def prepare(self, sql: str) -> Statement:
        """A statement that stays prepared on the connection until it is closed."""
        return await prepare(self._open_lease(), self._database._query(sql), self)

    async def _run(self, name: str, sql: str, parameters: Any) -> Any:
        query = self._database._query(sql)
        text, arguments = query.bind(parameters)
        if query.commits:
            call = query.commit_by(name, text, arguments)
        else:
            call = methodcaller(name, text, arguments)
        try:
            return await self._open_lease().run(call, query, transaction=self)
        except Exception as error:
            if parameters is None:
                query.note_missing(error)
            raise

    def _open_lease(self) -> Lease:
        lease = self._lease
        if lease is None or not self.is_open:
            self._unused = False  # whoever tries to use it is told
            raise errors.transaction_over()
        return lease


class Join:
    """Inside of it the task's plain statements run in the transaction of another task."""

    __slots__ = ("_lease", "_task", "_transaction")

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._lease: Lease | None = None
        self._task: Any = None

    async def __aenter__(self) -> Transaction:
        lease = self._transaction._open_lease()
        branch = lease.branch
        task = branch.current_task()
        joined = branch.joined.get(task)
        present = branch.leases.get(task) if joined is None else joined._lease
        if present is lease:
            return self._transaction  # it is inside already
        if present is not None:
            held = present.pin_reason() if joined is None else "it joined another transaction"
            raise PoolError(
                f"task {task_name(task)!r} has a connection already ({held}); "
                f"end that before join()"
            )
        self._lease, self._task = lease, task
        branch.joined[task] = self._transaction
        task.add_done_callback(self._leave)
        enter_scope(self._transaction)
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self._task.remove_done_callback(self._leave)
            self._leave(self._task)
            leave_scope(self._transaction)

    def _leave(self, task: Any) -> None:
        self._transaction.unjoin(task)


def check_isolation(value: Any) -> Isolation | None:
    if value is None:
        return None
    if isinstance(value, str):
        name = value.lower().replace("_", " ")
        if name in ISOLATIONS:
            return name
    raise ValueError(f"isolation must be one of {', '.join(map(repr, ISOLATIONS))}, not {value!r}")
