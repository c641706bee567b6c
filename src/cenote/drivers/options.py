"""Options of a URL are text: here they become numbers, or a `ValueError` that names the option."""

from __future__ import annotations

from pathlib import Path

LONGEST = 1e9  # seconds


def seconds(name: str, text: str, *, most: float = LONGEST) -> float:
    """A duration that may have decimals; zero is allowed."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < most:
        raise ValueError(f"url option {name!r} must be a number of seconds, not {text!r}")
    return value


def whole_seconds(name: str, text: str) -> int:
    """A duration in whole seconds, from one second to one year."""
    value = _digits(text)
    if not 0 < value <= 31_536_000:
        raise ValueError(f"url option {name!r} must be a whole number of seconds, not {text!r}")
    return value


def port(text: str) -> int:
    """One port of the option `port`."""
    value = _digits(text)
    if not 0 < value < 65536:
        raise ValueError(f"url option 'port' must be a number from 1 to 65535, not {text!r}")
    return value


def check_readable(name: str, path: str) -> bytes:
    """Return what is in the file that an option names."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"url option {name!r} cannot be read: {error}") from None


def _digits(text: str) -> int:
    """The number; -1 for any other text."""
    return int(text) if text.isascii() and text.isdigit() else -1
