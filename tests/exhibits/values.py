"""Hostile values, by every way into MySQL and MariaDB, in every sql_mode and charset: they come
back as they went in, or are refused before anything is sent.

    python -m tests.exhibits.values [--count 100000] [--seed 1] [--mysql PATH] [mariadb] [mysql]
"""

import argparse
import asyncio
import datetime
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import cenote
from tests.support.servers import MariaDBServer, MySQLServer

MODES = ("", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "ANSI")
CHARSETS = ("utf8mb4", "gbk", "big5", "sjis", "gb18030", "ujis", "euckr", "cp932", "latin1")
WAYS = ("cached", "uncached", "stream", "many", "prepared", "text", "text stream")
BATCH = 50  # values in one statement

# What breaks out of quotes somewhere, and characters whose second byte is a backslash or a quote.
PIECES = [
    "'", '"', "\\", "`", "''", "\\'", '\\"', "';--", "' or 1=1 -- ", "\\' or 1=1 #", "*/", "/*!",
    "?", "??", ":a", "%s", "%", "%%", "%(a)s", ";", "\0", "\n", "\r", "\x1a", "\t", "\x7f", "",
    "x", "0", " ", "$$", "é", "ß", "運", "許", "縗", "誠", "ソ", "表", "能", "〜", "😀", "\u202e",
    "\ud800", "\udcbf", "\udc27", "¥", "‾", "\ufeff", "\x85",
]  # fmt: skip
BYTES = [b"'", b"\\", b'"', b"\xbf'", b"\xbf\\", b"\x81\\", b"\x95\\", b"\0", b"\xff", b"\xe9'",
         b"\x81'", b"\xa1\\'", b"' or 1=1 -- ", b"%s", b"?", b""]  # fmt: skip
EDGES = [0, 1, -1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**64 - 1]


@dataclass
class Outcome:
    """What has become of the values."""

    returned: int = 0
    refused: int = 0  # before anything was sent, because the charset cannot say it


def make_value(dice: random.Random) -> Any:
    return dice.choice(MAKERS)(dice)


def make_text(dice: random.Random) -> str:
    return "".join(dice.choices(PIECES, k=dice.randrange(8)))


def make_bytes(dice: random.Random) -> bytes:
    return b"".join(dice.choices(BYTES, k=dice.randrange(6))) + dice.randbytes(dice.randrange(4))


def make_decimal(dice: random.Random) -> Decimal:
    digits = dice.randrange(1, 30)
    return Decimal(dice.randrange(-(10**digits), 10**digits)).scaleb(-dice.randrange(20))


def make_datetime(dice: random.Random) -> datetime.datetime:
    return datetime.datetime(1000, 1, 1) + datetime.timedelta(
        days=dice.randrange(3_000_000), microseconds=dice.randrange(86_400_000_000)
    )


MAKERS: list[Callable[[random.Random], Any]] = [
    lambda dice: None,
    lambda dice: dice.random() < 0.5,
    lambda dice: dice.choice(EDGES),
    lambda dice: dice.randrange(-(2**63), 2**64),
    lambda dice: dice.uniform(-1e300, 1e300) * 10.0 ** -dice.randrange(600),
    *[make_text] * 6,
    *[make_bytes] * 4,
    make_decimal,
    make_datetime,
    lambda dice: make_datetime(dice).date(),
    lambda dice: datetime.timedelta(
        microseconds=dice.randrange(-3_000_000_000_000, 3_000_000_000_000)
    ),
]


async def check(db: Any, way: str, values: list[Any]) -> None:
    """AssertionError if one comes back as another value."""
    # For MySQL, though not for MariaDB, a parameter alone is text.
    marks = ", ".join("cast(? as binary)" if isinstance(each, bytes) else "?" for each in values)
    found: Any
    if way == "many":
        found = await by_many(db, values)
    elif way == "prepared":
        async with await db.prepare(f"select {marks}") as statement:
            found = await statement.fetch_one(values)
    elif way == "stream":
        [found] = [row async for row in db.iterate(f"select {marks}", values)]
    elif way == "text":  # nobody can prepare two statements
        found = await db.fetch_one(f"select {marks}; select 1", values)
    elif way == "text stream":
        [found] = [row async for row in db.iterate(f"select {marks}; select 1", values)]
    else:
        found = await db.fetch_one(f"select {marks}", values)
    for sent, got in zip(values, found, strict=True):
        if isinstance(got, str):
            # The server has two backslashes in sjis, and gives the other one.
            got = got.replace("\N{FULLWIDTH REVERSE SOLIDUS}", "\\")
        assert got == sent, f"{way}: {sent!r} came back as {got!r}"
        if isinstance(sent, str | bytes):
            assert type(got) is type(sent), f"{way}: {sent!r} came back as {got!r}"


