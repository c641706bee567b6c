"""Mask credentials in texts that come from outside, such as error messages."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
LONGEST: Final = 1000  # characters that are shown of an error

# Every expression here takes linear time, whatever the text is: it may come from a server.
_WORD = re.compile(r"\S+")
_QUOTED: Final = r"""[bru]{0,2} (?: "(?:\\.|[^"\\])*+"? | '(?:\\.|[^'\\])*+'? )"""
_NAMED = re.compile(
    rf"""(?isx) \b (
        \w* (?: passw(?:or)?d | passphrase | pwd | secret | token | credentials?
              | (?: api | access | secret | private | encryption | signing | account )[_-]?key )
        ["']? \s* [=:] \s*
        (?! (?:yes|no) \) )      # "(using password: YES)" gives nothing away
      ) (?: {_QUOTED} | [^\s,;&)]+ )"""
)
_AUTHORIZATION = re.compile(
    r"""(?ix) \b ( authorization ["']? \s* [=:] \s* ["']? (?: [a-z]+ \s+ )? ) [^\s,;"']+"""
)
_IN_SQL = re.compile(
    rf"(?isx) \b ( (?: identified \s+ by | password ) \s+ ) (?=[bru]?['\"]) {_QUOTED}"
)


def masked(text: str) -> str:
    """Return the text with credentials masked: in URLs, and after names such as `password`."""
    if "://" in text and "@" in text:
        text = _WORD.sub(_mask_urls, text)
    text = _AUTHORIZATION.sub(rf"\1{HIDDEN}", text)
    text = _IN_SQL.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def explained(error: BaseException) -> str:
    """Return class and text of an error, masked and at most `LONGEST` characters long.

    For example `ConnectionError: refused by amqp://***@host`.
    """
    kind = type(error).__name__
    try:
        said = str(error)
    except Exception:  # a `__str__` of another package
        said = ""
    if not said:
        return kind
    shown = masked(f"{kind}: {said[: 8 * LONGEST]}")
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "\u2026"


def _mask_urls(word: re.Match[str]) -> str:
    """Mask what is between `://` and the last `@`, unless that `@` is in the path."""
    scheme, *urls = word[0].split("://")
    return "://".join([scheme, *map(_mask_user, urls)])


def _mask_user(url: str) -> str:
    user, _, rest = url.rpartition("@")
    authority, slash, _ = user.partition("/")
    in_path = slash and ":" not in authority  # else it is a slash in the password
    return f"{HIDDEN}@{rest}" if user and not in_path else url
