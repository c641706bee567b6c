"""Rows: the same interface on every driver, whatever class the driver makes its rows of."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from functools import lru_cache
from typing import Any, ClassVar, SupportsIndex, overload


class Row(Sequence[Any], metaclass=ABCMeta):
    """A row of a result: `row[0]` and `row["name"]` both work, `row.name` does not.

    Iterating gives the values, `"name" in row` asks for a column, `dict(row)` makes a dictionary,
    and a row equals a tuple of the same values. It may be the parameters of a statement. Of two
    columns with the same name the last one is found by name. Rows can be hashed and pickled. Do not
    subclass it: the drivers register theirs.
    """

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Any: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...

    @abstractmethod
    def __getitem__(self, key: Any) -> Any:
        """Return the value of a column, by position or by name, or a tuple for a slice.

        Raises:
            IndexError: There is no column at this position.
            KeyError: There is no column of this name.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of columns."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values."""

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Return whether there is a column of this name."""

    @abstractmethod
    def __eq__(self, other: object) -> bool:
        """Return whether this is a row or a tuple of the same values."""

    @abstractmethod
    def __hash__(self) -> int:
        """Return the hash of the tuple of the values."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, also of those that have the same name."""

    @abstractmethod
    def keys(self) -> KeysView[str]:
        """Return the names of the columns, in their order."""

    @abstractmethod
    def values(self) -> ValuesView[Any]:
        """Return the values, in the order of the columns."""

    @abstractmethod
    def items(self) -> ItemsView[str, Any]:
        """Return pairs of name and value."""

    @abstractmethod
    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a column, or a default if there is no column of this name.

        Args:
            name: The name of the column.
            default: What is returned otherwise.
        """


class TupleRow(tuple[Any, ...]):
    """A row that is a tuple; each combination of columns has a subclass with its names."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()
    _places: ClassVar[dict[str, int]] = {}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                key = self._places[key]
            except KeyError:
                raise no_column(key, self._names) from None
        return tuple.__getitem__(self, key)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    @property
    def columns(self) -> tuple[str, ...]:
        return self._names

    def keys(self) -> KeysView[str]:
        return dict.fromkeys(self._names).keys()

    def values(self) -> ValuesView[Any]:
        return dict(enumerate(self)).values()

    def items(self) -> ItemsView[str, Any]:
        return dict(zip(self._names, self, strict=True)).items()

    def get(self, name: str, default: Any = None) -> Any:
        place = self._places.get(name)
        return default if place is None else tuple.__getitem__(self, place)

    def __repr__(self) -> str:
        return describe(self._names, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_row, (self._names, tuple(self))


Row.register(TupleRow)


def describe(names: Iterable[str], values: Iterable[Any]) -> str:
    """Return the `repr` of a row with these columns."""
    pairs = zip(names, values, strict=True)
    return f"<Row {' '.join(f'{name}={value!r}' for name, value in pairs)}>"


def no_column(name: str, names: Iterable[str]) -> KeyError:
    """Make the error for a column that a row does not have."""
    return KeyError(f"no column {name!r}; there are: {', '.join(names)}")


@lru_cache(maxsize=1024)
def row_type(names: tuple[str, ...]) -> type[TupleRow]:
    """Return the class of the rows with these columns."""
    places = {name: place for place, name in enumerate(names)}
    return type("Row", (TupleRow,), {"__slots__": (), "_names": names, "_places": places})


def make_row(names: tuple[str, ...], values: Iterable[Any]) -> TupleRow:
    """Make one row."""
    return row_type(names)(values)


def make_rows(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[TupleRow]:
    """Make rows that have the same columns."""
    kind = row_type(tuple(names))
    return list(map(kind, rows))
