"""The log lines of cenote: `log()` writes every one of them, and no line breaks off what is done.

Most lines are written in the middle of a step of a pool. A handler, filter, formatter or
LogRecordFactory of the program that raises there must not cost a slot.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextvars import Context
from traceback import format_exception
from types import FrameType, MappingProxyType
from typing import Any, Final

from .mask import masked

logger: Final = logging.getLogger("cenote")
PREFIX: Final = "cenote_"  # of our attributes of a record, so that they are nobody else's
NO_FIELDS: Final[Mapping[str, object]] = MappingProxyType({})


def log(
    level: int,
    text: str,
    *arguments: object,
    error: BaseException | None = None,
    fields: Mapping[str, object] = NO_FIELDS,
    to: logging.Logger = logger,
    loop: asyncio.AbstractEventLoop | None = None,
    depth: int = 1,
) -> None:
    """Log one line, without credentials in it. Nothing is raised, whatever the handlers do.

    `error` is shown with its traceback. `fields` become attributes of the record, each with
    `cenote_` before its name; the class of the error is one of them. `depth` says how many frames
    above this one the line is from. What a handler raises goes to stderr, as logging does it with
    errors of its own; KeyboardInterrupt and SystemExit are raised in a step of their own, see
    `raise_later`, for which `loop` is used if none runs.
    """
    try:
        if to.isEnabledFor(level):
            if error is not None:
                fields = {"error": type(error).__name__, **fields}
            frame = sys._getframe(depth)
            to.handle(_record(to, level, frame, text, arguments, error, fields))
    except (KeyboardInterrupt, SystemExit) as raised:
        raise_later(raised, loop)
    except BaseException as raised:
        try:
            _complain(raised)
        except Exception:  # nobody is left to tell: stderr is gone, or the stack is used up
            pass


def raise_later(error: BaseException, loop: asyncio.AbstractEventLoop | None) -> None:
    """End the program by this error in a step of its own. Without an open loop: here."""
    loop = asyncio._get_running_loop() or loop
    if loop is None or loop.is_closed():
        raise error
    loop.call_soon_threadsafe(_raise, error, context=Context())


def _record(
    to: logging.Logger,
    level: int,
    frame: FrameType,
    text: str,
    arguments: tuple[Any, ...],
    error: BaseException | None,
    fields: Mapping[str, object],
) -> logging.LogRecord:
    said = text % arguments if arguments else text
    shown = masked(said)
    if shown != said:
        text, arguments = shown, ()
    traceback = hidden = None
    if error is not None:
        told = "".join(format_exception(error)).rstrip("\n")
        hidden = masked(told)
        if hidden == told:  # else whoever formats the exception again would show it
            traceback, hidden = (type(error), error, error.__traceback__), None
    code = frame.f_code
    record = to.makeRecord(
        to.name, level, code.co_filename, frame.f_lineno, text, arguments, traceback, code.co_name
    )
    record.exc_text = hidden or record.exc_text
    # Not by `extra`: that refuses names which a LogRecordFactory has set.
    record.__dict__.update({PREFIX + name: value for name, value in fields.items()})
    return record


def _complain(raised: BaseException) -> None:
    if logging.raiseExceptions and sys.stderr is not None:
        told = masked("".join(format_exception(raised)))
        sys.stderr.write(f"--- Logging error in cenote ---\n{told}")


def _raise(error: BaseException) -> None:
    raise error
