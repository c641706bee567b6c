"""Which plots are drawn of the samples of a run; what was not measured is not drawn."""

from collections.abc import Callable, Mapping, Sequence

from . import drivers, fairness, recovery, tail
from .measure import Samples, median, percentile
from .plots import Bar, Dots, LinePanel, Lines, Panel, Row, Rows, Series, both
from .pools import CENOTE
from .statements import KINDS

All = Mapping[str, Samples]  # by the name of the part
MICRO = "\N{MICRO SIGN}s"


def draw(samples: All) -> dict[str, str]:
    """With the names of the files, the drawings."""
    charts: dict[str, tuple[str, Callable[[Samples], Rows | Lines]]] = {
        "cycle": ("alone", cycle),
        "contended": ("contended", contended),
        "waiters": ("waiters", waiting),
        "fairness": ("fairness", turns),
        "tail": ("tail", waits),
        "memory": ("memory", memory),
        "statements": ("statements", databases),
        "recovery": ("recovery", restarts),
    }
    found: dict[str, str] = {}
    for name, (part, chart) in charts.items():
        if samples.get(part):
            found |= both(name, chart(samples[part]))
    return found


def cycle(samples: Samples) -> Rows:
    found = {name: got for name, got in samples.items() if not name.startswith("try: ")}
    nanoseconds = {name: [value * 1e9 for value in got] for name, got in found.items()}
    names = by_median(nanoseconds)
    marks = [bar(nanoseconds[name], f"{median(nanoseconds[name]):,.0f} ns") for name in names]
    return Rows(
        "One cycle: take a free resource and give it back",
        "Nanoseconds on a logarithmic axis, shorter is better; the thin line is the middle half "
        "of the rounds.",
        [ours(name) for name in names],
        [Panel("nanoseconds", marks, log=True, show=number)],
    )


def contended(samples: Samples) -> Rows:
    rates = {name: [1 / value / 1e3 for value in got] for name, got in samples.items()}
    names = by_median(rates)[::-1]
    marks = [bar(rates[name], f"{median(rates[name]):,.0f}k") for name in names]
    return Rows(
        "Contended: hand-offs a second",
        "Thousands, longer is better. Every return goes to a task that waits, so a task is woken "
        "for each.",
        [ours(name) for name in names],
        [Panel("thousand hand-offs a second", marks, show=number)],
    )


def waiting(samples: Samples) -> Lines:
    panels = []
    for what, title in (("hand-off", "Hand-off to the oldest"), ("cancel", "Cancelling one")):
        series: dict[str, list[tuple[float, float]]] = {}
        for key, got in samples.items():
            kind, _, rest = key.partition(": ")
            name, _, waiters = rest.rpartition(", ")
            if kind == what:
                series.setdefault(name, []).append((float(waiters), median(got) * 1e6))
        lines = [Series(name, sorted(got), ours(name).ours) for name, got in series.items()]
        panels.append(LinePanel(f"{title}, {MICRO}", lines))
    return Lines(
        "What it costs when many are waiting",
        "Both axes are logarithms: a flat line costs the same however long the queue is.",
        panels,
        "tasks that wait",
        show=number,
    )


def turns(samples: Samples) -> Rows:
    names = [key.partition(": ")[2] for key in samples if key.startswith(f"{fairness.MOST}: ")]
    span = {
        name: (
            100 * median(samples[f"{fairness.FEWEST}: {name}"]),
            100 * median(samples[f"{fairness.MOST}: {name}"]),
        )
        for name in names
    }
    names.sort(key=lambda name: (span[name][1] - span[name][0], name != CENOTE))
    marks = [Dots(span[name], f"{span[name][0]:.0f} to {span[name][1]:,.0f} %") for name in names]
    return Rows(
        "Fairness: turns of the least and of the most favoured task",
        "Percent of an even share; 100 greedy tasks over 10 resources. At 0 a task was never "
        "served at all.",
        [ours(name) for name in names],
        [Panel("percent of an even share", marks, show=number, reference=100)],
    )


