"""What a task has changed in its database session, and what the end of a transaction undoes."""

from __future__ import annotations

from collections.abc import Container

from .driver import DriverConnection
from .losses import LostSession
from .parsing.statements import ParsedStatement


class SessionChanges:
    """The changes that statements made to a session: settings, locks, temporary tables."""

    __slots__ = ("_doubtful", "_pending", "kept", "read_only", "touched")

    def __init__(self, doubtful: Container[str]) -> None:
        self._doubtful = doubtful  # reasons of statements that may have changed nothing
        self.touched: str | None = None  # by a statement that was sent, also if it failed
        self.kept: str | None = None  # by one that succeeded, and no transaction can undo it
        # Made in the open transaction; True: ROLLBACK undoes it.
        self._pending: dict[str, bool] | None = None
        self.read_only: bool = False  # asked for by a statement, not by the options of a block

    def expect(self, connection: DriverConnection, parsed: ParsedStatement) -> None:
        """Note what a statement is about to do to the session."""
        if parsed.touches is not None:
            self.touched = parsed.touches
            connection.touch(parsed.touches, lasting=parsed.lasting, replans=parsed.replans)
        if parsed.control is not None:
            connection.status = None
            asked = self.read_only and self.touched is not None  # for the whole session
            self.read_only = asked or parsed.read_only
        elif parsed.read_only:
            self.read_only = True

    def record(self, parsed: ParsedStatement, *, inside: bool) -> None:
        """Note what a statement has done to the session, inside a transaction or not."""
        reason = parsed.touches
        if reason is None:
            return
        if inside:
            pending = self._pending = self._pending or {}
            pending[reason] = parsed.undone and pending.get(reason, True)
        else:
            self._keep(reason)

    def keep(self) -> None:
        """The transaction in which changes are pending is over: what is left of them stays."""
        for reason in self._pending or ():
            self._keep(reason)
        self._pending = None

    def roll_back(self) -> None:
        """The whole transaction is rolled back, with the changes that this undoes."""
        if self._pending is not None:
            self._pending = {each: undone for each, undone in self._pending.items() if not undone}

    def lost(self, reason: str, cause: BaseException | None) -> LostSession:
        """They went with the connection."""
        return LostSession(reason, cause, once=reason in self._doubtful)

    def drop_pending(self) -> None:
        """The connection is gone, with the transaction in which they were made."""
        self._pending = None

    def forget(self) -> None:
        """The connection is no longer this task's."""
        self.touched = self.kept = self._pending = None

    def _keep(self, reason: str) -> None:
        if self.kept is None or self.kept in self._doubtful:
            self.kept = reason
