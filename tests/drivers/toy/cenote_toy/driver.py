"""The driver of the toy database, which is SQLite behind another language."""

import re
import sqlite3
from typing import Any

from cenote.sql.driver import Driver, DriverConnection, RowCursor
from cenote.sql.parsing.placeholders import PlaceholderStyle
from cenote.sql.parsing.tokens import tokens
from cenote.sql.rows import make_rows

from .dialect import TOY

ALTER_SESSION = re.compile(r"ALTER SESSION SET (\w+) = (\w+)", re.IGNORECASE)
SHOW = re.compile(r"SHOW (\w+)", re.IGNORECASE)
SQLITE_HAS = {
    "START WORK": "BEGIN IMMEDIATE",
    "COMMIT WORK": "COMMIT",
    "ROLLBACK WORK": "ROLLBACK",
}


class ToyError(Exception):
    """The toy database does not know the statement."""


class ToyConnection(DriverConnection):
    __slots__ = ("sent", "settings")

    dialect = TOY

    def __init__(self, raw: sqlite3.Connection, sent: list[str]) -> None:
        super().__init__(raw)
        self.sent = sent  # every statement of every connection of the driver
        self.settings: dict[str, str] = {}  # of the session

    def _run(self, text: str, arguments: Any) -> sqlite3.Cursor:
        self.sent.append(text)
        return self.raw.execute(translated(text), arguments or ())

    async def execute(self, text: str, arguments: Any) -> int:
        if found := ALTER_SESSION.fullmatch(text):
            self.sent.append(text)
            self.settings[found[1]] = found[2]
            return 0
        return max(self._run(text, arguments).rowcount, 0)

    async def fetch_all(self, text: str, arguments: Any) -> list[Any]:
        if found := SHOW.fullmatch(text):
            self.sent.append(text)
            return make_rows(["setting"], [(self.settings.get(found[1]),)])
        return named(self._run(text, arguments), None)

    async def fetch_one(self, text: str, arguments: Any) -> Any:
        return next(iter(await self.fetch_all(text, arguments)), None)

    async def fetch_val(self, text: str, arguments: Any) -> Any:
        row = await self.fetch_one(text, arguments)
        return None if row is None else row[0]

    async def execute_many(self, text: str, arguments: Any) -> None:
        async def run_each() -> None:
            for each in arguments:
                self._run(text, each)

        await self.atomically(run_each)

    async def stream(self, text: str, arguments: Any, keyword: str, *, alone: bool) -> RowCursor:
        return ToyCursor(self._run(text, arguments))

    @property
    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    async def reset(self) -> bool:
        self.sent.append("(reset)")
        self.settings.clear()
        return True

    async def ping(self) -> None:
        self._run("SELECT 1", None)

    async def close(self) -> None:
        self.terminate()

    def terminate(self) -> None:
        self.raw.close()


class ToyCursor(RowCursor):
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.cursor = cursor

    async def fetch(self, count: int) -> list[Any]:
        return named(self.cursor, count)

    async def close(self) -> None:
        self.cursor.close()


class ToyDriver(Driver):
    connection_class = ToyConnection
    style = PlaceholderStyle("&1")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.sent: list[str] = []

    async def connect(self, password: Any) -> ToyConnection:
        raw = sqlite3.connect(f"/{self.config.target.database}", isolation_level=None)
        return ToyConnection(raw, self.sent)

    def is_disconnect(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error)


def translated(text: str) -> str:
    """The same for SQLite, which knows neither the quotes nor the placeholders of the toy."""
    if text.startswith(("RELEASE", "BEGIN", "ROLLBACK TO")) or text in ("COMMIT", "ROLLBACK"):
        raise ToyError(f"unknown statement: {text}")
    if text in SQLITE_HAS:
        return SQLITE_HAS[text]
    parts, rest = [], 0
    for kind, start, end in tokens(text, TOY):
        token = text[start:end]
        if kind == "comment":
            token = " "
        elif kind == "own":
            token = f"?{token[1:]}"
        elif kind == "string" and token[0] in "qQ":
            token = "'" + token[3:-2].replace("'", "''") + "'"
        parts += (text[rest:start], token)
        rest = end
    return "".join([*parts, text[rest:]]).replace("ROLLBACK WORK TO", "ROLLBACK TO")


def named(cursor: sqlite3.Cursor, count: int | None) -> list[Any]:
    if cursor.description is None:
        return []
    rows = cursor.fetchall() if count is None else cursor.fetchmany(count)
    return make_rows([column[0] for column in cursor.description], rows)
