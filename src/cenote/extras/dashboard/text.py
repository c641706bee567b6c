"""Text for the page: short, on one line, with credentials masked."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from types import CodeType
from typing import Final

from ...mask import explained, masked
from ...observe import line_of

LONGEST: Final = 240  # characters
PLACES: Final = 2048  # file and line of so many callers are remembered

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")

_places: dict[tuple[int, int], tuple[CodeType, str]] = {}


def clean(text: str) -> str:
    """Return the text on one line, shortened, with credentials masked."""
    return _clean(text[: 8 * LONGEST])  # so much of each is kept


@lru_cache(maxsize=4096)
def _clean(text: str) -> str:
    text = masked(_CONTROL.sub(" ", text))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\u2026"


def of_error(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return clean(explained(error))


def place(code: CodeType | None, instruction: int) -> str | None:
    """Return file and line, such as `app/jobs.py:88`, computed once for each caller."""
    if code is None:
        return None
    key = (id(code), instruction)
    known = _places.get(key)
    if known is None or known[0] is not code:
        if len(_places) >= PLACES:
            _places.clear()
        known = _places[key] = (code, short(f"{code.co_filename}:{line_of(code, instruction)}"))
    return known[1]


def short(path: str) -> str:
    """Return the path relative to the working directory, or else its last three parts."""
    here = _here()
    if here and path.startswith(here):
        return clean(path[len(here) :])
    parts = path.replace(os.sep, "/").split("/")
    return clean(path if len(parts) <= 4 else "/".join(["\u2026", *parts[-3:]]))


def _here() -> str:
    try:
        return os.getcwd().rstrip(os.sep) + os.sep
    except OSError:  # the directory is gone
        return ""
