"""What is said about mistakes that the drivers do not explain: notes, errors and a warning."""

import asyncio
import gc
import socket
import traceback
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.servers import PASSWORD

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

SERVERS = ["asyncpg", "psycopg", "mysql"]
served = pytest.mark.parametrize("backend", SERVERS, indirect=True)


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


async def failure(url: str, **options: Any) -> BaseException:
    """The error of the first statement."""
    db = cenote.Database(url, strategy=None, **options)
    try:
        with pytest.raises(Exception) as caught:
            await db.execute("select 1")
    finally:
        await db.close()
    shown = "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in shown
    assert quote(PASSWORD, safe="") not in shown
    return caught.value


def elsewhere(backend: Backend, place: str) -> str:
    return backend.url.replace(f"@{backend.server.host}:{backend.server.port}/", f"@{place}/")


@served
async def test_an_unknown_host_is_named(backend: Backend) -> None:
    error = await failure(elsewhere(backend, "no-such-host.invalid:4711"))
    assert notes(error) == [
        "while connecting to host 'no-such-host.invalid', port 4711, database 'app': the name of "
        "the host is not known. Correct it in the URL."
    ]


@served
async def test_a_port_where_nobody_listens_is_named(backend: Backend) -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        error = await failure(elsewhere(backend, f"127.0.0.1:{port}"))
    assert notes(error) == [
        f"while connecting to host '127.0.0.1', port {port}, database 'app': nothing listens "
        f"there. Start the server, or correct host and port in the URL."
    ]


@served
async def test_a_wrong_user_or_database_is_named(backend: Backend) -> None:
    place = f"while connecting to host '{backend.server.host}', port {backend.server.port}"
    error = await failure(backend.url.replace("//app:", "//nobody:"))
    assert notes(error) == [
        f"{place}, database 'app': user 'nobody' is refused. Check the user, the password and "
        f"their rights."
    ]
    error = await failure(backend.url[: -len("app")] + "nosuch")
    assert len(notes(error)) == 1
    assert notes(error)[0].startswith(f"{place}, database 'nosuch': ")
    assert "no such database" in notes(error)[0] or "is refused" in notes(error)[0]  # as in MySQL


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.db"
    assert notes(await failure(f"sqlite:///{path}")) == [
        f"while connecting to '{path}': the directory '{path.parent}' does not exist. Create it, "
        f"or correct the URL."
    ]
    (tmp_path / "directory").mkdir()
    (note,) = notes(await failure(f"sqlite:///{tmp_path}/directory"))
    assert note.endswith("/directory': that is a directory. Name a file in the URL.")
    (note,) = notes(await failure(f"sqlite:///{tmp_path}/a.db?mode=ro"))
    assert "cannot be opened or made" in note


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_the_command_timeout_is_named(backend: Backend) -> None:
    for options in (
        {"url": f"{backend.url}?command_timeout=0.05"},
        {"connect_args": {"command_timeout": 0.05}},
    ):
        async with backend.database(**options) as db:  # type: ignore[arg-type]
            for slow in (db.execute(backend.slow), db.fetch_all(backend.slow)):
                with pytest.raises(TimeoutError) as caught:
                    await slow
                (note,) = notes(caught.value)
                assert note.startswith("the statement took longer than asyncpg's command_timeout")
                assert "(0.05 s)" in note


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
async def test_a_message_that_is_too_long_names_the_limit(backend: Backend) -> None:
    driver = cenote.Database(backend.url)._driver
    from asyncmy.errors import InternalError

    hint = driver.hint(InternalError("Packet sequence number wrong - got 2 expected 7"))
    assert hint is not None
    assert "max_allowed_packet" in hint
    assert driver.hint(InternalError("another")) is None


async def test_the_pool_outside_of_a_loop_says_where_it_is() -> None:
    db = cenote.Database("sqlite:///:memory:", name="shop")
    with pytest.raises(RuntimeError, match=r"database shop: .*none is running here.*asyncio\.run"):
        await asyncio.to_thread(lambda: db.pool)
    assert db.pool is not None
    await db.close()


def forget(transaction: object) -> None:
    del transaction
    gc.collect()


async def test_a_transaction_that_nobody_enters_is_warned_of(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.warns(RuntimeWarning, match=r"db\.transaction\(\) was never entered"):
            forget(db.transaction())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with db.transaction():
                pass
            await db.begin()
            await db.rollback()
            with pytest.raises(ValueError, match="isolation"):
                db.transaction(isolation="none")
            closed = cenote.Database(backend.url)
            await closed.close()
            with pytest.raises(cenote.PoolClosedError):
                async with closed.transaction():
                    pass
            gc.collect()


@pytest.mark.parametrize(
    ("url", "name", "near"),
    [
        ("sqlite:///:memory:", "timout", "timeout"),
        ("postgresql://app@localhost/app", "comand_timeout", "command_timeout"),
        ("postgresql+psycopg://app@localhost/app", "aplication_name", "application_name"),
        ("mysql://app@localhost/app", "read_timout", "read_timeout"),
    ],
)
def test_arguments_that_the_driver_does_not_know_are_refused(
    url: str, name: str, near: str
) -> None:
    for module in ("asyncpg", "psycopg", "asyncmy"):
        pytest.importorskip(module)
    with pytest.raises(ValueError, match=f"'{name}' \\(did you mean {near}\\?\\)"):
        cenote.Database(url, connect_args={name: 1})
    with pytest.raises(ValueError, match="unknown argument 'foo'; the driver's connect"):
        cenote.Database(url, connect_args={"foo": 1})
    cenote.Database(url, connect_args={near: 1})
