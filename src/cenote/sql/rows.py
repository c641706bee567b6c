"""Rows of drivers whose own rows know no names: tuples that can be asked by name too."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, KeysView, Sequence, ValuesView
from functools import lru_cache
from typing import Any, ClassVar


class Row(tuple[Any, ...]):
    """A tuple of the values; `row["name"]` and `row[0]` both work. Of two columns with the same
    name the last one is found by name."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()
    _places: ClassVar[dict[str, int]] = {}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                key = self._places[key]
            except KeyError:
                columns = ", ".join(self._names)
                raise KeyError(f"no column {key!r}; there are: {columns}") from None
        return tuple.__getitem__(self, key)

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
        values = zip(self._names, self, strict=True)
        return f"<Row {' '.join(f'{name}={value!r}' for name, value in values)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return make_row, (self._names, tuple(self))


@lru_cache(maxsize=1024)
def row_type(names: tuple[str, ...]) -> type[Row]:
    """The class of the rows with these columns."""
    places = {name: place for place, name in enumerate(names)}
    return type("Row", (Row,), {"__slots__": (), "_names": names, "_places": places})


def make_row(names: tuple[str, ...], values: Iterable[Any]) -> Row:
    return row_type(names)(values)


def make_rows(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[Row]:
    kind = row_type(tuple(names))
    return list(map(kind, rows))
