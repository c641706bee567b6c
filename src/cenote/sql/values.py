"""Values that are the same on every driver: what a driver does not do by itself.

A driver looks at the types of the parameters together, and at the columns of a result once for each
shape: parameters and columns of plain types pass as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

# Turns the value of a column into the one that is given, by the position of the column.
Conversions = Sequence[tuple[int, Callable[[Any], Any]]]

load_json: Callable[[str | bytes], Any] = json.loads


def bare(value: Any) -> Any:
    """Return what is meant by a member of an Enum, and everything else as it is."""
    while isinstance(value, Enum):
        value = value.value
    return value


def bare_list(values: list[Any]) -> list[Any]:
    """Return a list without members of an Enum, also in inner lists; the same one if it can be."""
    found = [
        bare_list(value) if type(value) is list else bare(value)
        for value in values
    ]  # fmt: skip
    same = all(new is old for new, old in zip(found, values, strict=True))
    return values if same else found


def dump_json(value: Any) -> str:
    """Return a dict or list as JSON, members of an Enum by their values.

    Raises:
        TypeError: Something in it has no form in JSON; the error says what, and where.
        ValueError: The same of nan, of infinity, and of a list that contains itself.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError) as error:
        found = _find(value, "$", ())
        if found is None:
            raise
        raise type(error)(f"this cannot be stored as JSON: {found}") from None


def _default(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(type(value).__name__)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_default).encode


def _find(value: Any, path: str, around: tuple[int, ...]) -> str | None:
    """Return where something is that JSON does not have, and what it is; None if there is none."""
    value = bare(value)
    if id(value) in around:
        return f"{path} contains itself"
    inner: Iterable[tuple[str, Any]]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int | float | bool | None):
                return f"the key {key!r} of {path} is of the type {type(key).__name__}"
        inner = ((f"{path}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        inner = ((f"{path}[{at}]", each) for at, each in enumerate(value))
    else:
        return _complaint(value, path)
    around = (*around, id(value))
    return next(filter(None, (_find(each, place, around) for place, each in inner)), None)


def _complaint(value: Any, path: str) -> str | None:
    try:
        _encode(value)
    except ValueError:
        return f"{path} is {value!r}, a number that JSON does not have"
    except TypeError:
        kind = type(value).__name__
        return f"{path} is of the type {kind}, which JSON does not have: put str(value) there"
    return None


def convert_columns(rows: Iterable[Sequence[Any]], conversions: Conversions) -> list[list[Any]]:
    """Return rows with some of their columns converted; NULL stays None."""
    converted = []
    for row in rows:
        values = list(row)
        for at, convert in conversions:
            if values[at] is not None:
                values[at] = convert(values[at])
        converted.append(values)
    return converted
