"""The demo: a real pool, 100 tasks, and a backend in memory that goes down and comes back."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final, TextIO

from . import caller
from .breaker import ConsecutiveFailures
from .errors import AcquireTimeoutError
from .observe import PoolEvent, Stats
from .pool import Pool
from .states import CircuitState

TASKS: Final = 100
RESOURCES: Final = 20
FRAME: Final = 0.05  # seconds between two pictures
LINE: Final = 1.0  # seconds between two lines, without a terminal
MOST: Final = 250  # operations a second that fill a bar
NEWS: Final = 0.5  # seconds between two reports of what happens often


@dataclass(frozen=True, slots=True)
class Act:
    """A part of the play. Durations are seconds; `--fast` shortens them all."""

    title: str
    length: float
    query: float  # how long the backend takes, on average
    pause: float  # how long a task thinks between two queries, on average
    down: bool = False


ACTS: Final = (
    Act("a calm day", 3.0, query=0.05, pause=0.45),
    Act("rush hour", 3.0, query=0.09, pause=0.02),
    Act("the backend is down", 2.2, query=0.05, pause=0.30, down=True),
    Act("the backend is back", 4.0, query=0.05, pause=0.40),
)


def run(*, seed: int, fast: bool, color: bool) -> int:
    screen = Screen(sys.stdout, color=color)
    demo = Demo(random.Random(seed), 0.25 if fast else 1.0, screen)
    # What the pool logs is told here as news.
    logging.getLogger("cenote").addHandler(logging.NullHandler())
    # The demo plays an application: the lines that hold resources are in this file.
    caller._internal[run.__code__.co_filename] = False
    try:
        asyncio.run(demo.run())
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


# -- the backend ---------------------------------------------------------------------------------


class Backend:
    """Takes its time, forgets sessions that are idle for long, and may be down."""

    def __init__(self, chance: random.Random, pace: float) -> None:
        self.chance = chance
        self.pace = pace
        self.query = 0.0  # seconds, on average
        self.down = False
        self._sessions: set[Session] = set()

    async def connect(self) -> Session:
        await self.delay(0.06)
        if self.down:
            raise ConnectionRefusedError("the backend refused the connection")
        session = Session(self)
        self._sessions.add(session)
        return session

    def disconnect(self, session: Session) -> None:
        self._sessions.discard(session)

    def play(self, act: Act) -> None:
        self.query = act.query
        self.down = act.down
        if act.down:
            for session in self._sessions:
                session.alive = False

    def drop_idle(self) -> None:
        """As a firewall does: nobody is told."""
        longest = asyncio.get_running_loop().time() - 0.3 * self.pace
        for session in self._sessions:
            if session.used_at < longest:
                session.alive = False

    async def delay(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.chance.uniform(0.5, 1.5) * self.pace)


class Session:
    """The resource: one connection to the backend."""

    def __init__(self, backend: Backend) -> None:
        self.alive = True
        self.used_at = asyncio.get_running_loop().time()
        self._backend = backend

    async def query(self, seconds: float | None = None) -> None:
        self.used_at = asyncio.get_running_loop().time()
        if seconds is None:
            await self._backend.delay(self._backend.query)
        else:
            await asyncio.sleep(seconds * self._backend.pace)
        self.used_at = asyncio.get_running_loop().time()
        if not self.alive:
            raise ConnectionResetError("the backend closed the connection")

    async def ping(self) -> bool:
        await self._backend.delay(0.005)
        return self.alive

    def close(self) -> None:
        self._backend.disconnect(self)


# -- the play ------------------------------------------------------------------------------------


class Demo:
    def __init__(self, chance: random.Random, pace: float, screen: Screen) -> None:
        self.chance = chance
        self.pace = pace
        self.length = sum(act.length for act in ACTS) * pace
        self.screen = screen
        self.act = ACTS[0]
        self.backend = Backend(chance, pace)
        self.pool: Pool[Session] = Pool(
            self.backend.connect,
            destructor=Session.close,
            healthcheck=Session.ping,
            healthcheck_interval=0.4 * pace,
            min_size=RESOURCES // 2,
            max_size=RESOURCES,
            hold_warning=1.0 * pace,
            lifo=True,
            strategy=ConsecutiveFailures(5, recovery_timeout=0.8 * pace, success_threshold=3),
            name="backend",
        )
        self.tally = Tally(0.0)

    async def run(self) -> None:
        self.tally = Tally(asyncio.get_running_loop().time())
        self.pool.subscribe(self.tally.hear)
        watcher = asyncio.create_task(self.watch())
        self.screen.start()
        try:
            async with self.pool:
                await self.perform()
            self.screen.draw(self, last=True)
        finally:
            watcher.cancel()
            self.screen.stop()
        for line in summary(self.tally, self.pool.stats(), self.screen):
            self.screen.print(line)

    async def perform(self) -> None:
        tasks = [
            asyncio.create_task(self.report(), name="nightly-report"),
            asyncio.create_task(self.checkout(), name="checkout"),
        ]
        for number in range(1, TASKS - len(tasks) + 1):
            tasks.append(asyncio.create_task(self.worker(), name=f"worker-{number:02}"))
        try:
            for act in ACTS:
                self.act = act
                self.backend.play(act)
                self.tally.say("scene", act.title)
                await asyncio.sleep(act.length * self.pace)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def worker(self) -> None:
        while True:
            await self.think(self.act.pause)
            await self.ask()

    async def report(self) -> None:
        """Somebody's slow query, at the worst moment."""
        await asyncio.sleep((ACTS[0].length + 0.6) * self.pace)
        await self.ask(1.5)

    async def checkout(self) -> None:
        """In a hurry: it would rather fail than wait, and the error says why it failed."""
        await asyncio.sleep((ACTS[0].length + 1.7) * self.pace)
        while True:
            await self.ask(timeout=0.15)
            await self.think(0.5)

    async def ask(self, seconds: float | None = None, *, timeout: float = 2.0) -> None:
        """One operation, its resource included."""
        try:
            async with self.pool.acquire(timeout=timeout * self.pace) as session:
                try:
                    await session.query(seconds)
                except ConnectionError as error:
                    self.pool.discard(session, error)
                    raise
        except Exception as error:
            self.tally.failed(error)
            await self.think(0.4)
        else:
            self.tally.served += 1

    async def think(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.chance.uniform(0.5, 1.5) * self.pace)

    async def watch(self) -> None:
        while True:
            self.screen.draw(self)
            await asyncio.sleep(FRAME)
            self.backend.drop_idle()


