"""`db.transact()`: a transaction that is run again after a conflict with another one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .. import options
from ..errors import PoolError, TransactionLostError
from ..hooks import is_awaitable
from .dialects import Isolation
from .driver import Driver

if TYPE_CHECKING:
    from .database import Database
    from .transaction import Transaction

R = TypeVar("R")

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # seconds, at most; each is a random part of it


async def transact(
    database: Database,
    driver: Driver,
    function: Callable[..., Awaitable[R]],
    args: tuple[Any, ...],
    *,
    attempts: int,
    isolation: Isolation | None,
    read_only: bool,
) -> R:
    """Run the function in a transaction, again and again while it loses conflicts."""
    options.function("function", function)
    options.whole("attempts", attempts, least=1)
    if database.in_transaction:
        raise PoolError(
            "transact() inside a transaction: a conflict ends the whole of it, so that the inner "
            "part cannot be run again. Call the function itself, or transact() around everything."
        )
    attempt = 1
    while True:
        transaction = database.transaction(isolation=isolation, read_only=read_only)
        kept = False  # some of it may be
        try:
            async with transaction:
                try:
                    return await _call(function, args)
                finally:
                    kept = may_be_kept(transaction)
        except Exception as error:
            if attempt >= attempts or kept or not may_succeed_again(driver, error):
                raise
        await asyncio.sleep(pause_after(attempt))
        attempt += 1


async def _call(function: Callable[..., Awaitable[R]], args: tuple[Any, ...]) -> R:
    result = function(*args)
    if not is_awaitable(result):
        raise TypeError(
            f"transact() takes a coroutine function; {function!r} returned "
            f"{type(result).__name__}, which cannot be awaited"
        )
    return await result


def may_be_kept(transaction: Transaction) -> bool:
    """Return whether the function, or a statement in it, has ended the transaction, so that not all
    of it is rolled back: a procedure of MySQL may commit, and fail then."""
    session = transaction._session
    lost = None if session is None else session.lost
    return not transaction.is_open or (lost is not None and lost.outcome != "rolled_back")


def may_succeed_again(driver: Driver, error: BaseException) -> bool:
    """Return whether a transaction that failed so was rolled back because of another one. Of the
    errors of a task group one suffices: the others may have come of it."""
    if isinstance(error, BaseExceptionGroup):
        return any(may_succeed_again(driver, each) for each in error.exceptions)
    if isinstance(error, TransactionLostError):
        cause = error.__cause__
        return error.outcome == "rolled_back" and cause is not None and driver.is_conflict(cause)
    return driver.is_conflict(error)


def pause_after(attempt: int) -> float:
    """Return the seconds to wait, drawn at random so that the losers do not meet again."""
    return random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt))
