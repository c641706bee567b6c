"""Imports point only to the left: the table is the law, the files are read, not run."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import TypeGuard

import pytest

from cenote.sql.loading import BUILT_IN

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cenote"
ROOMS = ("src", "scripts", "tools", "benchmarks", "examples")  # of the tests: test_layout.py
# Lines, by what the file is written in.
LONGEST = {"py": 600, "c": 700, "h": 700, "lua": 600, "js": 600, "css": 600, "sh": 600}

# A module may import from its own row and from the rows above it.
ROWS = [
    {
        "errors",
        "messages",
        "loop_end",
        "states",
        "hooks",
        "options",
        "caller",
        "lender",
        "log",
        "mask",
        "events",
        "timer",
    },
    {"_core"},
    {"_fast"},
    {"breaker", "pool"},
    {"observe"},
    {"sql"},
    {"drivers"},
    {"fleet"},
    {"__init__"},
    {"adapters", "extras"},
    {"testing"},
    {"demo"},
    {"__main__"},
]
RANK = {room: rank for rank, row in enumerate(ROWS) for room in row}

# What a room must not use although it is in the standard library: the core decides, it never acts.
BANNED = {"_core": {"asyncio", "logging", "socket", "threading"}}

# Of the standard library of later Pythons too, where they are imported.
STANDARD = sys.stdlib_module_names | {"annotationlib"}  # 3.14

MAY_IMPORT_OTHER_PACKAGES = {"adapters", "drivers", "extras", "fleet"}


def test_no_import_points_the_wrong_way() -> None:
    files = list(SOURCE.rglob("*.py"))
    assert files
    complaints = [
        complaint
        for path in files
        for complaint in wrong_imports(path.relative_to(SOURCE.parent), path.read_text())
    ]
    assert not complaints, "\n".join(complaints)


# What extras and the fleet may import of cenote, besides their own room: public names, and the
# doors `observe` and `sql.view`.
DOORS = {
    "cenote.breaker", "cenote.events", "cenote.fleet.view", "cenote.lender", "cenote.sql.url",
    "cenote", "cenote.errors", "cenote.log", "cenote.loop_end", "cenote.mask", "cenote.messages",
    "cenote.observe", "cenote.options", "cenote.pool", "cenote.sql.database", "cenote.sql.dialects",
    "cenote.sql.parsing.tokens", "cenote.sql.view", "cenote.states", "cenote.timer",
    "cenote.sql.driver", "cenote.sql.loading",  # the interface of drivers, which is documented
}  # fmt: skip


@pytest.mark.parametrize("room", ["extras", "fleet"])
def test_those_who_watch_use_the_doors_alone(room: str) -> None:
    files = list((SOURCE / room).rglob("*.py"))
    assert files
    complaints = [
        f"{path.relative_to(SOURCE)}:{line}: {what}"
        for path in files
        for line, what in secret_uses(path.relative_to(SOURCE.parent), path.read_text("utf-8"))
    ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("from ..observe import look", None),
        ("from .tracking import Target", None),
        ("from ..sql.per_loop import LoopDatabase", "cenote.sql.per_loop"),
        ("from .._core import Core", "cenote._core"),
        ("self._pool.state, self._core", None),
        ("self._pool._core", "self._pool._core"),
        ("pool._core.phase", "pool._core"),
        ("def f(): return pool.state._x", "pool.state._x"),
        ("sys._getframe()", "sys._getframe"),
        ("event.__class__", None),
    ],
)
def test_the_reader_of_extras_finds_secret_uses(source: str, complaint: str | None) -> None:
    found = [what for _, what in secret_uses(Path("cenote/extras/otel.py"), source)]
    assert found == ([] if complaint is None else [complaint])


def secret_uses(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Imports of extras beside the doors, and private attributes of other objects."""
    package = ".".join(path.parts[:-1])
    tree = ast.parse(source)
    for line, module in imported_modules(tree, package):
        own_room = ".".join(path.parts[:2])
        foreign = module.partition(".")[0] != "cenote" or module.startswith(own_room)
        if not foreign and module not in DOORS:
            yield line, module
    own = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for name in [node.name]
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.endswith("__")
            and node.attr not in own
            and ast.unparse(node.value) not in ("self", "cls")
        ):
            yield node.lineno, ast.unparse(node)


def test_no_file_is_too_long() -> None:
    for suffix, longest in LONGEST.items():
        files = [path for room in ROOMS for path in (ROOT / room).rglob(f"*.{suffix}")]
        assert files
        lengths = {str(path): len(path.read_text().splitlines()) for path in files}
        assert {path: lines for path, lines in lengths.items() if lines > longest} == {}


