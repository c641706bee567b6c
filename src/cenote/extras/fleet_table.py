"""`python -m cenote fleet URL`: who is in a fleet, and who has how much, live."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, TextIO

from .. import Fleet
from .check import in_words

EVERY: Final = 1.0  # seconds from one table to the next
CLEAR: Final = "\x1b[H\x1b[J"
HEADS: Final = ("host", "process", "pools", "held", "need", "breaker", "since")
RIGHT: Final = frozenset({"process", "held", "need", "since"})
SIZES: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def run(
    url: str | None,
    *,
    name: str = "default",
    path: str | None = None,
    out: TextIO | None = None,
) -> int:
    """Show the members of a fleet: every second on a terminal, until interrupted, else once.

    Returns the exit status, 1 if the fleet could not be asked at all.

    Args:
        url: Where the fleet keeps its budget; None for the file of this host.
        name: The name of the fleet.
        path: The file of this host, if it is not the usual one.
        out: Where to print; None is stdout. Failures are printed to stderr.
    """
    page: TextIO = sys.stdout if out is None else out
    logging.getLogger("cenote").addHandler(logging.NullHandler())  # what it logs is shown here
    try:
        fleet = Fleet(url, budget=1, name=name, path=path)  # it only looks: no budget is sent
    except (TypeError, ValueError, ImportError) as error:
        print(f"cenote fleet: {error}", file=sys.stderr)
        return 1
    try:
        asyncio.run(_show(fleet, page))
    except KeyboardInterrupt:
        print(file=page)
    except Exception as error:
        print(f"cenote fleet: {in_words(error)}", file=sys.stderr)
        return 1
    return 0


async def _show(fleet: Fleet, page: TextIO) -> None:
    if not page.isatty():
        print(table(fleet.name, await fleet.members(), time.time()), file=page)
        return
    text = table(fleet.name, await fleet.members(), time.time())
    while True:
        print(f"{CLEAR}{text}\n\nevery second; end with Ctrl-C", file=page, flush=True)
        await asyncio.sleep(EVERY)
        try:
            text = table(fleet.name, await fleet.members(), time.time())
        except Exception as error:
            text = f"fleet {fleet.name!r}: {in_words(error)}"


def table(name: str, members: Sequence[Any], now: float) -> str:
    """Return the table of these members; `now`: as `time.time()`."""
    count = len(members)
    held = sum(each.held for each in members)
    title = (
        f"fleet {name!r}: {count} process{'es' * (count != 1)}, {held} resources lent, "
        f"{sum(each.need for each in members)} needed"
    )
    if not members:
        return f"fleet {name!r}: no process takes part now"
    rows = [
        (
            each.host, str(each.process), ", ".join(each.pools), str(each.held), str(each.need),
            "silent" if each.silent else each.breaker or "-", age(max(0.0, now - each.since)),
        )
        for each in members
    ]  # fmt: skip
    widths = [max(len(cell) for cell in column) for column in zip(HEADS, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if head in RIGHT else cell.ljust(width)
            for head, cell, width in zip(HEADS, row, widths, strict=True)
        ).rstrip()
        for row in (HEADS, *rows)
    ]
    return "\n".join([title, "", *lines])


def age(seconds: float) -> str:
    """Return a duration in its two largest units."""
    left, parts = int(seconds), list[str]()
    for size, unit in SIZES:
        number, left = divmod(left, size)
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])
