"""`python -m cenote fleet` and `fleet check URL`, on a file and on real servers."""

import asyncio
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cenote
from cenote.__main__ import main
from cenote.extras.fleet_capacity import Capacity, Sessions, lines
from cenote.extras.fleet_table import age, table
from cenote.fleet.fleet import Member
from tests.support.backends import Backend
from tests.support.servers import PASSWORD, PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.own_loop, pytest.mark.once]

Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *arguments: str) -> dict[str, str]:
    """What the command has printed, by the first word of each line."""
    assert main(["fleet", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert PASSWORD not in out
    return dict(re.split("  +", line, maxsplit=1) for line in out.splitlines())


# -- check -----------------------------------------------------------------------------------------


@pytest.fixture
def superuser(postgres_server: PostgresServer) -> Iterator[Callable[[str], None]]:
    """Run statements as the superuser; what they have changed is undone."""

    def run(*statements: str) -> None:
        async def all_of_them() -> None:
            async with cenote.Database(postgres_server.url, pooled=True, max_size=1) as db:
                for statement in statements:
                    await db.execute(statement)

        asyncio.run(all_of_them())

    yield run
    run("alter role app connection limit -1", "alter database app connection limit -1")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_check_says_what_postgresql_has(
    postgres_server: PostgresServer, capsys: Capture, driver: str
) -> None:
    pytest.importorskip(driver)
    url = postgres_server.tcp_url().replace("postgresql:", f"postgresql+{driver}:")
    found = output(capsys, "check", url)
    assert list(found) == [
        "server", "limit", "reserve", "role", "database", "strangers", "fleet", "budget",
    ]  # fmt: skip
    assert found["server"].startswith("PostgreSQL 1")
    assert found["limit"] == "200 (max_connections)"
    assert found["reserve"].startswith("3 (superuser_reserved_connections)")
    assert found["role"] == "app: no limit"
    assert found["database"] == "app: no limit"
    assert "database -" not in found["strangers"]  # the server's own processes are none
    budget, why = found["budget"].split(": ", 1)
    assert 150 <= int(budget) <= 178
    assert re.fullmatch(r"the server has room for \d+; \d+ are kept for strangers to come", why)


@pytest.mark.parametrize(
    ("statement", "said", "why"),
    [
        ("alter role app connection limit 20", "app: limit 20", "role app has room for 20"),
        ("alter database app connection limit 30", "app: limit 30", "database app has room for"),
    ],
)
def test_the_narrowest_limit_decides(
    postgres_server: PostgresServer,
    superuser: Callable[[str], None],
    capsys: Capture,
    statement: str,
    said: str,
    why: str,
) -> None:
    superuser(statement)
    found = output(capsys, "check", postgres_server.tcp_url())
    assert said in (found["role"], found["database"])
    assert why in found["budget"]
    assert int(found["budget"].split(":")[0]) <= 27


def test_strangers_are_named_and_left_room(
    postgres_server: PostgresServer, capsys: Capture
) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def with_strangers() -> subprocess.CompletedProcess[str]:
        settings = {"application_name": "nightly report"}
        strangers = [
            await asyncpg.connect(postgres_server.url, server_settings=settings) for _ in range(3)
        ]
        ours = await asyncpg.connect(postgres_server.tcp_url())
        try:
            command = [sys.executable, "-m", "cenote", "fleet", "check", postgres_server.tcp_url()]
            return await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60
            )
        finally:
            for each in [*strangers, ours]:
                await each.close()

    done = asyncio.run(with_strangers())
    assert done.returncode == 0
    assert "3 of 'nightly report' (role postgres, database postgres)" in done.stdout
    found = dict(re.split("  +", line, maxsplit=1) for line in done.stdout.splitlines())
    assert int(found["strangers"].split(":")[0]) >= 3
    assert int(found["fleet"].split()[0]) >= 1
    room = re.search(r"room for (\d+)", found["budget"])
    assert room is not None
    assert int(room[1]) <= 194


def test_check_says_what_mysql_has(mysql: Backend, capsys: Capture) -> None:
    found = output(capsys, "check", mysql.url)
    assert re.match("(MariaDB|MySQL) ", found["server"])
    assert found["limit"] == "200 (max_connections)"
    assert found["reserve"] == "none"
    assert found["role"] == "app: no limit"
    assert 100 < int(found["budget"].split(":")[0]) <= 180


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["check", "sqlite:///a.db"],
            "sqlite has no limit of connections that a fleet could share",
        ),
        (["check", "redis://cache"], "url has the unknown scheme 'redis'"),
        (["check", "postgresql://app:hunter2@127.0.0.1:1/x"], "127.0.0.1:1"),
        (["oracle://app:hunter2@db/x"], "known are redis://"),
        (["--name=a b"], "name must be 1 to 64 letters"),
        (["--path=/nowhere/at/all"], "/nowhere/at/all"),
        (["--path=x", "redis://cache"], "path is for a fleet of one host"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_one(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    assert main(["fleet", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert "hunter2" not in err


@pytest.mark.parametrize("words", [["check"], ["check", "a", "b"], ["a", "b"]])
def test_wrong_words_are_refused(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fleet", *words])
    assert caught.value.code == 2
    assert "one URL" in capsys.readouterr().err


def capacity(**more: object) -> Capacity:
    given = {
        "role": "app", "database": "shop", "limit": 100, "reserve": (("superusers", 3),),
        "role_limit": None, "database_limit": None, "sessions": (),
    }  # fmt: skip
    return Capacity(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({}, 87),
        ({"sessions": (Sessions("app", "shop", "", 40),)}, 87),  # of the fleet itself
        ({"sessions": (Sessions("bi", "shop", "", 17),)}, 72),
        ({"unseen": 17}, 72),
        ({"role_limit": 20, "sessions": (Sessions("app", "other", "", 5),)}, 13),
        ({"database_limit": 20, "sessions": (Sessions("bi", "shop", "", 10),)}, 9),
        ({"limit": 4}, 0),
        ({"limit": 2}, 0),
    ],
)
def test_the_budget_is_what_strangers_leave(options: dict[str, object], budget: int) -> None:
    assert capacity(**options).budget() == budget


def test_no_room_is_said_with_the_remedy() -> None:
    found = dict(lines(capacity(limit=3, unseen=1)))
    assert found["budget"].startswith("0: the server has room for 0: raise that limit")
    assert found["strangers"] == "1: 1 that role app may not see"


# -- the table -------------------------------------------------------------------------------------


def test_the_table_shows_who_has_how_much() -> None:
    now = 1_000_000.0
    members = [
        Member("web-1", 17, ("shop", "reports"), 12, 9, "ACTIVE", now - 3700),
        Member("web-2", 4242, ("shop",), 3, 0, None, now - 5, silent=True),
    ]
    assert table("shop", members, now).splitlines() == [
        "fleet 'shop': 2 processes, 15 resources lent, 9 needed",
        "",
        "host   process  pools          held  need  breaker      since",
        "web-1       17  shop, reports    12     9  ACTIVE   1 h 1 min",
        "web-2     4242  shop              3     0  silent         5 s",
    ]
    assert table("shop", [], now) == "fleet 'shop': no process takes part now"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7200, "2 h"), (90_061, "1 d 1 h")],
)
def test_an_age_has_its_two_largest_units(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


async def test_without_a_terminal_the_table_is_printed_once(tmp_path: Path) -> None:
    path = str(tmp_path / "fleet")
    fleet = cenote.Fleet(budget=30, path=path)
    async with cenote.Pool(object, name="shop", max_size=7, fleet=fleet) as pool:
        await pool.release(await pool.acquire())
        command = [sys.executable, "-m", "cenote", "fleet", f"--path={path}"]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, "")
    head, empty, columns, row = done.stdout.splitlines()
    assert head.startswith("fleet 'default': 1 process, 7 resources lent, ")
    assert (empty, columns.split()[0]) == ("", "host")
    assert row.split()[2:4] == ["shop", "7"]


async def test_on_a_terminal_it_is_drawn_again_and_again(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    from cenote.extras.fleet_table import _show

    page = Terminal()
    fleet = cenote.Fleet(budget=30, path=str(tmp_path / "fleet"))
    showing = asyncio.create_task(_show(fleet, page))
    await eventually(lambda: page.getvalue().count("\x1b[H") >= 2)
    assert "no process takes part now" in page.getvalue()
    showing.cancel()
    await asyncio.wait([showing])
