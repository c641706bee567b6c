"""The template of connections: its options, its URL, its password, and a copy for each of them."""

import asyncio
import contextlib
import logging
import math
import os
import pkgutil
import re
import socket
import sqlite3
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

import cenote
import cenote.drivers
from tests.support.backends import Backend, eventually
from tests.support.kit import outcome, recorded, start
from tests.support.proxy import Proxy
from tests.support.servers import PASSWORD, MariaDBServer, PostgresServer

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

WRONG = "wr0ng/pa:ss@é€"  # what must be encoded, and what is not Latin-1
SQLITE = "sqlite:///:memory:"
SERVERS = ["asyncpg", "psycopg", "mysql"]
CONNECTS = {
    "sqlite": "aiosqlite.connect",
    "asyncpg": "asyncpg.connect",
    "psycopg": "cenote.drivers.psycopg.Connection.connect",
    "mysql": "cenote.drivers.mysql.driver.Connection",
}
served = pytest.mark.parametrize("backend", SERVERS, indirect=True)
postgres = pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)


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


def told(error: BaseException | None) -> str:
    """All that an error says, together with those behind it, as text and as a traceback."""
    texts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts += [str(error), repr(error), *traceback.format_exception(error)]
        texts += [repr(vars(error)), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def logged(caplog: pytest.LogCaptureFixture) -> str:
    records = [f"{record.getMessage()} {record.args!r}" for record in caplog.records]
    return "\n".join([caplog.text, *records])


# -- the options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hook", ["factory", "destructor", "healthcheck", "before_acquire", "before_release"]
)
def test_the_hooks_are_the_databases_own(hook: str) -> None:
    with pytest.raises(TypeError, match=f"{hook}.*on_connect"):
        cenote.Database(SQLITE, **{hook: lambda *_: None})


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (TypeError, "on_connect", "set x"),
        (TypeError, "on_connect", 5),
        (TypeError, "password", 5),
        (TypeError, "password", b"bytes"),
        (ValueError, "password", "nu\0ll"),
        (ValueError, "password", "\ud800"),
        (ValueError, "reset", "sometimes"),
        (ValueError, "reset", ""),
        (TypeError, "reset", True),
        (TypeError, "reset", None),
        (ValueError, "child_tasks", "shared"),
        (TypeError, "child_tasks", None),
        (TypeError, "ping_after_idle", "30"),
        (TypeError, "ping_after_idle", None),
        (TypeError, "ping_after_idle", True),
        (ValueError, "ping_after_idle", -1),
        (ValueError, "ping_after_idle", math.nan),
        (TypeError, "statement_cache_size", 1.5),
        (TypeError, "statement_cache_size", True),
        (TypeError, "statement_cache_size", None),
        (ValueError, "statement_cache_size", -1),
        (TypeError, "connect_args", [("a", 1)]),
        (TypeError, "connect_args", "a=1"),
        (TypeError, "connect_args", {1: 2}),
        (TypeError, "pooled", 1),
        (TypeError, "persistent", None),
        (TypeError, "colour", "blue"),
        (ValueError, "min_size", -1),
        (ValueError, "max_size", 0),
        (TypeError, "max_size", "9"),
        (ValueError, "acquire_timeout", -1),
        (ValueError, "healthcheck_interval", math.inf),
        (ValueError, "max_lifetime", -5),
        (TypeError, "name", 5),
        (TypeError, "lifo", 1),
    ],
)
def test_a_bad_option_is_named(kind: type[Exception], option: str, value: Any) -> None:
    with pytest.raises(kind, match=option):
        cenote.Database(SQLITE, **{option: value})


def test_a_bad_password_is_not_shown() -> None:
    for password in ("hunter2\0", "hunter2\ud800"):
        with pytest.raises(ValueError, match="password") as caught:
            cenote.Database("postgresql://h/d", password=password)
        assert "hunter2" not in told(caught.value)


async def test_no_name_is_that_of_the_url() -> None:
    db = cenote.Database(SQLITE, name=None)
    assert db.pool.name == cenote.Database(SQLITE).pool.name is not None
    await db.close()


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        cenote.Database(SQLITE, print)  # type: ignore[misc]


