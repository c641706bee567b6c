"""Where an acquire was called, and whether leaving its block may have interrupted the use."""

from __future__ import annotations

import asyncio
import contextlib
import os
from types import CodeType, FrameType

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ASYNCIO = os.path.dirname(os.path.abspath(asyncio.__file__)) + os.sep
_CONTEXTLIB = contextlib.__file__

internal: dict[str, bool] = {}  # file name -> whether it belongs to cenote, asyncio or contextlib
_skipped: dict[tuple[str, ...], dict[str, bool]] = {}  # `skip` -> module name -> whether it is in


def caller(frame: FrameType, skip: tuple[str, ...] = ()) -> tuple[CodeType, int]:
    """Return code and instruction of the first frame outside cenote, asyncio and contextlib, and
    outside the modules and packages in `skip`; if there is none, of the first outside cenote."""
    found: FrameType | None = frame
    modules = _skipped.setdefault(skip, {}) if skip else {}
    while found is not None:
        if not _is_own(found.f_code) and not (skip and _is_in(found, skip, modules)):
            return found.f_code, found.f_lasti
        found = found.f_back
    return caller(frame) if skip else (frame.f_code, frame.f_lasti)


def user_stacklevel(frame: FrameType) -> int:
    """Return the `stacklevel` at which `warnings.warn` blames the first frame of the program."""
    level, found = 1, frame
    while _is_own(found.f_code) and found.f_back is not None:
        level, found = level + 1, found.f_back
    return level


def may_have_interrupted_use(error: BaseException) -> bool:
    """Return whether a block that ended with this error may have left its resource half used.

    This holds for a BaseException that is not an Exception, above all a cancellation; for an
    error with a cancellation among its causes and contexts, such as an inner timeout; and for an
    exception group, because a task group cancels the siblings of the task that failed, and those
    may have been using the resource.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        if isinstance(link, asyncio.CancelledError | BaseExceptionGroup):
            return True
        chain += (link.__cause__, link.__context__)
    return not isinstance(error, Exception)


def _is_in(frame: FrameType, skip: tuple[str, ...], known: dict[str, bool]) -> bool:
    # Each acquire of an ORM passes some twenty frames, of a few modules.
    name = str(frame.f_globals.get("__name__"))
    found = known.get(name)
    if found is None:
        found = any(name == module or name.startswith(f"{module}.") for module in skip)
        known[name] = found
    return found


def _is_own(code: CodeType) -> bool:
    known = internal.get(code.co_filename)
    if known is None:
        known = internal[code.co_filename] = _is_internal(code.co_filename)
    return known


def _is_internal(file: str) -> bool:
    path = os.path.abspath(file)
    return path == _CONTEXTLIB or path.startswith((_OWN, _ASYNCIO))
