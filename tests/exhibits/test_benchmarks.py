"""The benchmarks run, and say everything they promise; how quick anything is, is not asked."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import cenote

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install
sys.path.append(str(ROOT))

from benchmarks import (  # noqa: E402
    charts,
    drivers,
    fairness,
    guard,
    measure,
    memory,
    plots,
    pools,
    recovery,
    report,
    rivals,
    statements,
    tail,
    values,
    waiters,
)
from benchmarks.measure import QUICK, Goal, Part, Table, Versus  # noqa: E402

pytestmark = pytest.mark.once

TINY = replace(
    QUICK,
    rounds=1,
    short_rounds=2,
    operations=100,
    waiters=(10, 20),
    steps=2,
    objects=20,
    tasks=20,
    turns=2,
    seconds=0.02,
    rows=20,
    apart=0.01,
    series=40,
)
START = (  # in a process of its own: `make bench ARGS=--quick`, only smaller, and without the
    # garbage collections between the cases, which would take longer than all the rest
    "import gc, sys; gc.collect = lambda: 0; "
    "from benchmarks import __main__ as main; from benchmarks.measure import Scale; "
    f"main.QUICK = {TINY!r}; sys.exit(main.main())"
)

HOOKS = "## Hooks: all five as C functions, and as Python callables"
GOALS = "## Goals"
TITLES = [
    "## Uncontended: take and give back",
    "## Every pool alone: take and give back",
    "## Hand-off to the oldest of many waiters",
    "## Cancelling a waiter in the middle of many",
    "## Contended: 20 tasks over 10 resources",
    "## Fairness: 100 greedy tasks over 10 resources",
    "## Tail latency: 3,000 arrivals a second",
    "## Watched: take and give back",
    "## Watched: 100 tasks over one resource",
    "## Watched: a statement of SQLite in memory",
    "## Memory of an idle resource, without the resource itself",
    "## Memory of a waiting task",
    HOOKS,
    "## Statements with aiosqlite: 100 tasks over 10 connections",
    "## Transactions with aiosqlite: 100 tasks over 10 connections",
    "## Streams with aiosqlite, 20 rows each: 10 tasks over 10 connections",
    "## Each in a process of its own: 100 tasks over 10 connections, streams 10",
    "## A statement in a transaction, processor time",
    "## execute_many() of 40 rows of three columns, in one transaction",
    "## The analysis of long texts",
    GOALS,
]
MARKERS = (
    *("about", "goals", "pools", "statements", "apart", "bulk", "latency", "adapters"),
    *("recovery", "losses"),
)
ALSO = ("languages",)  # written by another command


def run_quickly(folder: Path, *options: str, **environment: str) -> str:
    path = os.pathsep.join(filter(None, [SOURCE, str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", START, "--quick", "--no-servers", "--output", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# -- a whole run ---------------------------------------------------------------------------------


def test_a_run_prints_every_table_and_writes_every_file(tmp_path: Path) -> None:
    folder, page, raw = tmp_path / "out", tmp_path / "out.md", tmp_path / "raw.json"
    old = [f"<!-- bench: {name} -->\nold {name}\n<!-- /bench: {name} -->" for name in MARKERS]
    page.write_text("\n\n".join(["# Title", *old, "The end.\n"]))
    output = run_quickly(folder, "--json", str(raw))
    check_output(output)
    check_report(json.loads(raw.read_text()), hooks=HOOKS in output)
    assert json.loads((folder / "results.json").read_text()) == json.loads(raw.read_text())

    tables = (folder / "tables.md").read_text()
    titles = [line for line in output.splitlines() if line.startswith("## ")]
    assert [line for line in tables.splitlines() if line.startswith("## ")] == titles
    names = {"cycle", "contended", "waiters", "fairness", "tail", "memory", "statements"}
    expected = {f"{name}-{theme}.svg" for name in names for theme in ("light", "dark")}
    assert {path.name for path in folder.glob("*.svg")} == expected
    for path in folder.glob("*.svg"):
        ElementTree.fromstring(path.read_text())

    text = page.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("The end.\n")
    assert "old" not in re.findall(r"\w+", text)
    assert "A quick run, whose figures mean little" in text
    assert "| asyncio.Semaphore " in text
    assert "| aiosqlite: transactions " in text


def check_output(output: str) -> None:
    why = "because no servers were asked for."
    assert f"Skipped: PostgreSQL with asyncpg and psycopg, {why}" in output
    assert f"Skipped: MariaDB with asyncmy, {why}" in output
    assert "Skipped: the adapters, because they are measured on PostgreSQL." in output
    for name, reason in pools.absent().items():
        assert f"Skipped: {name}, because {reason}." in output
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


def check_report(found: dict[str, Any], *, hooks: bool) -> None:
    parts = {"uncontended", "alone", "waiters", "contended", "fairness", "tail", "observed"}
    parts |= {"memory", "statements", "apart", "inside", "bulk", "texts", *["handlers"][:hooks]}
    assert found["samples"].keys() == parts
    assert all(min(case) >= 0 for part in found["samples"].values() for case in part.values())
    marks = [goal["mark"] for goal in found["goals"]]
    watched = [goal["mark"] for goal in found["goals"] if ", to bare" in goal["what"]]
    assert len(watched) == 3
    assert set(watched) <= {"PASS", "MISSED", "skipped"}
    assert set(marks[:2]) <= {"PASS", "MISSED"}
    assert len(marks) == 19
    assert marks.count("skipped") == 4 + watched.count("skipped")
    assert {one["rival"] for one in found["versus"]} >= pools.present().keys() - {pools.CENOTE}


@pytest.mark.skipif(cenote.core == "pure", reason="the core is pure: there are no C hooks")
def test_without_a_compiler_the_hooks_in_c_are_skipped_aloud(tmp_path: Path) -> None:
    output = run_quickly(tmp_path / "out", "--only", "handlers", CC="no-such-compiler")
    assert (
        "Skipped: hooks in C, because there is no C compiler: no-such-compiler was not found."
        in output
    )
    assert HOOKS not in output
    assert GOALS not in output  # it has none, and a part does not replace the whole
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["results.json", "tables.md"]


# -- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "at_least", "mark"),
    [
        (1.5, False, "PASS"),
        (1.51, False, "MISSED"),
        (1.5, True, "PASS"),
        (1.49, True, "MISSED"),
        (None, True, "skipped"),
    ],
)
def test_a_goal_says_whether_it_is_kept(measured: float | None, at_least: bool, mark: str) -> None:
    goal = Goal("cenote.Pool", 1.5, measured, at_least)
    assert goal.mark == mark
    assert mark in str(Goal.table([goal]))


def test_percentiles_lie_on_the_line_between_two_values() -> None:
    assert measure.percentile([4.0, 1.0, 2.0, 3.0], 0) == 1
    assert measure.percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert measure.percentile([1.0, 2.0], 75) == 1.75
    assert measure.percentile([7.0], 99.9) == 7
    assert measure.percentile(list(range(1001)), 99.9) == 999


def test_ratios_are_taken_round_by_round() -> None:
    # A round that is ten times as slow for both of them changes nothing.
    samples = {"ours": [1.0, 10.0, 1.0], "theirs": [2.0, 20.0, 3.0]}
    [found] = measure.compare("cycle", samples, "ours").values()
    assert (found.rival, found.ratio, found.low, found.high) == ("theirs", 2.0, 2.0, 2.5)
    assert str(found) == "2.00x (2.00 to 2.50)"
    assert not found.lost
    [found] = measure.compare("rate", samples, "ours", more_is_better=True).values()
    assert found.ratio == 0.5
    assert found.lost


def test_every_round_begins_with_another_case() -> None:
    order: list[str] = []

    def case(name: str) -> measure.Case:
        async def run(operations: int) -> float:
            order.append(name)
            return 6.0

        return run

    cases = {name: case(name) for name in "abc"}
    samples = asyncio.run(measure.interleave(cases, rounds=4, operations=3))
    assert "".join(order) == "abc" + "abc" + "bca" + "cab" + "abc"  # the first is the warm-up
    assert samples == {name: [2.0] * 4 for name in "abc"}


def test_who_is_within_the_spread_has_not_won() -> None:
    assert Versus("cycle", "them", 0.9, 0.8, 0.99).lost
    assert not Versus("cycle", "them", 0.9, 0.8, 1.0).lost


# -- the rivals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pools.ALL)
def test_a_rival_respects_its_size_and_serves_waiters(name: str) -> None:
    if reason := pools.ALL[name].missing():
        pytest.skip(reason)

    async def main() -> None:
        made: list[Any] = []

        def make() -> Any:
            made.append(pools.ALL[name].resource())
            return made[-1]

        async with pools.ALL[name](2, make) as rival:
            taken = [await rival.take(), await rival.take()]
            waiting = [asyncio.ensure_future(take(rival)) for _ in range(3)]
            await turns(20)
            assert not any(task.done() for task in waiting)
            waiting[1].cancel()
            await asyncio.wait([waiting[1]])
            for one in taken:
                await rivals.settle(rival.give(one))
            served = [await asyncio.wait_for(waiting[number], 60) for number in (0, 2)]
            for one in served:
                await rivals.settle(rival.give(one))
            if rival.try_take is not None:
                await rivals.settle(rival.give(rival.try_take()))
        assert len(made) == (0 if name == "asyncio.Semaphore" else 2)

    asyncio.run(main())


async def take(rival: rivals.Rival) -> Any:
    return await rival.take()


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_a_missing_peer_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(rivals.Rival):
        package, module = "no-such-pool", "no_such_pool"

    monkeypatch.setitem(pools.ALL, "nobody", Missing)
    assert pools.absent()["nobody"] == (
        "no-such-pool is not installed: pip install 'cenote[bench]'"
    )
    assert "nobody" not in pools.present()


def test_the_queue_keeps_its_length_across_hand_offs() -> None:
    async def main() -> None:
        line = waiters.Line(rivals.PoolRival(waiters.HANDS))
        await line.fill(20)
        for _ in range(3):
            assert await line.hand_off() > 0
            assert await line.cancel() > 0
            assert len(line._tasks) == 20
            assert len(line._held) == waiters.HANDS
        await line.empty()

    asyncio.run(main())


def test_fairness_tells_a_starving_queue_from_a_fair_one() -> None:
    async def main(make: type[rivals.Rival]) -> fairness.Tally:
        async with make(fairness.RESOURCES) as rival:
            return await fairness.compete(rival, 1_000)

    fair = asyncio.run(main(rivals.PoolRival))
    assert set(fair.turns) == {10}
    assert fair.overtook == 0
    greedy = asyncio.run(main(rivals.QueueRival))
    assert min(greedy.turns) == 0
    assert sum(greedy.turns) == 1_000
    assert greedy.overtook > 900
    # 90 tasks still wait for their first turn: they are not forgotten.
    assert len(greedy.waits) == 1_000 + 90
    figures = fairness.figures(greedy, 1_000)
    assert (figures["fewest"], figures["most"]) == (0, 10)


def test_the_schedule_of_arrivals_is_always_the_same() -> None:
    arrivals = tail.schedule(1_000, 2.0)
    assert arrivals == tail.schedule(1_000, 2.0) == sorted(arrivals)
    assert 1_800 < len(arrivals) < 2_200
    assert arrivals[-1] < 2


@pytest.mark.real_time("asks what a blocked event loop does to waits that are measured")
def test_a_pool_that_blocks_the_loop_cannot_hide_it() -> None:
    class Blocking(rivals.Rival):
        async def take(self) -> None:
            time.sleep(0.002)  # noqa: ASYNC251 - it blocks

        def give(self, taken: object) -> None:
            pass

    async def main() -> tuple[list[float], list[float]]:
        return await tail.load(Blocking(1), [number / 1_000 for number in range(50)])

    late, omitted = asyncio.run(main())
    assert len(late) == len(omitted) == 50
    assert max(omitted) < max(late)
    assert max(late) > 0.03  # the last one came 50 ms too late, at 2 ms for each


def test_memory_counts_what_is_built_and_not_what_was_prepared() -> None:
    stock: list[bytes] = []

    async def build(number: int) -> Callable[[], Awaitable[object]]:
        kept = [stock.pop() + bytes(1_000) for _ in range(number)]

        async def end() -> None:
            kept.clear()

        return end

    def prepare(number: int) -> None:
        stock[:] = [bytes(5_000)[:0] for _ in range(number)]

    size = asyncio.run(memory.traced(100, build, prepare))
    assert 1_000 < size < 1_500


# -- the databases -------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", drivers.ROADS)
def test_every_way_to_a_database_does_the_same_work(
    driver: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if driver == "aiosqlite":
        url = f"sqlite:///{tmp_path / 'bench.db'}"
    elif reason := drivers.missing(driver):
        pytest.skip(reason)
    else:
        name = "mariadb_server" if driver == "asyncmy" else "postgres_server"
        url = request.getfixturevalue(name).tcp_url()
        if driver == "psycopg":
            url = url.replace("postgresql://", "postgresql+psycopg://")

    async def main() -> None:
        await statements.fill(url, 20)
        for name, make in drivers.peers(driver).items():
            async with make(url, 2) as jobs:
                found = [await jobs.statement(), await jobs.transaction(), await jobs.stream()]
                assert found == [1, drivers.KEY**2, 20], name

    asyncio.run(main())


class Outage:
    """A server that is only a switch, and a pool of it whose connections are broken afterwards."""

    def __init__(self) -> None:
        self.up = True
        self.broken = 0

    def tcp_url(self) -> str:
        return "nowhere"

    def stop(self) -> None:
        self.up = False

    def start(self) -> None:
        self.up = True

    @asynccontextmanager
    async def pool(self, url: str, connections: int) -> AsyncIterator[drivers.Jobs]:
        stale = 0

        async def statement() -> int:
            nonlocal stale
            if not self.up:
                stale = connections
                raise ConnectionError("away")
            if stale:
                stale -= 1
                raise ConnectionError("stale")
            return 1

        yield drivers.Jobs(statement, statement, statement)


@pytest.mark.real_time("users try again after a while, until the server is back")
def test_recovery_counts_errors_apart_and_waits_for_the_last_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "DOWN", 0.02)
    monkeypatch.setattr(recovery, "PAUSE", 0.4)
    server = Outage()
    found = asyncio.run(recovery.restart(server, server.pool))
    # Each busy task fails once while it is away; five meet a stale connection a pause later.
    assert found[recovery.MEANWHILE] == recovery.TASKS
    assert found[recovery.AFTER] == recovery.CONNECTIONS
    assert found[recovery.BACK] > 0.4  # an error while it was away, one after it: two pauses
    assert found[recovery.IDLE_BACK] < found[recovery.BACK]
    assert found[recovery.IDLE_ERRORS] == 0


@pytest.mark.real_time("gives up after a while")
def test_recovery_gives_up_on_those_who_never_work_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "DOWN", 0.01)
    monkeypatch.setattr(recovery, "PATIENCE", 0.05)
    server = Outage()
    monkeypatch.setattr(server, "start", lambda: None)
    found = asyncio.run(recovery.restart(server, server.pool))
    assert found[recovery.BACK] == 0.05
    assert recovery.late(found[recovery.BACK]) == "not in 0"


# -- the report ----------------------------------------------------------------------------------


def test_a_page_changes_only_between_its_markers() -> None:
    page = "a <!-- bench: goals -->old\n\\1<!-- /bench: goals --> b <!-- bench: x -->"
    assert report.replace(page, "goals", r"new \1") == (
        "a <!-- bench: goals -->\nnew \\1\n<!-- /bench: goals --> b <!-- bench: x -->"
    )
    assert report.replace(page, "nothing", "new") == page


def test_the_page_of_the_documentation_has_every_marker() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    for name in MARKERS + ALSO:
        assert report.replace(page, name, "new") != page, name
    names = set(re.findall(r"benchmarks/(\w+)-(?:light|dark)\.svg", page))
    assert names == {
        *("cycle", "contended", "waiters", "fairness", "tail"),
        *("memory", "statements", "recovery"),
    }


def test_losses_are_listed_worst_first_and_ours_are_not_rivals() -> None:
    versus = [
        Versus("cycle", "one", 0.9, 0.8, 0.95),
        Versus("cycle", "two", 0.5, 0.4, 0.6),
        Versus("cycle", "three", 2.0, 1.9, 2.1),
        Versus("cycle", pools.TIMED, 0.9, 0.8, 0.9),
    ]
    assert report.losses(versus) == "- cycle: two 0.50x (0.40 to 0.60); one 0.90x (0.80 to 0.95)"
    assert report.losses(versus[2:], [Goal("cycle", 1.5, 1.5)]) == "In this run: nowhere."
    missed = [Goal("rate", 2.0, 1.0, at_least=True), Goal("x", 1.0, None)]
    assert report.losses([], missed) == "- goal missed, rate: 1.00x, not at least 2.00x"


def test_the_summary_shows_the_longest_queue_and_losses() -> None:
    versus = [
        Versus("uncontended cycle", "asyncio.Queue", 0.5, 0.4, 0.6),
        Versus("cancel, 10 waiting", "asyncio.Queue", 0.5, 0.4, 0.6),
        Versus("cancel, 100,000 waiting", "asyncio.Queue", 90, 80, 95),
    ]
    [row] = report.pool_summary(versus).rows
    assert row == ["asyncio.Queue", "**0.50x**", "-", "90x", "-", "-", "-", "-"]


def test_what_was_not_measured_is_not_written(tmp_path: Path) -> None:
    part = Part([Table("A", ["", "b"], [["c", "d"]])], {"cenote.Pool": [1e-6], "x": [2e-6]})
    found = report.gather(report.machine(), {"alone": part}, [], 1.0, quick=False)
    names = report.write(tmp_path / "out", found, {"alone": part})
    assert names == ["results.json", "tables.md", "cycle-light.svg", "cycle-dark.svg"]
    again = json.loads((tmp_path / "out/results.json").read_text())
    assert again["samples"] == {"alone": {"cenote.Pool": [1e-6], "x": [2e-6]}}
    assert "One run of 1 s" in (tmp_path / "out/tables.md").read_text()


# -- the plots -----------------------------------------------------------------------------------


def test_ticks_are_round_numbers() -> None:
    assert plots.linear_ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert plots.linear_ticks(0, 7, 4) == [0, 2, 4, 6]
    assert plots.Scale(3, 20_000, 0, 1, log=True).ticks() == [10, 100, 1_000, 10_000]
    assert plots.Scale(1, 1e6, 0, 1, log=True).ticks(3) == [1, 1e3, 1e6]


def test_a_scale_maps_its_ends_and_keeps_within_them() -> None:
    linear = plots.Scale(0, 10, 100, 200)
    assert [linear(value) for value in (0, 5, 10, 99)] == [100, 150, 200, 200]
    log = plots.Scale(1, 100, 100, 200, log=True)
    assert [log(value) for value in (0, 1, 10, 100)] == [100, 100, 150, 200]


def test_names_are_moved_apart_in_their_order() -> None:
    assert plots.apart([10, 11, 50], 5, 0, 100) == [10, 15, 50]
    assert plots.apart([98, 99, 99], 5, 0, 100) == [90, 95, 100]


def test_rows_are_drawn_for_light_and_dark_pages() -> None:
    rows = [plots.Row("ours <us>", ours=True, group="one"), plots.Row("them", group="two")]
    marks = [plots.Bar(5, 4, 6, "5 ns"), plots.Dots((1, 2, 9), "9 %")]
    chart = plots.Rows("Title & more", "why", rows, [plots.Panel("ns", marks, reference=1)])
    drawn = plots.both("x", chart)
    assert list(drawn) == ["x-light.svg", "x-dark.svg"]
    for theme, text in zip(plots.THEMES, drawn.values(), strict=True):
        root = ElementTree.fromstring(text)
        words = {element.text for element in root.iter() if element.text}
        names = {"Title & more", "why", "ours <us>", "them", "one", "two", "5 ns", "9 %", "ns"}
        assert words >= names
        assert theme.ours in text
        assert theme.paper in text
        assert len(root.findall(".//{*}circle")) == 3
    assert plots.LIGHT.ink not in drawn["x-dark.svg"]


def test_zero_and_missing_values_are_not_drawn() -> None:
    rows = [plots.Row("a"), plots.Row("b")]

    def boxes(*marks: plots.Mark | None) -> int:
        drawn = plots.Rows("t", "s", rows, [plots.Panel("p", marks)]).draw(plots.LIGHT)
        return drawn.count("<rect")

    assert boxes(plots.Bar(1), plots.Bar(1)) - boxes(plots.Bar(0), None) == 2


def test_lines_have_a_point_for_each_number_of_waiters() -> None:
    samples = {
        f"{kind}: {name}, {number}": [1e-6 * number]
        for kind in ("hand-off", "cancel")
        for name in ("cenote.Pool", "them, too")
        for number in (10, 100, 1_000)
    }
    drawn = charts.waiting(samples).draw(plots.DARK)
    lines = ElementTree.fromstring(drawn).findall(".//{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3] * 4
    assert drawn.count(">them, too<") == 2


async def test_the_benchmark_of_the_guard_compares_both_objects() -> None:
    part = await guard.run(TINY, {})  # SQLite needs no server
    [row] = part.tables[0].rows
    assert row[0] == "sqlite"
    assert set(part.samples) == {f"sqlite: {name}" for name in (guard.GUARDED, guard.BARE)}
    assert part.versus[0].ratio > 0


async def test_the_benchmark_of_values_says_what_it_compares() -> None:
    part = await values.run(TINY, {})  # SQLite needs no server
    assert len(part.versus) == 4
    assert all(each.ratio > 0 for each in part.versus)
    labels = [row[0] for row in part.tables[0].rows]
    assert labels[0] == f"sqlite, plain, beside {values.DRIVER}"
    assert labels[-1] == f"sqlite, uuid, beside {values.CODECS}"
