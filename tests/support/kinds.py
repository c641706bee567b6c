"""Kinds of values, and the declared types of columns that give them back, on every database.

    python -m tests.support.kinds

writes them into the table of `docs/types.md`, which `tests/sql/test_values.py` runs.
"""

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.backends import Backend

PAGE = Path(__file__).parents[2] / "docs/types.md"
BEGIN, END = "<!-- table of types: begin -->\n", "<!-- table of types: end -->\n"

HEAD = """\
| Python | SQLite | PostgreSQL | MariaDB, MySQL |
|---|---|---|---|"""

PARIS = dt.timezone(dt.timedelta(hours=2))
ID = UUID("12345678-9abc-4def-8123-456789abcdef")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


@dataclass(frozen=True)
class Kind:
    """A type of Python, some values of it, and what to declare a column as."""

    name: str
    values: tuple[Any, ...]
    sqlite: str
    postgresql: str
    mysql: str
    back: str = ""  # the type that comes back, if it is another one
    mysql_back: str = ""  # the same, of MySQL alone

    def declared(self, backend: Backend) -> str:
        """The type of a column on this database."""
        if backend.name == "sqlite":
            return self.sqlite
        if backend.name == "mysql":
            either, _, of_mysql = self.mysql.partition(" | ")
            return either if backend.is_mariadb or not of_mysql else of_mysql
        return self.postgresql

    def expected(self, value: Any, backend: Backend) -> Any:
        """What is to come back."""
        if isinstance(value, enum.Enum):
            return value.value
        if backend.name == "mysql" and isinstance(value, dt.time):
            return dt.datetime.combine(dt.date.min, value) - dt.datetime.min
        if backend.name == "mysql" and isinstance(value, UUID) and not backend.is_mariadb:
            return str(value)
        return value

    def line(self) -> str:
        """The row of the table on the page."""
        mysql = f"`{self.mysql.replace(' | ', '` or `')}`"
        if self.mysql_back:
            mysql += f", as {self.mysql_back}"
        name = f"{self.name}, as {self.back}" if self.back else self.name
        return f"| {name} | `{self.sqlite}` | `{self.postgresql}` | {mysql} |"


KINDS = [
    Kind("bool", (True, False), "boolean", "boolean", "boolean"),
    Kind("int", (0, -7, 2**62), "integer", "bigint", "bigint"),
    Kind("float", (0.1, -1e300), "real", "double precision", "double"),
    Kind("str", ("", "Ada", "\u00e9\U0001f600 '?%s:a"), "text", "text", "text"),
    Kind("bytes", (b"", b"\0\xff'"), "blob", "bytea", "blob"),
    Kind(
        "Decimal",
        (
            Decimal("1.5"),
            Decimal("-12345678901234567890.123456789"),
            Decimal("0.1"),
            Decimal(10) ** 18,
        ),
        "decimal",
        "numeric",
        "decimal(40, 10)",
    ),
    Kind("date", (dt.date(2024, 2, 29), dt.date(1000, 1, 1)), "date", "date", "date"),
    Kind(
        "time", (dt.time(1, 2, 3, 4), dt.time(0)), "time", "time", "time(6)", mysql_back="timedelta"
    ),
    Kind(
        "datetime",
        (dt.datetime(2024, 2, 29, 1, 2, 3, 4), dt.datetime(2024, 1, 1)),
        "timestamp",
        "timestamp",
        "datetime(6)",
    ),
    Kind(
        "datetime with a time zone",
        (dt.datetime(2024, 2, 29, 1, 2, 3, 4, PARIS), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        "timestamptz",
        "timestamptz",
        "timestamp(6)",
    ),
    Kind(
        "timedelta",
        (dt.timedelta(days=-3, hours=5, microseconds=7), dt.timedelta(0)),
        "interval",
        "interval",
        "time(6)",
    ),
    Kind("UUID", (ID,), "uuid", "uuid", "uuid | char(36)", mysql_back="str by MySQL"),
    Kind("Enum", (Color.RED,), "text", "text", "varchar(20)", back="its value"),
    Kind("IntEnum", (Level.HIGH,), "integer", "integer", "integer", back="its value"),
    Kind("StrEnum", (Word.YES,), "text", "text", "varchar(20)", back="its value"),
    Kind("dict", ({}, {"a": [1, None, "\u00e9"], "b": {"c": 1.5}}), "json", "jsonb", "json"),
    Kind("list", ([], [1, "a", {"b": None}]), "json", "jsonb", "json"),
    Kind("dict in its order", ({"b": 1, "a": [True]},), "json", "json", "json"),
]


def main() -> None:
    """Write the table into the page."""
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [HEAD, *(kind.line() for kind in KINDS)]
    PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(lines)}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
