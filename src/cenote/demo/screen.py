"""What the demo shows: a panel in the terminal, or lines; and a summary at the end."""

from __future__ import annotations

import asyncio
import os
import shutil
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final, TextIO

from ..errors import AcquireTimeoutError
from ..observe import EventKind, PoolEvent, Stats
from ..states import CircuitState

if TYPE_CHECKING:
    from .play import Play

FRAME: Final = 0.05  # seconds between two pictures
LINE: Final = 1.0  # seconds between two lines, without a terminal
MOST: Final = 400  # operations a second that fill a bar
NEWS: Final = 2.0  # seconds between two reports of what happens often


class Tally:
    """What happened: news to be told at once, numbers for the end."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.served = 0
        self.errors: Counter[str] = Counter()
        self.sample: str = ""  # what the first AcquireTimeoutError said
        self.waits: list[float] = []
        self.states: list[tuple[float, CircuitState]] = [(0.0, CircuitState.ACTIVE)]  # since when
        self.news: list[tuple[float, str, str]] = []  # not told yet: time, subject, text
        self.replaced: int = 0  # by health checks, and on the way to a task
        self._replaced = 0  # the same, since that was last told
        self._replaced_told = 0.0
        self._held_told = 0.0

    def hear(self, event: PoolEvent) -> None:
        """Count an event of the pool, and note the news that it makes."""
        match event.kind:
            case EventKind.ACQUIRED:
                self.waits.append(event.duration or 0.0)
            case EventKind.STATE_CHANGED:
                state = CircuitState(event.reason or "")
                self.states.append((event.time - self.began, state))
                self.say("breaker", f"{state}: {MEANING[state]}")
            case EventKind.CHECK_FAILED | EventKind.REJECTED:
                self.replaced += 1
                self._replaced += 1
            case EventKind.HELD_LONG if event.time - self._held_told > NEWS:
                self._held_told = event.time
                self.say(
                    "held", f"by {event.task} for {event.duration:.2f} s, {near(event.reason)}"
                )
        if self._replaced and event.time - self._replaced_told > NEWS:
            plural = "" if self._replaced == 1 else "s"
            self.say("replaced", f"{self._replaced} dead connection{plural}")
            self._replaced, self._replaced_told = 0, event.time

    def failed(self, error: Exception) -> None:
        kind = type(error)
        if kind.__name__ not in self.errors:
            self.say("error", f"{kind.__name__}: {near(str(error))}")
        self.errors[kind.__name__] += 1
        if kind is AcquireTimeoutError and not self.sample:
            self.sample = near(str(error))

    def say(self, subject: str, text: str) -> None:
        self.news.append((self.elapsed(), subject, text))

    def elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self.began


MEANING: Final = {
    CircuitState.ACTIVE: "all acquires pass",
    CircuitState.INACTIVE: "acquires fail at once, the backend is left alone",
    CircuitState.RECOVERING: "one acquire at a time may try",
}


def near(text: str | None) -> str:
    """Paths as seen from where the package is: the rest is too long for a line."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return (text or "").replace(home + os.sep, "")


