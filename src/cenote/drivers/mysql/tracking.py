"""What a server of MySQL says of its session: the news behind the counters of an OK packet."""

from __future__ import annotations

SYSTEM_VARIABLE = 0  # one of the things that may have changed


def changed_variables(data: bytes) -> dict[str, str | None]:
    """The system variables in what an OK packet says behind its counters."""
    found: dict[str, str | None] = {}
    _, at = _string(data, 0)  # words for a person
    if at >= len(data):
        return found
    changes, _ = _string(data, at)
    at = 0
    while at < len(changes):
        kind = changes[at]
        change, at = _string(changes, at + 1)
        if kind == SYSTEM_VARIABLE:
            inside = 0
            while inside < len(change):
                name, inside = _string(change, inside)
                value, inside = _string(change, inside)
                found[name.decode("utf8", "replace")] = value.decode("utf8", "replace") or None
    return found


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    """One with its length before it, and where the next thing begins."""
    first = data[at]
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    length = int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else first
    start = at + 1 + width
    return data[start : start + length], start + length
