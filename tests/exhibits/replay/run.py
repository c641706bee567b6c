"""Runs the replays of one corpus, and prints what they found."""

import asyncio
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from typing import Any

from .expected import Expected
from .fetch import CORPORA, fetch
from .places import Stand
from .replay import Tally, check_transactions, compare, look_for_leftovers
from .scripts import Script
from .snapshots import LOOKERS

METHODS = ("execute", "fetch_all")
REPLAYS = ("outcome", "left", "transaction")
# Statements of one script, at most: the corpora of MariaDB and SQLite are large.
MOST = {"postgresql": 5000, "mariadb": 40, "sqlite": 40}
CHECKED = 20  # statements of one script that are run inside a block, at most
HEADS = ("corpus", "driver", "method", "statements", "different", "expected", "left")


@dataclass
class Options:
    """What to run; the defaults are everything."""

    corpora: tuple[str, ...] = tuple(CORPORA)
    drivers: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS
    replays: tuple[str, ...] = REPLAYS
    statements: int = 0  # of each corpus, at most; 0: all
    seed: int = 0
    files: str = ""  # only scripts whose name has this regular expression
    reset: str = "auto"  # "never" shows what the replay of leftovers would find


@dataclass
class Findings:
    """What a whole run found."""

    tallies: list[Tally] = field(default_factory=list)
    left_out: dict[str, Counter[str]] = field(default_factory=dict)  # by corpus

    @property
    def new(self) -> int:
        return sum(len(tally.new) for tally in self.tallies)

    def table(self) -> str:
        """One line for each replay."""
        rows = [HEADS] + [
            (
                tally.corpus,
                tally.driver,
                tally.method,
                f"{tally.statements:,}",
                f"{tally.different:,}",
                f"{tally.expected:,}",
                f"{len(tally.new):,}",
            )
            for tally in self.tallies
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)]
            cells += [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def run(options: Options, expected: Expected) -> Findings:
    """Fetch what is needed, and replay it."""
    findings = Findings()
    for name in options.corpora:
        say(f"{name}: {fetch(CORPORA[name])}")
        with Stand(CORPORA[name]) as stand:
            scripts = load(stand, options)
            findings.left_out[name] = sum((script.left_out for script in scripts), Counter())
            asyncio.run(_replay_all(stand, scripts, options, expected, findings))
    return findings


def load(stand: Stand, options: Options) -> list[Script]:
    """The scripts, or a sample of them: whole ones, in an order that the seed decides."""
    scripts = [stand.load(path) for path in stand.corpus.scripts()]
    wanted = re.compile(options.files)
    scripts = [each for each in scripts if each.statements and wanted.search(each.name)]
    for script in scripts:
        most = MOST[stand.corpus.name]
        if len(script.statements) > most:
            script.left_out["beyond the first of a script"] += len(script.statements) - most
            del script.statements[most:]
    if not options.statements:
        return scripts
    random.Random(options.seed).shuffle(scripts)
    sample: list[Script] = []
    room = options.statements
    for script in scripts:
        if room <= 0:
            break
        del script.statements[room:]
        room -= len(script.statements)
        sample.append(script)
    return sample


async def _replay_all(
    stand: Stand,
    scripts: Sequence[Script],
    options: Options,
    expected: Expected,
    findings: Findings,
) -> None:
    for place in stand.places:
        await place.open()
    try:
        for driver in options.drivers or stand.places[0].drivers:
            if driver not in stand.places[0].drivers:
                continue
            if "outcome" in options.replays:
                for method in options.methods:
                    tally = Tally(stand.corpus.name, driver, method)
                    findings.tallies.append(tally)
                    await _outcomes(stand, scripts, tally, expected)
            if "left" in options.replays:
                tally = Tally(stand.corpus.name, driver, "left")
                findings.tallies.append(tally)
                await _leftovers(stand, scripts, tally, expected, options.reset)
            if "transaction" in options.replays:
                tally = Tally(stand.corpus.name, driver, "transaction")
                findings.tallies.append(tally)
                await _transactions(stand, scripts, tally, expected)
    finally:
        for place in stand.places:
            await place.close()


async def _outcomes(
    stand: Stand, scripts: Sequence[Script], tally: Tally, expected: Expected
) -> None:
    watch = Watch(tally)
    for script in scripts:
        found, compared = await compare(
            script, stand.places, tally.driver, tally.method, tally.corpus
        )
        tally.statements += compared
        tally.skipped += len(script.statements) - compared
        tally.add(found, expected)
        watch.tell(script)


async def _leftovers(
    stand: Stand, scripts: Sequence[Script], tally: Tally, expected: Expected, reset: str
) -> None:
    watch = Watch(tally)
    place, looker = stand.places[0], LOOKERS[tally.corpus]()
    for script in scripts:
        await place.fresh()
        where = (tally.corpus, tally.driver, tally.method)
        db: Any = place.database(tally.driver, reset=reset)
        with chdir(place.folder or "."):
            try:
                tally.add(await look_for_leftovers(script, db, looker, where), expected)
            finally:
                await db.close()
        tally.statements += len(script.statements)
        watch.tell(script)


async def _transactions(
    stand: Stand, scripts: Sequence[Script], tally: Tally, expected: Expected
) -> None:
    watch = Watch(tally)
    place = stand.places[0]
    for script in scripts:
        await place.fresh()
        where = (tally.corpus, tally.driver, tally.method)
        db: Any = place.database(tally.driver)
        other: Any = place.database(tally.driver)
        with chdir(place.folder or "."):
            try:
                found, checked = await check_transactions(script, db, other, where, CHECKED)
            finally:
                await db.close()
                await other.close()
        tally.statements += checked
        tally.add(found, expected)
        watch.tell(script)


class Watch:
    """Says now and then how far it is, and every new difference at once."""

    EVERY = 20.0  # seconds

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.told = time.monotonic()
        self.shown = 0

    def tell(self, script: Script) -> None:
        for difference in self.tally.new[self.shown :]:
            say(f"DIFFERENT {difference}")
        self.shown = len(self.tally.new)
        if time.monotonic() - self.told > self.EVERY:
            self.told = time.monotonic()
            tally = self.tally
            name = f"{tally.corpus}, {tally.driver}, {tally.method}"
            say(f"{name}: {tally.statements:,} statements, at {script.name}")


def say(text: str) -> None:
    print(f"exhibits: {text}", file=sys.stderr, flush=True)
