"""`make matrix`: the counts of a run by driver and server, and the table that is made of them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cenote

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--loop", default="virtual")
    parser.addoption("--mysql")
"""

SUITE = """
import pytest

@pytest.mark.parametrize("backend", ["sqlite"])
def test_of_a_driver(backend): pass

def test_of_nothing(): pass

def test_failing(): assert False

@pytest.mark.skip("not today")
def test_skipped(): pass

@pytest.mark.xfail(reason="a bug upstream", raises=ZeroDivisionError)
def test_expected(): 1 / 0
"""


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "scripts/matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    del sys.modules["matrix"]
    return module


def tally(tmp_path: Path, text: str) -> Any:
    """What the plugin writes of a run of this file."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(text)
    written = tmp_path / "tally.json"
    plugin = ["-p", "tests.support.tally", "--tally", str(written)]
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    where = ["--rootdir", str(tmp_path), str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugin, *where],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
    )
    return json.loads(written.read_text())


def test_outcomes_are_counted_by_driver_and_server(tmp_path: Path) -> None:
    record = tally(tmp_path, SUITE)
    assert record["core"] == cenote.core
    [bare, sqlite] = record["cells"]
    assert bare == ["-", "-", {"passed": 1, "failed": 1, "skipped": 2}]
    assert sqlite[0] == "sqlite3"
    assert sqlite[1].startswith("SQLite 3.")
    assert sqlite[2] == {"passed": 1, "failed": 0, "skipped": 0}
    assert record["skips"] == {"not today": 1, "expected to fail: a bug upstream": 1}
    assert [name.rpartition("::")[2] for name in record["failures"]] == ["test_failing"]


def test_a_file_that_cannot_be_imported_has_failed(tmp_path: Path) -> None:
    record = tally(tmp_path, "import cenote.nothing")
    assert record["cells"] == [["-", "-", {"passed": 0, "failed": 1, "skipped": 0}]]
    assert len(record["failures"]) == 1


def test_the_table_has_a_line_for_each_driver_and_server(matrix: ModuleType) -> None:
    counts = {"passed": 3, "failed": 0, "skipped": 1}
    record = {
        "python": "CPython 3.15.2",
        "core": "native",
        "loop": "virtual",
        "cells": [["-", "-", counts], ["asyncpg 0.32.0", "PostgreSQL 18.6", counts]],
        "skips": {"not today": 2},
        "failures": [],
    }
    head, _, *lines = matrix.table([record]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
    assert cells[0][:5] == ["Python", "core", "loop", "driver", "server"]
    assert cells[2][3:] == ["asyncpg 0.32.0", "PostgreSQL 18.6", "3", "0", "1"]
    assert matrix.reasons([record, record]) == "- not today: 4 (CPython 3.15.2)"


def test_a_run_without_counts_is_a_failure(matrix: ModuleType) -> None:
    record = matrix.broken(matrix.Run("3.15", "python3.15", "native", matrix.System(ROOT)))
    assert record["failures"] == ["did not run"]
    assert matrix.table([record]).splitlines()[-1].split()[-4:] == ["1", "|", "0", "|"]


def test_a_list_of_the_runs_makes_nothing(
    matrix: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--unstable", str(tmp_path / "unstable"), "--mysql", str(tmp_path / "mysql")]
    monkeypatch.setattr(sys, "argv", ["matrix.py", "--list", *given])
    monkeypatch.setattr(matrix, "find_python", lambda version: "python3")
    monkeypatch.setattr(matrix, "can_install", lambda: True)
    monkeypatch.setattr(matrix.subprocess, "run", lambda *a, **k: pytest.fail(f"it ran {a}"))
    assert matrix.main() == 0
    names = capsys.readouterr().out.splitlines()
    assert {"3.11-native", "3.11-oldest", "3.15-mysql", "pypy-pypy"} <= {*names}
    assert [*tmp_path.iterdir()] == []


def test_only_what_the_chosen_runs_need_is_made(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    outcome = subprocess.CompletedProcess(args=(), returncode=1)
    monkeypatch.setattr(
        matrix.subprocess, "run", lambda command, **_: ran.append(command[0]) or outcome
    )
    here = matrix.System(ROOT)
    options = matrix.argparse.Namespace(mysql=Path("mysql"), unstable=Path("unstable"))
    native, mysql = (matrix.Run("3.11", "python3", suite, here) for suite in ("native", "mysql"))
    assert matrix.prepared([native], options) == [native]
    assert ran == []
    assert matrix.prepared([native, mysql], options) == [native]  # it cannot be made
    assert ran == ["scripts/mysql.sh"]
    pypy = matrix.Run("pypy", "pypy3", "pypy", matrix.scratch_system(Path("u"), Path("m")))
    assert matrix.prepared([native, pypy], options) == [native]
    assert ran[-1] == "scripts/unstable.sh"
