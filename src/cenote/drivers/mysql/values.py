"""Parameters of MySQL and MariaDB: what may be one, and how cenote writes one into a text.

Values go by the binary protocol. Only what the server cannot prepare gets them as literals, which
mean the same in every sql_mode and in every charset of the session: numbers, and text and bytes in
hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from math import isfinite
from typing import Any
from uuid import UUID

from ...sql.dialects import MYSQL
from ...sql.parsing.placeholders import marks
from ...sql.parsing.tokens import readings
from ...sql.values import Conversions, bare, dump_json, load_json

KNOWN = frozenset({type(None), bool, int, str, bytes, bytearray, date})  # as they are
TINY, TIMESTAMP, BLOB, STRING, JSON = 1, 7, 252, 254, 245  # types of columns
UNSIGNED_FLAG, BINARY_FLAG = 0x20, 0x80  # of columns
BINARY_CHARSET = 63
LONGEST_TEXT = (2**32 - 1, -1)  # bytes of a column, and what asyncmy makes of that
LETTERS = 36  # of a UUID
SIGNED, UNSIGNED = 2**63, 2**64
DIGITS, SCALE = 65, 30  # of a DECIMAL
LONGEST = timedelta(hours=838, minutes=59, seconds=59, microseconds=999999)  # that TIME can hold
IS_UTC = frozenset({"UTC", "GMT", "Etc/UTC", "Etc/GMT", "Zulu", "UCT", "Universal"})
OFFSET = re.compile(r"([+-])(\d\d?):(\d\d)")

# Of text that stands for itself between single quotes, whatever sql_mode and charset are.
HARMLESS = frozenset(map(chr, range(32, 127))) - {"\\"}

# Comments that are none for some servers: what is a quote in them, and where they end, is theirs.
READ_BY_SERVER = re.compile(r"/\*(?:M?!|\+(?:(?!\*/).)*[\"'`])", re.DOTALL | re.IGNORECASE)


def parameters(
    arguments: Sequence[Any], variables: Mapping[str, str | None], *, same_values: bool = True
) -> Sequence[Any]:
    """What the driver can send, in the place of what was given; the same object if all of it can.

    `variables` are those of the session. TypeError for an object of a type that has no meaning
    here: its text is not guessed."""
    if KNOWN.issuperset(map(type, arguments)):
        return arguments
    if same_values:
        arguments = [
            value if type(value) in KNOWN else same(value, at, variables)
            for at, value in enumerate(arguments, 1)
        ]
    return [value if type(value) in KNOWN else parameter(value, at)
            for at, value in enumerate(arguments, 1)]  # fmt: skip


def same(value: Any, at: int, variables: Mapping[str, str | None]) -> Any:
    """What is sent so that the same comes back. A datetime with a time zone is sent as the clock
    of the session shows that moment, which TIMESTAMP keeps; ValueError if that is not known."""
    value = bare(value)
    if isinstance(value, dict | list):
        return dump_json(value)
    if isinstance(value, datetime) and value.utcoffset() is not None:
        zone = session_zone(variables)
        if zone is None:
            raise ValueError(
                f"parameter {at} is a datetime with a time zone, and the session is in the time "
                f"zone {variables.get('time_zone')!r}, in which a time may be two moments: run "
                f"SET time_zone = '+00:00' in on_connect, or pass "
                f"value.astimezone(UTC).replace(tzinfo=None)"
            )
        return value.astimezone(zone).replace(tzinfo=None)
    if isinstance(value, time) and value.tzinfo is not None:
        raise ValueError(
            f"parameter {at} is a time with a time zone, which no type of MySQL keeps: pass "
            f"value.replace(tzinfo=None)"
        )
    return value


def session_zone(variables: Mapping[str, str | None]) -> timezone | None:
    """The time zone of a session, if it has one offset at all times; None: it may have several."""
    name = variables.get("time_zone")
    return _zone(variables.get("system_time_zone") if name == "SYSTEM" else name)


@lru_cache(maxsize=64)
def _zone(name: str | None) -> timezone | None:
    if name in IS_UTC:
        return UTC
    if name is None or (found := OFFSET.fullmatch(name)) is None:
        return None
    offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return timezone(-offset if found[1] == "-" else offset)


def parameter(value: Any, at: int) -> Any:
    """One of a type that is not KNOWN; `at`: its place, for the error."""
    while isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bytes | bytearray | date | time | bool):
        return value
    if isinstance(value, timedelta):
        if not -LONGEST <= value <= LONGEST:
            raise ValueError(
                f"parameter {at} is a timedelta of {value}, and TIME holds at most 838:59:59: "
                f"store a number, such as value.total_seconds()"
            )
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"parameter {at} is {float(value)}, which MySQL does not know")
        return float(value)
    if isinstance(value, Decimal):
        return exact(value, at)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, memoryview):
        return bytes(value)
    if hasattr(type(value), "__index__"):
        return value.__index__()
    kind = type(value).__name__
    remedy = "json.dumps(value)" if isinstance(value, dict | list | tuple) else "str(value)"
    raise TypeError(
        f"parameter {at} is of the type {kind}, which MySQL does not know: pass a value that "
        f"it can store, such as {remedy}"
    )


def first_large_int(rows: Sequence[Sequence[Any]]) -> int | None:
    """The first row with an int of more than 64 bits, which asyncmy refuses when it sends it."""
    return next(
        (
            at
            for at, row in enumerate(rows)
            if any(isinstance(value, int) and not -SIGNED <= value < UNSIGNED for value in row)
        ),
        None,
    )


def exact(value: Decimal, at: int) -> Decimal:
    """ValueError if the server would store another number in its place."""
    if value.is_finite():
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        whole = max(len(digits) + exponent, 0)
        if whole + max(-exponent, 0) <= DIGITS and -exponent <= SCALE:
            return value
    raise ValueError(
        f"parameter {at} is a Decimal that MySQL does not hold: at most {DIGITS} digits, "
        f"{SCALE} of them after the point"
    )


def literals(text: str, arguments: Sequence[Any]) -> str:
    """The text with literals in the places of its `?`, for what the server cannot prepare."""
    places = find_marks(text)
    if len(places) != len(arguments):
        raise miscounted(len(places), len(arguments))
    parts: list[str] = []
    rest = 0
    for at, (place, value) in enumerate(zip(places, arguments, strict=True), 1):
        parts += (text[rest:place], f" {literal(value, at)} ")
        rest = place + 1
    parts.append(text[rest:])
    return "".join(parts)


def find_marks(text: str) -> list[int]:
    """Where the `?` are. ValueError if that depends on anything but the text: what is believed of
    the session could be wrong, and then a value would be read as SQL."""
    if READ_BY_SERVER.search(text):
        raise ValueError(
            "the server cannot prepare this statement (several at once, or a syntax error), and "
            "it has a comment that some servers execute (/*! or /*+ with a quote), in which "
            "placeholders cannot be told apart: leave out the comment, or the parameters"
        )
    found, *others = [marks(text, reading) for reading in readings(text, MYSQL)]
    if any(each != found for each in others):
        raise ValueError(
            "the server cannot prepare this statement (several at once, or a syntax error), and "
            "where its placeholders are depends on the sql_mode of the session, because of a "
            "backslash beside a quote: pass the text that has it as a parameter"
        )
    return found


def miscounted(expected: int, given: int) -> ValueError:
    return ValueError(
        f"the statement has {expected} placeholders for the server, but {given} parameters were "
        f"given (?? is a literal question mark)"
    )


def literal(value: Any, at: int) -> str:
    """One that no sql_mode and no charset of the session reads in another way."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        if not -SIGNED <= value < UNSIGNED:
            raise ValueError(f"parameter {at} is an int of more than 64 bits: {value!r}")
        return str(value)
    if isinstance(value, float):
        return repr(value) if "e" in repr(value) else f"{value!r}e0"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, str):
        if HARMLESS.issuperset(value):
            # Where the server takes nothing but a string, as in SHOW ... LIKE.
            return "'" + value.replace("'", "''") + "'"
        return f"_utf8mb4 x'{value.encode().hex()}'"
    if isinstance(value, bytes | bytearray):
        return f"_binary x'{value.hex()}'"
    if isinstance(value, datetime):
        return f"TIMESTAMP'{value.replace(tzinfo=None).isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    if isinstance(value, time):
        return f"TIME'{value.replace(tzinfo=None).isoformat()}'"
    assert isinstance(value, timedelta), type(value)
    return f"TIME'{clock(value)}'"