def summary(play: Play, stats: Stats, money: int, expected: int) -> Iterator[str]:
    """Yield the lines that sum up the play at its end."""
    tally, screen = play.tally, play.screen

    def row(name: str, *parts: str) -> Iterator[str]:
        """As many parts to a line as there is room for."""
        line = ""
        for part in parts:
            if line and len(line) + len(part) > screen.width() - 18:
                yield f"  {screen.paint(f'{name:<12}', 'dim')}{line}"
                name, line = "", ""
            line += f"{'   ' if line else ''}{part}"
        yield f"  {screen.paint(f'{name:<12}', 'dim')}{line}"

    ends = [since for since, _ in tally.states[1:]] + [tally.elapsed()]
    waits = sorted(tally.waits) or [0.0]
    yield ""
    yield screen.paint("Summary", "bold")
    yield from row("operations", f"{tally.served:,} served", f"{tally.errors.total():,} failed")
    yield from row("errors", *(f"{kind} {n:,}" for kind, n in tally.errors.most_common()))
    created, acquired, released = stats.created, stats.acquired, stats.released
    destroyed = Counter(stats.destroyed)
    if play.before is not None:  # the counters of a pool run on from round to round
        created -= play.before.created
        acquired -= play.before.acquired
        released -= play.before.released
        destroyed -= Counter(play.before.destroyed)
    yield from row("connections", f"{created} created", f"{destroyed.total()} destroyed")
    yield from row("destroyed", *(f"{why} {n}" for why, n in sorted(destroyed.items())))
    yield from row("leases", f"{acquired:,} acquired", f"{released:,} returned")
    yield from row(
        "wait",
        *(f"p{part} {percentile(waits, part) * 1e3:.1f} ms" for part in (50, 99)),
        f"max {waits[-1] * 1e3:.1f} ms",
    )
    yield from row(
        "breaker",
        *(
            f"{state} {end - since:.1f} s"
            for (since, state), end in zip(tally.states, ends, strict=True)
        ),
    )
    yield from row("forgotten", f"{play.rolled_back} transactions", "rolled back")
    kept = "not a coin is lost" if money == expected else "MONEY IS LOST"
    yield from row("money", f"{expected:,} before", f"{money:,} after", kept)
    if tally.sample:
        yield ""
        yield screen.paint("What an AcquireTimeoutError says at 3 a.m.", "bold")
        yield from textwrap.wrap(
            tally.sample,
            max(20, screen.width() - 2),
            initial_indent="  ",
            subsequent_indent="  ",
            break_on_hyphens=False,
        )


def percentile(ordered: list[float], part: int) -> float:
    return ordered[max(0, ceil(len(ordered) * part / 100) - 1)]


# -- the screen ----------------------------------------------------------------------------------

STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
STATE_STYLE: Final = {
    CircuitState.ACTIVE: "green",
    CircuitState.INACTIVE: "red",
    CircuitState.RECOVERING: "yellow",
}
SUBJECT_STYLE: Final = {
    "scene": "bold",
    "breaker": "yellow",
    "error": "red",
    "broken": "red",
    "returned": "green",
    "replaced": "green",
}
LABEL: Final = 12  # columns before the bars
VALUE: Final = 24  # columns after them

Line = list[tuple[str, str]]  # pieces: text and style


@dataclass(frozen=True, slots=True)
class Glyphs:
    full: str
    empty: str
    levels: str  # from nothing to all
    states: dict[CircuitState, str]


UNICODE: Final = Glyphs(
    "█",
    "░",
    " ▁▂▃▄▅▆▇█",
    {CircuitState.ACTIVE: "━", CircuitState.INACTIVE: "▒", CircuitState.RECOVERING: "╍"},
)
ASCII: Final = Glyphs(
    "#",
    ".",
    " .:-=+*#",
    {CircuitState.ACTIVE: "-", CircuitState.INACTIVE: "x", CircuitState.RECOVERING: "~"},
)


