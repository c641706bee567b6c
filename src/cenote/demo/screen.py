"""What the demo shows: a panel in the terminal, or lines; and a summary at the end."""

from __future__ import annotations

import asyncio
import os
import shutil
import textwrap
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final, TextIO

from ..errors import AcquireTimeoutError
from ..messages import describe
from ..observe import EventKind, PoolEvent, Stats
from ..states import CircuitState

if TYPE_CHECKING:
    from .play import Play

FRAME: Final = 0.05  # seconds between two pictures
LINE: Final = 1.0  # seconds between two lines, without a terminal
MOST: Final = 400  # operations a second that fill a bar
NEWS: Final = 2.0  # seconds between two reports of what happens often


class Tally:
    """What happened: news to be shown at once, numbers for the end."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.served = 0
        self.errors: Counter[str] = Counter()
        self.sample: str = ""  # what the first AcquireTimeoutError said
        self.waits: list[float] = []
        self.states: list[tuple[float, CircuitState]] = [(0.0, CircuitState.ACTIVE)]  # since when
        self.news: list[tuple[float, str, str]] = []  # not shown yet: time, subject, text
        self.replaced: int = 0  # by health checks, and on the way to a task
        self.failed_probes: int = 0  # of the breaker, since it opened
        self.tells_replaced: bool = True  # False: the act sums them up itself, or none can be made
        self._replaced = 0  # replaced since that was last shown
        self._replaced_told = 0.0
        self._seconds = deque([(0.0, 0)])  # of the last second: when, and how many were served
        self._held_told = 0.0

    def hear(self, event: PoolEvent) -> None:
        """Count an event of the pool, and note the news that it makes."""
        match event.kind:
            case EventKind.ACQUIRED:
                self.waits.append(event.duration or 0.0)
            case EventKind.STATE_CHANGED:
                state = CircuitState(event.reason or "")
                before = self.states[-1][1]
                self.states.append((event.time - self.began, state))
                self._tell_of_breaker(before, state)
            case EventKind.CHECK_FAILED | EventKind.REJECTED:
                self.replaced += 1
                self._replaced += 1
            case EventKind.HELD_LONG if event.time - self._held_told > NEWS:
                self._held_told = event.time
                self.say(
                    "held", f"by {event.task} for {event.duration:.2f} s, {near(event.reason)}"
                )
        if not self.tells_replaced:
            self._replaced = 0
        if self._replaced and event.time - self._replaced_told > NEWS:
            plural = "" if self._replaced == 1 else "s"
            self.say("replaced", f"{self._replaced} dead connection{plural}")
            self._replaced, self._replaced_told = 0, event.time

    def _tell_of_breaker(self, before: CircuitState, state: CircuitState) -> None:
        """One line for the opening, one for the first probe, one for the end with their number."""
        if state is CircuitState.INACTIVE and before is CircuitState.RECOVERING:
            self.failed_probes += 1
            return
        if state is CircuitState.RECOVERING and self.failed_probes:
            return
        probes = f" after {self.failed_probes} failed probes" if self.failed_probes else ""
        self.say("breaker", f"{BREAKER[state]}{probes}: {MEANING[state]}")
        if state is CircuitState.ACTIVE:
            self.failed_probes = 0

    def rate(self) -> float:
        """Return how many were served in the last second; called with every picture."""
        now, seconds = self.elapsed(), self._seconds
        seconds.append((now, self.served))
        while len(seconds) > 1 and seconds[1][0] <= now - 1.0:
            seconds.popleft()
        since, served = seconds[0]
        return (self.served - served) / max(now - since, FRAME)

    def failed(self, error: Exception) -> None:
        kind = type(error)
        if kind.__name__ not in self.errors:
            self.say("error", f"{kind.__name__}: {near(essence(error))}")
        self.errors[kind.__name__] += 1
        if kind is AcquireTimeoutError and not self.sample:
            self.sample = near(str(error))

    def say(self, subject: str, text: str) -> None:
        self.news.append((self.elapsed(), subject, text))

    def elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self.began


BREAKER: Final = {
    CircuitState.ACTIVE: "closed",
    CircuitState.INACTIVE: "open",
    CircuitState.RECOVERING: "half-open",
}
MEANING: Final = {
    CircuitState.ACTIVE: "all acquires pass",
    CircuitState.INACTIVE: "acquires fail at once, the database is left alone",
    CircuitState.RECOVERING: "one acquire at a time may try",
}


def essence(error: Exception) -> str:
    """Return what an error says; of a timeout, the counts and the longest holder alone."""
    said = str(error)
    if not isinstance(error, AcquireTimeoutError) or not error.holders:
        return said
    others = len(error.holders) - 1
    rest = f", and {others} more" if others else ""
    return f"{said.partition('; held by')[0]}; held by {describe(error.holders[0])}{rest}"


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
    earlier = 0 if play.before is None else play.before.count + play.before.destroying
    yield from row(
        "connections",
        *([f"{earlier} from before"] if earlier else []),
        f"{created} created",
        f"{destroyed.total()} destroyed",
        f"{stats.count} open",
        f"{stats.destroying} closing",
    )
    yield from row("destroyed", *(f"{why} {n}" for why, n in sorted(destroyed.items())))
    yield from row("leases", f"{acquired:,} acquired", f"{released:,} returned")
    yield from row(
        "wait",
        *(f"p{part} {percentile(waits, part) * 1e3:.1f} ms" for part in (50, 99)),
        f"max {waits[-1] * 1e3:.1f} ms",
    )
    spent: Counter[CircuitState] = Counter()
    for (since, state), end in zip(tally.states, ends, strict=True):
        spent[state] += round(1000 * (end - since))
    probes = sum(state is CircuitState.RECOVERING for _, state in tally.states)
    yield from row(
        "breaker",
        *(f"{BREAKER[state]} {ms / 1000:.1f} s" for state, ms in spent.items()),
        f"{probes} probes",
    )
    forgotten = f"{play.rolled_back} transaction{'s' * (play.rolled_back != 1)}"
    yield from row("forgotten", forgotten, "rolled back")
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
SEVERITY: Final = CircuitState.ACTIVE, CircuitState.RECOVERING, CircuitState.INACTIVE
SUBJECT_STYLE: Final = {
    "scene": "bold",
    "breaker": "yellow",
    "error": "red",
    "broken": "red",
    "returned": "green",
    "replaced": "green",
}
LABEL: Final = 12  # columns before the bars
VALUE: Final = 26  # columns after them
NEWS_INDENT: Final = 19  # columns before the text of the news

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
                self._print_news(*item)
            for line in panel:
                self.print(self._fit(line))
            self._drawn = len(panel)
        else:
            for item in news:
                self._print_news(*item)
            if last or tally.elapsed() >= self._line_due:
                self._line_due += LINE
                self.print(self._status(demo))
        self._stream.flush()

    def _print_news(self, time: float, subject: str, text: str) -> None:
        """Print a piece of news, on as many lines as it needs: the end may be the point of it."""
        style = SUBJECT_STYLE.get(subject, "cyan")
        room = max(20, self.width() - 1 - NEWS_INDENT)
        for number, part in enumerate(textwrap.wrap(text, room, break_on_hyphens=False)):
            head: Line = [(" " * NEWS_INDENT, "")]
            if number == 0:
                head = [(f"{time:6.2f} s  ", "dim"), (f"{subject:<8} ", style)]
            self.print(self._fit([*head, (part, "")]))

    def _status(self, demo: Play) -> str:
        stats, tally = demo.pool.stats(), demo.tally
        elapsed = min(tally.elapsed(), demo.length)
        return (
            f"{elapsed:6.2f} s  {elapsed / demo.length:4.0%} "
            f"breaker {BREAKER[demo.pool.state]}; {open_of(stats)}; "
            f"{stats.waiting} waiting; {tally.rate():,.0f}/s; {tally.errors.total():,} failed"
        )

    def _panel(self, demo: Play, *, last: bool) -> list[Line]:
        pool, tally, stats = demo.pool, demo.tally, demo.pool.stats()
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
        rate = f"{tally.rate():,.0f}/s"
        ending = f", {stats.destroying} closing" if stats.destroying else ""
        return [
            [],
            [(f"{'':<{LABEL}}", ""), (title, "bold")],
            self._row("time", bar, f"{elapsed:.1f} of {demo.length:.1f} s"),
            self._row(
                "in use",
                self._levels("in use", columns, "green"),
                f"{stats.active} and {stats.idle} idle",
            ),
            self._row(
                "connections",
                self._levels("connections", columns, "green"),
                f"{stats.count} open{ending}",
            ),
            self._row("waiting", self._levels("waiting", columns, "yellow"), f"{stats.waiting}"),
            self._row(
                "served",
                self._levels("served", columns, "cyan"),
                f"{rate}, {tally.served:,} in all",
            ),
            self._row(
                "failed", self._levels("failed", columns, "red"), f"{tally.errors.total():,}"
            ),
            self._row("breaker", self._states(demo, column, columns), BREAKER[pool.state]),
        ]

    def _note(self, demo: Play, column: int) -> None:
        """The highest of each column: a picture later it may be gone."""
        served, failed = demo.tally.served, demo.tally.errors.total()
        most = MOST * FRAME / demo.pace
        for name, value in (
            ("in use", demo.pool.active_count / self._connections),
            ("connections", demo.pool.count / self._connections),
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
        """One glyph for each column: the worst state that the breaker was in during that time."""
        shown = [CircuitState.ACTIVE] * column
        known = demo.tally.states
        ends = [since for since, _ in known[1:]] + [demo.length]
        for (since, state), end in zip(known, ends, strict=True):
            first, last = (int(moment / demo.length * columns) for moment in (since, end))
            for place in range(first, min(last + 1, column)):
                shown[place] = max(shown[place], state, key=SEVERITY.index)
        bar = [(self._glyphs.states[state], STATE_STYLE[state]) for state in shown]
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


def open_of(stats: Stats) -> str:
    """Return the connections in words, such as `5 used + 8 idle = 13 open, 1 closing`.

    What was created and not destroyed is open or closing: the numbers add up in every picture.
    """
    closing = f", {stats.destroying} closing" if stats.destroying else ""
    return f"{stats.active} used + {stats.idle} idle = {stats.count} open{closing}"


def can_encode(stream: TextIO, glyphs: Glyphs) -> bool:
    try:
        "".join((glyphs.full, glyphs.levels, *glyphs.states.values())).encode(stream.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
