"""The fleets of this process, and all of their processes, as rows of the page."""

from __future__ import annotations

import asyncio
import os
import socket
from contextvars import Context
from typing import Any, Final

from ...fleet.view import Fleet, FleetHolder, MemberRow, Share, living, look_at, share_of
from ...observe import pools
from . import text

EVERY: Final = 1.0  # seconds between two questions to a ledger, while somebody watches
MOST: Final = 500  # rows of one fleet that are sent, the oldest first


class Fleets:
    """Asks the ledgers of all fleets of the process, in the background, and keeps the answers."""

    def __init__(self) -> None:
        self.changed: int = 0  # tick of the last change
        self.shown: list[dict[str, Any]] = []
        self._asking: asyncio.Task[list[dict[str, Any]]] | None = None
        self._due = 0.0  # of the loop's clock: when to ask again

    def look(self, tick: int) -> None:
        """Take in what was answered, and ask again if it is time."""
        asking = self._asking
        if asking is not None and asking.done():
            self._asking = None
            self._take(asking.result(), tick)
        loop = asyncio.get_running_loop()
        if self._asking is None and loop.time() >= self._due:
            self._due = loop.time() + EVERY
            fleets = living()
            if fleets:
                name = "cenote dashboard: members of fleets"
                self._asking = loop.create_task(_ask_all(fleets), name=name, context=Context())
            else:
                self._take([], tick)

    def stop(self) -> None:
        """Nobody watches any more."""
        asking, self._asking = self._asking, None
        self._due = 0.0
        if asking is not None:
            asking.cancel()

    def _take(self, found: list[dict[str, Any]], tick: int) -> None:
        if found != self.shown:
            self.shown, self.changed = found, tick


async def _ask_all(fleets: list[Fleet]) -> list[dict[str, Any]]:
    """Ask all of them at once."""
    mine: dict[str, dict[str, Share]] = {}
    for pool in pools():
        share = share_of(pool)
        if share is not None and not pool.closed:
            mine.setdefault(share.fleet, {})[share.member] = share
    return list(
        await asyncio.gather(
            *(
                _ask(fleet, mine.get(fleet.name, {}))
                for fleet in sorted(fleets, key=lambda fleet: fleet.name)
            ),
        )
    )


async def _ask(fleet: Fleet, mine: dict[str, Share]) -> dict[str, Any]:
    rows: list[MemberRow] = []
    holders: list[FleetHolder] = []
    problem = None
    try:
        rows, holders = await look_at(fleet)
    except Exception as error:  # a LedgerError, or whatever a ledger does not know how to say
        problem = text.of_error(error)
    shares = [*mine.values()]
    circuits = [each.circuit for each in shares if each.circuit is not None]
    return {
        "name": text.clean(fleet.name),
        "budget": min((each.budget for each in shares), default=fleet.budget),
        "circuit": circuits[0] if circuits else None,
        "problem": problem,
        "here": [text.clean(socket.gethostname()), os.getpid()],
        "own": sum(each.held for each in shares),  # known although the ledger does not answer
        "rows": [_row(row) for row in rows[:MOST]],
        "holders": [_holder(holder) for holder in holders],
        "more": max(0, len(rows) - MOST),
    }


def _holder(holder: FleetHolder) -> list[Any]:
    """Return host, process, pool, task, place, since in ms, and why it is pinned."""
    return [
        text.clean(holder.host),
        holder.process,
        text.clean(holder.pool),
        text.clean(holder.task),
        None if holder.place is None else text.short(holder.place),
        round(holder.since * 1000),
        None if holder.reason is None else text.clean(holder.reason),
    ]


def _row(row: MemberRow) -> list[Any]:
    """Return host, process, pool, held, need, breaker, since in ms, and whether it is silent."""
    return [
        text.clean(row.host),
        row.process,
        text.clean(row.pool),
        row.held,
        row.need,
        row.breaker,
        round(row.since * 1000),
        row.silent,
    ]
