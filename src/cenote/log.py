"""Logging: `log()` writes every line of cenote and never raises.

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
PREFIX: Final = "cenote_"  # of our attributes of a LogRecord, to avoid collisions
NO_FIELDS: Final[Mapping[str, object]] = MappingProxyType({})


def log(
    level: int,
    text: str,
    *arguments: object,
    error: BaseException | None = None,
    fields: Mapping[str, object] = NO_FIELDS,
    to: logging.Logger = logger,
    loop: asyncio.AbstractEventLoop | None = None,
    stacklevel: int = 1,
) -> None:
    """Log one line with credentials masked. It raises nothing, whatever the handlers do.

    An exception of a handler is written to stderr, as `logging` does with its own errors.
    KeyboardInterrupt and SystemExit are raised later, by `raise_later`.

    Args:
        level: The level, as in `logging`.
        text: The message, with `%` placeholders for the arguments.
        arguments: The values of the placeholders.
        error: An exception that is shown with its traceback.
        fields: Attributes of the record; each name gets the prefix `cenote_`. The class of the
            error is one of them.
        to: The logger.
        loop: The loop for `raise_later` if none is running.
        stacklevel: How many frames above this one the line is attributed to.
    """
    try:
        if to.isEnabledFor(level):
            if error is not None:
                fields = {"error": type(error).__name__, **fields}
            frame = sys._getframe(stacklevel)
            to.handle(_record(to, level, frame, text, arguments, error, fields))
    except (KeyboardInterrupt, SystemExit) as raised:
        raise_later(raised, loop)
    except BaseException as raised:
        try:
            _complain(raised)
        except Exception:  # stderr is gone, or the stack is used up: nothing is left to do
            pass


def raise_later(error: BaseException, loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise this error in a later step of the loop; without an open loop, raise it here."""
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
    message = text % arguments if arguments else text
    shown = masked(message)
    if shown != message:
        text, arguments = shown, ()
    traceback = hidden = None
    if error is not None:
        lines = "".join(format_exception(error)).rstrip("\n")
        hidden = masked(lines)
        if hidden == lines:  # else a formatter that formats the exception again would show it
            traceback, hidden = (type(error), error, error.__traceback__), None
    code = frame.f_code
    record = to.makeRecord(
        to.name, level, code.co_filename, frame.f_lineno, text, arguments, traceback, code.co_name
    )
    record.exc_text = hidden or record.exc_text
    # Not `extra`: it refuses names that a LogRecordFactory has set.
    record.__dict__.update({PREFIX + name: value for name, value in fields.items()})
    return record


def _complain(raised: BaseException) -> None:
    if logging.raiseExceptions and sys.stderr is not None:
        lines = masked("".join(format_exception(raised)))
        sys.stderr.write(f"--- Logging error in cenote ---\n{lines}")


def _raise(error: BaseException) -> None:
    raise error
