"""Names of tasks for Starlette, FastAPI and other ASGI frameworks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LONGEST: Final = 120  # characters of a name


class TaskNames:
    """An ASGI middleware that names the task of a request after it, such as `GET /orders/17`.

    Errors, `holders()`, logs and the dashboard then say which request holds a resource. The query
    is not part of the name, and the task has its own name again when the request is over.

    Args:
        app: The application around which this is put, by `app.add_middleware(TaskNames)`.
    """

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if task is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        before = task.get_name()
        task.set_name(f"{scope['method']} {scope['path']}"[:LONGEST])
        try:
            await self._app(scope, receive, send)
        finally:
            task.set_name(before)
