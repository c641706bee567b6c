"""Values by psycopg: a dict goes as JSON, an Enum by its value, and a list as its parameter wants.

psycopg does not know what type a parameter has for the server. It matters for a list alone, which
is an array, or JSON: before a statement is run with one for the first time, the server is asked.
A dumper that the program has registered is used in the place of all this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    wrapper = WRAPPERS.get(oid)
    if wrapper is None:
        return value
    return [wrapper(each, dumps=dump_json) if isinstance(each, dict) else each for each in value]
