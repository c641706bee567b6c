"""Stops the statement that runs on the real connection of a `rolled_back()` block."""

from __future__ import annotations

import asyncio
from logging import DEBUG
from typing import Any

from ..errors import PoolError
from ..log import log
from ..sql.driver import Driver, DriverConnection
from ..sql.time_limits import FIRST_PAUSE, absorb


class SharedInterruption:
    """The orders to stop one statement. None of them may reach the statement after it.

    `allowed` is False for a statement with which the database would undo the whole block.
    """

    left: float = 1e6  # seconds that the statement may wait for locks; an order comes before

    def __init__(self, driver: Driver, *, allowed: bool) -> None:
        self._driver = driver
        self._allowed = allowed
        self._connection: DriverConnection | None = None  # on which the statement runs
        self._over = False  # it has ended
        self._orders = 0  # that are under way
        self._given = False  # at least one order
        self._failed = False  # one of them, so that it may arrive at any time
        self._quiet = asyncio.Event()  # no order is under way, and the statement has ended
        self._settled: bool | None = None  # whether no order can arrive any more; None: not known

    def begin(self, connection: DriverConnection) -> None:
        """The statement is about to be sent."""
        self._connection, connection.time_limit = connection, self

    async def order(self) -> None:
        """Tell the server to stop the statement. Raises if that is not possible."""
        connection = self._connection
        if self._over:
            return
        if not self._allowed or connection is None:
            raise PoolError("inside rolled_back() this statement cannot be stopped")
        self._orders += 1
        self._given = True
        try:
            await connection.stop()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._orders -= 1
            if self._over and not self._orders:
                self._quiet.set()

    async def insist(self, work: asyncio.Task[Any]) -> None:
        """Send the order again until this work is done, in which the statement is sent."""
        pause = FIRST_PAUSE
        while self._allowed and not (self._over or work.done()):
            if self._connection is not None:  # else what comes before the statement is sent
                try:
                    await self.order()
                except Exception as error:
                    log(DEBUG, "a cancelled statement could not be stopped", error=error)
                    return
            await asyncio.wait([work], timeout=pause)
            pause *= 2

    async def settle(self) -> bool:
        """The statement has ended: wait until no order can arrive any more. Return False if that is
        not certain."""
        connection, self._over = self._connection, True
        if self._settled is None and connection is not None:
            connection.time_limit = None
            if not self._orders:
                self._quiet.set()
            await self._quiet.wait()
            self._settled = not self._failed and (
                not self._given or await absorb(self._driver, connection)
            )
        return self._settled is not False
