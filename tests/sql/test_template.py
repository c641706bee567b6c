"""The template of connections: its options, its URL, and a copy for each of them."""

import asyncio
import math
import pkgutil
import re
import socket
import sys
from typing import Any
from urllib.parse import quote

import pytest

import cenote
import cenote.drivers
from cenote.testing import FaultProxy, settle
from tests.support.backends import Backend
from tests.support.faults import told, with_postgresql, with_server
from tests.support.kit import outcome
from tests.support.servers import PASSWORD, MariaDBServer, PostgresServer
from tests.support.waiting import let_pass

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]
SQLITE = "sqlite:///:memory:"
CONNECTS = {
    "sqlite": "cenote.drivers.sqlite.driver.connect",
    "asyncpg": "asyncpg.connect",
    "psycopg": "cenote.drivers.psycopg.driver.Connection.connect",
    "mysql": "cenote.drivers.mysql.driver.Connection",
}


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
        assert db.pool._engine.settings.acquire_timeout == 30
        assert db.pool._engine.settings.max_size == 10
        assert db.pool._engine.settings.healthcheck_interval == 0
    options = {"acquire_timeout": None, "max_size": 3, "healthcheck_interval": 7.0, "lifo": True}
    async with backend.database(**options, name="mine") as db:
        for name, value in options.items():
            assert getattr(db.pool._engine.settings, name) == value
        assert "'mine'" in repr(db.pool)


async def test_extreme_options_are_accepted(backend: Backend) -> None:
    options = {"ping_after_idle": math.inf, "statement_cache_size": 0, "password": None}
    async with backend.database(**options, connect_args={}, on_connect=None) as db:
        assert await db.fetch_val("select ?" if backend.embedded else "select 1 + ?", [1]) in (1, 2)


# -- the URL -------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["oracle://h/d", "http://h/d", "postgresql+pg8000://h/d", "x://"])
def test_an_unknown_scheme_is_named(url: str) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(ValueError, match=f"unknown scheme '{re.escape(scheme)}'.*known.*sqlite"):
        cenote.Database(url)


@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [
        ("asyncpg", "postgresql://h/d", "postgresql"),
        ("psycopg", "postgresql+psycopg://h/d", "psycopg"),
        ("asyncmy", "mysql://u:hunter2@h/d", "mysql"),
    ],
)
def test_a_missing_driver_is_named(
    package: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    module = {"asyncmy": "mysql"}.get(package, package)
    for name in [name for name in sys.modules if name.startswith(f"cenote.drivers.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(cenote.drivers, module, None, raising=False)  # an import sets it
    with pytest.raises(ImportError, match=rf"{package}.*pip install 'cenote\[{extra}\]'") as caught:
        cenote.Database(url)
    assert caught.value.name == package
    for name in [name for name in sys.modules if name.startswith(f"cenote.drivers.{module}")]:
        del sys.modules[name]  # the package around the module that could not be imported
    assert "hunter2" not in told(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///a.db?colour=blue", "unknown option 'colour'; known are.*journal_mode"),
        ("sqlite:///a.db?cache=shared", "unknown option 'cache'"),
        ("sqlite:///a.db?mode=write", "'mode' must be one of ro, rw, rwc"),
        ("sqlite:///a.db?mode=memory", "'mode' must be one of ro, rw, rwc"),
        ("sqlite:///:memory:?mode=ro", "in memory has no option"),
        ("sqlite:///a.db?timeout=soon", "'timeout' must be a number of seconds"),
        ("sqlite:///a.db?timeout=-1", "'timeout' must be a number of seconds"),
        ("sqlite:///a.db?timeout=nan", "'timeout' must be a number of seconds"),
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
        ("postgresql:///d?host=a,b&port=1,2,3", "one port for each host, or one port for all"),
        ("mysql://h/d?colour=blue", "unknown option 'colour'"),
        ("mysql://h/d?sslmode=maybe", "'sslmode' must be one of disable"),
        ("mysql://h/d?connect_timeout=soon", "'connect_timeout' must be a whole number"),
        ("mysql://h/d?connect_timeout=0", "'connect_timeout' must be a whole number"),
        ("mysql://h/d?connect_timeout=1.5", "'connect_timeout' must be a whole number"),
        ("mysql://h/d?ssl_ca=/no/ca.pem", "'ssl_ca' cannot be read: .*'/no/ca.pem'"),
        ("mysql://h/d?ssl_cert=/no/c.pem", "'ssl_cert' cannot be read: .*'/no/c.pem'"),
        (f"mysql://h/d?ssl_ca={__file__}", f"cannot be used .ssl_ca={__file__}.: .*certificate"),
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
        ("postgresql://h/d", "record_class"),
        ("postgresql+psycopg://h/d", "autocommit"),
        ("mysql://h/d", "autocommit"),
    ],
)
def test_arguments_that_are_cenotes_own(url: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"connect_args.*'{name}'"):
        cenote.Database(url, connect_args={name: None})


@with_server
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


@with_postgresql
async def test_the_first_host_is_dead(backend: Backend) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # and does not listen
        place = f"@{backend.server.host}:{backend.server.port}/"
        two = f"@127.0.0.1:{dead.getsockname()[1]},{place[1:]}"
        async with backend.database(backend.url.replace(place, two)) as db:
            assert await db.fetch_val("select 1") == 1


@with_postgresql
async def test_no_time_to_connect_is_no_limit(backend: Backend) -> None:
    async with backend.database(f"{backend.url}?connect_timeout=0") as db:
        assert await db.fetch_val("select 1") == 1


@with_postgresql
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


@with_server
async def test_sslmode_of_the_url_is_obeyed(backend: Backend) -> None:
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


@with_server
async def test_a_connection_that_never_gets_ready_is_closed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        proxy.black_hole(True)
        url = backend.url_through(proxy.host, proxy.port)
        async with backend.database(url, create_timeout=5.0) as db:
            fetching = asyncio.create_task(outcome(db.fetch_val("select 1")))
            await asyncio.to_thread(proxy.wait_for, lambda counts: counts.connections == 1)
            await settle()  # it waits for the first words of the server
            let_pass(monkeypatch, 5.0)
            error = await fetching
            assert isinstance(error, cenote.PoolError)
            assert isinstance(error, TimeoutError)
            await asyncio.to_thread(proxy.wait_for, lambda counts: counts.open == 0)
