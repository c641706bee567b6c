"""Print the coverage of Python and C as one table, and fail below the floors.

`coverage_report.py PYTHON_JSON C_JSON` reads what `coverage json` and `gcovr --json-summary` wrote.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Percent. A change that falls below one of them tests less than it adds. Raise a floor when the
# figure has risen for good.
FLOORS = {"Python": {"lines": 97.0, "branches": 93.0}, "C": {"lines": 91.5, "branches": 75.5}}


class Counts(NamedTuple):
    """Lines and branches that were run, and that there are."""

    lines: int
    all_lines: int
    branches: int
    all_branches: int

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*(one + another for one, another in zip(self, other, strict=True)))

    def percent(self, of: str) -> float:
        done, there = (self.lines, self.all_lines) if of == "lines" else self[2:]
        return 100 * done / there if there else 100.0


NONE = Counts(0, 0, 0, 0)


def python_rooms(report: Any) -> Iterator[tuple[str, Counts]]:
    """Each file of the report of coverage.py, with the room that it is in."""
    for name, entry in report["files"].items():
        _, source, path = name.replace("\\", "/").rpartition("src/cenote/")
        if not source:  # a copy of the package that a test made
            continue
        summary = entry["summary"]
        yield (
            path.partition("/")[0] if "/" in path else "the modules beside them",
            Counts(
                summary["covered_lines"],
                summary["num_statements"],
                summary["covered_branches"],
                summary["num_branches"],
            ),
        )


def c_files(report: Any) -> Iterator[tuple[str, Counts]]:
    """Each file of the report of gcovr."""
    for entry in report["files"]:
        yield (
            Path(entry["filename"]).name,
            Counts(
                entry["line_covered"],
                entry["line_total"],
                entry["branch_covered"],
                entry["branch_total"],
            ),
        )


def added(found: Iterator[tuple[str, Counts]]) -> dict[str, Counts]:
    """The counts by name, in the order of the names."""
    rows: dict[str, Counts] = {}
    for name, counts in found:
        rows[name] = rows.get(name, NONE).plus(counts)
    return dict(sorted(rows.items()))


def main(python_json: str, c_json: str) -> int:
    languages = {
        "Python": added(python_rooms(json.loads(Path(python_json).read_text("utf-8")))),
        "C": added(c_files(json.loads(Path(c_json).read_text("utf-8")))),
    }
    below = []
    print(f"{'':32}{'lines':>8}{'%':>8}{'branches':>10}{'%':>8}")
    for language, rows in languages.items():
        total = NONE
        for name, counts in rows.items():
            total = total.plus(counts)
            print(row(f"  {name}", counts))
        print(row(language, total))
        for of, floor in FLOORS[language].items():
            if total.percent(of) < floor:
                below.append(f"{language}: {total.percent(of):.1f} % of the {of}, {floor} % wanted")
    print("\n".join(below) or "coverage: at or above every floor")
    return 1 if below else 0


def row(name: str, counts: Counts) -> str:
    return (
        f"{name:32}{counts.all_lines:8}{counts.percent('lines'):8.1f}"
        f"{counts.all_branches:10}{counts.percent('branches'):8.1f}"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} PYTHON_JSON C_JSON")
    sys.exit(main(*sys.argv[1:]))
