"""Values by SQLite: it stores numbers, text and bytes, and the declared type of a column says more.

The standard library's `sqlite3` converts by declared types too, with `detect_types`, but its
converters are those of the whole process. The names that are registered here are found only while
a connection of this package runs a statement of the database layer: to everything else, the
library included, it is as if they were not there.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from threading import local
from typing import Any
from uuid import UUID

from ...sql.values import bare, dump_json, load_json

PLAIN = frozenset({type(None), bool, int, float, str, bytes, bytearray, memoryview})
DIGITS = 15  # of a number that SQLite keeps as a floating point number without changing it
SMALLEST, LARGEST = -20, 20  # powers of ten of such a number
INTEGERS = range(-(2**63), 2**63)
BEYOND = "_"  # ends a Decimal that SQLite shall not take for a number, and round
MICROSECOND = timedelta(microseconds=1)
NUMBER = re.compile(rb"-?(?:\d+(?:\.\d+)?(?:e[-+]\d+)?|inf)", re.IGNORECASE)


# -- parameters ----------------------------------------------------------------------------------


def parameters(arguments: Any) -> Any:
    """Return what is stored in the place of the arguments; the same object if all are plain."""
    if isinstance(arguments, Mapping):  # for placeholders of SQLite's own
        return {name: _stored(value) for name, value in arguments.items()}
    if PLAIN.issuperset(map(type, arguments)):
        return arguments
    return [_stored(value) for value in arguments]


def _stored(value: Any) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if _has_adapter(kind):
        return value  # the program has registered one
    if isinstance(value, Enum):
        return _stored(bare(value))
    for base in kind.__mro__:  # a datetime is a date as well, and comes first
        if base in FORMS:
            return FORMS[base](value)
    return value


def _has_adapter(kind: type) -> bool:
    adapter = sqlite3.adapters.get((kind, sqlite3.PrepareProtocol))
    return adapter is not None and adapter.__module__ != "sqlite3.dbapi2"


def _decimal_form(value: Decimal) -> str:
    """The digits. In a column of numbers SQLite would round more than 15 of them: a mark at the end
    makes a text of it, which stays as it is."""
    text = str(value)
    if not value.is_finite():
        return text
    _, digits, exponent = value.as_tuple()
    if exponent == 0 and int(value) in INTEGERS:
        return text
    significant = "".join(map(str, digits)).strip("0")
    exact = len(significant) <= DIGITS and SMALLEST <= value.adjusted() <= LARGEST
    return text if exact or not significant else text + BEYOND


def _datetime_form(value: datetime) -> str:
    """One with an offset as UTC, so that the texts sort as the moments do."""
    if value.utcoffset() is not None:
        value = value.astimezone(UTC)
    return value.isoformat(" ")


FORMS: Mapping[type, Callable[[Any], Any]] = {
    Decimal: _decimal_form,
    datetime: _datetime_form,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: value // MICROSECOND,
    UUID: str,
    dict: dump_json,
    list: dump_json,
}


# -- columns -------------------------------------------------------------------------------------


def _or_as_stored(convert: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """What does not have the form of its declared type comes back as SQLite has stored it."""

    def converted(data: bytes) -> Any:
        try:
            return convert(data.decode())
        except (ValueError, ArithmeticError, LookupError):
            return _as_stored(data)

    return converted


def _as_stored(data: bytes) -> Any:
    """`sqlite3` gives a converter everything as bytes. A column of these types keeps no text that
    looks like a number."""
    if NUMBER.fullmatch(data):
        return int(data) if data.lstrip(b"-").isdigit() else float(data)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _read_bool(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _read_date(text: str) -> date:
    return date.fromisoformat(_with_hyphens(text))


def _read_datetime(text: str) -> datetime:
    return datetime.fromisoformat(_with_hyphens(text))


def _with_hyphens(text: str) -> str:
    """`fromisoformat()` would take 20240229 as well, which is a number here."""
    if text[4:5] != "-":
        raise ValueError(text)
    return text


def _read_time(text: str) -> time:
    if text[2:3] != ":":
        raise ValueError(text)
    return time.fromisoformat(text)


def _read_uuid(data: bytes) -> Any:
    return UUID(bytes=data) if len(data) == 16 else _or_as_stored(UUID)(data)


READERS: Mapping[str, Callable[[str], Any]] = {
    "BOOL": _read_bool,
    "BOOLEAN": _read_bool,
    "DECIMAL": lambda text: Decimal(text.removesuffix(BEYOND)),
    "NUMERIC": lambda text: Decimal(text.removesuffix(BEYOND)),
    "DATE": _read_date,
    "DATETIME": _read_datetime,
    "TIMESTAMP": _read_datetime,
    "TIMESTAMPTZ": _read_datetime,
    "TIME": _read_time,
    "INTERVAL": lambda text: int(text) * MICROSECOND,
    "JSON": load_json,
    "JSONB": load_json,
}


class ThreadState(local):
    """What runs in this thread."""

    converts: bool = False  # a statement of the database layer, with values="same"
    raw: bool = False  # the program's own, on a connection of this package


here: ThreadState = ThreadState()


class DeclaredType(str):
    """A name in the registry of `sqlite3`, which is found where it applies, and nowhere else."""

    __slots__ = ()

    def upper(self) -> DeclaredType:  # what register_converter() calls
        return self

    @property
    def applies(self) -> bool:
        """Whether what this thread runs is to find the name."""
        return here.converts

    def __eq__(self, other: object) -> bool:
        if type(other) is not str:  # another of these names
            return self is other
        return self.applies and str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


class UsualType(DeclaredType):
    """A name that others have registered; it does not apply to connections of this package."""

    __slots__ = ()

    @property
    def applies(self) -> bool:
        return not (here.converts or here.raw)


def register() -> None:
    """Register the converters. Those that `sqlite3` has by itself follow, since the first one that
    applies is found."""
    converters = {name: _or_as_stored(read) for name, read in READERS.items()}
    for name, converter in {**converters, "UUID": _read_uuid}.items():
        usual = sqlite3.converters.pop(name, None)
        sqlite3.register_converter(DeclaredType(name), converter)
        if usual is not None:
            sqlite3.register_converter(UsualType(name), usual)


register()
