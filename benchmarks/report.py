"""What a run leaves behind: every sample as JSON, the tables, the plots, and the page."""

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import cenote

from . import apart, charts, drivers, latency, pools
from .measure import MISSED, Goal, Part, Table, Versus, times
from .statements import KINDS

PACKAGES = (
    "asyncpg",
    "psycopg",
    "psycopg-pool",
    "sqlalchemy",
    "aiomysql",
    "asyncmy",
    "aiosqlite",
    "databases",
    "redis",
    "asyncio-connection-pool",
    "generic-connection-pool",
    "aiomisc",
)
# Columns of the summary, with what they are called in the figures; the last waiters are the most.
COLUMNS = {
    "cycle": "uncontended cycle",
    "hand-off": "contended hand-off",
    "cancel": "cancel, many waiting",
    "longest wait": "longest wait",
    "p99 wait": "p99 of the wait",
    "idle bytes": "memory of an idle resource",
    "waiter bytes": "memory of a waiter",
}
NOT_MEASURED = "In this run: not measured."
MANY = re.compile(r"^(hand-off|cancel), ([\d,]+) waiting$")


def machine() -> dict[str, Any]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {
        "title": f"cenote {cenote.__version__} ({cenote.core} core), {python}, {system}",
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "cenote": cenote.__version__,
        "core": cenote.core,
        "versions": {name: found for name in PACKAGES if (found := release(name))},
    }


