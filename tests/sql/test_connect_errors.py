"""What is raised when no connection can be made: `ConnectError`, on every driver and every way."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import cenote
from cenote.sql.connecting import connect_error
from cenote.sql.url import parse
from cenote.testing import FaultProxy
from tests.support import backends
from tests.support.backends import Backend
from tests.support.faults import (
    RAW,
    drivers_error,
    is_drivers_own,
    marked,
    outcome,
    told,
    uses,
    watching,
    with_postgresql,
    with_server,
)
from tests.support.servers import PASSWORD, PostgresServer

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that is taken, and on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port on which connections are taken, and never answered."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


async def failure(url: str, **options: Any) -> cenote.ConnectError:
    """The error of the first statement; it shows no password."""
    db = cenote.Database(url, name="shop", **options)
    try:
        with pytest.raises(cenote.ConnectError, match=r"^database shop: cannot connect to ") as e:
            await db.execute("select 1")
    finally:
        await db.close()
    error = e.value
    assert isinstance(error, ConnectionError)
    assert error.__cause__ is not None
    assert cenote.is_disconnect(error)
    shown = "".join(traceback.format_exception(error)) + told(error)
    assert PASSWORD not in shown
    assert quote(PASSWORD, safe="") not in shown
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error


def elsewhere(backend: Backend, place: str) -> str:
    return backend.url.replace(f"@{backend.server.host}:{backend.server.port}/", f"@{place}/")


@pytest.mark.parametrize("pooled", [True, False], ids=["pooled", "unpooled"])
async def test_every_way_of_use_raises_it(backend: Backend, pooled: bool, dead_port: int) -> None:
    url = "sqlite:////nowhere/at/all.db"
    if not backend.embedded:
        url = elsewhere(backend, f"127.0.0.1:{dead_port}")
    db = cenote.Database(url, pooled=pooled, strategy=None)
    ways = {**uses(db), "open": db.open, "many": lambda: db.execute_many("select ?", [[1]])}
    for name, use in ways.items():
        error = await outcome(use())
        assert isinstance(error, cenote.ConnectError), (name, error)
        assert is_drivers_own(error.__cause__), name
    await db.close()


@with_server
async def test_an_unknown_host_is_named(backend: Backend) -> None:
    error = await failure(elsewhere(backend, "no-such-host.invalid:4711"))
    assert str(error).startswith(
        "database shop: cannot connect to host 'no-such-host.invalid', port 4711, database 'app': "
        "the name of the host is not known. Correct it in the URL ("
    )


@with_server
async def test_a_port_where_nobody_listens_is_named(backend: Backend, dead_port: int) -> None:
    error = await failure(elsewhere(backend, f"127.0.0.1:{dead_port}"))
    assert str(error).startswith(
        f"database shop: cannot connect to host '127.0.0.1', port {dead_port}, database 'app': "
        f"nothing listens there. Start the server, or correct host and port in the URL ("
    )
    assert "\n" not in str(error)


@with_postgresql
async def test_several_hosts_are_all_named(backend: Backend, dead_port: int) -> None:
    error = await failure(elsewhere(backend, f"127.0.0.1:{dead_port},localhost:{dead_port}"))
    place = f"host '127.0.0.1', port {dead_port}, host 'localhost', port {dead_port}"
    assert f"cannot connect to {place}, database 'app': nothing listens there" in str(error)


@with_postgresql
@pytest.mark.parametrize("wanted", ["standby", "read-only"])
async def test_a_server_that_is_not_as_wanted_is_named(backend: Backend, wanted: str) -> None:
    error = await failure(f"{backend.url}?target_session_attrs={wanted}")
    assert "no server there is as target_session_attrs asks. Correct it, or name" in str(error)


@with_server
async def test_a_wrong_user_or_database_is_named(backend: Backend) -> None:
    place = f"host '{backend.server.host}', port {backend.server.port}"
    error = await failure(backend.url.replace("//app:", "//nobody:"))
    assert f"{place}, database 'app': user 'nobody' is refused. Check the user" in str(error)
    error = await failure(backend.url[: -len("app")] + "nosuch")
    assert f"{place}, database 'nosuch': " in str(error)
    assert "no such database" in str(error) or "is refused" in str(error)  # as in MySQL


@with_server
async def test_a_wrong_password_is_an_error_of_connecting(backend: Backend) -> None:
    error = await failure(backend.url, password="wr0ng-pass")
    assert "user 'app' is refused. Check the user, the password and their rights (" in str(error)
    assert "wr0ng-pass" not in told(error)
    codes = {"asyncpg": "28P01", "psycopg": None, "mysql": "28000"}  # psycopg says none
    assert cenote.sqlstate(error) == codes[backend.name]


@with_server
async def test_a_server_that_hangs_up_is_named(backend: Backend, proxy: FaultProxy) -> None:
    proxy.refuse()
    error = await failure(backend.url_through(proxy.host, proxy.port))
    assert f"port {proxy.port}, database 'app': the server has hung up. Check" in str(error)
    proxy.refuse(False)
    proxy.cut_reply_after(1)
    error = await failure(backend.url_through(proxy.host, proxy.port))
    assert "the server has hung up. Check that host and port are its own" in str(error)


@with_server
async def test_what_is_not_known_says_where_to_look(backend: Backend) -> None:
    target = parse(backend.url)
    error = connect_error("shop", target, RuntimeError("flux capacitor overheated."))
    assert "flux capacitor overheated. Check the URL and connect_args, and look" in str(error)


@with_server
async def test_a_server_without_tls_is_named(backend: Backend) -> None:
    error = await failure(f"{backend.url}?sslmode=require")
    assert "TLS failed. Check sslmode and the certificates on both sides (" in str(error)


@with_postgresql
async def test_a_certificate_that_is_not_there_is_named(backend: Backend) -> None:
    """asyncpg does not say which file it is; psycopg does, and asks the server first."""
    error = await failure(f"{backend.url}?sslmode=verify-full&sslrootcert=/no/ca.pem")
    if backend.name == "asyncpg":
        assert ": the file of sslrootcert=/no/ca.pem is not there. Correct the path" in str(error)
    else:
        assert "TLS failed. Check sslmode and the certificates" in str(error)
    said = 'root certificate file "/no/ca.pem" does not exist'
    error = connect_error("shop", parse(backend.url), RuntimeError(said))
    assert "TLS failed. Check sslmode and the certificates" in str(error)


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.db"
    assert str(await failure(f"sqlite:///{path}")) == (
        f"database shop: cannot connect to '{path}': the directory '{path.parent}' does not exist. "
        f"Create it, or correct the URL (OperationalError: unable to open database file)."
    )
    (tmp_path / "directory").mkdir()
    error = await failure(f"sqlite:///{tmp_path}/directory")
    assert "/directory': that is a directory. Name a file in the URL (" in str(error)
    assert "cannot be opened or made" in str(await failure(f"sqlite:///{tmp_path}/a.db?mode=ro"))


@with_server
async def test_the_time_limit_of_connecting_is_named(backend: Backend, silent_port: int) -> None:
    url = elsewhere(backend, f"127.0.0.1:{silent_port}")
    error = await failure(url, create_timeout=0.1)
    assert isinstance(error, TimeoutError)
    assert "no connection within 0.1 s (create_timeout). Check host and port" in str(error)


@pytest.fixture(scope="module")
def stopping() -> Iterator[PostgresServer]:
    """A server of one's own, which may be told to stop."""
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    with PostgresServer() as server:
        yield server


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_server_that_does_not_serve_now_is_named(
    stopping: PostgresServer, driver: str
) -> None:
    pytest.importorskip(driver)
    own = getattr(backends, driver)(stopping)
    async with own.database(max_size=1) as db:
        await db.begin()  # a session for which it waits
        pid = (stopping.directory / "data" / "postmaster.pid").read_text().split()[0]
        os.kill(int(pid), signal.SIGTERM)
        for _ in range(1000):
            error = await outcome(cenote.Database(own.url, strategy=None).fetch_val("select 1"))
            if error != 1:
                break
            await asyncio.sleep(0.01)
        assert isinstance(error, cenote.ConnectError)
        assert "starting up or shutting down. Try again in a moment (" in str(error)
        await db.rollback()
    await asyncio.to_thread(stopping.stop)
    await asyncio.to_thread(stopping.start)