def test_a_pool_is_not_persistent() -> None:
    with pytest.raises(ValueError, match=r"persistent=True.*pooled=False"):
        cenote.Database(SQLITE, persistent=True)
    with pytest.raises(ValueError, match=r"persistent=True.*pooled=False"):
        cenote.Database(SQLITE, persistent=True, pooled=True)
    for persistent in (True, False):
        assert cenote.Database(SQLITE, persistent=persistent, pooled=False).pool is None


@pytest.mark.parametrize("option", ["min_size", "max_size", "max_uses"])
def test_one_connection_has_no_size(option: str) -> None:
    with pytest.raises(ValueError, match=rf"{option}.*pooled=False"):
        cenote.Database(SQLITE, pooled=False, **{option: 1})


async def test_pool_options_reach_the_pool(backend: Backend) -> None:
    async with backend.database() as db:
        assert db.pool._settings.acquire_timeout == 30
        assert db.pool._settings.max_size == 10
        assert db.pool._settings.healthcheck_interval == 0
    options = {"acquire_timeout": None, "max_size": 3, "healthcheck_interval": 7.0, "lifo": True}
    async with backend.database(**options, name="mine") as db:
        for name, value in options.items():
            assert getattr(db.pool._settings, name) == value
        assert "'mine'" in repr(db.pool)


async def test_extreme_options_are_accepted(backend: Backend) -> None:
    options = {"ping_after_idle": math.inf, "statement_cache_size": 0, "password": None}
    async with backend.database(**options, connect_args={}, on_connect=None) as db:
        assert await db.fetch_val("select ?" if backend.embedded else "select 1 + ?", [1]) in (1, 2)


# -- the URL -------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["oracle://h/d", "http://h/d", "postgresql+pg8000://h/d", "x://"])
def test_an_unknown_scheme(url: str) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(ValueError, match=f"unknown scheme '{re.escape(scheme)}'.*known.*sqlite"):
        cenote.Database(url)


