"""The benchmarks run, and say everything they promise; how quick anything is, is not asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

TITLES = [
    "## Uncontended: take and give back",
    "## Hand-off to the oldest of many waiters",
    "## Cancelling a waiter in the middle of many",
    "## Contended: 100 tasks over 10 resources",
    "## Memory of an idle resource, without the resource itself",
    "## Memory of a waiting task",
]


def test_a_quick_run_prints_every_table(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--json", str(raw)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    titles = [line for line in done.stdout.splitlines() if line.startswith("## ")]
    assert len(titles) == len(TITLES)
    for title, expected in zip(titles, TITLES, strict=True):
        assert title.startswith(expected)
    for table in done.stdout.split("## ")[1:]:
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len(rows) >= 4
        assert len(set(map(len, rows))) == 1, "not aligned:\n" + table
        assert any("cenote.Pool" in row for row in rows)

    samples = json.loads(raw.read_text())["samples"]
    assert samples.keys() == {"uncontended", "waiters", "contended", "memory"}
    numbers = [value for part in samples.values() for case in part.values() for value in case]
    assert min(numbers) > 0
