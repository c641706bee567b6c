"""What type checkers make of the public signatures."""

import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

Errors = dict[int, str]  # by line: the texts of all errors there
Check = Callable[[Path], Errors]


@pytest.fixture(params=["mypy", "pyright"])
def check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Check a file with one of the type checkers."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MYPYPATH", "src")
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return {"mypy": check_by_mypy, "pyright": check_by_pyright}[request.param]


def check_by_mypy(path: Path) -> Errors:
    from mypy import api

    # Silent: what is wrong inside of cenote is the business of `make check`.
    options = ["--follow-imports=silent", "--hide-error-context", "--no-error-summary"]
    found, trouble, _ = api.run([*options, str(path)])
    assert not trouble, trouble
    errors: defaultdict[int, list[str]] = defaultdict(list)
    for each in found.splitlines():
        _, line, kind, text = each.split(":", 3)
        if kind.strip() == "error":
            errors[int(line)].append(text)
    return {line: "\n".join(texts) for line, texts in errors.items()}


def check_by_pyright(path: Path) -> Errors:
    command = ["-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(path)]
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT)
    errors: defaultdict[int, list[str]] = defaultdict(list)
    for each in json.loads(process.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            errors[each["range"]["start"]["line"] + 1].append(each["message"])
    return {line: "\n".join(texts) for line, texts in errors.items()}


@pytest.mark.parametrize("name", ["typed_pool.py", "typed_database.py", "typed_adapters.py"])
def test_examples_of_good_use_have_no_error(check: Check, name: str) -> None:
    assert check(HERE / name) == {}


HEAD = """
from dataclasses import dataclass
from cenote import ConsecutiveFailures, Database, Pool, Row, TransactionLostError
from cenote.testing import rolled_back

@dataclass
class User:
    id: int

async def misuse(db: Database) -> None:
    row = await db.fetch_one("select 1 as id")
    rows = await db.fetch_all("select 1 as id")
    stream = db.iterate("select 1 as id", into=User)
    statement = await db.prepare("select 1 as id")
"""

# Code, and what mypy and pyright say of it.
MISTAKES = {
    "Pool(object, max_sise=3)": ('No overload variant of "Pool"', "No overloads"),
    'Pool(object, max_size="3")': ('No overload variant of "Pool"', "No overloads"),
    "Pool(object, destructor=3)": ('No overload variant of "Pool"', "No overloads"),
    'Database("x", max_sise=10)': ('argument "max_sise"', '"max_sise"'),
    'Database("x", max_size="3")': ('expected "int"', '"max_size"'),
    'Database("x", acquire_timeout="soon")': ('expected "float | None"', '"acquire_timeout"'),
    'Database("x", destructor=print)': ('argument "destructor"', '"destructor"'),
    'Database("x", reset="sometimes")': ('Argument "reset"', '"reset"'),
    'Database("x", child_tasks="shared")': ('Argument "child_tasks"', '"child_tasks"'),
    'Database("x", values="nonsense")': ('Argument "values"', '"values"'),
    'Database("x", on_connect=3)': ('Argument "on_connect"', '"on_connect"'),
    'Database("x", connect_args=[1])': ('Argument "connect_args"', '"connect_args"'),
    "Database(7)": ('expected "str"', '"str"'),
    'await db.execute("select 1", 5)': ("expected", '"parameters"'),
    'await db.fetch_all("select 1", {1, 2})': ("No overload variant", '"set[int]" cannot'),
    'await db.fetch_val("select 1", 5)': ("expected", '"parameters"'),
    'await db.execute_many("select ?", 5)': ('expected "Iterable', "Iterable"),
    "await statement.execute(5)": ("expected", '"parameters"'),
    'row["id"]': ('Value of type "Row | None" is not indexable', '"None" is not subscriptable'),
    "row.nonsense": ('"nonsense"', '"nonsense"'),
    "rows[0].nonsense": ('"Row" has no attribute "nonsense"', '"nonsense"'),
    "rows[0].id": ('"Row" has no attribute "id"', '"id"'),
    'rows["id"]': ("No overload variant", "No overloads"),
    'rows[0][1.5]': ("No overload variant", "No overloads"),
    'a: list[int] = await db.fetch_all("", into=User)': ('"type[User]"', "list[User]"),
    'b: User = await db.fetch_one("x", into=User)': ("User | None", '"User | None"'),
    '(await db.fetch_one("x", into=User)).id': ('"None"', "not a known attribute"),
    'c: str = (await db.fetch_all("x", into=User))[0].id': ('expression has type "int"', '"int"'),
    'await db.fetch_all("x", into=7)': ("No overload variant", 'parameter "into"'),
    'd: Row = await anext(stream)': ('"Stream[User]"', '"User"'),
    'db.transaction(isolation="serialisable")': ('Argument "isolation"', '"isolation"'),
    'await db.begin(isolation="snapshot")': ('Argument "isolation"', '"isolation"'),
    "await db.transact(print)": ('Argument 1 to "transact"', "Awaitable"),
    "db.pool.nonsense()": ('"nonsense"', '"nonsense"'),
    'Database("x", strategy=ConsecutiveFailures)': ('Argument "strategy"', '"strategy"'),
    'await db.fetch_val("x", timeout="3")': ('Argument "timeout"', '"timeout"'),
    'await db.fetch_val("x", timout=3)': ('argument "timout"', '"timout"'),
    'await db.close(drain="5")': ('Argument "drain"', '"drain"'),
    'db.lane("batch", max_sise=3)': ('argument "max_sise"', '"max_sise"'),
    'rolled_back("x")': ('expected "Database"', '"Database"'),
    "for each in stream: ...": ("__iter__", "__iter__"),
    'TransactionLostError("x", "commited")': ("Argument 2 to", '"outcome"'),
    "db.nonsense": ('"Database" has no attribute "nonsense"', '"nonsense"'),
}  # fmt: skip


def test_each_mistake_is_found_with_its_text(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "mistakes.py"
    lines = [f"    {mistake}" for mistake in MISTAKES]
    path.write_text(HEAD + "\n".join(lines) + "\n")
    found = check(path)
    begin = HEAD.count("\n") + 1
    assert set(found) == set(range(begin, begin + len(MISTAKES)))
    unexpected = {
        mistake: found[line]
        for line, (mistake, texts) in enumerate(MISTAKES.items(), begin)
        if texts[check is check_by_pyright] not in found[line]
    }
    assert not unexpected