class Screen:
    """A panel that is redrawn in place under the news; without a terminal, lines."""

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        self._stream = stream
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._live = terminal
        self._color = terminal and color and not os.environ.get("NO_COLOR")
        self._glyphs = UNICODE if can_encode(stream, UNICODE) else ASCII
        self._drawn = 0  # lines of the panel on the screen
        self._line_due = LINE  # elapsed seconds
        self._history: defaultdict[str, dict[int, float]] = defaultdict(dict)  # by column: 0 to 1
        self._served = self._failed = 0  # at the last picture
        self._tasks = self._connections = 1

    def start(self, tasks: int, connections: int) -> None:
        self._tasks, self._connections = tasks, connections
        self._drawn, self._line_due = 0, LINE
        self._served = self._failed = 0
        self._history.clear()
        if self._live:
            self._stream.write("\x1b[?25l")
        self.print(self.paint(f"cenote: {tasks} tasks share {connections} connections", "bold"))

    def stop(self) -> None:
        if self._live:
            self._stream.write("\x1b[?25h")
        self._stream.flush()

    def width(self) -> int:
        return shutil.get_terminal_size((100, 24)).columns

    def paint(self, text: str, style: str) -> str:
        if not self._color or not style or not text.strip():
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"

    def print(self, line: str) -> None:
        self._stream.write(line + "\n")

    def draw(self, demo: Play, *, last: bool = False) -> None:
        tally = demo.tally
        news, tally.news = tally.news, []
        if self._live:
            panel = self._panel(demo, last=last)
            if self._drawn:
                self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            for item in news:
                self.print(self._tell(*item))
            for line in panel:
                self.print(self._fit(line))
            self._drawn = len(panel)
        else:
            for item in news:
                self.print(self._tell(*item))
            if last or tally.elapsed() >= self._line_due:
                self._line_due += LINE
                self.print(self._status(demo))
        self._stream.flush()

    def _tell(self, time: float, subject: str, text: str) -> str:
        style = SUBJECT_STYLE.get(subject, "cyan")
        return self._fit([(f"{time:6.2f} s  ", "dim"), (f"{subject:<8} ", style), (text, "")])

    def _status(self, demo: Play) -> str:
        pool, tally = demo.pool, demo.tally
        elapsed = min(tally.elapsed(), demo.length)
        return (
            f"{elapsed:6.2f} s  {elapsed / demo.length:4.0%}  {pool.state}: "
            f"{pool.active_count} active, {pool.idle_count} idle, {pool.waiting_count} waiting, "
            f"{tally.served:,} served, {tally.errors.total():,} failed"
        )

    def _panel(self, demo: Play, *, last: bool) -> list[Line]:
        pool, tally = demo.pool, demo.tally
        elapsed = demo.length if last else min(tally.elapsed(), demo.length)
        columns = max(10, min(60, self.width() - LABEL - VALUE))
        column = int(elapsed / demo.length * columns)
        if not last:
            self._note(demo, min(column, columns - 1))
        bar = [
            (self._glyphs.full * column, "cyan"),
            (self._glyphs.empty * (columns - column), "dim"),
        ]
        title = "the end" if last else demo.act.title
        rate = f"{tally.served / max(tally.elapsed(), FRAME):,.0f}/s"
        return [
            [],
            [(f"{'':<{LABEL}}", ""), (title, "bold")],
            self._row("time", bar, f"{elapsed:.1f} of {demo.length:.1f} s"),
            self._row(
                "in use",
                self._levels("in use", columns, "green"),
                f"{pool.active_count} active, {pool.idle_count} idle",
            ),
            self._row(
                "waiting", self._levels("waiting", columns, "yellow"), f"{pool.waiting_count}"
            ),
            self._row(
                "served", self._levels("served", columns, "cyan"), f"{tally.served:,}, {rate}"
            ),
            self._row(
                "failed", self._levels("failed", columns, "red"), f"{tally.errors.total():,}"
            ),
            self._row("breaker", self._states(demo, column, columns), pool.state),
        ]

    def _note(self, demo: Play, column: int) -> None:
        """The highest of each column: a picture later it may be gone."""
        served, failed = demo.tally.served, demo.tally.errors.total()
        most = MOST * FRAME / demo.pace
        for name, value in (
            ("in use", demo.pool.active_count / self._connections),
            ("waiting", demo.pool.waiting_count / self._tasks),
            ("served", (served - self._served) / most),
            ("failed", (failed - self._failed) / most),
        ):
            history = self._history[name]
            history[column] = max(history.get(column, 0.0), min(value, 1.0))
        self._served, self._failed = served, failed

    def _levels(self, name: str, columns: int, style: str) -> Line:
        levels, history = self._glyphs.levels, self._history[name]
        text = "".join(
            levels[ceil(history.get(column, 0.0) * (len(levels) - 1))] for column in range(columns)
        )
        return [(text, style)]

    def _states(self, demo: Play, column: int, columns: int) -> Line:
        """One glyph for each column, and at least one for each state."""
        states = [CircuitState.ACTIVE] * column
        begin = -1
        for since, state in demo.tally.states:
            begin = max(int(since / demo.length * columns), begin + 1)
            states[begin:] = [state] * len(states[begin:])
        bar = [(self._glyphs.states[state], STATE_STYLE[state]) for state in states]
        return [*bar, (" " * (columns - column), "")]

    def _row(self, label: str, bar: Line, value: str) -> Line:
        return [(f"{label:<{LABEL}}", "dim"), *bar, (f"  {value}", "")]

    def _fit(self, line: Line) -> str:
        room = self.width() - 1
        painted = []
        for text, style in line:
            shown = text if len(text) <= room else text[: max(0, room - 3)] + "..."[:room]
            painted.append(self.paint(shown, style))
            room -= len(shown)
        return "".join(painted)


def can_encode(stream: TextIO, glyphs: Glyphs) -> bool:
    try:
        "".join((glyphs.full, glyphs.levels, *glyphs.states.values())).encode(stream.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