def release(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def gather(
    machine: Mapping[str, Any],
    parts: Mapping[str, Part],
    skipped: Sequence[str],
    seconds: float,
    *,
    quick: bool,
) -> dict[str, Any]:
    goals = [goal for part in parts.values() for goal in part.goals]
    return {
        **machine,
        "quick": quick,
        "seconds": round(seconds),
        "skipped": list(skipped),
        "goals": [{**asdict(goal), "mark": goal.mark} for goal in goals],
        "versus": [asdict(versus) for part in parts.values() for versus in part.versus],
        "samples": {name: part.samples for name, part in parts.items() if part.samples},
    }


def write(folder: Path, found: Mapping[str, Any], parts: Mapping[str, Part]) -> list[str]:
    """The names of what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", found)
    goals = [goal for part in parts.values() for goal in part.goals]
    tables = [table for part in parts.values() for table in part.tables]
    (folder / "tables.md").write_text(
        full(found, [*tables, *([Goal.table(goals)] if goals else [])]), "utf-8"
    )
    names = ["results.json", "tables.md"]
    for name, drawing in charts.draw(found["samples"]).items():
        (folder / name).write_text(drawing, "utf-8")
        names.append(name)
    page = folder.with_suffix(".md")
    if page.exists():
        text = page.read_text("utf-8")
        for marker, content in sections(found, tables, goals).items():
            text = replace(text, marker, content)
        page.write_text(text, "utf-8")
        names.append(f"../{page.name}")
    return names


def write_json(path: Path, found: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(rounded(found), indent=1) + "\n", "utf-8")


def rounded(value: Any) -> Any:
    """Six digits say more than the clock knows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def full(found: Mapping[str, Any], tables: Sequence[Table]) -> str:
    head = f"# Every table of the benchmarks\n\nWritten by `make bench`. {about(found)}"
    skipped = "\n".join(found["skipped"])
    return "\n\n".join(filter(None, [head, skipped, *map(str, tables)])) + "\n"


def about(found: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    kind = "A quick run, whose figures mean little" if found["quick"] else "One run"
    return f"{kind} of {found['seconds']:,} s: {found['title']}; {versions}."


# -- the page ------------------------------------------------------------------------------------


def sections(
    found: Mapping[str, Any], tables: Sequence[Table], goals: Sequence[Goal]
) -> dict[str, str]:
    """With a marker of the page, what belongs there."""
    versus = [Versus(**one) for one in found["versus"]]
    restarts = [table for table in tables if table.title.startswith("Recovery")]
    adapted = [table for table in tables if table.title.startswith("Adapters")]
    processes = [table for table in tables if table.title.startswith(apart.TITLE)]
    series = [table for table in tables if table.title.startswith("execute_many()")]
    network = [table for table in tables if table.title.startswith(latency.TITLE)]
    return {
        "about": "\n".join([about(found), *found["skipped"]]),
        "goals": plain(Goal.table(goals)),
        "pools": plain(pool_summary(versus)),
        "statements": plain(statement_summary(versus)),
        "apart": titled(processes) or NOT_MEASURED,
        "bulk": titled(series) or NOT_MEASURED,
        "latency": titled(network) or NOT_MEASURED,
        "adapters": titled(adapted) or NOT_MEASURED,
        "recovery": titled(restarts),
        "losses": losses(versus, goals),
    }


def write_languages(folder: Path, table: Table) -> list[str]:
    """The table of `benchmarks.languages`, in a file of its own and on the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "languages.md").write_text(f"{table}\n", "utf-8")
    page = folder.with_suffix(".md")
    if not page.exists():
        return [str(folder / "languages.md")]
    about = f"On {machine()['title']}:\n\n{plain(table)}"
    page.write_text(replace(page.read_text("utf-8"), "languages", about), "utf-8")
    return [str(folder / "languages.md"), str(page)]


def write_overload(folder: Path, tables: Sequence[Table]) -> None:
    """The tables of `benchmarks.overload`, on the page."""
    page = folder.with_suffix(".md")
    if page.exists():
        about = f"On {machine()['title']}:\n\n{titled(tables)}"
        page.write_text(replace(page.read_text("utf-8"), "overload", about), "utf-8")


def titled(tables: Iterable[Table]) -> str:
    return "\n\n".join(f"**{table.title}**\n\n{plain(table)}" for table in tables)


def replace(text: str, marker: str, content: str) -> str:
    """What is between the two comments of that name; a page without them stays as it is."""
    begin, end = f"<!-- bench: {marker} -->", f"<!-- /bench: {marker} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda match: f"{begin}\n{content}\n{end}", text)


def plain(table: Table) -> str:
    """Without its title."""
    return str(table).split("\n\n", 1)[1]


def pool_summary(versus: Sequence[Versus]) -> Table:
    """How many times as much each pool costs as cenote, in one row."""
    cells = {(many(one.what), one.rival): one for one in versus}  # the last has the most waiters
    result = Table("Pools", ["times cenote's", *COLUMNS])
    for rival in pools.ALL:
        if rival != pools.CENOTE:
            row = [cells.get((what, rival)) for what in COLUMNS.values()]
            if any(row):
                result.rows.append([rival, *map(cell, row)])
    return result


def statement_summary(versus: Sequence[Versus]) -> Table:
    others = [drivers.QUEUE, "own pool", drivers.ALCHEMY, drivers.DATABASES]
    result = Table("Databases", ["times cenote's", *others])
    for driver, (_, own, _, _) in drivers.ROADS.items():
        for kind in KINDS:
            cells = {one.rival: one for one in versus if one.what == f"{driver}: {kind}"}
            names = [next(iter(own), "") if name == "own pool" else name for name in others]
            if cells:
                row = [cell(cells.get(name)) for name in names]
                result.rows.append([f"{driver}: {kind}", *row])
    return result


def cell(versus: Versus | None) -> str:
    if versus is None:
        return "-"
    return f"**{times(versus.ratio)}**" if versus.lost else times(versus.ratio)


def many(what: str) -> str:
    return MANY.sub(lambda match: f"{match[1]}, many waiting", what)


def losses(versus: Iterable[Versus], goals: Iterable[Goal] = ()) -> str:
    """Every figure in which another one is better, beyond the spread, and every goal missed."""
    lines: dict[str, list[Versus]] = {}
    for one in versus:
        if one.lost and not one.rival.startswith("cenote"):
            lines.setdefault(one.what, []).append(one)
    text = []
    for what, found in lines.items():
        found.sort(key=lambda one: one.ratio)
        text.append(f"- {what}: " + "; ".join(f"{one.rival} {one}" for one in found))
    for goal in goals:
        if goal.measured is not None and goal.mark == MISSED:
            shown, wanted = goal.show(goal.measured), goal.show(goal.limit)
            words = "at least" if goal.at_least else "at most"
            text.append(f"- goal missed, {goal.what}: {shown}, not {words} {wanted}")
    return "\n".join(text) or "In this run: nowhere."


def redraw(folder: Path) -> None:
    """The plots again, from the samples of an earlier run."""
    found = json.loads((folder / "results.json").read_text("utf-8"))
    for name, drawing in charts.draw(found["samples"]).items():
        (folder / name).write_text(drawing, "utf-8")


if __name__ == "__main__":
    redraw(Path(sys.argv[1]))
