"""Hooks in three styles, hooks that raise, and hooks that wait until the test lets them go on."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

STYLES = ["sync", "async", "awaitable"]  # the three ways to write a hook

_OPENED = object()


def styled(style: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a hook of that style; the async ones suspend once before they call it."""
    if style == "sync":
        return function

    async def slow(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    return slow if style == "async" else lambda *arguments: slow(*arguments)


class Fatal(BaseException):
    """An error that is neither an `Exception` nor a cancellation."""


def raising(error: BaseException) -> Callable[..., Any]:
    """A sync hook that raises this error on every call."""

    def hook(*_: Any) -> None:
        raise error

    return hook


class Gate:
    """An async hook whose calls wait until the test lets them go on.

    `open()` lets all of them go on, and those that come later; they return what `answer` returns.
    A single call goes on with the result or the exception that is set on its future in `calls`.
    """

    def __init__(self, answer: Callable[..., Any] = lambda *_: None) -> None:
        self.answer = answer
        self.calls: list[asyncio.Future[Any]] = []
        self.arguments: list[Any] = []  # of all calls, one after the other
        self._is_open = False

    @property
    def entered(self) -> int:
        """The number of calls."""
        return len(self.calls)

    def open(self) -> None:
        self._is_open = True
        for call in self.calls:
            if not call.done():
                call.set_result(_OPENED)

    def shut(self) -> None:
        """Let the calls that come from now on wait again."""
        self._is_open = False

    async def __call__(self, *arguments: Any) -> Any:
        call = asyncio.get_running_loop().create_future()
        self.calls.append(call)
        self.arguments += arguments
        if self._is_open:
            call.set_result(_OPENED)
        result = await call
        return self.answer(*arguments) if result is _OPENED else result


class Stubborn:
    """An async hook that ignores every cancellation until `let_go` is set."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.let_go = asyncio.Event()

    async def __call__(self, *_: Any) -> Any:
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()
        return self.answer
