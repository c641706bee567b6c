"""What release, discard, retire and resize return: an operation that is under way already."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final


class Operation(Coroutine[Any, Any, None]):
    """What release, discard, retire and resize return: under way already; await it or not.

    It is a coroutine to asyncio, so that create_task() takes it; as it keeps no place of its own in
    that, any number of tasks may drive it.
    """

    __slots__ = ("_futures", "_outer", "_pending", "_tells", "errors")

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._pending = 0  # parts that are not done
        self._futures: list[asyncio.Future[None]] = []
        self._outer: Operation | None = None
        self._tells = True  # errors are passed to the outer one

    @property
    def done(self) -> bool:
        return self._pending == 0

    def begin(self) -> None:
        self._pending += 1

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.errors.append(error)
        self._pending -= 1
        if self._pending == 0:
            futures, self._futures = self._futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)
            if self._outer is not None:
                self.then(self._outer, errors=self._tells)

    def then(self, outer: Operation, *, errors: bool = True) -> None:
        """This is a part of the outer one, which has begun it: its end is that part's end."""
        if self._pending:
            self._outer, self._tells = outer, errors
        else:
            outer.errors += self.errors if errors else ()
            outer.end()

    def result(self) -> None:
        if self.errors:
            raise self.errors[0]

    async def wait(self) -> None:
        """Until it is over, however it ends."""
        if self._pending:
            await self._future()

    def __await__(self) -> Generator[Any, None, None]:
        if self._pending:
            yield from self.wait().__await__()
        self.result()

    def send(self, value: Any) -> Any:
        if self._pending:
            return next(self._future().__await__())
        self.result()
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        super().throw(*error)  # pyright: ignore[reportAbstractUsage]  # it raises the error

    def close(self) -> None:
        """Do nothing: the operation is already under way."""

    def _future(self) -> asyncio.Future[None]:
        """Of this awaiter's own: cancelling it cancels nothing else."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        return future


class Done(Operation):
    """The operation of what has already happened, without an error."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __await__ = ().__iter__  # at its end already


DONE: Final = Done()


def raise_fatal(operation: Operation) -> None:
    """Raise an error of the operation that is not an Exception: those are never swallowed."""
    for error in operation.errors:
        if not isinstance(error, Exception):
            raise error
