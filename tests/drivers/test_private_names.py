"""The private names of a driver's library are in its private.py, which checks them."""

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import cenote.drivers
from cenote.drivers.library import Library

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
DRIVERS = ROOT / "src" / "cenote" / "drivers"
LIBRARIES = {"asyncpg": "asyncpg", "psycopg": "psycopg", "mysql": "asyncmy"}
EXTRAS = {"asyncpg": "postgresql", "psycopg": "psycopg", "mysql": "mysql"}
OWN_MODULES = {"asyncpg", "psycopg", "psycopg.adapt", "psycopg.pq", "psycopg.rows"}
OTHER_FILES = [
    path
    for package in LIBRARIES
    for path in sorted((DRIVERS / package).glob("*.py"))
    if path.name != "private.py"
]

BROKEN = [
    ("asyncpg", "asyncpg.connect_utils", "_cancel"),
    ("asyncpg", "asyncpg.connection", "_ConnectionProxy"),
    ("asyncpg", "asyncpg.Connection", "_drop_local_statement_cache"),
    ("psycopg", "psycopg._preparing", "PrepareManager"),
    ("psycopg", "psycopg.AsyncConnection", "wait"),
    ("mysql", "asyncmy.protocol", "pack_bulk_rows"),
    ("mysql", "asyncmy.errors", "MySQLError"),
]


@pytest.fixture(autouse=True, scope="module")
def _drivers() -> None:
    """Import every driver as it is, so that there is something to put back after each test."""
    for package in LIBRARIES:
        importlib.import_module(f"cenote.drivers.{package}.driver")


def private_uses(source: str, package: str) -> Iterator[str]:
    """Attributes with an underscore of anything but `self`, names of such in strings, and modules
    that are not public."""
    own = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not (of_self or node.attr.startswith("__") or node.attr in own):
                yield f"{node.lineno}: .{node.attr}"
        if (
            isinstance(node, ast.Constant)
            and re.fullmatch(r"_[a-z]\w*", str(node.value))
            and f"self.{node.value}" not in source  # the slots of the file's own classes
        ):
            yield f"{node.lineno}: {node.value}"
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        if names[0].partition(".")[0] == LIBRARIES[package]:
            hidden = names[0] not in OWN_MODULES or any(name.startswith("_") for name in names)
            if hidden:
                yield f"{node.lineno}: import of {', '.join(names)}"


@pytest.mark.parametrize("path", OTHER_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_other_file_uses_a_private_name(path: Path) -> None:
    assert list(private_uses(path.read_text("utf-8"), path.parent.name)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raw._protocol", ["1: ._protocol"]),
        ("self.raw._closed = True", ["1: ._closed"]),
        ("from asyncpg import connect_utils as _c", []),
        ("from asyncpg import _x", ["1: import of asyncpg, _x"]),
        ("import asyncpg.connect_utils", ["1: import of asyncpg.connect_utils"]),
        ("from asyncpg.cursor import Cursor", ["1: import of asyncpg.cursor, Cursor"]),
        ("import asyncpg\nself._place\nraw.__class__", []),
        ("getattr(raw, '_protocol')", ["1: _protocol"]),
        ("__slots__ = ('_place',)\nself._place = 1", []),
    ],
)
def test_the_reader_finds_private_names(source: str, found: list[str]) -> None:
    assert list(private_uses(source, "asyncpg")) == found


@pytest.mark.parametrize(("package", "owner", "name"), BROKEN)
def test_a_library_without_a_name_is_refused_with_the_range(
    package: str, owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = LIBRARIES[package]
    private = importlib.import_module(f"cenote.drivers.{package}.private")
    oldest, newest = private.TESTED
    remove(monkeypatch, owner, name)
    forget(monkeypatch, package)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(f"cenote.drivers.{package}.driver")
    message = str(caught.value)
    assert message.startswith(f"{library} {private.library.version} has no ")
    assert f".{name}, which cenote needs" in message
    assert f"tested with {library} {oldest} to {newest}" in message
    assert caught.value.name == library


@pytest.mark.parametrize("package", LIBRARIES)
def test_a_library_without_a_module_is_refused(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"asyncpg": "asyncpg.cursor", "psycopg": "psycopg._preparing"}.get(
        package, "asyncmy.protocol"
    )
    monkeypatch.setitem(sys.modules, module, None)
    forget(monkeypatch, package)
    with pytest.raises(ImportError, match=rf"has no {module}, which cenote needs.*tested with"):
        importlib.import_module(f"cenote.drivers.{package}.driver")


@pytest.mark.parametrize("package", LIBRARIES)
def test_the_extra_begins_with_the_oldest_tested_version(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirement = Requirement(project["optional-dependencies"][EXTRAS[package]][0])
    assert requirement.name == LIBRARIES[package]
    private = importlib.import_module(f"cenote.drivers.{package}.private")
    oldest, newest = map(Version, private.TESTED)
    [lower] = [each for each in requirement.specifier if each.operator == ">="]
    assert Version(lower.version) == oldest
    assert requirement.specifier.contains(str(newest))


def test_an_asyncpg_that_refuses_cursors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_as_before(self: Any) -> None:
        assert self._connection._top_xact

    cursors = importlib.import_module("asyncpg.cursor")
    monkeypatch.setattr(cursors.BaseCursor, "_check_ready", check_as_before)
    forget(monkeypatch, "asyncpg")
    with pytest.raises(ImportError, match=r"has no cursors in every transaction.*tested with"):
        importlib.import_module("cenote.drivers.asyncpg.driver")


async def test_a_connection_of_asyncmy_without_an_attribute_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private = importlib.import_module("cenote.drivers.mysql.private")
    private.Connection()
    monkeypatch.setattr(private, "ATTRIBUTES", (*private.ATTRIBUTES, "_gone"))
    with pytest.raises(ImportError, match=r"has no Connection\._gone, which cenote needs"):
        private.Connection()


def test_an_attribute_of_a_constructor_is_found() -> None:
    class Base:
        def __init__(self) -> None:
            self._kept = 1

    class Derived(Base):
        def method(self) -> None: ...

    library = Library("lib", "9", ("1", "2"))
    library.require_assigned(Derived, ["_kept", "method"])
    with pytest.raises(ImportError, match=r"lib 9 has no Derived\._gone.*lib 1 to 2"):
        library.require_assigned(Derived, ["_gone"])


def remove(monkeypatch: pytest.MonkeyPatch, owner: str, name: str) -> None:
    """Delete a name of a module or of a class, until the test is over."""
    try:
        found: Any = importlib.import_module(owner)
    except ModuleNotFoundError:
        module, _, attribute = owner.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
    for each in getattr(found, "__mro__", (found,)):
        if name in vars(each):
            monkeypatch.delattr(each, name)


def forget(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let the driver be imported anew, until the test is over."""
    for name in [name for name in sys.modules if name.startswith(f"cenote.drivers.{package}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(cenote.drivers, package, None)