@pytest.mark.parametrize(
    ("path", "source", "verdict"),
    [
        ("errors.py", "import asyncio", None),
        ("hooks.py", "from .errors import PoolError", None),
        ("hooks.py", "from ._core import Core", "hooks must not import _core"),
        ("hooks.py", "from ._core.machine import Core", "hooks must not import _core"),
        ("hooks.py", "import cenote._core.machine", "hooks must not import _core"),
        ("hooks.py", "from cenote import pool", "hooks must not import pool"),
        ("hooks.py", "from . import pool", "hooks must not import pool"),
        ("hooks.py", "from . import Pool", "hooks must not import __init__"),
        ("hooks.py", "import cenote", "hooks must not import __init__"),
        ("hooks.py", "def f():\n from .pool import Pool", "hooks must not import pool"),
        ("hooks.py", "if TYPE_CHECKING:\n from .pool import Pool", None),
        ("hooks.py", "if typing.TYPE_CHECKING:\n from .pool import Pool", None),
        (
            "hooks.py",
            "if TYPE_CHECKING:\n pass\nelse:\n from .pool import Pool",
            "hooks must not import pool",
        ),
        ("_core/machine.py", "from ..states import Slot\nfrom . import native", None),
        ("_core/__init__.py", "from .machine import Core", None),
        ("_core/machine.py", "from ..pool import Pool", "_core must not import pool"),
        ("_core/machine.py", "import asyncio.events", "_core must not import asyncio"),
        ("_core/machine.py", "from asyncio import Task", "_core must not import asyncio"),
        ("pool/pool.py", "import asyncio\nfrom .maintenance import Keeper", None),
        ("pool/pool.py", "from ..sql.database import Database", "pool must not import sql"),
        ("sql/database.py", "from ..pool import Pool\nfrom .driver import Driver", None),
        ("sql/database.py", "from ..drivers import sqlite", "sql must not import drivers"),
        ("sql/database.py", "import asyncpg", "sql must not import asyncpg"),
        ("drivers/pg.py", "import asyncpg\nfrom ..sql.driver import Driver", None),
        ("fleet/member.py", "from ..pool import Pool\nimport redis", None),
        ("fleet/member.py", "from ..extras import otel", "fleet must not import extras"),
        ("pool/pool.py", "from ..fleet import ledger", "pool must not import fleet"),
        ("__init__.py", "from .pool import Pool", None),
        ("__init__.py", "from .extras import otel", "__init__ must not import extras"),
        ("extras/otel.py", "import opentelemetry\nimport cenote\nfrom ..observe import x", None),
        ("extras/otel.py", "from ..__main__ import main", "extras must not import __main__"),
        ("__main__.py", "from .extras.dashboard import app", None),
        ("adapters/redis.py", "import redis\nfrom ..pool import Pool", None),
        ("sql/database.py", "from ..adapters import redis", "sql must not import adapters"),
        ("lost.py", "", "lost has no row"),
        ("pool/pool.py", "from ..lost import x", "lost has no row"),
    ],
)
def test_the_reader_sees_every_kind_of_import(path: str, source: str, verdict: str | None) -> None:
    complaints = wrong_imports(Path("cenote", path), source)
    if verdict is None:
        assert complaints == []
    else:
        assert len(complaints) == 1
        assert verdict in complaints[0]


# What is imported by a string, and would be a wrong import if it were written as one. A door that
# is not used any more has to leave the list.
STRING_DOORS = {
    ("__init__.py", "cenote.extras.dashboard"),  # on first access
    # A library is imported only if a URL asks for it.
    ("sql/loading.py", "cenote.drivers.asyncpg.driver"),
    ("sql/loading.py", "cenote.drivers.mysql.driver"),
    ("sql/loading.py", "cenote.drivers.psycopg.driver"),
    ("sql/loading.py", "cenote.drivers.sqlite.driver"),
    ("sql/loading.py", "cenote.drivers"),  # the group of entry points, which has the same name
}
# Who calls import_module() with a name that is computed: `library` for modules of other packages.
COMPUTED = {"fleet/loading.py", "sql/loading.py", "drivers/library.py"}


def test_imports_by_string_go_through_listed_doors() -> None:
    found = {
        (where, module)
        for path in SOURCE.rglob("*.py")
        for where in [path.relative_to(SOURCE).as_posix()]
        for module in modules_by_string(Path("cenote", where), path.read_text("utf-8"))
        if complaint(room_of(Path("cenote", where)), module)
    }
    assert found == STRING_DOORS


