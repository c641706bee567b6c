"""Every public function says what it takes: each argument stands under `Args:` in its docstring."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.once

PAGES = Path(__file__).parents[2] / "docs" / "reference"
NAME = re.compile(r"^::: (\S+)((?:\n {4}.*)*)", re.MULTILINE)
MEMBER = re.compile(r"^ +- (\w+)$", re.MULTILINE)

# What only authors of drivers and lenders implement; its types and one sentence say it all.
PROTOCOLS = ("cenote.sql.driver.", "cenote.sql.dialects.", "cenote.sql.parsing.", "cenote.lender.")
# Of a function with the arguments of another one, which its docstring names.
LIKE_ANOTHER = {"cenote.adapters.asyncpg.create_pool": "asyncpg.create_pool()"}
# By nobody but the interpreter, or with nothing.
NOT_CALLED = {
    *("cenote.Fleet.check", "cenote.Fleet.opened", "cenote.dashboard"),
    *("cenote.Acquire.send", "cenote.Acquire.throw"),
}


def public_names() -> Iterator[tuple[str, list[str]]]:
    """The names of the reference pages, each with the members that are listed for it."""
    for page in sorted(PAGES.glob("*.md")):
        for name, options in NAME.findall(page.read_text("utf-8")):
            yield name, MEMBER.findall(options.partition("members:")[2])


def found(name: str) -> Any:
    """What has this dotted name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            place: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for index, part in enumerate(parts[count:], count):
            if not hasattr(place, part) and index == count:
                break
            place = getattr(place, part)
        else:
            return place
    raise LookupError(name)


def functions() -> Iterator[tuple[str, Any]]:
    for name, members in public_names():
        place = found(name)
        if not inspect.isclass(place):
            yield name, place
            continue
        listed = members or [each for each in vars(place) if not each.startswith("_")]
        for member in listed:
            yield f"{name}.{member}", inspect.getattr_static(place, member)


def arguments(function: Any) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a property, a constant
        return []
    return [name for name in names if name not in ("self", "cls")]


def undocumented(name: str, function: Any) -> list[str]:
    """The arguments that the docstring does not explain."""
    function = getattr(function, "__func__", function)  # of a class method
    if name.startswith(PROTOCOLS) or name in NOT_CALLED or inspect.isclass(function):
        return []
    text = inspect.getdoc(function) or ""
    if name in LIKE_ANOTHER and LIKE_ANOTHER[name] in text:
        return []
    explained = text.partition("Args:")[2].partition("Raises:")[0]
    return [each for each in arguments(function) if not re.search(rf"\b{each}: ", explained)]


def test_every_argument_of_a_public_function_is_explained() -> None:
    names = dict(functions())
    assert len(names) > 150
    missing = {name: undocumented(name, function) for name, function in names.items()}
    assert {name: each for name, each in missing.items() if each} == {}


def test_an_argument_without_a_word_is_found() -> None:
    def function(said: int, unsaid: int) -> None:
        """Do something.

        Args:
            said: What it is.

        Raises:
            unsaid: Not an argument.
        """

    assert undocumented("cenote.function", function) == ["unsaid"]


def test_every_option_of_a_pool_and_a_database_is_explained() -> None:
    import cenote

    for kind in (cenote.Pool, cenote.Database):
        explained = (kind.__doc__ or "").partition("Args:")[2]
        names = list(inspect.signature(kind).parameters)
        assert [name for name in names if f"{name}: " not in explained] == [], kind
