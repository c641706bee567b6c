"""Parsing of ASGI requests; a request that makes no sense raises `Refusal`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qs, quote

from .answers import Message, Refusal
from .collector import Viewer
from .guard import Scope

Receive = Callable[[], Awaitable[Message]]

LONGEST_BODY: Final = 4096  # bytes of a POST
BODY_TIMEOUT: Final = 10.0  # seconds in which it must arrive
MOST_FIELDS: Final = 8  # of an address or a form
ACTIONS: Final = ("activate", "deactivate", "recover")
DECISIVE: Final = ("authorization", "host", "origin", "sec-fetch-site")  # headers
FORM: Final = "application/x-www-form-urlencoded"


def fields_of(text: bytes, what: str) -> dict[str, list[str]]:
    """Return the fields of a query string or a form."""
    try:
        return parse_qs(text.decode("latin-1"), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refusal(400, f"The {what} has too many fields.") from None


def viewer_of(scope: Scope) -> Viewer:
    query = fields_of(scope.get("query_string", b""), "address")
    number, name = query.get("pool", [""])[0], query.get("name", [None])[0]
    after = query.get("after", [None])[0]
    return Viewer(int(number) if number.isdecimal() and len(number) < 10 else None, name, after)


def path_of(scope: Scope) -> str:
    """Return the path below the mount point; some servers give the whole path, some the rest."""
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path


def root_of(scope: Scope) -> str:
    """Return the path of the page on this host.

    A client may choose the mount point, by a parameter in the path: `//name` or `/\\name` would
    redirect to another host.
    """
    root = quote(scope.get("root_path", "").strip("/"), safe="/:@!$&'()*+,;=")
    return f"/{root}/" if root else "/"


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers by name, in lower case.

    Raises:
        Refusal: A header that decides about access is there twice.
    """
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key == "cookie" and key in headers:  # HTTP/2 may send them one by one
            text = f"{headers[key]}; {text}"
        elif key in DECISIVE and key in headers:
            raise Refusal(400, f"The header {key.title()} must not come twice.")
        headers[key] = text
    return headers


def content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def order_of(body: bytes) -> tuple[str, int, str]:
    try:
        order = json.loads(body)
        process, pool, action = order.get("process"), order.get("pool"), order.get("action")
    except (ValueError, AttributeError, RecursionError):
        raise Refusal(400, "The body must be a JSON object.") from None
    if action == "check":
        return "", 0, "check"
    if action not in ACTIONS:
        raise Refusal(400, f"action must be one of {', '.join(ACTIONS)}.")
    if not isinstance(pool, int) or isinstance(pool, bool):
        raise Refusal(400, "pool must be the number of a pool.")
    if not isinstance(process, str):
        raise Refusal(400, "process must be what the events say it is.")
    return process, pool, action


async def body_of(receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            return await _read_body(receive)
    except TimeoutError:
        raise Refusal(408, f"The body did not arrive within {BODY_TIMEOUT:g} seconds.") from None


async def _read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "The request broke off.")
        body += message.get("body", b"")
        if len(body) > LONGEST_BODY:
            raise Refusal(413, f"The body must not be longer than {LONGEST_BODY} bytes.")
        if not message.get("more_body", False):
            return bytes(body)
