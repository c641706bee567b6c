"""`into=`: rows become what the program works with.

What a class or function takes is read once, for each combination of columns: `plan()` gives the
function that makes one object of one row. A column that it does not take, or something that it
requires and no column gives, is an error before the first object is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast, is_typeddict

T = TypeVar("T")
# A class with one of these has fields: of dataclasses, NamedTuples, attrs and msgspec.
FIELDS = ("__dataclass_fields__", "_fields", "__attrs_attrs__", "__struct_fields__")

Maker = Callable[[Sequence[Any]], Any]


def convert(row: Any, into: Callable[..., T]) -> T:
    """Make an object of a row.

    Raises:
        TypeError: The columns do not fit; the error names the column or the field.
    """
    return cast(T, plan(into, row.columns)(row))


def convert_all(rows: Sequence[Any], into: Callable[..., T]) -> list[T]:
    """Make an object of each row of one result."""
    if not rows:
        return []
    return list(map(plan(into, rows[0].columns), rows))


def check_into(into: Any) -> None:
    """Raise `TypeError` if this cannot be what rows become."""
    if not callable(into):
        raise TypeError(
            f"into must be a class or a function that takes the columns by name, "
            f"not {type(into).__name__}"
        )


def plan(into: Callable[..., Any], names: tuple[str, ...]) -> Maker:
    """Return the function that makes an object of a row with these columns."""
    # Functions are not kept: a closure would live as long as the cache.
    return _plan_of_class(into, names) if isinstance(into, type) else _plan(into, names)


@lru_cache(maxsize=512)
def _plan_of_class(into: type, names: tuple[str, ...]) -> Maker:
    return _plan(into, names)


def _plan(into: Callable[..., Any], names: tuple[str, ...]) -> Maker:
    label = getattr(into, "__qualname__", repr(into))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise TypeError(
            f"into={label}: the result has two columns called {_listed(repeated)}; "
            f"name them apart with AS"
        )
    taken = _taken_by(into)
    _check(label, taken, names)
    return taken.maker(into, names)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a class or function takes."""

    positional: tuple[str, ...]  # that may be given by position, in this order
    known: frozenset[str] | None  # None: whatever is given
    required: frozenset[str]
    make: Callable[[dict[str, Any]], Any] | None = None  # of a dictionary; None: by calling it
    word: str = "field"

    def maker(self, into: Callable[..., Any], names: tuple[str, ...]) -> Maker:
        """Return the function that makes an object of a row with these columns."""
        if self.make is not None:
            make = self.make
            return lambda row: make(dict(zip(names, row, strict=True)))
        if names == self.positional[: len(names)]:
            return lambda row: into(*row)
        return lambda row: into(**dict(zip(names, row, strict=True)))


def _check(label: str, taken: Taken, names: tuple[str, ...]) -> None:
    if taken.known is not None and (surplus := [each for each in names if each not in taken.known]):
        known = ", ".join(taken.positional or sorted(taken.known)) or "none"
        raise TypeError(
            f"into={label}: no {taken.word} for the column {_listed(surplus)}; "
            f"the {taken.word}s are {known}. Leave the column out, or name it with AS."
        )
    if lacking := sorted(taken.required.difference(names)):
        raise TypeError(
            f"into={label}: no column for the {taken.word} {_listed(lacking)}; "
            f"the columns are {', '.join(names)}. Select it, or give the {taken.word} a default."
        )


def _taken_by(into: Any) -> Taken:
    if is_typeddict(into):
        known = frozenset(into.__annotations__)
        keys = tuple(into.__annotations__)
        return Taken(keys, known, frozenset(into.__required_keys__), make=dict, word="key")
    if hasattr(into, "model_validate") and hasattr(into, "model_fields"):
        return _of_model(into)
    return _of_callable(into)


def _of_model(into: Any) -> Taken:
    """Read a model of pydantic; `model_validate()` makes the objects, and checks the values."""
    by_name = into.model_config.get("populate_by_name") or into.model_config.get("validate_by_name")
    known: set[str] = set()
    required: set[str] = set()
    for name, each in into.model_fields.items():
        alias = each.validation_alias if isinstance(each.validation_alias, str) else each.alias
        known.update({name, alias or name} if by_name else {alias or name})
        if each.is_required():
            required.add(alias or name)
    return Taken(
        tuple(into.model_fields),
        None if into.model_config.get("extra") == "allow" else frozenset(known),
        frozenset() if by_name else frozenset(required),
        make=into.model_validate,
    )


def _of_callable(into: Callable[..., Any]) -> Taken:
    try:
        given = inspect.signature(into).parameters.values()
    except (TypeError, ValueError):  # written in C, and without a signature
        return Taken((), None, frozenset(), word="parameter")
    by_name = [
        each for each in given if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    positional = [each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD]
    if any(each.kind is each.POSITIONAL_ONLY for each in given):
        positional = []  # these come first
    takes_all = any(each.kind is each.VAR_KEYWORD for each in given)
    return Taken(
        tuple(positional),
        None if takes_all else frozenset(each.name for each in by_name),
        frozenset(each.name for each in by_name if each.default is each.empty),
        word="field" if any(hasattr(into, mark) for mark in FIELDS) else "parameter",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
