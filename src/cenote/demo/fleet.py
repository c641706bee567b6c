"""`python -m cenote demo --fleet`: eight processes, one budget, and a rolling deploy."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Final, TextIO

from ..fleet.fleet import Fleet, Member
from ..fleet.view import LedgerError
from ..sql.database import Database
from . import crew, pages
from .screen import UNICODE as GLYPHS
from .screen import Screen, can_encode

PROCESSES: Final = 8
BUDGET: Final = 24  # connections of all of them
MOST: Final = 16  # of one of them
TTL: Final = 2.0  # seconds
ACCOUNTS: Final = 50
MONEY: Final = 50_000
FRAME: Final = 0.25  # seconds between two pictures
LINE: Final = 1.0  # seconds between two lines, without a terminal
PATIENCE: Final = 60.0  # real seconds in which what is announced must happen


class FleetPlay:
    """`once()` plays all of it; what is left of the processes ends with the block around it."""

    def __init__(self, pace: float, screen: Screen, stream: TextIO) -> None:
        self.pace: float = pace
        self.screen: Screen = screen
        self.panel: Panel = Panel(stream, screen)
        self.title: str = ""
        self.hands: list[crew.Hand] = []
        self.ended: list[crew.Hand] = []
        self.members: dict[int, Member] = {}  # by process
        self.most_lent: int = 0
        self._home = tempfile.TemporaryDirectory(prefix="cenote-demo-")
        self._database = os.path.join(self._home.name, "shop.db")
        self._ledger = os.path.join(self._home.name, "fleet")
        self.fleet: Fleet = Fleet(budget=BUDGET, name="demo", path=self._ledger, ttl=TTL)
        # This process is a member, too: it audits the books.
        self.db: Database = Database(
            f"sqlite:///{self._database}",
            connect_args={"timeout": PATIENCE},
            max_size=1,
            fleet=self.fleet,
            name="audit",
        )

    async def __aenter__(self) -> FleetPlay:
        await self.db.execute("create table accounts (id integer primary key, balance int)")
        await self.db.execute_many(
            "insert into accounts values (?, ?)",
            [(n, MONEY // ACCOUNTS) for n in range(ACCOUNTS)],
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(hand.end() for hand in self.hands))
        await self.db.close()
        self._home.cleanup()

    @property
    def served(self) -> int:
        return sum(hand.served for hand in (*self.hands, *self.ended))

    @property
    def errors(self) -> Counter[str]:
        return sum((hand.errors for hand in (*self.hands, *self.ended)), Counter[str]())

    async def once(self) -> None:
        """Play it, with its picture, and sum it up."""
        watching = asyncio.create_task(self._watch(), name="watch")
        try:
            await self._perform()
            self.panel.draw(self, last=True)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            self.panel.end()
        await self._sum_up()

    # -- what happens ------------------------------------------------------------------------------

    async def _perform(self) -> None:
        self._say(f"{PROCESSES} processes share {BUDGET} connections; each may have {MOST}")
        await self._hire("old")
        self._load(3)
        await self._until(lambda: self._lent() == BUDGET)
        await self._stay(4.0)

        first, second, *_ = self.hands
        self._say(f"rush hour in process {first.pid}: what the others do not need goes there")
        self._load(1)
        first.load(MOST)
        await self._until(lambda: self._has(first) >= BUDGET - 2 * PROCESSES)
        await self._stay(4.0)

        audit = asyncio.create_task(self._audit(), name="nightly-audit")
        self._say("everybody is busy: the budget is shared in equal parts")
        self._load(8)
        await self._until(lambda: self._has(first) <= BUDGET // PROCESSES + 1)
        await self._stay(4.0)

        await audit
        had = self._has(second)
        self._say(f"process {second.pid} is killed; it had {had} connections")
        second.kill()
        await self._dismiss(second)
        await self._until(lambda: second.pid not in self.members and self._lent() == BUDGET)
        self._say("the others have them back")
        await self._stay(3.0)

        self._say(f"a rolling deploy: {PROCESSES} new processes start while the old ones serve")
        old = self.hands.copy()
        await self._hire("new")
        self._load(8)
        await self._stay(3.0)
        self._say("the old ones end one after the other, and finish what they do")
        for hand in old:
            hand.load(0)
            await self._dismiss(hand)
            await self._stay(0.5)
        await self._until(lambda: self._lent() == BUDGET)
        await self._stay(3.0)
        self._load(0)

    async def _audit(self) -> None:
        """Hold a connection for long: the page shows who does, in whatever process."""
        async with self.db.transaction(read_only=True):
            await self.db.fetch_val("select sum(balance) from accounts")
            await self._stay(6.0)

    async def _hire(self, kind: str) -> None:
        fresh = await asyncio.gather(
            *(
                crew.hire(kind, self._database, self._ledger, BUDGET, MOST, TTL)
                for _ in range(PROCESSES)
            )
        )
        self.hands += fresh
        await self._until(lambda: all(hand.reports and hand.pid in self.members for hand in fresh))

    async def _dismiss(self, hand: crew.Hand) -> None:
        await hand.end()
        self.hands.remove(hand)
        self.ended.append(hand)

    def _load(self, tasks: int) -> None:
        for hand in self.hands:
            hand.load(tasks)

    async def _stay(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.pace)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until it is so; however slow the machine is, the play goes on after a while."""
        for _ in range(round(PATIENCE / FRAME)):
            if condition():
                return
            await asyncio.sleep(FRAME)
        self.screen.print("  this machine is too slow for what was announced")

    # -- what is seen ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                found = await self.fleet.members()
            except LedgerError:  # the machine is busy; the next one will answer
                pass
            else:
                self.members = {member.process: member for member in found}
                self.most_lent = max(self.most_lent, self._lent())
                self.panel.draw(self)
            await asyncio.sleep(FRAME)

    def _lent(self) -> int:
        return sum(member.held for member in self.members.values())

    def _has(self, hand: crew.Hand) -> int:
        member = self.members.get(hand.pid)
        return 0 if member is None else member.held

    def _say(self, text: str) -> None:
        self.title = text
        self.panel.say(text)

    async def _sum_up(self) -> None:
        money = await self.db.fetch_val("select sum(balance) from accounts")
        ended = len([hand for hand in self.ended if not hand.was_killed])
        errors = self.errors
        kept = "not a coin is lost" if money == MONEY else "MONEY IS LOST"
        rows = [
            ("operations", f"{self.served:,} served, {errors.total():,} failed"),
            *(("", f"{name} {number:,}") for name, number in errors.most_common()),
            ("budget", f"{BUDGET}; at most {self.most_lent} were lent at any time"),
            ("processes", f"1 killed, {ended} replaced, {len(self.hands)} serving at the end"),
            ("money", f"{MONEY:,} before, {money:,} after, {kept}"),
        ]
        self.screen.print("")
        self.screen.print(self.screen.paint("Summary", "bold"))
        for name, text in rows:
            self.screen.print(f"  {self.screen.paint(f'{name:<12}', 'dim')}{text}")


