"""The state of a connection, and what the database layer notes about its session."""

from __future__ import annotations

from typing import Any, Protocol

from .states import CONNECTION, ConnectionState

USABLE = (ConnectionState.READY, ConnectionState.FRESH)
INTERRUPTED = (ConnectionState.INTERRUPTED, ConnectionState.STUCK)


class Limit(Protocol):
    """The end of the time of a statement, as its connection knows it."""

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        ...

    async def settle(self) -> bool:
        """Wait until no order to stop the statement can arrive any more, after it has ended.
        Return False if that is not certain."""
        ...


class StatefulConnection:
    """The part of a driver connection that the database layer keeps, and no driver fills in.

    The state changes only by the methods of this class; an event that the law of `states` does not
    list raises `IllegalTransition`.
    """

    __slots__ = (
        "last_heard",
        "lasting",
        "leftovers",
        "raw",
        "replans",
        "restarted",
        "state",
        "status",
        "suspicion_epoch",
        "time_limit",
        "touched",
        "underway",
    )  # fmt: skip

    def __init__(self, raw: Any) -> None:
        self.raw: Any = raw  # the connection object of the library
        self.touched: str | None = None  # why the session must be reset; None: nothing changed it
        self.lasting: bool = False  # no reset undoes the change, so that the connection is replaced
        # Statements prepared in this session are not valid after a reset.
        self.replans: bool = False
        self.restarted: bool = False  # watch() saw the transaction end and another one begin
        self.state: ConnectionState = ConnectionState.FRESH
        self.suspicion_epoch: int = 0  # of the loop database when this was last known to be alive
        self.last_heard: float = 0.0  # loop time of the last answer of the server
        self.underway: bool = False  # at least one of a series of statements was sent
        self.leftovers: list[Any] = []  # statements and streams that were never closed
        self.time_limit: Limit | None = None  # of the statement that runs, if it has one
        self.status: str | None = None  # the server's answer to the last execute(), if it gives one

    @property
    def broken(self) -> bool:
        """Whether the connection must not be used again."""
        return self.state not in USABLE

    @property
    def interrupted(self) -> bool:
        """Whether the server may still run a statement, which close() has to stop."""
        return self.state in INTERRUPTED

    def mark_greeted(self) -> None:
        """Note that on_connect has run, if there is one: what it set does not count as touched."""
        self._move("greet")
        self.touched = None

    def mark_broken(self) -> None:
        """Note that the connection is lost, or must not be used again for another reason."""
        self._move("mark_broken")

    def interrupt(self) -> None:
        """Note that a statement was cancelled: close() stops it on the server."""
        self._move("interrupt")

    def jam(self) -> None:
        """Note that the library is in the middle of an operation, so that nothing else can run."""
        self._move("jam")

    def mark_closed(self) -> None:
        """Note that the connection was closed or terminated."""
        self._move("close")

    def expect_statement(self) -> None:
        """Clear what is noted for each statement, before the next one is sent."""
        self.underway = self.restarted = False

    async def close_leftovers(self) -> None:
        """Close the statements and streams that were never closed."""
        while self.leftovers:
            leftover = self.leftovers.pop()
            try:
                await leftover.close()
            except BaseException:
                leftover.abandon()
                raise

    def _move(self, event: str) -> None:
        self.state = CONNECTION[self.state, event]
