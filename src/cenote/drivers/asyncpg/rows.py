"""Rows of asyncpg: its records, with the interface of `cenote.Row`."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any

from ...sql.rows import Row, describe, make_row

if TYPE_CHECKING:

    class Record:
        """The part of asyncpg's interface that is used here."""

        def keys(self) -> Iterable[str]: ...
        def items(self) -> Iterable[tuple[str, Any]]: ...
        def get(self, key: str, default: Any, /) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...
        def __getitem__(self, key: Any) -> Any: ...

else:
    from asyncpg import Record


class AsyncpgRow(Record):
    """A record that equals tuples, shows its names and can be pickled, as the other drivers' rows.

    asyncpg makes them itself, in C, so that they cost nothing.
    """

    __slots__ = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(Record.keys(self))

    def keys(self) -> KeysView[str]:
        return dict.fromkeys(Record.keys(self)).keys()

    def values(self) -> ValuesView[Any]:
        return dict(enumerate(self)).values()

    def items(self) -> ItemsView[str, Any]:
        return dict(Record.items(self)).items()

    def get(self, name: str, default: Any = None) -> Any:
        return Record.get(self, name, default)

    def count(self, value: Any) -> int:
        return tuple(self).count(value)

    def index(self, value: Any, *places: int) -> int:
        return tuple(self).index(value, *places)

    def __repr__(self) -> str:
        return describe(self.columns, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_row, (self.columns, tuple(self))


Row.register(AsyncpgRow)  # a sequence with that, for `match` and as parameters