def waits(samples: Samples) -> Rows:
    keys = [f"p{percent:g} {tail.LATE}: " for percent in tail.PERCENTS]
    names = [key.partition(": ")[2] for key in samples if key.startswith(keys[0])]
    found = {
        name: tuple(max(1.0, median(samples[key + name]) * 1e6) for key in keys) for name in names
    }
    names.sort(key=lambda name: found[name][1])
    marks = [
        Dots(found[name], " / ".join(f"{value:,.0f}" for value in found[name])) for name in names
    ]
    return Rows(
        f"Tail latency at {tail.RATE:,} arrivals a second",
        f"p50 (filled), p99 and p99.9 of the wait in {MICRO}, from the scheduled start; shorter is "
        "better.",
        [ours(name) for name in names],
        [Panel(f"{MICRO}, logarithmic", marks, log=True, show=number)],
    )


def memory(samples: Samples) -> Rows:
    names = [key.partition(": ")[2] for key in samples if key.startswith("waiting: ")]
    names.sort(key=lambda name: samples[f"waiting: {name}"][0])
    panels = []
    for kind, title in (("waiting", "a task that waits"), ("idle", "an idle resource")):
        marks = []
        for name in names:
            got = samples.get(f"{kind}: {name}")
            marks.append(Bar(got[0], text=f"{got[0]:,.0f}") if got else None)
        panels.append(Panel(f"bytes for {title}", marks, show=number))
    return Rows(
        "Memory",
        "Shorter is better. A waiting task includes the task itself; an idle resource does not "
        "include the resource.",
        [ours(name) for name in names],
        panels,
    )


def databases(samples: Samples) -> Rows:
    rows, columns = [], [list[Bar | None]() for _ in KINDS]
    for driver in drivers.ROADS:
        base = [samples.get(f"{driver}, {kind}: {drivers.CENOTE}") for kind in KINDS]
        if None in base:
            continue
        for name in drivers.peers(driver):
            if name == drivers.BARE:
                continue
            rows.append(Row(name, name.startswith("cenote"), driver))
            for column, kind in zip(columns, KINDS, strict=True):
                limit = samples[f"{driver}, {kind}: {drivers.QUEUE}"]
                got = samples.get(f"{driver}, {kind}: {name}")
                percent = [100 * top / one for top, one in zip(limit, got or [], strict=False)]
                column.append(bar(percent, f"{median(percent):.0f}") if percent else None)
    panels = [
        Panel(f"{kind}, %", column, show=number, reference=100, limit=160)
        for kind, column in zip(KINDS, columns, strict=True)
    ]
    return Rows(
        "Databases: throughput, in percent of the bare driver",
        "The bare driver behind an asyncio.Queue is 100; longer is better. Statements and "
        "transactions of 100 tasks, streams of 10, over 10 connections.",
        rows,
        panels,
    )


def restarts(samples: Samples) -> Rows:
    rows: list[Row] = []
    seconds: list[Bar | None] = []
    errors: list[Bar | None] = []
    idle: list[Bar | None] = []
    for server in recovery.BASES:
        start = f"{server}, {recovery.BACK}: "
        for key, got in samples.items():
            if key.startswith(start):
                name = key.removeprefix(start)
                rows.append(Row(name, name.startswith("cenote"), server))
                late = median(got)
                seconds.append(bar(got, recovery.late(late)))
                after = median(samples[f"{server}, {recovery.AFTER}: {name}"])
                errors.append(Bar(after, text=f"{after:,.0f}"))
                stale = median(samples[f"{server}, {recovery.IDLE_ERRORS}: {name}"])
                idle.append(Bar(stale, text=f"{stale:,.0f}"))
    return Rows(
        "Recovery from a restart of the server",
        "From the moment at which it answers again: until all 20 tasks work, and the errors that "
        "they still see; shorter is better.",
        rows,
        [
            Panel("seconds until all work", seconds, show=number),
            Panel("errors once it is back", errors, show=number),
            Panel("errors from an idle pool", idle, show=number),
        ],
    )


def ours(name: str) -> Row:
    return Row(name, name.startswith("cenote"))


def bar(values: Sequence[float], text: str) -> Bar:
    return Bar(median(values), percentile(values, 25), percentile(values, 75), text)


def by_median(samples: Samples) -> list[str]:
    return sorted(samples, key=lambda name: median(samples[name]))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:g}"