def clock(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    minutes, seconds = divmod(value.days * 86400 + value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours:02}:{minutes:02}:{seconds:02}.{value.microseconds:06}"


# -- columns -------------------------------------------------------------------------------------


def conversions(result: Any, variables: Mapping[str, str | None]) -> Conversions:
    """Return what is converted of the rows of a result; nothing for columns of plain types.

    `variables` are those of the session.
    """
    suspects = _suspects(result.description)
    if not suspects:
        return ()
    found = [(at, _reader(result.fields[at], variables)) for at in suspects]
    return [(at, read) for at, read in found if read is not None]


@lru_cache(maxsize=1024)
def _suspects(description: tuple[tuple[Any, ...], ...]) -> tuple[int, ...]:
    """The columns whose type may say more than asyncmy makes of it."""
    return tuple(
        at
        for at, (_, kind, _, length, *_) in enumerate(description)
        if (kind == TINY and length == 1)
        or kind in (JSON, TIMESTAMP)
        or (kind == BLOB and length in LONGEST_TEXT)
        or (kind == STRING and length % LETTERS == 0)
    )


def _reader(field: Any, variables: Mapping[str, str | None]) -> Callable[[Any], Any] | None:
    kind, flags = field.type_code, field.flags
    if kind == TINY:
        return _read_bool
    if kind == TIMESTAMP:
        zone = session_zone(variables)
        return None if zone is None else partial(_read_moment, zone)
    if kind == JSON:
        return load_json
    if kind == BLOB and flags & BINARY_FLAG and field.charsetnr != BINARY_CHARSET:
        return _read_document
    if kind == STRING and flags & UNSIGNED_FLAG:  # of MariaDB; no text has it
        return _read_uuid
    return None


def _read_bool(value: int) -> bool | int:
    """TINYINT(1) holds other numbers as well, and they are not lost."""
    return value == 1 if value in (0, 1) else value


def _read_moment(zone: timezone, value: Any) -> Any:
    """TIMESTAMP is sent as the clock of the session shows it; 0000-00-00 is not a datetime."""
    return value.replace(tzinfo=zone).astimezone(UTC) if isinstance(value, datetime) else value


def _read_document(value: str) -> Any:
    """JSON is LONGTEXT with a binary collation for MariaDB: the content decides."""
    if not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return load_json(value)
    except ValueError:
        return value


def _read_uuid(value: str | bytes) -> UUID:
    return UUID(value if isinstance(value, str) else value.decode())