@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [
        ("aiosqlite", SQLITE, "sqlite"),
        ("asyncpg", "postgresql://h/d", "postgresql"),
        ("psycopg", "postgresql+psycopg://h/d", "psycopg"),
        ("asyncmy", "mysql://u:hunter2@h/d", "mysql"),
    ],
)
def test_a_missing_driver(
    package: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    module = {"aiosqlite": "sqlite", "asyncmy": "mysql"}.get(package, package)
    for name in [name for name in sys.modules if name.startswith(f"cenote.drivers.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(cenote.drivers, module, None, raising=False)  # an import sets it
    with pytest.raises(ImportError, match=rf"{package}.*pip install 'cenote\[{extra}\]'") as caught:
        cenote.Database(url)
    assert caught.value.name == package
    assert "hunter2" not in told(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///a.db?colour=blue", "unknown option 'colour'; known are.*journal_mode"),
        ("sqlite:///a.db?cache=shared", "unknown option 'cache'"),
        ("sqlite:///a.db?mode=write", "'mode' must be one of ro, rw, rwc"),
        ("sqlite:///a.db?mode=memory", "'mode' must be one of ro, rw, rwc"),
        ("sqlite:///:memory:?mode=ro", "in memory has no option"),
        ("sqlite:///a.db?timeout=soon", "'timeout' must be seconds"),
        ("sqlite:///a.db?timeout=-1", "'timeout' must be seconds"),
        ("sqlite:///a.db?timeout=nan", "'timeout' must be seconds"),
        ("sqlite:///a.db?journal_mode=fast", "'journal_mode' must be one of delete"),
        ("sqlite:///a.db?journal_mode=1", "'journal_mode' must be one of delete"),
        ("sqlite:///a.db?synchronous=maybe", "'synchronous' must be one of off"),
        ("sqlite:///a.db?foreign_keys=on%3B%20drop", "'foreign_keys' must be one of on"),
        ("sqlite:///a.db?cache_size=big", "'cache_size' must be a whole number"),
        ("sqlite:///", "names no file"),
        ("sqlite://", "names no file"),
        ("sqlite://h/a.db", "no host"),
        ("sqlite://u@/a.db", "no user"),
        ("sqlite://:p@/a.db", "no user"),
        ("postgresql://h/d?colour=blue", "unknown option 'colour'.*connect_args"),
        ("postgresql://h/d?sslmode=maybe", "'sslmode' must be one of disable"),
        ("postgresql://h/d?target_session_attrs=fast", "'target_session_attrs' must be one of any"),
        ("postgresql://h/d?connect_timeout=soon", "'connect_timeout' must be a number"),
        ("postgresql://h/d?connect_timeout=-3", "'connect_timeout' must be a number"),
        ("postgresql://h/d?host=i", "has a host, and the option 'host'"),
        ("postgresql://h/d?port=5", "has a host, and the option 'port'"),
        ("postgresql://h/d?dbname=e", "has a database, and the option 'dbname'"),
        ("postgresql:///d?host=h&port=0", "'port' must be a number"),
        ("postgresql:///d?host=h&port=%D9%A3", "'port' must be a number"),
        ("postgresql:///d?host=a,b&port=1,2,3", "not as many ports as hosts"),
        ("mysql://h/d?colour=blue", "unknown option 'colour'"),
        ("mysql://h/d?sslmode=maybe", "'sslmode' must be one of disable"),
        ("mysql://h/d?connect_timeout=soon", "'connect_timeout' must be a number"),
        ("mysql://h/d?connect_timeout=0", "'connect_timeout' must be a number"),
        ("mysql://h/d?local_infile=maybe", "'local_infile' must be one of"),
        ("mysql://h/d?charset=runes", "'charset' is unknown: 'runes'"),
        ("mysql://a,b/d", "several hosts"),
    ],
)
def test_bad_options_in_the_url(url: str, message: str) -> None:
    urls = [url, url.replace("postgresql:", "postgresql+psycopg:")]
    for each in dict.fromkeys(urls):
        with pytest.raises(ValueError, match=message) as caught:
            cenote.Database(each)
        assert "hunter2" not in told(caught.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///a.db", "isolation_level"),
        ("sqlite:///a.db", "uri"),
        ("postgresql+psycopg://h/d", "autocommit"),
        ("mysql://h/d", "autocommit"),
    ],
)
def test_arguments_that_are_cenotes_own(url: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"connect_args.*'{name}'"):
        cenote.Database(url, connect_args={name: None})


@served
async def test_options_of_the_url_reach_the_server(backend: Backend) -> None:
    if backend.name == "mysql":
        options, query = "sql_mode=ANSI_QUOTES&charset=latin1", "select @@sql_mode"
        expected = "ANSI_QUOTES"
    else:
        options = "application_name=my%20app&options=-c%20work_mem%3D123kB&connect_timeout=20"
        query = "select current_setting('application_name') || current_setting('work_mem')"
        expected = "my app123kB"
    async with backend.database(f"{backend.url}?{options}") as db:
        assert await db.fetch_val(query) == expected
        await db.execute(backend.touches[1][0])
        await db.release()
        assert await db.fetch_val(query) == expected  # and are still set after a reset


@postgres
async def test_the_first_host_is_dead(backend: Backend) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # and does not listen
        place = f"@{backend.server.host}:{backend.server.port}/"
        two = f"@127.0.0.1:{dead.getsockname()[1]},{place[1:]}"
        async with backend.database(backend.url.replace(place, two)) as db:
            assert await db.fetch_val("select 1") == 1


@postgres
async def test_postgresql_on_a_socket(backend: Backend) -> None:
    server: PostgresServer = backend.server
    scheme = backend.url.partition(":")[0]
    folder = quote(str(server.directory), safe="")
    for url in (
        f"{scheme}://postgres@/postgres?host={folder}&port={server.port}",
        f"{scheme}://postgres@{folder}:{server.port}/postgres",
        f"{scheme}://postgres@{folder}:{server.port}?dbname=postgres",
    ):
        async with backend.database(url) as db:
            assert await db.fetch_val("select inet_client_addr() is null")
            assert await db.fetch_val("select current_user || current_database()") == (
                "postgrespostgres"
            )


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
async def test_mysql_on_a_socket(backend: Backend) -> None:
    server: MariaDBServer = backend.server
    path = quote(str(server.socket_path), safe="")
    async with backend.database(f"mysql://root@/app?unix_socket={path}") as db:
        assert await db.fetch_val("select current_user()") == "root@localhost"
        assert await db.fetch_val("select database()") == "app"


@served
async def test_sslmode(backend: Backend) -> None:
    """The servers of the tests have no TLS."""
    lenient = ["disable"] if backend.name == "mysql" else ["disable", "allow", "prefer"]
    for mode in lenient:
        async with backend.database(f"{backend.url}?sslmode={mode}") as db:
            assert await db.fetch_val("select 1") == 1
    for mode in ("require", "verify-ca", "verify-full"):
        async with backend.database(f"{backend.url}?sslmode={mode}", max_size=1) as db:
            error = await outcome(db.fetch_val("select 1"))
            assert isinstance(error, Exception), f"sslmode={mode} went over an open wire"
            assert PASSWORD not in told(error)


# -- the password --------------------------------------------------------------------------------


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


@served
@pytest.mark.parametrize("kind", KINDS)
async def test_ways_to_give_a_password(backend: Backend, kind: Callable[[str], Any]) -> None:
    for url in (with_password(backend, None), with_password(backend, WRONG)):
        async with backend.database(url, password=kind(PASSWORD)) as db:
            assert await db.fetch_val("select 1") == 1


@served
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


@served
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


@served
@pytest.mark.parametrize("value", [None, b"hunter2", 5])
async def test_a_password_function_that_gives_something_else(backend: Backend, value: Any) -> None:
    async with backend.database(password=lambda: value) as db:
        kind = type(value).__name__
        with pytest.raises(TypeError, match=rf"password\(\) must return a string, not {kind}") as e:
            await db.fetch_val("select 1")
        assert "hunter2" not in told(e.value)


@served
async def test_a_password_function_that_raises(backend: Backend) -> None:
    async def vault() -> str:
        raise LookupError("the vault is closed")

    async with backend.database(password=vault) as db:
        for _ in range(2):
            with pytest.raises(LookupError, match="the vault is closed"):
                await db.fetch_val("select 1")


async def test_sqlite_has_no_password() -> None:
    db = cenote.Database(SQLITE, password="hunter2")
    with pytest.raises(ValueError, match="SQLite has none") as caught:
        await db.fetch_val("select 1")
    assert "hunter2" not in told(caught.value)
    await db.close()


@served
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


@served
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


# -- copies for each connection ------------------------------------------------------------------


async def test_a_driver_that_changes_its_arguments(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = CONNECTS[backend.name]
    original: Any = pkgutil.resolve_name(target)
    seen: list[Any] = []

    def connect(*arguments: Any, **options: Any) -> Any:
        planted = options.pop("planted")
        seen.append(repr(planted))
        planted["new"] = 1
        planted["list"].append(2)
        planted["dict"]["deep"].clear()
        for value in options.values():
            if isinstance(value, dict | list | set):
                value.clear()  # the driver's own
        return original(*arguments, **options)

    given: dict[str, Any] = {"planted": {"list": [1], "dict": {"deep": {"a": 1}}}}
    before = repr(given["planted"])
    monkeypatch.setattr(target, connect)
    async with backend.database(connect_args=given) as db:
        given["planted"]["list"].append("by the caller")
        for _ in range(3):
            await db.fetch_val("select 1")
            await db.pool.retire()
    assert seen == [before] * 3


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_settings_that_on_connect_changes_are_its_own(backend: Backend) -> None:
    settings = {"application_name": "mine"}

    async def greet(connection: Any) -> None:
        connection._params.server_settings["application_name"] = "stolen"

    async with backend.database(connect_args={"server_settings": settings}, on_connect=greet) as db:
        for _ in range(2):
            assert await db.fetch_val("select current_setting('application_name')") == "mine"
            await db.pool.retire()
    assert settings == {"application_name": "mine"}


@served
async def test_a_connection_that_never_gets_ready_is_closed(backend: Backend) -> None:
    with Proxy(backend.server.host, backend.server.port) as proxy:
        proxy.black_hole(True)
        url = backend.url_through(proxy.host, proxy.port)
        async with backend.database(url, create_timeout=0.05) as db:
            error = await outcome(db.fetch_val("select 1"))
            assert isinstance(error, cenote.PoolError)
            assert isinstance(error, TimeoutError)
            await asyncio.to_thread(proxy.wait_for, lambda counts: counts.connections == 1)
            await asyncio.to_thread(proxy.wait_for, lambda counts: counts.open == 0)


# -- SQLite --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def no_thread_left() -> AsyncIterator[None]:
    before = threading.active_count()
    yield
    await eventually(lambda: threading.active_count() <= before)


async def value(db: cenote.Database, sql: str) -> Any:
    return await db.fetch_val(sql)


async def test_a_database_in_memory_is_shared_by_its_connections() -> None:
    db = cenote.Database(SQLITE, max_size=3)
    await db.execute("create table t (a int)")
    async with db.transaction():
        await db.execute("insert into t values (1)")
    stream = db.iterate("select a from t union all select 2")
    assert (await anext(stream))[0] == 1  # on a connection of its own
    async with db.connection() as raw:
        assert await db.fetch_val("select a from t") == 1
        assert (await asyncio.create_task(value(db, "select count(*) from t"))) == 1
        assert raw.__wrapped__ is db.bound_connection
    await stream.aclose()
    assert db.pool is not None
    assert db.pool.stats().created >= 2
    await db.pool.retire()
    assert db.pool.count == 0
    assert await db.fetch_val("select a from t") == 1  # with no connection it is still there
    await db.close()
    with pytest.raises(cenote.PoolClosedError):
        await db.fetch_val("select a from t")


async def test_databases_in_memory_are_private() -> None:
    one, two = cenote.Database(SQLITE), cenote.Database(SQLITE)
    await one.execute("create table t (a int)")
    assert await two.fetch_val("select count(*) from sqlite_master") == 0
    place = one._driver._path  # type: ignore[attr-defined]
    with contextlib.closing(sqlite3.connect(place, uri=True)) as spy:
        assert spy.execute("select count(*) from sqlite_master").fetchone() == (1,)
    await one.close()
    with contextlib.closing(sqlite3.connect(place, uri=True)) as spy:  # gone: a new one
        assert spy.execute("select count(*) from sqlite_master").fetchone() == (0,)
    await two.close()


async def test_sqlite_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    strange = "my ?#%25@&=ä file.db"
    for url, path in (
        ("sqlite:///relative.db", tmp_path / "relative.db"),
        ("sqlite:///./sub.db", tmp_path / "sub.db"),
        (f"sqlite:///{tmp_path}/absolute.db", tmp_path / "absolute.db"),
        (f"sqlite:///{quote(strange, safe='')}", tmp_path / strange),
    ):
        db = cenote.Database(url)
        monkeypatch.chdir("/")  # it means where the program was when it was constructed
        assert not path.exists()
        await db.execute("create table t (a int)")
        assert path.exists()
        await db.close()
        monkeypatch.chdir(tmp_path)
    # Nothing else is left: what was in the log is in the file.
    assert sorted(os.listdir(tmp_path)) == sorted(["relative.db", "sub.db", "absolute.db", strange])


async def test_sqlite_where_no_file_can_be(tmp_path: Path) -> None:
    async with no_thread_left():
        db = cenote.Database(f"sqlite:///{tmp_path}/no/such/folder.db")
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="unable to open"):
                await db.fetch_val("select 1")
        await db.close()


async def test_sqlite_that_only_reads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    missing = cenote.Database(f"{url}?mode=rw")
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await missing.fetch_val("select 1")
    await missing.close()
    writer = cenote.Database(url)
    await writer.execute("create table t (a int)")
    reader = cenote.Database(f"{url}?mode=ro")
    assert await reader.fetch_val("select count(*) from t") == 0
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await reader.execute("insert into t values (1)")
    await reader.close()
    await writer.close()


async def test_sqlite_defaults(tmp_path: Path) -> None:
    async def shown(options: str, query: str, **more: Any) -> Any:
        db = cenote.Database(f"sqlite:///{tmp_path}/a.db{options}", **more)
        try:
            return await db.fetch_val(query)
        finally:
            await db.close()

    assert await shown("", "pragma journal_mode") == "wal"
    assert await shown("", "pragma busy_timeout") == 5000
    assert await shown("?timeout=1.5", "pragma busy_timeout") == 1500
    assert await shown("?timeout=0", "pragma busy_timeout") == 0
    assert await shown("?journal_mode=delete", "pragma journal_mode") == "delete"
    assert await shown("?foreign_keys=on", "pragma foreign_keys") == 1
    assert await shown("?foreign_keys=0", "pragma foreign_keys") == 0
    assert await shown("?synchronous=normal", "pragma synchronous") == 1
    assert await shown("?cache_size=-4000", "pragma cache_size") == -4000
    arguments = {"timeout": 2.0}
    assert await shown("", "pragma busy_timeout", connect_args=arguments) == 2000
    # Autocommit, and not the transactions of the sqlite3 module.
    db = cenote.Database(f"sqlite:///{tmp_path}/a.db")
    await db.execute("create table t (a int)")
    await db.execute("insert into t values (1)")
    assert not db.in_transaction
    assert db.pool is not None
    assert db.pool.active_count == 0
    await db.close()


class Sum:
    def __init__(self) -> None:
        self.total = 0

    def step(self, value: int) -> None:
        self.total += value

    def finalize(self) -> int:
        return self.total


def backwards(a: str, b: str) -> int:
    return (a < b) - (a > b)


async def test_functions_are_on_every_connection(tmp_path: Path) -> None:
    db = cenote.Database(f"sqlite:///{tmp_path}/a.db", max_size=2)
    db.create_function("double", 1, lambda x: 2 * x, deterministic=True)
    db.create_aggregate("mysum", 1, Sum)
    db.create_collation("backwards", backwards)

    async def check() -> None:
        assert await db.fetch_val("select double(21)") == 42
        assert await db.fetch_val("select mysum(a) from (select 1 a union select 2)") == 3
        rows = await db.fetch_all("select 'a' x union select 'b' order by x collate backwards")
        assert [row[0] for row in rows] == ["b", "a"]

    async with db.connection():  # one is busy here, the other there, and then both are new
        await check()
        await asyncio.create_task(check())
    await db.pool.retire()  # type: ignore[union-attr]
    await check()
    for register in (
        lambda: db.create_function("late", 0, int),
        lambda: db.create_aggregate("late", 1, Sum),
        lambda: db.create_collation("late", backwards),
    ):
        with pytest.raises(RuntimeError, match="before the first connection"):
            register()
    await db.close()
    with pytest.raises(RuntimeError, match="before the first connection"):
        db.create_function("late", 0, int)


async def test_a_function_that_cannot_be_registered(tmp_path: Path) -> None:
    async with no_thread_left():
        db = cenote.Database(f"sqlite:///{tmp_path}/a.db")
        db.create_function("wrong", 1000, lambda: 1)
        with pytest.raises(sqlite3.Error):
            await db.fetch_val("select 1")
        await db.close()


@served
async def test_functions_are_for_sqlite(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.raises(cenote.PoolError, match=r"create_function\(\) is for SQLite"):
            db.create_function("f", 0, int)
        with pytest.raises(cenote.PoolError, match=r"create_aggregate\(\) is for SQLite"):
            db.create_aggregate("f", 1, Sum)
        with pytest.raises(cenote.PoolError, match=r"create_collation\(\) is for SQLite"):
            db.create_collation("f", backwards)


async def test_sqlite_that_is_slow_to_open_is_closed(tmp_path: Path) -> None:
    opened, go, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.set()
            go.wait(20)
            super().__init__(*arguments, **options)

        def close(self) -> None:
            super().close()
            closed.set()

    url, options = f"sqlite:///{tmp_path}/a.db", {"connect_args": {"factory": Slow}}
    db = cenote.Database(url, create_timeout=0.05, **options)
    async with no_thread_left():
        try:
            error = await outcome(db.fetch_val("select 1"))
            assert isinstance(error, TimeoutError)
            assert opened.is_set()
        finally:
            go.set()
        await eventually(closed.is_set)
        await db.close()
