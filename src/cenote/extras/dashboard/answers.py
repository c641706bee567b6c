"""Responses of an ASGI application: pages, redirects, JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from .page import Page

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

SAFE: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Refusal(Exception):
    """A request that is answered with this status and message."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status: int = status
        self.message: str = message
        self.headers: dict[str, str] = {
            name.replace("_", "-"): value for name, value in headers.items()
        }


async def send_page(
    send: Send,
    shown: Page,
    *,
    status: int = 200,
    body: bool = True,
    more: Mapping[str, str] | None = None,
) -> None:
    headers = {
        **SAFE,
        "content-type": "text/html; charset=utf-8",
        "content-length": str(len(shown.body)),
        "content-security-policy": shown.policy,
        "cross-origin-opener-policy": "same-origin",
        "x-frame-options": "DENY",
        **(more or {}),
    }
    await send_head(send, status, headers)
    await send_body(send, shown.body if body else b"")


async def redirect(send: Send, status: int, target: str, **more: str) -> None:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    await send_head(send, status, {**SAFE, "location": target, "content-length": "0", **headers})
    await send_body(send, b"")


async def reply(
    send: Send, status: int, content: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> None:
    body = json.dumps(content).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    await send_head(send, status, {**SAFE, **headers, **(more or {})})
    await send_body(send, body)


async def send_head(send: Send, status: int, headers: Mapping[str, str]) -> None:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
