"""Parsing of the head of an HTTP/1.1 request, in linear time.

There are no regular expressions here: one that backtracks may take hours for 16 kB, and it would
block the event loop meanwhile.
"""

from __future__ import annotations

import string
from typing import Final, NamedTuple

LONGEST_HEAD: Final = 16 * 1024  # bytes
LONGEST_TARGET: Final = 2048  # bytes of the path and the query
LONGEST_METHOD: Final = 16
MOST_HEADERS: Final = 100

VERSIONS: Final = {b"HTTP/1.0": "1.0", b"HTTP/1.1": "1.1"}
VISIBLE: Final = bytes(range(0x21, 0x7F))
NAME: Final = (string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~").encode()
VALUE: Final = b"\t " + VISIBLE + bytes(range(0x80, 0x100))


class BadRequest(Exception):
    """A request that is answered with this status and nothing else."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Head(NamedTuple):
    """The request line and the headers."""

    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]  # names in lower case


def parse(head: bytes) -> Head:
    """Parse a head, given without the empty line at its end.

    Raises:
        BadRequest: With 400, 414 (the address is too long) or 431 (too many headers).
    """
    first, *lines = head.split(b"\r\n", MOST_HEADERS + 1)
    method, target, version = _request_line(first)
    if len(lines) > MOST_HEADERS:
        raise BadRequest(431)
    return Head(method, target, version, [_header(line) for line in lines])


def _request_line(line: bytes) -> tuple[str, bytes, str]:
    parts = line.split(b" ", 3)
    if len(parts) != 3:
        raise BadRequest(400)
    method, target, version = parts
    if len(method) > LONGEST_METHOD or not (method.isalpha() and method.isupper()):
        raise BadRequest(400)
    if not target.startswith(b"/") or not _only(target, VISIBLE) or version not in VERSIONS:
        raise BadRequest(400)
    if len(target) > LONGEST_TARGET:
        raise BadRequest(414)
    return method.decode(), target, VERSIONS[version]


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or not _only(name, NAME) or not _only(value, VALUE):
        raise BadRequest(400)
    return name.lower(), value.strip(b" \t")


def _only(text: bytes, allowed: bytes) -> bool:
    return not text.translate(None, allowed)