def test_computed_names_are_imported_in_known_files() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if imports_by_call(node) and not isinstance(node.args[0], ast.Constant)
    }
    assert found == COMPUTED


def test_every_built_in_driver_is_found_as_import_by_string() -> None:
    source = (SOURCE / "sql/loading.py").read_text("utf-8")
    assert set(BUILT_IN.values()) < set(modules_by_string(Path("cenote/sql/loading.py"), source))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("X = {'a': 'cenote.drivers.sqlite.driver'}", ["cenote.drivers.sqlite.driver"]),
        ("f('cenote.drivers')", ["cenote.drivers"]),
        ("import_module('..drivers.sqlite', __package__)", ["cenote.drivers.sqlite"]),
        ("importlib.import_module('.url', 'cenote.sql')", ["cenote.sql.url", "cenote.sql"]),
        ("__import__('cenote.pool')", ["cenote.pool"]),
        ("import_module('.extras.dashboard', __name__)", ["cenote.sql.loading.extras.dashboard"]),
        ("import_module('asyncpg')", ["asyncpg"]),
        ("ContextVar('cenote.scope')", []),  # no module is called so
        ("import cenote.pool", []),  # this one is an import
        ("def f():\n 'See cenote.pool.'", []),
    ],
)
def test_reader_sees_modules_that_strings_name(source: str, found: list[str]) -> None:
    assert modules_by_string(Path("cenote/sql/loading.py"), source) == found


def modules_by_string(path: Path, source: str) -> list[str]:
    """The modules of cenote that a string names, and what import_module() is given."""
    package = ".".join(path.parts[:-1])
    name = package if path.name == "__init__.py" else ".".join(path.with_suffix("").parts)
    known = {"__package__": package, "__name__": name}
    found: list[str] = []
    imported: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if imports_by_call(node) and isinstance(node.args[0], ast.Constant):
            anchor = ast.unparse(node.args[1]) if len(node.args) > 1 else ""
            found.append(resolve_name(node.args[0].value, known.get(anchor, anchor.strip("'"))))
            imported.add(node.args[0])
        elif isinstance(node, ast.Constant) and node not in imported and is_module(node.value):
            found.append(node.value)
    return found


def imports_by_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
        and bool(node.args)
    )


def is_module(value: object) -> bool:
    """Whether a string is the whole name of a module below `cenote`."""
    if not isinstance(value, str) or not re.fullmatch(r"cenote(\.\w+)+", value):
        return False
    path = SOURCE.parent.joinpath(*value.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_c_imports_from_the_bottom_row() -> None:
    files = list((SOURCE / "_native").glob("*.c"))
    assert files
    found = {
        name
        for path in files
        for name in re.findall(
            r'(?:import_from|PyImport_ImportModule)\("([\w.]+)"', path.read_text()
        )
    }
    assert "cenote.states" in found
    rooms = {name.removeprefix("cenote.") for name in found if name.startswith("cenote")}
    # Besides, when it is called, the C API: it makes pools, and finds its own module.
    assert rooms <= ROWS[0] | {"cenote", "_core.native"}


def wrong_imports(path: Path, source: str) -> list[str]:
    room = room_of(path)
    if room not in RANK:
        return [f"{path}: {room} has no row: add it to ROWS in {Path(__file__).name}"]
    package = ".".join(path.parts[:-1])
    found = imported_modules(ast.parse(source), package)
    complaints = ((line, complaint(room, module)) for line, module in found)
    return [f"{path}:{line}: {text}" for line, text in complaints if text]


def room_of(path: Path) -> str:
    return path.parts[1].removesuffix(".py")


def complaint(room: str, module: str) -> str | None:
    top, *rest = module.split(".")
    if top == "cenote":
        target = rest[0] if rest else "__init__"
        if target not in RANK:
            return f"{target} has no row"
        wrong = RANK[target] > RANK[room]
    else:
        target = top
        foreign = top not in STANDARD
        wrong = top in BANNED.get(room, ()) or (foreign and room not in MAY_IMPORT_OTHER_PACKAGES)
    return f"{room} must not import {target}" if wrong else None


def imported_modules(node: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that is imported when the code runs."""
    match node:
        case ast.Import():
            for alias in node.names:
                yield node.lineno, alias.name
        case ast.ImportFrom():
            base = absolute(node, package)
            for alias in node.names if base == "cenote" else node.names[:1]:
                submodule = base == "cenote" and alias.name in RANK
                yield node.lineno, f"{base}.{alias.name}" if submodule else base
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            for child in node.orelse:
                yield from imported_modules(child, package)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from imported_modules(child, package)


def absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *filter(None, [node.module])])
