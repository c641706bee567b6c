"""Who holds what in each process of a fleet: shown beside the ledger of one host, in files.

It is for people only. Nothing depends on it, it may be old by some seconds, and what cannot be
written or read is left out. A ledger that has one offers it as `board`.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from logging import DEBUG
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..log import log
from ..mask import explained, masked
from ..messages import without_text

if TYPE_CHECKING:
    from ..events import Holder
    from ..pool import Pool
    from .ledger import MemberRow

MOST: Final = 5  # holders that each member shows, the longest
SHOWN: Final = 20  # holders of all members, the longest
LEAST: Final = 1.0  # seconds: a shorter hold is over when others read of it
EVERY: Final = 1.0  # seconds between two looks of a member at who holds what, at least
LONGEST: Final = 120  # characters of a text
LARGEST: Final = 8192  # bytes of what a member shows
OLD: Final = 60.0  # seconds after which what a dead member has left is removed


@dataclass(frozen=True, slots=True)
class FleetHolder:
    """A task that holds a resource, in some process of a fleet.

    Attributes:
        host: The name of its machine; `process` is the id of the process there, `pool` the name.
        task: The name of the task.
        place: The file and line of the acquire; None if they are not known.
        since: When it got the resource, as `time.time()` of its machine.
        reason: Why it is pinned; None if it is not.
    """

    host: str
    process: int
    pool: str
    task: str
    place: str | None
    since: float
    reason: str | None


class LocalBoard:
    """A directory with a file for each member, of one user."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def show(self, member: str, text: str) -> None:
        """Let others see this text, in place of what this member has shown before; empty: nothing.

        Raises:
            OSError: It cannot be written.
        """
        path = self._directory / member
        if not text:
            path.unlink(missing_ok=True)
            return
        with suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        if not self._is_mine():
            return
        draft = self._directory / f"{member}.new"
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)

    def read(self, members: Collection[str]) -> dict[str, str]:
        """Return what these members show, and forget those that died long ago."""
        if not self._is_mine():
            return {}
        found = {}
        for name in os.listdir(self._directory):
            path = self._directory / name
            with suppress(OSError, UnicodeDecodeError):
                if name in members:
                    with path.open("rb") as file:
                        found[name] = file.read(LARGEST).decode()
                elif time.time() - path.stat().st_mtime > OLD:
                    path.unlink()
        return found

    def _is_mine(self) -> bool:
        """Whether it is a directory of this user, and no link to another."""
        try:
            status = self._directory.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


class Notice:
    """What one member shows on the board of its ledger, if that has one."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._shown = ""
        self._due = -inf  # of the loop's clock: when to look again

    def renew(self, ledger: object, pool: Pool[Any], now: float) -> None:
        """Show who holds what in this pool; `now`: of the loop's clock."""
        if now >= self._due:
            self._due = now + EVERY
            self._show(ledger, text_of(pool.holders(), time.time()))

    def remove(self, ledger: object) -> None:
        """Show nothing any more."""
        self._show(ledger, "")

    def _show(self, ledger: object, text: str) -> None:
        board: LocalBoard | None = getattr(ledger, "board", None)
        if board is None or text == self._shown:
            return
        self._shown = text
        try:
            board.show(self._member, text)
        except OSError as error:  # nothing depends on it
            log(DEBUG, "who holds what cannot be shown to others: %s", explained(error))


def text_of(holders: Iterable[Holder[Any]], now: float) -> str:
    """Return the longest holders as a member shows them; `now`: as `time.time()`."""
    rows = [
        [
            _short(holder.task),
            None if holder.file is None else _short(f"{holder.file}:{holder.line}", end=True),
            round(now - holder.seconds, 1),
            None if holder.reason is None else _short(without_text(holder.reason)),
        ]
        for _, holder in zip(range(MOST), holders, strict=False)
        if holder.seconds >= LEAST
    ]
    return json.dumps(rows) if rows else ""


def holders_from(row: MemberRow, text: str) -> list[FleetHolder]:
    """Return the holders that a member shows; those that make no sense are left out."""
    try:
        shown = json.loads(text)
        return [
            FleetHolder(
                row.host,
                row.process,
                row.pool,
                str(task),
                _text(place),
                float(since),
                _text(reason),
            )
            for task, place, since, reason in shown[:MOST]
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _short(text: str, *, end: bool = False) -> str:
    text = masked(text[:2000])
    return text[-LONGEST:] if end else text[:LONGEST]


def longest_holders(board: LocalBoard | None, rows: Iterable[MemberRow]) -> list[FleetHolder]:
    """Return who has held something for longest, in whatever process."""
    members = {row.member: row for row in rows}
    shown = {} if board is None else board.read(members.keys())
    found = [
        holder for member, text in shown.items() for holder in holders_from(members[member], text)
    ]
    return sorted(found, key=lambda holder: holder.since)[:SHOWN]
