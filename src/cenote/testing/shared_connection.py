"""A stand-in for a connection, whose transactions are savepoints of a shared one."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from operator import methodcaller
from typing import Any, ClassVar, TypeVar, cast

from ..errors import PoolError
from ..sql.dialects import Isolation
from ..sql.driver import (
    Arguments,
    Collected,
    Driver,
    DriverConnection,
    Prepared,
    Received,
    RowCursor,
)
from ..sql.parsing.placeholders import Template
from ..sql.parsing.session_rules import analyse
from ..sql.parsing.statements import without_rows
from ..sql.url import Secret
from .shared_interruption import SharedInterruption
from .shared_transaction import Call, SharedTransaction

R = TypeVar("R")

# What commits by itself, and cannot be undone. PostgreSQL and SQLite have no such statements.
COMMITTING = {
    "mysql": re.compile(
        r"\s*(?:alter|analyze|cache|check|create(?!\s+temporary)|drop(?!\s+temporary)|flush|grant|"
        r"install|load\s+index|lock\s+tables?|optimize|rename|repair|reset|revoke|set\s+password|"
        r"stop|truncate|uninstall|unlock)\b",
        re.IGNORECASE,
    )
}
# What is not stopped, because an interruption of it rolls the whole transaction back, savepoints
# and all: of SQLite whatever may write.
CHANGING = {
    "sqlite": re.compile(
        r"\b(?:alter|analyze|create|delete|drop|insert|pragma|reindex|replace|update)\b",
        re.IGNORECASE,
    )
}


class SharedConnection(DriverConnection):
    """One of the connections of a `rolled_back()` block, all of which share one transaction.

    A statement outside a transaction runs behind a savepoint, so that it fails alone, as it would
    in autocommit. A transaction is a savepoint, too, and keeps the others waiting.
    """

    __slots__ = ("_interruption", "_loan", "_savepoint", "_shared")

    interleaves: ClassVar[bool] = True  # streams are read at once

    def __init__(self, shared: SharedTransaction) -> None:
        super().__init__(shared.connection.raw)
        self._shared = shared
        self._interruption: SharedInterruption | None = None  # of the last statement
        self._savepoint: str | None = None  # of the open transaction
        self._loan: str | None = None  # that of a connection() block

    @property
    def in_transaction(self) -> bool:
        return self._savepoint is not None

    # -- statements ------------------------------------------------------------------------------

    async def execute(self, text: str, arguments: Arguments) -> int:
        affected: int = await self._statement("execute", text, arguments)
        return affected

    async def fetch_all(self, text: str, arguments: Arguments) -> Any:
        return await self._statement("fetch_all", text, arguments)

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        return await self._statement("fetch_one", text, arguments)

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        return await self._statement("fetch_val", text, arguments)

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        self._check(text)
        await self._run(methodcaller("execute_many", text, arguments), text)

    async def stream(
        self, text: str, arguments: Arguments, keyword: str, *, alone: bool
    ) -> RowCursor:
        return Collected(await self.fetch_all(text, arguments))

    async def prepare(self, template: Template, text: str) -> Prepared:
        async def try_out(connection: DriverConnection) -> None:
            await (await connection.prepare(template, text)).close()

        self._check(text)
        await self._run(try_out, text)
        return Prepared(self, template.text)

    async def _statement(self, method: str, text: str, arguments: Arguments) -> Any:
        if self._check(text):
            await self._control(text)
            return without_rows(method)
        result = await self._run(methodcaller(method, text, arguments), text)
        self.status = self._shared.connection.status
        return result

    def _check(self, text: str) -> bool:
        """Return whether it begins or ends a transaction; raises if that cannot be undone."""
        facts = analyse(text, self.dialect)
        committing = COMMITTING.get(self.dialect.name)
        if committing is not None and committing.match(text, first_word(text, facts.keyword)):
            raise PoolError(
                f"inside rolled_back() {facts.keyword} cannot be run: this database commits before "
                f"and after it, and nothing could be undone. Run it before the block."
            )
        if facts.control is None:
            return False
        if facts.statements > 1 or facts.control == "prepare" or CHAIN.search(text):
            raise PoolError(
                f"inside rolled_back() a text cannot end a transaction together with something "
                f"else, as {facts.keyword} does here: use transaction(), or begin() and commit()"
            )
        return True

    async def _control(self, text: str) -> None:
        control = analyse(text, self.dialect).control
        if control == "begin":
            if self._savepoint is not None:
                raise PoolError("a transaction is open already: commit or roll it back first")
            await self.begin(None, False)
        elif self._savepoint is not None:
            if control == "commit":
                self.status = "COMMIT" if await self.commit() else "ROLLBACK"
            else:
                await self.rollback()
                self.status = "ROLLBACK"

    async def _run(self, call: Call[R], text: str) -> R:
        shared = self._shared
        changes = CHANGING.get(self.dialect.name)
        allowed = changes is None or changes.search(text) is None
        self._interruption = interruption = shared.interruption(allowed=allowed)
        if self._savepoint is not None:
            return await shared.run(shared.send(call, interruption), interruption)
        if self._loan is None:
            await shared.take_turn(self)
        wanted = [True]
        try:
            work = self._run_by_itself(call, wanted, interruption)
            return await shared.run(work, interruption)
        except BaseException:
            wanted.clear()
            raise

    async def _run_by_itself(
        self, call: Call[R], wanted: list[bool], interruption: SharedInterruption
    ) -> R:
        try:
            return await self._shared.send_alone(call, lambda: bool(wanted), interruption)
        finally:
            if self._loan is None:
                self._shared.give_turn()

    async def stop(self) -> None:
        if self._interruption is None:
            raise PoolError("inside rolled_back() the beginning of a transaction is not stopped")
        await self._interruption.order()

    async def absorb(self) -> None:
        """The real connection has done that, before it sent anything else."""
        await self.ping()

    def is_spoiled(self, keyword: str) -> bool:
        return self._shared.connection.is_spoiled(keyword)

    # -- transactions ----------------------------------------------------------------------------

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        shared = self._shared
        if self._loan is None:
            await shared.take_turn(self)
        self._savepoint = name = shared.new_savepoint()
        try:
            await shared.run(shared.send(lambda connection: connection.savepoint(name)))
        except Exception:
            self._savepoint = None
            self._leave()
            raise

    async def commit(self) -> bool:
        savepoint, self._savepoint = self._savepoint, None
        return savepoint is None or await self._shared.run(self._commit(savepoint))

    async def _commit(self, savepoint: str) -> bool:
        shared = self._shared
        try:
            await shared.send(lambda connection: connection.release_savepoint(savepoint))
        except Exception:
            if shared.lost is not None:
                raise
            await shared.go_back(savepoint)  # a statement in it had failed
            return False
        finally:
            self._leave()
        return True

    async def rollback(self) -> None:
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None:
            await self._shared.run(self._go_back(savepoint))

    async def _go_back(self, savepoint: str) -> None:
        await self._shared.go_back(savepoint)
        self._leave()

    async def savepoint(self, name: str) -> None:
        await self._inside(lambda connection: connection.savepoint(name))

    async def release_savepoint(self, name: str) -> None:
        await self._inside(lambda connection: connection.release_savepoint(name))

    async def rollback_to_savepoint(self, name: str) -> None:
        await self._inside(lambda connection: connection.rollback_to_savepoint(name))

    async def _inside(self, call: Call[None]) -> None:
        await self._shared.run(self._shared.send(call))

    def _leave(self) -> None:
        """The transaction is over."""
        if self._loan is None:
            self._shared.give_turn()

    # -- connection() ----------------------------------------------------------------------------

    async def lend(self) -> None:
        shared = self._shared
        if self._savepoint is None and self._loan is None:
            await shared.take_turn(self)
            self._loan = name = shared.new_savepoint()
            try:
                await shared.run(shared.send(lambda connection: connection.savepoint(name)))
            except BaseException:
                self.mark_broken()  # it is closed instead of given back, and that gives the turn
                raise

    async def take_back(self) -> None:
        loan, self._loan = self._loan, None
        if loan is not None:
            await self._shared.run(self._take_back(loan))

    async def _take_back(self, loan: str) -> None:
        shared = self._shared
        try:
            if self._savepoint is None:  # else a transaction goes on that was begun inside
                await shared.send(lambda connection: connection.release_savepoint(loan))
        except Exception:
            if shared.lost is not None:
                raise
            await shared.go_back(loan)
        finally:
            if self._savepoint is None:
                shared.give_turn()

    # -- notifications: a commit sends them, and nothing is committed ------------------------------

    async def listen(self, channel: str) -> None:
        pass

    async def unlisten(self, channel: str) -> None:
        pass

    def on_notification(self, received: Received, lost: Callable[[], None]) -> None:
        pass

    # -- the end ---------------------------------------------------------------------------------

    async def ping(self) -> None:
        if self._shared.lost is not None:
            raise self._shared.lost

    async def close(self) -> None:
        if (work := self._undo()) is not None:
            await self._shared.run(work)

    def terminate(self) -> None:
        if (work := self._undo()) is not None:
            self._shared.run_later(work)

    def _undo(self) -> Coroutine[Any, Any, None] | None:
        """Work that undoes what is open here, after what is still under way."""
        savepoint = self._loan or self._savepoint
        self._loan = self._savepoint = None
        return None if savepoint is None else self._undo_to(savepoint)

    async def _undo_to(self, savepoint: str) -> None:
        await self._shared.calm_down()
        await self._shared.go_back(savepoint)
        self._shared.give_turn()


def first_word(text: str, keyword: str) -> int:
    """Return where the first keyword of a text stands, after comments."""
    return max(text.upper().find(keyword), 0)


CHAIN = re.compile(r"\bchain\b|\brelease\s*;?\s*$", re.IGNORECASE)


class SharedDriver:
    """Stands in for a driver: what it connects shares one transaction."""

    def __init__(self, driver: Driver, shared: SharedTransaction) -> None:
        self._driver = driver
        self._shared = shared

    @classmethod
    def of(cls, driver: Driver, shared: SharedTransaction) -> Driver:
        """Return one that can be used in place of this driver."""
        return cast(Driver, cls(driver, shared))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def connect(self, password: Secret | None) -> DriverConnection:
        """Return a connection of the block; nothing is connected."""
        return shared_class(type(self._shared.connection))(self._shared)

    def is_unsent(self, error: BaseException) -> bool:
        """No other connection can take the place of one that was lost."""
        return False


@cache
def shared_class(kind: type[DriverConnection]) -> type[SharedConnection]:
    """Return the class of stand-ins for connections of this class."""
    traits = ("dialect", "aborts", "gives_sqlstate", "keeping", "finalizers", "guard_bases")
    members = {"__slots__": (), **{name: getattr(kind, name) for name in traits}}
    return type(f"Shared{kind.__name__}", (SharedConnection,), members)
