"""Passwords: the ways to give one, and that none is ever shown."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

import cenote
import cenote.drivers
from tests.support.backends import Backend
from tests.support.faults import told, with_server
from tests.support.kit import outcome, recorded, start
from tests.support.servers import PASSWORD, MariaDBServer

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

WRONG = "wr0ng/pa:ss@é€"  # what must be encoded, and what is not Latin-1
SQLITE = "sqlite:///:memory:"


def with_password(backend: Backend, password: str | None) -> str:
    """The URL with another password, or with none."""
    mine = f":{quote(PASSWORD, safe='')}@"
    assert mine in backend.url
    return backend.url.replace(mine, "@" if password is None else f":{quote(password, safe='')}@")


def superuser(backend: Backend) -> str:
    """A URL for the one who may do everything, on the server's socket."""
    if isinstance(backend.server, MariaDBServer):
        return f"mysql://root@/app?unix_socket={quote(str(backend.server.socket_path), safe='')}"
    return str(backend.server.url).replace("postgresql:", f"{backend.url.partition(':')[0]}:")


def logged(caplog: pytest.LogCaptureFixture) -> str:
    records = [f"{record.getMessage()} {record.args!r}" for record in caplog.records]
    return "\n".join([caplog.text, *records])


def as_string(password: str) -> Any:
    return password


def as_function(password: str) -> Any:
    return lambda: password


def as_coroutine(password: str) -> Any:
    async def ask() -> str:
        await asyncio.sleep(0)
        return password

    return ask


def as_awaitable(password: str) -> Any:
    return lambda: as_coroutine(password)()


KINDS = [as_string, as_function, as_coroutine, as_awaitable]


@with_server
@pytest.mark.parametrize("kind", KINDS)
async def test_ways_to_give_a_password(backend: Backend, kind: Callable[[str], Any]) -> None:
    for url in (with_password(backend, None), with_password(backend, WRONG)):
        async with backend.database(url, password=kind(PASSWORD)) as db:
            assert await db.fetch_val("select 1") == 1


@with_server
async def test_a_password_beyond_ascii(backend: Backend) -> None:
    user = f"u_{uuid4().hex[:8]}"
    name, secret = (
        (user, "password") if backend.name != "mysql" else (f"{user}@'%'", "identified by")
    )
    async with backend.database(superuser(backend)) as root:
        await root.execute(f"create user {name} {secret} '{WRONG}'")
        try:
            url = with_password(backend, WRONG).replace("//app:", f"//{user}:").rpartition("/")[0]
            url += "/app" if backend.name != "mysql" else "/"
            async with backend.database(url) as db:
                query = "select current_user" + ("()" if backend.name == "mysql" else "")
                assert user in await db.fetch_val(query)
        finally:
            await root.execute(f"drop user {name}")


@with_server
async def test_the_password_is_asked_for_each_connection(backend: Backend) -> None:
    asked: list[str] = []

    def token() -> str:
        asked.append(PASSWORD if len(asked) != 1 else WRONG)
        return asked[-1]

    async with backend.database(with_password(backend, None), password=token) as db:
        assert asked == []
        for _ in range(3):
            await db.fetch_val("select 1")
        assert len(asked) == 1
        await db.pool.retire()
        with pytest.raises(Exception, match=r"(?i)password|denied"):
            await db.fetch_val("select 1")
        assert asked == [PASSWORD, WRONG]
        assert await db.fetch_val("select 1") == 1  # the third one is right again
        assert len(asked) == 3


@with_server
@pytest.mark.parametrize("value", [None, b"hunter2", 5])
async def test_a_password_function_that_gives_something_else(backend: Backend, value: Any) -> None:
    async with backend.database(password=lambda: value) as db:
        kind = type(value).__name__
        with pytest.raises(cenote.ConnectError, match="function given as password failed") as e:
            await db.fetch_val("select 1")
        assert isinstance(e.value.__cause__, TypeError)
        assert f"must return a string, not {kind}" in str(e.value)
        assert "hunter2" not in told(e.value)


@with_server
async def test_a_password_function_that_raises(backend: Backend) -> None:
    async def vault() -> str:
        raise LookupError("the vault is closed")

    async with backend.database(password=vault) as db:
        for _ in range(2):
            with pytest.raises(cenote.ConnectError, match="the vault is closed") as caught:
                await db.fetch_val("select 1")
            assert isinstance(caught.value.__cause__, LookupError)


async def test_sqlite_has_no_password() -> None:
    db = cenote.Database(SQLITE, password="hunter2")
    with pytest.raises(cenote.ConnectError, match="SQLite has no users") as caught:
        await db.fetch_val("select 1")
    assert "hunter2" not in told(caught.value)
    await db.close()


@with_server
@pytest.mark.parametrize("given_as", ["url", *KINDS])
@pytest.mark.parametrize("password", [PASSWORD, WRONG], ids=["right", "wrong"])
async def test_passwords_are_never_shown(
    backend: Backend, given_as: Any, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if given_as == "url":
        url, options = with_password(backend, password), {}
    else:
        url, options = with_password(backend, None), {"password": given_as(password)}
    shown: list[str] = []
    async with backend.database(url, max_size=1, **options) as db:
        shown += [repr(db), str(db), repr(db._driver.config), repr(vars(db))]
        events = recorded(db.pool)
        if password == PASSWORD:
            await db.begin()
            shown += [repr(db.bound_connection), repr(db.pool.holders())]
            full = await outcome(start(starve(db)))
            assert isinstance(full, cenote.AcquireTimeoutError)
            shown += [told(full), repr(full.holders)]
            failed = await outcome(db.execute("selct 1"))
            await db.rollback()
        else:
            failed = await outcome(db.fetch_val("select 1"))
            again = await outcome(db.open())
            shown.append(told(again if isinstance(again, BaseException) else None))
        assert isinstance(failed, Exception)
        shown += [told(failed), repr(db), repr(db.pool), repr(db.pool.stats())]
    assert len(events) > 1
    shown += [f"{event!r} {event.resource!r} {told(event.error)}" for event in events]
    shown += [repr(getattr(event.resource, "raw", None)) for event in events]
    shown.append(logged(caplog))
    as_bytes = repr(password.encode())[2:-1]
    for secret in (password, quote(password, safe=""), as_bytes):
        for text in shown:
            assert secret not in text


async def starve(db: Any) -> None:
    await db.pool.acquire(timeout=0.01)


@with_server
async def test_a_server_that_is_not_there_shows_no_password(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        url = backend.url_through("127.0.0.1", dead.getsockname()[1])
        async with backend.database(url) as db:
            for use in (db.open, lambda: db.fetch_val("select 1"), db.begin):
                shown = told(await outcome(use()))
                for secret in (PASSWORD, quote(PASSWORD, safe="")):
                    assert secret not in shown
                    assert secret not in logged(caplog)
