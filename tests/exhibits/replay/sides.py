"""The two sides of a comparison: the bare driver, and cenote on it; and what a statement gave."""

import asyncio
import contextlib
import hashlib
import re
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import cenote

LIMIT = 12.0  # seconds for one statement; servers have a shorter limit of their own
SLOW = LIMIT / 4  # a statement that took so long may take too long on the other side
CHANGING = re.compile(
    r"(\s|--[^\n]*\n|/\*([^*]|\*(?!/))*\*/)*with\b.*\b(insert|update|delete|replace)\b",
    re.IGNORECASE | re.DOTALL,
)
CHANGES = re.compile(r"(\s|--\s[^\n]*\n|/\*([^*]|\*(?!/))*\*/)*(insert|delete|replace)\b", re.I)
ADDRESS = re.compile(r" object at 0x[0-9a-f]+")
KEPT = 400  # characters of an outcome that are kept for the report


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a statement gave: rows, a number, or the code of an error."""

    kind: str  # "rows", "count", "error", "hung" or "lost"
    shown: str  # the beginning of it
    digest: str = ""  # of all of it
    unordered: str = ""  # of the rows in any order
    seconds: float = field(default=0.0, compare=False)  # that it took

    @property
    def ends_session(self) -> bool:
        return self.kind in ("hung", "lost")

    def matches(self, other: "Outcome") -> bool:
        """Whether the other side gave the same; rows may come in any order, as in SQL. Of a bare
        driver that has lost its connection, or its place on it, nothing can be compared."""
        if self.kind == "lost":
            return True
        if "hung" in (self.kind, other.kind) and min(self.seconds, other.seconds) > SLOW:
            return True  # slow on both sides: SQLite has no limit, and machines are loaded
        if self.kind != other.kind:
            return False
        if self.unordered and self.unordered == other.unordered:
            return True
        return (self.shown, self.digest) == (other.shown, other.digest)

    def __str__(self) -> str:
        return f"{self.kind} {self.shown}"


def of_rows(rows: Iterable[Any]) -> Outcome:
    """The outcome of a statement that returned rows."""
    lines = [ADDRESS.sub("", repr(tuple(row))) for row in rows]
    whole = "\n".join(lines)
    shown = f"({len(lines)}) {whole[:KEPT]}"
    return Outcome("rows", shown, _digest(whole), _digest("\n".join(sorted(lines))))


def of_count(count: Any) -> Outcome:
    """The outcome of a statement that returned how many rows it changed."""
    return Outcome("count", str(int(count)))


def of_error(error: BaseException) -> Outcome:
    """The outcome of a statement that failed: the code of the server, or the name of the error."""
    return Outcome("error", code(error))


def code(error: BaseException) -> str:
    """SQLSTATE, number or name by which the server knows the error; otherwise its type."""
    if isinstance(error, cenote.PoolError):
        return type(error).__name__
    if state := getattr(error, "sqlstate", None):
        return str(state)
    if name := getattr(error, "sqlite_errorname", None):
        return str(name)
    if error.args and isinstance(error.args[0], int):
        return str(error.args[0])
    return type(error).__name__


class Side(Protocol):
    """A connection, bare or behind cenote; all its statements run in one task."""

    async def run(self, text: str) -> Outcome: ...

    async def close(self) -> None: ...


async def replay(side: Side, texts: Iterable[str]) -> list[Outcome]:
    """Run the texts in order; ends early if the session is lost or does not answer."""
    outcomes: list[Outcome] = []
    for text in texts:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT):
                outcome = await side.run(text)
        except TimeoutError:
            outcome = Outcome("hung", f"for {LIMIT:g} s")
        outcomes.append(replace(outcome, seconds=time.monotonic() - begun))
        if outcomes[-1].ends_session:
            break
    return outcomes


class Through:
    """cenote: a database with one connection."""

    def __init__(self, db: Any, method: str) -> None:
        self.db = db
        self.method = method

    async def run(self, text: str) -> Outcome:
        try:
            if self.method == "fetch_all":
                return of_rows(await self.db.fetch_all(text))
            return of_count(await self.db.execute(text))
        except TimeoutError:
            raise
        except Exception as error:
            return of_error(error)

    async def close(self) -> None:
        await self.db.close()


class BareAsyncpg:
    def __init__(self, raw: Any, method: str) -> None:
        self.raw = raw
        self.method = method

    @classmethod
    async def connect(cls, url: str, method: str) -> "BareAsyncpg":
        import asyncpg

        # Without its cache, which freezes constants and is broken by DISCARD ALL.
        return cls(await asyncpg.connect(url, statement_cache_size=0), method)

    async def run(self, text: str) -> Outcome:
        try:
            if self.method == "fetch_all":
                return of_rows(await self.raw.fetch(text))
            return of_count(_affected(await self.raw.execute(text)))
        except TimeoutError:
            raise
        except Exception as error:
            if self.raw.is_closed():
                return Outcome("lost", code(error))
            return of_error(error)

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            await self.raw.close(timeout=5)


class BarePsycopg:
    def __init__(self, raw: Any, method: str) -> None:
        self.raw = raw
        self.method = method

    @classmethod
    async def connect(cls, url: str, method: str) -> "BarePsycopg":
        import psycopg

        connect = psycopg.AsyncConnection.connect
        return cls(await connect(url, autocommit=True, prepare_threshold=None), method)

    async def run(self, text: str) -> Outcome:
        try:
            cursor = await self.raw.execute(text)
            if self.method == "fetch_all":
                return of_rows(await cursor.fetchall() if cursor.description is not None else [])
            return of_count(_affected(cursor.statusmessage))
        except TimeoutError:
            raise
        except Exception as error:
            if self.raw.closed:
                return Outcome("lost", code(error))
            return of_error(error)

    async def close(self) -> None:
        await self.raw.close()


class BareAsyncmy:
    def __init__(self, raw: Any, method: str) -> None:
        self.raw = raw
        self.method = method

    @classmethod
    async def connect(cls, place: dict[str, Any], method: str) -> "BareAsyncmy":
        import asyncmy

        return cls(await asyncmy.connect(**place, autocommit=True), method)

    async def run(self, text: str) -> Outcome:
        from asyncmy.errors import InternalError, MySQLError

        try:
            async with self.raw.cursor() as cursor:
                await cursor.execute(text)
                if self.method == "fetch_all":
                    return of_rows(
                        await cursor.fetchall() if cursor.description is not None else []
                    )
                return of_count(
                    0 if cursor.description and not CHANGES.match(text) else cursor.rowcount
                )
        except TimeoutError:
            raise
        except Exception as error:
            out_of_step = isinstance(error, InternalError) or not isinstance(error, MySQLError)
            if out_of_step or not self.raw.connected:
                return Outcome("lost", code(error))
            return of_error(error)

    async def close(self) -> None:
        await self.raw.ensure_closed()


class BareSqlite:
    """The module of the standard library, with the settings that cenote documents as its own."""

    def __init__(self, path: Path, method: str) -> None:
        self.raw = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self.raw.execute("pragma journal_mode = wal")
        self.method = method
        self.deadline = 0.0
        self.raw.set_progress_handler(lambda: time.monotonic() > self.deadline, 10_000)

    async def run(self, text: str) -> Outcome:
        self.deadline = time.monotonic() + LIMIT
        try:
            cursor = self.raw.execute(text)
            rows = cursor.fetchall()
            if self.method == "fetch_all":
                return of_rows(rows)
            return of_count(self._changed(text, cursor.rowcount))
        except Exception as error:
            if time.monotonic() > self.deadline:
                return Outcome("hung", f"for {LIMIT:g} s")
            return of_error(error)

    def _changed(self, text: str, count: int) -> int:
        """The module does not count behind WITH, but SQLite does."""
        if count < 0 and CHANGING.match(text):
            count = self.raw.execute("select changes()").fetchone()[0]
        return max(count, 0)

    async def close(self) -> None:
        self.raw.close()


def _affected(status: str | None) -> int:
    """The number in a command tag of what changes rows."""
    word, _, number = (status or "").rpartition(" ")
    changing = ("INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "MOVE")
    return int(number) if word.split(" ")[0] in changing and number.isdigit() else 0


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()