class Tally:
    """What happened: news to be told at once, numbers for the end."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.served = 0
        self.errors: Counter[str] = Counter()
        self.sample = ""  # what the first AcquireTimeoutError said
        self.waits: list[float] = []
        self.states = [(0.0, CircuitState.ACTIVE)]  # since when
        self.news: list[tuple[float, str, str]] = []  # not told yet: time, subject, text
        self._replaced = 0  # by health checks, since that was last told
        self._replaced_told = 0.0

    def hear(self, event: PoolEvent) -> None:
        match event.kind:
            case "acquired":
                self.waits.append(event.duration or 0.0)
            case "state_changed":
                state = CircuitState(event.reason or "")
                self.states.append((event.time - self.began, state))
                self.say("breaker", f"{state}: {MEANING[state]}")
            case "check_failed":
                self._replaced += 1
            case "held_long":
                self.say(
                    "held", f"by {event.task} for {event.duration:.2f} s, {near(event.reason)}"
                )
        if self._replaced and event.time - self._replaced_told > NEWS:
            self.say("health", f"dead while idle, replaced: {self._replaced}")
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
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return (text or "").replace(home + os.sep, "")


def summary(tally: Tally, stats: Stats, screen: Screen) -> Iterator[str]:
    def row(name: str, *parts: str) -> Iterator[str]:
        """As many parts to a line as there is room for."""
        line = ""
        for part in parts:
            if line and len(line) + len(part) > screen.width() - 17:
                yield f"  {screen.paint(f'{name:<11}', 'dim')}{line}"
                name, line = "", ""
            line += f"{'   ' if line else ''}{part}"
        yield f"  {screen.paint(f'{name:<11}', 'dim')}{line}"

    ends = [since for since, _ in tally.states[1:]] + [tally.elapsed()]
    waits = sorted(tally.waits) or [0.0]
    yield ""
    yield screen.paint("Summary", "bold")
    yield from row("operations", f"{tally.served:,} served", f"{tally.errors.total():,} failed")
    yield from row("errors", *(f"{kind} {n:,}" for kind, n in tally.errors.most_common()))
    yield from row(
        "resources", f"{stats.created} created", f"{sum(stats.destroyed.values())} destroyed"
    )
    yield from row("destroyed", *(f"{why} {n}" for why, n in sorted(stats.destroyed.items())))
    yield from row("leases", f"{stats.acquired:,} acquired", f"{stats.released:,} returned")
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
SUBJECT_STYLE: Final = {"scene": "bold", "breaker": "yellow", "error": "red", "health": "green"}
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

    def start(self) -> None:
        if self._live:
            self._stream.write("\x1b[?25l")
        self.print(self.paint(f"cenote: {TASKS} tasks share {RESOURCES} resources", "bold"))

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

    def draw(self, demo: Demo, *, last: bool = False) -> None:
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

    def _status(self, demo: Demo) -> str:
        pool, tally = demo.pool, demo.tally
        elapsed = min(tally.elapsed(), demo.length)
        return (
            f"{elapsed:6.2f} s  {elapsed / demo.length:4.0%}  {pool.state}: "
            f"{pool.active_count} active, {pool.idle_count} idle, {pool.waiting_count} waiting, "
            f"{tally.served:,} served, {tally.errors.total():,} failed"
        )

    def _panel(self, demo: Demo, *, last: bool) -> list[Line]:
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

    def _note(self, demo: Demo, column: int) -> None:
        """The highest of each column: a picture later it may be gone."""
        served, failed = demo.tally.served, demo.tally.errors.total()
        most = MOST * FRAME / demo.pace
        for name, value in (
            ("in use", demo.pool.active_count / RESOURCES),
            ("waiting", demo.pool.waiting_count / TASKS),
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

    def _states(self, demo: Demo, column: int, columns: int) -> Line:
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