class Panel:
    """The table of the fleet, drawn in place under what is said; without a terminal, lines."""

    def __init__(self, stream: TextIO, screen: Screen) -> None:
        self._stream = stream
        self._screen = screen
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._full, self._empty = ("#", ".")
        if can_encode(stream, GLYPHS):
            self._full, self._empty = GLYPHS.full, GLYPHS.empty
        self._drawn = 0  # lines of the table on the screen
        self._due = 0.0  # without a terminal: when the next line is printed
        self._seen: tuple[float, int] = (0.0, 0)  # when so many were served
        self._rate = 0.0

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._wipe()
        self._screen.print(f"{self._screen.paint('*', 'cyan')} {text}")
        self._stream.flush()

    def draw(self, play: FleetPlay, *, last: bool = False) -> None:
        """Draw the table as it is now."""
        now = asyncio.get_running_loop().time()
        since, served = self._seen
        if now - since >= LINE:
            self._rate = max(0, play.served - served) / (now - since) if since else 0.0
            self._seen = now, play.served
        lines = self._lines(play)
        if self._live:
            self._wipe()
            for line in lines:
                self._screen.print(line)
            self._drawn = len(lines)
        elif last or now >= self._due:
            self._due = now + LINE
            self._screen.print(self._status(play))
        self._stream.flush()

    def end(self) -> None:
        """The last picture stays."""
        self._drawn = 0
        self._stream.flush()

    def _wipe(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _status(self, play: FleetPlay) -> str:
        members = play.members.values()
        processes = f"{len(members)} process{'es' * (len(members) != 1)}"
        return (
            f"  {processes}: {sum(each.held for each in members)} of {BUDGET} lent, "
            f"{sum(each.need for each in members)} needed; {self._rate:,.0f}/s; "
            f"{play.errors.total():,} failed"
        )

    def _lines(self, play: FleetPlay) -> list[str]:
        kinds = {hand.pid: hand.kind for hand in play.hands}
        paint, width = self._screen.paint, self._screen.width()
        columns = max(4, min(MOST, width - 45))
        lines = [
            "",
            paint(f"  {'process':>9}       {'connections':<{columns}}   lent needs", "dim"),
        ]
        for pid, member in play.members.items():
            kind = kinds.get(pid, "audit" if pid == os.getpid() else "gone")
            part = min(columns, round(member.held / MOST * columns))
            short = "yellow" if member.need > member.held else ""
            lines.append(
                f"  {pid:>9} {kind:<6}"
                + paint(self._full * part, "green" if kind != "new" else "cyan")
                + paint(self._empty * (columns - part), "dim")
                + f"   {member.held:>4} "
                + paint(f"{member.need:>5}", short)
            )
        return [*lines, "", self._status(play)]


async def run(stream: TextIO, *, pace: float, color: bool, page: bool, port: int) -> None:
    """Play it once. The web page, if there is one, is that of the fleet."""
    screen = Screen(stream, color=color)
    server = await pages.serve(page=page, port=port)
    try:
        if server is not None:
            screen.print(f"Watch it live: {server.url}#fleet=demo")
        async with FleetPlay(pace, screen, stream) as play:
            await play.once()
            if server is not None and sys.stdin.isatty() and stream.isatty():
                url = f"{server.url}#fleet=demo"
                await pages.enter_pressed(f"The page stays until you press Enter: {url}")
    finally:
        if server is not None:
            await server.close()
