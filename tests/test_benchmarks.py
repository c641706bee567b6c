"""The benchmarks run, and say everything they promise; how quick anything is, is not asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cenote

ROOT = Path(__file__).parent.parent
SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install

HOOKS = "## Hooks: all five as C functions, and as Python callables"
GOALS = "## Goals"
TITLES = [
    "## Uncontended: take and give back",
    HOOKS,
    "## Hand-off to the oldest of many waiters",
    "## Cancelling a waiter in the middle of many",
    "## Contended: 100 tasks over 10 resources",
    "## Watched: take and give back",
    "## Memory of an idle resource, without the resource itself",
    "## Memory of a waiting task",
    "## Statements with aiosqlite: 100 tasks over 10 connections",
    "## Statements with aiosqlite: one task alone",
    GOALS,
]


def run_quickly(raw: Path, **environment: str) -> str:
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--json", str(raw)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_quick_run_prints_every_table(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    output = run_quickly(raw)
    assert "Skipped: asyncpg and psycopg, because --quick starts no server." in output
    expected = [title for title in TITLES if title != HOOKS or "Skipped: hooks in C" not in output]
    titles = [line for line in output.splitlines() if line.startswith("## ")]
    assert len(titles) == len(expected)
    for title, start in zip(titles, expected, strict=True):
        assert title.startswith(start)
    for table in output.split("## ")[1:]:
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len(rows) >= 4
        assert len(set(map(len, rows))) == 1, "not aligned:\n" + table
        assert any("cenote." in row for row in rows)
    assert ("[pure core]" in output) == (cenote.core == "native")

    report = json.loads(raw.read_text())
    samples = report["samples"]
    parts = {"uncontended", "waiters", "contended", "observed", "memory", "statements"}
    assert samples.keys() == (parts | {"handlers"} if HOOKS in titles else parts)
    numbers = [value for part in samples.values() for case in part.values() for value in case]
    assert min(numbers) > 0
    marks = [goal["mark"] for goal in report["goals"]]
    watched = [goal["mark"] for goal in report["goals"] if ", to bare" in goal["what"]]
    assert len(watched) == 2
    assert set(watched) <= {"PASS", "over", "skipped"}
    assert set(marks[:2]) <= {"PASS", "over"}
    assert len(marks) == 9
    assert marks.count("skipped") == 5 + watched.count("skipped")


@pytest.mark.skipif(cenote.core == "pure", reason="the core is pure: there are no C hooks")
def test_without_a_compiler_the_hooks_in_c_are_skipped_and_the_rest_is_measured(
    tmp_path: Path,
) -> None:
    output = run_quickly(tmp_path / "raw.json", CC="no-such-compiler")
    assert (
        "Skipped: hooks in C, because there is no C compiler: no-such-compiler was not found."
        in output
    )
    assert HOOKS not in output
    assert GOALS in output


@pytest.mark.parametrize(
    ("measured", "at_least", "mark"),
    [
        (1.5, False, "PASS"),
        (1.51, False, "over"),
        (1.5, True, "PASS"),
        (1.49, True, "under"),
        (None, True, "skipped"),
    ],
)
def test_a_goal_says_whether_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, measured: float | None, at_least: bool, mark: str
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.measure import Goal

    goal = Goal("cenote.Pool", 1.5, measured, at_least)
    assert goal.mark == mark
    assert mark in str(Goal.table([goal]))