# -- the functions of the user -------------------------------------------------------------------


async def test_an_error_of_on_connect_is_its_own(backend: Backend) -> None:
    def refuse(raw: object) -> None:
        raise KeyError("not today")

    async with backend.database(on_connect=refuse, name="shop") as db:
        with pytest.raises(KeyError) as caught:
            await db.fetch_val("select 1")
        assert caught.value.__notes__ == [
            "raised by on_connect, on a new connection of database shop"
        ]


async def test_wrong_sql_in_on_connect_is_its_own_error(backend: Backend) -> None:
    async def wrong(raw: Any) -> None:
        await RAW[backend.name](raw, "selct 1")

    async with backend.database(on_connect=wrong, name="shop") as db:
        with drivers_error() as caught:
            await db.fetch_val("select 1")
        assert not isinstance(caught.value, cenote.PoolError)
        assert not cenote.is_disconnect(caught.value)
        assert any("on_connect" in each for each in caught.value.__notes__)


@with_server
async def test_a_connection_lost_in_on_connect(backend: Backend) -> None:
    async def kill(raw: Any) -> None:
        session = backend.session.removeprefix("select ")
        text = backend.kill.format(session)
        await RAW[backend.name](raw, text.replace("kill", "kill /* me */"))

    async with backend.database(on_connect=kill) as db:
        error = await outcome(db.fetch_val("select 1"))
        assert isinstance(error, cenote.ConnectError), repr(error)
        assert is_drivers_own(error.__cause__)