async def by_many(db: Any, values: list[Any]) -> list[Any]:
    """Through a table, whose columns say what they are."""
    async with db.transaction():
        columns = "id int, t longtext character set utf8mb4, b longblob, n decimal(65, 20)"
        await db.execute(f"create temporary table if not exists many ({columns})")
        await db.execute("delete from many")
        rows = []
        for number, value in enumerate(values):
            text = value if isinstance(value, str) else None
            data = value if isinstance(value, bytes) else None
            amount = value if type(value) is int or isinstance(value, Decimal) else None
            rows.append((number, text, data, amount))
        await db.execute_many("insert into many values (?, ?, ?, ?)", rows)
        found = await db.fetch_all("select t, b, n from many order by id")
        kept = [next((each for each in row if each is not None), None) for row in found]
        return [
            got if isinstance(sent, str | bytes | Decimal) or type(sent) is int else sent
            for sent, got in zip(values, kept, strict=True)
        ]


@asynccontextmanager
async def session(url: str, mode: str, charset: str, by: str) -> AsyncIterator[Any]:
    """A database whose connection has this mode and charset; `by`: the URL, or statements."""
    size = 0 if by == "uncached" else 100
    if by == "url":
        url = f"{url}?charset={charset}&sql_mode='{mode}'"
    async with cenote.Database(url, max_size=1, statement_cache_size=size) as db:
        if by != "url":
            await db.execute(f"set names {charset}")
            await db.execute(f"set sql_mode = '{mode}'")
        yield db


def sayable(value: Any, encoding: str) -> bool:
    """Whether the charset can say it."""
    if not isinstance(value, str):
        return True
    try:
        return value.encode(encoding).decode(encoding) == value
    except UnicodeError:
        return False


async def attack(url: str, count: int, seed: int) -> Outcome:
    """Send so many values; AssertionError at the first that does not come back."""
    dice = random.Random(seed)
    outcome = Outcome()
    known = await known_charsets(url)
    settings = [
        (mode, charset, by)
        for mode in MODES
        for charset in CHARSETS
        if charset in known
        for by in ("url", "statements", "uncached")
    ]
    each = -(-count // len(settings))
    for mode, charset, by in settings:
        try:
            async with session(url, mode, charset, by) as db:
                await attack_session(db, charset, each, dice, outcome)
        except AssertionError as error:
            raise AssertionError(f"{mode or 'no mode'}, {charset} by {by}: {error}") from error
    return outcome


async def attack_session(
    db: Any, charset: str, count: int, dice: random.Random, outcome: Outcome
) -> None:
    left = count
    while left > 0:
        values = [make_value(dice) for _ in range(min(left, BATCH))]
        left -= len(values)
        encoding = {"latin1": "cp1252"}.get(charset, charset.replace("utf8mb4", "utf8"))
        said = [value for value in values if sayable(value, encoding)]
        for value in values:
            if not sayable(value, encoding):
                await check_refused(db, dice.choice(WAYS), value)
                outcome.refused += 1
        await check(db, dice.choice(WAYS), said)
        outcome.returned += len(said)


async def check_refused(db: Any, way: str, value: str) -> None:
    try:
        await check(db, way, [value])
    except UnicodeEncodeError:
        return
    raise AssertionError(f"{way}: {value!r} was not refused")


async def known_charsets(url: str) -> set[str]:
    async with cenote.Database(url) as db:
        return {row[0] for row in await db.fetch_all("show character set")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="*", default=["mariadb", "mysql"])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--mysql", type=Path)
    options = parser.parse_args()
    MySQLServer.tree = options.mysql or MySQLServer.tree
    for name in options.servers:
        kind = {"mariadb": MariaDBServer, "mysql": MySQLServer}[name]
        if reason := kind.missing():
            sys.exit(f"cenote: {reason}")
        print(f"{name}: {options.count} values, seed {options.seed}", flush=True)
        with kind() as server:
            outcome = asyncio.run(attack(server.url, options.count, options.seed))
        print(f"{name}: {outcome.returned} came back, {outcome.refused} were refused")


if __name__ == "__main__":
    main()
