"""`into=`: rows become what the program works with.

What a class or function takes is read once, for each combination of columns: `plan()` gives the
function that makes one object of one row. A column that it does not take, or something that it
requires and no column gives, is an error before the first object is made.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, ForwardRef, TypeVar, Union, cast, get_origin

# Annotations may name what is imported for type checkers alone. Since 3.14 reading them looks the
# names up, unless it is told not to.
signature_of: Callable[[Any], inspect.Signature]
annotations_of: Callable[[Any], dict[str, Any]]
if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    signature_of = partial(inspect.signature, annotation_format=Format.STRING)
    annotations_of = partial(get_annotations, format=Format.FORWARDREF)
else:
    signature_of, annotations_of = inspect.signature, attrgetter("__annotations__")

T = TypeVar("T")
# A class with one of these has fields: of dataclasses, NamedTuples, attrs and msgspec.
FIELDS = ("__dataclass_fields__", "_fields", "__attrs_attrs__", "__struct_fields__")
# Of a key whose annotation is a text: Python itself does not look into it.
QUALIFIED = re.compile(r"(?:(?:\w+\.)*(?:ReadOnly|Annotated)\[)*(?:\w+\.)*(Not)?Required\[")

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
    if not callable(into) or get_origin(into) is Union:
        raise TypeError(
            f"into must be a class or a function that takes the columns by name, "
            f"not {type(into).__name__}"
        )


def plan(into: Callable[..., Any], names: tuple[str, ...]) -> Maker:
    """Return the function that makes an object of a row with these columns."""
    into = get_origin(into) or into  # of Page[int], which has no signature
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
            f"give them different names with AS"
        )
    if inspect.iscoroutinefunction(into):
        raise TypeError(f"into={label}: rows are made by a plain function, not by a coroutine one")
    accepted = _accepted_by(into)
    _check(label, accepted, names)
    return accepted.maker(into, names)


@dataclass(frozen=True, slots=True)
class AcceptedFields:
    """What a class or function takes."""

    positional: tuple[str, ...]  # that may be given by position, in this order
    known: frozenset[str] | None  # None: whatever is given
    required: Sequence[tuple[str, frozenset[str]]]  # what is missing, without any of these columns
    make: Callable[[dict[str, Any]], Any] | None = None  # of a dictionary; None: by calling it
    word: str = "field"
    remedy: str = "give the field a default"

    def maker(self, into: Callable[..., Any], names: tuple[str, ...]) -> Maker:
        """Return the function that makes an object of a row with these columns."""
        if self.make is not None:
            make = self.make
            return lambda row: make(dict(zip(names, row, strict=True)))
        if names == self.positional[: len(names)]:
            return lambda row: into(*row)
        return lambda row: into(**dict(zip(names, row, strict=True)))


def _check(label: str, accepted: AcceptedFields, names: tuple[str, ...]) -> None:
    if accepted.known is not None and (
        surplus := [each for each in names if each not in accepted.known]
    ):
        known = ", ".join(accepted.positional or sorted(accepted.known)) or "none"
        raise TypeError(
            f"into={label}: no {accepted.word} for the column {_listed(surplus)}; "
            f"the {accepted.word}s are {known}. Leave the column out, or name it with AS."
        )
    if lacking := [name for name, by in accepted.required if by.isdisjoint(names)]:
        raise TypeError(
            f"into={label}: no column for the {accepted.word} {_listed(lacking)}; "
            f"the columns are {', '.join(names)}. Select it, or {accepted.remedy}."
        )


def _accepted_by(into: Any) -> AcceptedFields:
    if is_typed_dict(into):
        return _of_typed_dict(into)
    if hasattr(into, "model_validate") and hasattr(into, "model_fields"):
        return _of_model(into)
    return _of_callable(into)


def is_typed_dict(into: Any) -> bool:
    """Return whether it is a TypedDict, of `typing` or of `typing_extensions`."""
    return dict in getattr(into, "__mro__", ()) and hasattr(into, "__required_keys__")


def _by_name(names: Iterable[str]) -> list[tuple[str, frozenset[str]]]:
    return [(name, frozenset((name,))) for name in names]


def _of_typed_dict(into: Any) -> AcceptedFields:
    """Read the keys. Where annotations are texts, as after `from __future__ import annotations`,
    Python takes `NotRequired[...]` for a type like any other."""
    required = set(into.__required_keys__)
    found = annotations_of(into)
    for name, annotation in found.items():
        text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else ""
        if qualified := QUALIFIED.match(text):
            (required.discard if qualified[1] else required.add)(name)
    keys = tuple(found)
    return AcceptedFields(
        keys,
        frozenset(keys),
        _by_name(key for key in keys if key in required),
        make=dict,
        word="key",
        remedy="declare the key as NotRequired",
    )


def _of_model(into: Any) -> AcceptedFields:
    """Read a model of pydantic; `model_validate()` makes the objects, and checks the values."""
    if getattr(into, "__pydantic_root_model__", False):
        return AcceptedFields((), None, (), make=into.model_validate)
    config = into.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    by_alias = config.get("validate_by_alias", True)
    columns: dict[str, tuple[str, ...]] = {}
    for name, each in into.model_fields.items():
        aliases = _aliases(each.validation_alias or each.alias) if by_alias else ()
        columns[name] = (name, *aliases) if by_name or not aliases else aliases
    return AcceptedFields(
        tuple(by[0] for by in columns.values()),
        None if config.get("extra") == "allow" else frozenset().union(*columns.values()),
        [
            (by[0], frozenset(by))
            for name, by in columns.items()
            if into.model_fields[name].is_required()
        ],
        make=into.model_validate,
    )


def _aliases(alias: Any) -> tuple[str, ...]:
    """The columns that one is found by: a name, a path into a column, or some of these."""
    if alias is None or isinstance(alias, str):
        return (alias,) if alias else ()
    if hasattr(alias, "choices"):
        return tuple(name for each in alias.choices for name in _aliases(each))
    return (str(alias.path[0]),)


def _of_callable(into: Callable[..., Any]) -> AcceptedFields:
    word = "field" if any(hasattr(into, mark) for mark in FIELDS) else "parameter"
    try:
        given = signature_of(into).parameters.values()
    except (TypeError, ValueError):  # written in C, and without a signature
        return AcceptedFields((), None, (), word=word)
    by_name = [
        each for each in given if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    positional = [each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD]
    if any(each.kind is each.POSITIONAL_ONLY for each in given):
        positional = []  # these come first
    takes_all = any(each.kind is each.VAR_KEYWORD for each in given)
    return AcceptedFields(
        tuple(positional),
        None if takes_all else frozenset(each.name for each in by_name),
        _by_name(each.name for each in by_name if each.default is each.empty),
        word=word,
        remedy=f"give the {word} a default",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
