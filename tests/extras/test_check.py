"""`python -m cenote check URL`, on real servers; and the command line without a command."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cenote.__main__ import main
from tests.support.backends import Backend
from tests.support.faults import with_postgresql, with_server
from tests.support.limited import LIMIT, limited
from tests.support.servers import PASSWORD, PgBouncer, PostgresServer

pytestmark = [pytest.mark.own_loop, pytest.mark.once]

LIBRARY = {
    "sqlite": "sqlite3", "asyncpg": "asyncpg", "psycopg": "psycopg", "mysql": "asyncmy",
}  # fmt: skip
SERVER = {
    "sqlite": "SQLite 3", "asyncpg": "PostgreSQL 1", "psycopg": "PostgreSQL 1",
    "mysql": "(MariaDB|MySQL) [0-9]",
}  # fmt: skip


def test_it_says_what_answers(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", backend.url]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert PASSWORD not in out
    found = dict(re.split("  +", line, maxsplit=1) for line in out.splitlines()[:-1])
    assert list(found) == ["database", "driver", "server", "TLS", "round trip"]
    assert re.match(rf"{LIBRARY[backend.name]} \d", found["driver"])
    assert re.match(SERVER[backend.name], found["server"])
    assert re.match("no", found["TLS"])
    assert re.fullmatch(r"[\d.]+ m?s \(the fastest of 5\)", found["round trip"])
    assert out.endswith("\nok\n")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_it_names_protocol_and_cipher(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psycopg" if "psycopg" in scheme else "asyncpg")
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    with PostgresServer(tls=True) as server:
        url = server.tcp_url().replace("postgresql:", f"{scheme}:")
        assert main(["check", f"{url}?sslmode=require"]) == 0
    assert re.search(r"^TLS +TLSv1\.\d, TLS_\w+$", capsys.readouterr().out, re.MULTILINE)


@with_server
def test_a_failure_is_one_line_and_status_one(backend: Backend) -> None:
    url = backend.url.replace("//app:", "//nobody:")
    command = [sys.executable, "-m", "cenote", "check", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("cenote check: database ")
    assert "user 'nobody' is refused. Check the user, the password and their rights" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


async def failure(capsys: pytest.CaptureFixture[str], url: str, *more: str) -> str:
    """The one line that it says, without its head."""
    assert await asyncio.to_thread(main, ["check", url, *more]) == 1
    out, err = capsys.readouterr()
    assert PASSWORD not in out + err
    assert not out.endswith("ok\n")
    (line,) = err.splitlines()
    return line.removeprefix("cenote check: ")


def with_password(url: str, password: str) -> str:
    return re.sub(r"//app:[^@]*@", f"//app:{password}@", url)


FAILURES: dict[str, tuple[Callable[[Backend, str], str], str]] = {
    "password": (
        lambda backend, _: with_password(backend.url, "wr0ng"),
        "user 'app' is refused. Check the user, the password and their rights (",
    ),
    "nobody": (
        lambda backend, port: backend.url_through("127.0.0.1", int(port)),
        "nothing listens there. Start the server, or correct host and port in the URL (",
    ),
    "host": (
        lambda backend, _: backend.url_through("no-such-host.invalid", 5),
        "the name of the host is not known. Correct it in the URL (",
    ),
    "TLS": (
        lambda backend, _: f"{backend.url}?sslmode=require",
        "TLS failed. Check sslmode and the certificates on both sides (",
    ),
    "database": (
        lambda backend, _: backend.url.removesuffix("app") + "nosuch",
        # MySQL says so only to those who have rights on it.
        r"there is no such database. Create it, or correct its name in the URL (|is refused. Check",
    ),
}


@with_server
@pytest.mark.parametrize("case", FAILURES)
async def test_every_failure_has_its_remedy(
    backend: Backend, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_url, said = FAILURES[case]
    with socket.socket() as taken:  # a port on which nobody listens
        taken.bind(("127.0.0.1", 0))
        line = await failure(capsys, make_url(backend, str(taken.getsockname()[1])))
    assert line.startswith("database ")
    assert " cannot connect to host '" in line
    assert any(each in line for each in said.split("|"))


@with_server
async def test_a_server_that_is_silent_is_named(
    backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = backend.url_through("127.0.0.1", silent.getsockname()[1])
        line = await failure(capsys, url, "--timeout=0.2")
    assert "no connection within 0.2 s (create_timeout). Check host and port, whether" in line


@with_server
async def test_a_server_that_is_full_is_named(
    backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    async with limited(backend) as url, backend.database(url, min_size=LIMIT) as db:
        await db.open()
        line = await failure(capsys, url, "--timeout=0.2")
    assert ": the server takes no more connections (" in line
    assert line.endswith(
        "Raise the limit of the server, or lower max_size in the programs that share it."
    )


@with_postgresql
async def test_a_pooler_without_its_server_is_named(
    backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := PgBouncer.missing():
        pytest.skip(reason)
    with PostgresServer() as server, PgBouncer(server) as pooler:
        url = pooler.tcp_url().replace("postgresql:", f"{backend.url.partition(':')[0]}:")
        assert await asyncio.to_thread(main, ["check", url]) == 0
        capsys.readouterr()
        missing = await failure(capsys, url.removesuffix("app") + "nosuch")
        assert "there is no such database. Create it, or correct its name" in missing
        server.stop()
        # It takes the connection, and fails at the first statement or not at all.
        line = await failure(capsys, url, "--timeout=2")
        assert line.endswith("heck the server behind it.") or "behind it (" in line
        assert "pooler" in line


def test_a_file_that_is_no_database_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("to do\n" * 1000)
    assert main(["check", f"sqlite:///{path}"]) == 1
    said = "that file is no SQLite database. Name another file in the URL ("
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "url must look like scheme://user:password@host:port/database"),
        ("oracle://a:hunter2@b/c", "url has the unknown scheme 'oracle'"),
        ("sqlite:////nowhere/at/all.db", "the directory '/nowhere/at' does not exist"),
        ("sqlite:///a.db?x=1", "url has the unknown option 'x'"),
    ],
)
def test_bad_urls_are_explained(
    url: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["check", url]) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert "hunter2" not in out + err


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_a_bad_timeout_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "sqlite:///:memory:", f"--timeout={value}"])
    assert caught.value.code == 2
    assert "must be a number of seconds above 0" in capsys.readouterr().err


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "check" in out
    assert "demo" in out
