"""What rows become with `into=`, and which columns do not fit."""

import dataclasses
import sys
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
)

import attrs
import msgspec
import pydantic
import pytest
import typing_extensions

from cenote.sql.into import check_into, convert, convert_all
from cenote.sql.rows import make_row

if TYPE_CHECKING:
    from datetime import datetime

pytestmark = pytest.mark.once


@dataclasses.dataclass
class Data:
    id: int
    name: str
    note: str = "none"


@dataclasses.dataclass(kw_only=True, frozen=True)
class KeywordData:
    id: int
    name: str
    note: str = "none"
    seen: list[int] = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(init=False, default=0)


class Named(NamedTuple):
    id: int
    name: str
    note: str = "none"


class Typed(TypedDict):
    id: int
    name: str
    note: NotRequired[str]


class Extended(typing_extensions.TypedDict):
    id: int
    name: str
    note: NotRequired[str]


@attrs.define
class Attrs:
    id: int
    name: str
    note: str = "none"


class Model(pydantic.BaseModel):
    id: int
    name: str
    note: str = "none"


class Struct(msgspec.Struct):
    id: int
    name: str
    note: str = "none"


class Plain:
    def __init__(self, id: int, name: str, note: str = "none") -> None:
        self.id, self.name, self.note = id, name, note


def function(*, id: int, name: str, note: str = "none") -> tuple[int, str, str]:
    return id, name, note


KINDS = [Data, KeywordData, Named, Typed, Extended, Attrs, Model, Struct, Plain, function]
every_kind = pytest.mark.parametrize("into", KINDS, ids=lambda kind: kind.__name__)


def contents(thing: Any) -> tuple[Any, ...]:
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return thing
    get = thing.get if isinstance(thing, dict) else lambda name, _: getattr(thing, name)
    return tuple(get(name, "none") for name in ("id", "name", "note"))


@every_kind
@pytest.mark.parametrize("names", [("id", "name", "note"), ("note", "name", "id"), ("name", "id")])
def test_rows_become_any_kind_of_object(into: Callable[..., Any], names: tuple[str, ...]) -> None:
    values = {"id": 7, "name": "Ada", "note": "new"}
    row = make_row(names, [values[name] for name in names])
    expected = (7, "Ada", "new" if "note" in names else "none")
    assert contents(convert(row, into)) == expected
    assert [contents(each) for each in convert_all([row, row], into)] == [expected, expected]
    if isinstance(into, type) and not issubclass(into, dict):
        assert type(convert(row, into)) is into


@every_kind
def test_no_rows_become_an_empty_list(into: Callable[..., Any]) -> None:
    assert convert_all([], into) == []


@every_kind
def test_a_column_without_a_field_is_named(into: Callable[..., Any]) -> None:
    row = make_row(("id", "name", "nme"), (7, "Ada", "x"))
    for act in (lambda: convert(row, into), lambda: convert_all([row], into)):
        with pytest.raises(TypeError) as caught:
            act()
        text = str(caught.value)
        assert text.startswith(f"into={into.__name__}: no ")
        assert " for the column 'nme'; the " in text
        assert "are id, name, note" in text


@every_kind
def test_a_field_without_a_column_is_named(into: Callable[..., Any]) -> None:
    row = make_row(("id", "note"), (7, "x"))
    with pytest.raises(TypeError) as caught:
        convert(row, into)
    text = str(caught.value)
    assert text.startswith(f"into={into.__name__}: no column for the ")
    assert " 'name'; the columns are id, note. Select it, " in text


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"two columns called 'id'; give them different names with AS"
    ):
        convert(make_row(("id", "id"), (1, 2)), Data)


def test_a_function_may_take_whatever_comes() -> None:
    row = make_row(("a", "b"), (1, 2))
    assert convert(row, dict) == {"a": 1, "b": 2}
    assert convert(row, lambda **columns: columns) == {"a": 1, "b": 2}


def test_pydantic_checks_the_values_and_knows_aliases() -> None:
    class Aliased(pydantic.BaseModel):
        number: int = pydantic.Field(alias="id")

    assert convert(make_row(("id",), ("7",)), Aliased).number == 7
    with pytest.raises(pydantic.ValidationError):
        convert(make_row(("id",), ("x",)), Aliased)
    with pytest.raises(TypeError, match="no field for the column 'number'"):
        convert(make_row(("number",), (7,)), Aliased)


def test_pydantic_aliases_may_be_several_names() -> None:
    class Chosen(pydantic.BaseModel):
        number: int = pydantic.Field(validation_alias=pydantic.AliasChoices("id", "nr"))
        inner: int = pydantic.Field(0, validation_alias=pydantic.AliasPath("document", "inner"))

    assert convert(make_row(("id",), (7,)), Chosen).number == 7
    made = convert(make_row(("nr", "document"), (7, {"inner": 3})), Chosen)
    assert (made.number, made.inner) == (7, 3)
    with pytest.raises(TypeError, match="no column for the field 'id'; the columns are document"):
        convert(make_row(("document",), ({},)), Chosen)
    with pytest.raises(TypeError, match="no field for the column 'number'; the fields are id, doc"):
        convert(make_row(("number",), (7,)), Chosen)