async def test_an_on_connect_that_hangs(backend: Backend) -> None:
    async def hang(raw: object) -> None:
        await asyncio.Event().wait()

    error = await failure(backend.url, on_connect=hang, create_timeout=0.2)
    assert isinstance(error, TimeoutError)
    assert "whether on_connect ends" in str(error)


# -- is_disconnect() -----------------------------------------------------------------------------


@with_server
async def test_a_statement_cut_off_is_the_drivers_error(backend: Backend) -> None:
    slow, nonce = marked(backend.slow)
    async with backend.database() as db, watching(backend) as watcher:
        running = asyncio.create_task(db.execute(slow))
        await watcher.kill(await watcher.until_running(nonce))
        error = await outcome(running)
        assert is_drivers_own(error)
        assert not isinstance(error, cenote.PoolError)
        assert cenote.is_disconnect(error)


@with_server
async def test_a_transaction_cut_off_counts_as_disconnect(backend: Backend) -> None:
    async with backend.database() as db, watching(backend) as watcher:
        with pytest.raises(cenote.TransactionLostError) as caught:
            async with db.transaction():
                session = await db.fetch_val(backend.session)
                await watcher.kill(session)
                await watcher.until_gone(session)
                with drivers_error() as cut:
                    await db.execute("select 1")
                assert cenote.is_disconnect(cut.value)
        assert cenote.is_disconnect(caught.value)


async def test_errors_of_sql_are_no_disconnects(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (1, 'a')"
        await db.execute(insert)
        for text in ("selct 1", insert, "select * from nosuch"):
            with drivers_error() as caught:
                await db.execute(text)
            assert not cenote.is_disconnect(caught.value), text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("a"), False),
        (FileNotFoundError(2, "no"), False),
        (TimeoutError(), False),
        (TimeoutError(110, "Connection timed out"), True),
        (ConnectionResetError(), True),
        (BrokenPipeError(), True),
        (cenote.AcquireTimeoutError("full"), False),
        (cenote.ServiceUnavailableError("open"), False),
        (cenote.PoolClosedError("closed"), False),
        (cenote.TransactionLostError("no cause"), False),
    ],
)
def test_other_errors_and_what_they_are(error: Exception, expected: bool) -> None:
    assert cenote.is_disconnect(error) is expected
