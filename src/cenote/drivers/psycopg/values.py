"""Values by psycopg: a dict goes as JSON, an Enum by its value, and a list as its parameter wants.

psycopg does not know what type a parameter has for the server. It matters for a list alone, which
is an array, or JSON: before a statement is run with one for the first time, the server is asked.
A dumper that the program has registered is used in the place of all this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from ...sql.values import bare, bare_list, dump_json
from .private import USUAL_DUMPERS, AdaptersMap, PyFormat, documents, psycopg

KNOWN = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, UUID}
)
JSON = frozenset({114, 3802})  # the types json and jsonb
WRAPPERS: Mapping[int, Any] = {
    199: documents.Json,
    3807: documents.Jsonb,
}  # of the elements of json[] and jsonb[]
INTEGERS = {1005: 2**15, 1007: 2**31, 1016: 2**63}  # smallint[], int[], bigint[], and their limits
NUMBERS: Mapping[int, frozenset[type]] = {
    **dict.fromkeys(INTEGERS, frozenset({int})),
    1021: frozenset({int, float}),  # real[]
    1022: frozenset({int, float}),  # double precision[]
    1231: frozenset({int, float, Decimal}),  # numeric[]
}


class Undecided(list[Any]):
    """Arguments with lists among them, which are arrays or JSON by what their parameters are."""

    __slots__ = ("lists",)

    def __init__(self, arguments: Iterable[Any], lists: Collection[int]) -> None:
        super().__init__(arguments)
        self.lists: Collection[int] = lists  # their positions


def parameters(arguments: Any, adapters: AdaptersMap) -> Any:
    """Return what is sent in the place of the arguments; `Undecided` if there is a list."""
    if isinstance(arguments, Mapping):  # for placeholders of psycopg's own: there a list is one
        return {name: _sent(value, adapters) for name, value in arguments.items()}
    sent = [_sent(value, adapters) for value in arguments]
    lists = {
        at
        for at, value in enumerate(sent)
        if isinstance(value, list)
        and adapters.get_dumper(type(value), PyFormat.AUTO) in USUAL_DUMPERS
    }
    return Undecided(sent, lists) if lists else sent


def _sent(value: Any, adapters: AdaptersMap) -> Any:
    kind = type(value)
    if kind in KNOWN:
        return value
    try:
        dumper = adapters.get_dumper(kind, PyFormat.AUTO)
    except psycopg.ProgrammingError:
        return dump_json(value) if isinstance(value, dict) else value
    if dumper not in USUAL_DUMPERS:
        return value
    return _sent(bare(value), adapters) if isinstance(value, Enum) else bare_list(value)


def decide(arguments: Undecided, types: Sequence[int]) -> list[Any]:
    """Return the arguments with every list as what the type of its parameter says."""
    return [
        _decided(value, types[at]) if at in arguments.lists else value
        for at, value in enumerate(arguments)
    ]


def _decided(value: list[Any], oid: int) -> Any:
    if oid in JSON:
        return dump_json(value)
    if oid in NUMBERS:
        return _numbers(value, oid)
    wrapper = WRAPPERS.get(oid)
    return value if wrapper is None else _documents(value, wrapper)


def _documents(value: list[Any], wrapper: Any) -> list[Any]:
    """An array of documents; a list in it is one of its dimensions, as for asyncpg."""
    return [
        _documents(each, wrapper) if type(each) is list
        else wrapper(each, dumps=_document) if isinstance(each, dict | int | float | str)
        else each
        for each in value
    ]  # fmt: skip


def _document(value: Any) -> str:
    # A text is a document as it is.
    return value if isinstance(value, str) else dump_json(value)


def _numbers(value: list[Any], oid: int) -> list[Any] | str:
    """The text of an array of numbers, which the server reads as an array of the right type.

    psycopg itself sends the smallest type that holds them, `smallint[]` for `[1]`, which cannot be
    compared with `int[]`, and refuses integers among floats.
    """
    numbers = [each for each in _flat(value) if each is not None]
    if not numbers or not NUMBERS[oid].issuperset(map(type, numbers)):
        return value
    limit = INTEGERS.get(oid)
    if limit is not None and not -limit <= min(numbers) <= max(numbers) < limit:
        return value
    return _array(value)


def _flat(value: list[Any]) -> Iterator[Any]:
    for each in value:
        if type(each) is list:
            yield from _flat(each)
        else:
            yield each


def _array(value: list[Any]) -> str:
    texts = (
        _array(each) if type(each) is list else "NULL" if each is None else str(each)
        for each in value
    )
    return f"{{{','.join(texts)}}}"