def test_pydantic_takes_names_and_aliases_if_told() -> None:
    class Either(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(populate_by_name=True)
        number: int = pydantic.Field(alias="id")
        name: str

    for names in (("id", "name"), ("number", "name")):
        assert convert(make_row(names, (7, "Ada")), Either).number == 7
    with pytest.raises(TypeError, match="no column for the field 'number'; the columns are name"):
        convert(make_row(("name",), ("Ada",)), Either)


def test_root_models_take_whatever_comes() -> None:
    class Anything(pydantic.RootModel[dict[str, int]]):
        pass

    assert convert(make_row(("a", "b"), (1, 2)), Anything).root == {"a": 1, "b": 2}


T = TypeVar("T")


@dataclasses.dataclass
class Page(Generic[T]):
    number: int
    content: T


def test_parametrized_classes_are_read_like_the_bare_ones() -> None:
    row = make_row(("number", "content"), (1, "x"))
    assert convert(row, Page[str]) == Page(1, "x")
    with pytest.raises(TypeError, match=r"into=Page: no field for the column 'nope'"):
        convert(make_row(("number", "content", "nope"), (1, 2, 3)), Page[int])


class Partial(TypedDict, total=False):
    id: "Required[int]"
    name: str


class Texts(TypedDict):
    id: "int"
    name: "NotRequired[str]"


class ReadOnlyTexts(typing_extensions.TypedDict):
    id: "typing_extensions.ReadOnly[int]"
    name: "typing_extensions.ReadOnly[NotRequired[str]]"


@pytest.mark.parametrize("into", [Partial, Texts, ReadOnlyTexts])
def test_keys_may_be_declared_by_texts(into: Any) -> None:
    """As they all are after `from __future__ import annotations`."""
    assert convert(make_row(("id",), (7,)), into) == {"id": 7}
    with pytest.raises(TypeError, match=r"no column for the key 'id'.* declare the key as NotReq"):
        convert(make_row(("name",), ("Ada",)), into)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated late since 3.14")
def test_annotations_may_name_what_only_type_checkers_import() -> None:
    @dataclasses.dataclass
    class Event:
        id: int
        at: datetime

    class EventTuple(NamedTuple):
        id: int
        at: datetime

    class EventDict(TypedDict):
        id: int
        at: datetime

    def at_of(*, id: int, at: datetime) -> Any:
        return at

    row = make_row(("id", "at"), (7, "now"))
    kinds: list[Callable[..., Any]] = [Event, EventTuple, EventDict, at_of]
    made = [convert(row, into) for into in kinds]
    assert made == [Event(7, "now"), (7, "now"), {"id": 7, "at": "now"}, "now"]  # type: ignore[arg-type]
    for into in kinds:
        with pytest.raises(TypeError, match=r"no column for the (field|key|parameter) 'at'"):
            convert(make_row(("id",), (7,)), into)


@pytest.mark.parametrize("into", [None, 7, "User", Data | None])
def test_something_that_cannot_be_called_is_refused(into: object) -> None:
    with pytest.raises(TypeError, match="into must be a class or a function"):
        check_into(into)


def test_a_coroutine_function_is_refused() -> None:
    async def load(name: str) -> str:
        return name

    with pytest.raises(TypeError, match="load: rows are made by a plain function"):
        convert(make_row(("name",), ("Ada",)), load)


@dataclasses.dataclass
class WithInitVar:
    x: int
    y: dataclasses.InitVar[int] = 0
    z: int = 0

    def __post_init__(self, y: int) -> None:
        self.seen = y


class Swapped(Data):
    def __init__(self, name: str, id: int) -> None:
        super().__init__(id, name)


class SwappedNamed(Named):
    def __new__(cls, name: str, id: int) -> "SwappedNamed":
        return super().__new__(cls, id, name)


def test_the_constructor_decides_which_column_goes_where() -> None:
    made = convert(make_row(("x", "z"), (1, 2)), WithInitVar)
    assert (made.x, made.seen, made.z) == (1, 0, 2)
    row = make_row(("id", "name"), (7, "Ada"))
    for kind in (Swapped, SwappedNamed):
        assert (convert(row, kind).id, convert(row, kind).name) == (7, "Ada")


def test_a_column_that_pydantic_would_ignore_is_refused() -> None:
    class Aliased(pydantic.BaseModel):
        number: int = pydantic.Field(0, alias="id")

    with pytest.raises(TypeError, match="no field for the column 'number'"):
        convert(make_row(("number",), (7,)), Aliased)
