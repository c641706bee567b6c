"""The servers for tests: each answers through its driver, and keeps port and data over a restart.

They are those of the session; a test that ends one starts it again, whatever happens.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from cenote.testing import FaultProxy
from tests.support.servers import (
    DATABASE,
    PASSWORD,
    PORTS,
    USER,
    MariaDBServer,
    PgBouncer,
    PostgresServer,
    RedisServer,
    Server,
)

pytestmark = pytest.mark.once

T = TypeVar("T")


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    yield postgres_server
    postgres_server.start()


@pytest.fixture
def mariadb(mariadb_server: MariaDBServer) -> Iterator[MariaDBServer]:
    yield mariadb_server
    mariadb_server.start()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """On a stock loop: the servers' time is real."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(coroutine)


def asyncpg_rows(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last one."""
    asyncpg = pytest.importorskip("asyncpg")

    async def work() -> list[tuple[Any, ...]]:
        # Statements without a name, for PgBouncer.
        connection = await asyncpg.connect(url, statement_cache_size=0)
        try:
            for statement in statements:
                rows = await connection.fetch(statement)
        finally:
            await connection.close()
        return [tuple(row) for row in rows]

    return run(work())


def psycopg_rows(url: str, *statements: str) -> list[tuple[Any, ...]]:
    psycopg = pytest.importorskip("psycopg")

    async def work() -> list[tuple[Any, ...]]:
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with connection:
            for statement in statements:
                cursor = await connection.execute(statement)
            rows: list[tuple[Any, ...]] = await cursor.fetchall()
        return rows

    return run(work())


def mariadb_rows(server: MariaDBServer, *statements: str) -> list[tuple[Any, ...]]:
    asyncmy = pytest.importorskip("asyncmy")
    login = {"user": USER, "password": PASSWORD, "db": DATABASE}

    async def work() -> list[tuple[Any, ...]]:
        connection = await asyncmy.connect(
            host=server.host, port=server.port, autocommit=True, **login
        )
        try:
            async with connection.cursor() as cursor:
                for statement in statements:
                    await cursor.execute(statement)
                return list(await cursor.fetchall())
        finally:
            await connection.ensure_closed()

    return run(work())


def restart(server: Server, end: Callable[[], None]) -> None:
    port = server.port
    end()
    assert not server.running
    server.start()
    assert server.running
    assert server.port == port


@pytest.mark.parametrize("rows", [asyncpg_rows, psycopg_rows])
def test_postgres_answers_on_tcp_to_the_user(
    postgres_server: PostgresServer, rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    who = "SELECT session_user::text, current_database()::text, inet_server_port()"
    port = postgres_server.port
    assert rows(postgres_server.tcp_url(), who) == [(USER, DATABASE, port)]


@pytest.mark.parametrize("rows", [asyncpg_rows, psycopg_rows])
def test_postgres_answers_on_its_socket_to_the_superuser(
    postgres_server: PostgresServer, rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    who = "SELECT session_user::text, inet_server_port()"
    assert rows(postgres_server.url, who) == [("postgres", None)]


def test_postgres_asks_for_the_password(postgres_server: PostgresServer) -> None:
    psycopg = pytest.importorskip("psycopg")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg_rows(postgres_server.tcp_url(password="wrong"), "SELECT 1")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_postgres_keeps_port_and_data(postgres: PostgresServer, end: str) -> None:
    table = f"kept_over_{end}"
    asyncpg_rows(
        postgres.tcp_url(), f"CREATE TABLE {table} (n int)", f"INSERT INTO {table} VALUES (7)"
    )
    restart(postgres, getattr(postgres, end))
    rows = asyncpg_rows(postgres.tcp_url(), f"SELECT n FROM {table}")
    asyncpg_rows(postgres.tcp_url(), f"DROP TABLE {table}")
    assert rows == [(7,)]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_postgres_ends_with_a_busy_client(postgres: PostgresServer, end: str) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    busy = "SELECT count(*) FROM generate_series(1, 1000000000)"

    async def work() -> None:
        connection = await asyncpg.connect(postgres.tcp_url())
        query = asyncio.create_task(connection.fetch(busy))
        while not await is_active(postgres):
            pass
        restart(postgres, getattr(postgres, end))
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await query
        connection.terminate()

    async def is_active(server: PostgresServer) -> bool:
        watcher = await asyncpg.connect(server.url)
        try:
            count = await watcher.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = $1", busy
            )
        finally:
            await watcher.close()
        return bool(count)

    run(work())


def test_mariadb_answers_to_the_user(mariadb_server: MariaDBServer) -> None:
    who = "SELECT user(), database(), @@port"
    rows = mariadb_rows(mariadb_server, who)
    assert rows == [(f"{USER}@127.0.0.1", DATABASE, mariadb_server.port)]


def test_mariadb_lets_the_user_kill_others(mariadb_server: MariaDBServer) -> None:
    rows = mariadb_rows(mariadb_server, "SHOW GRANTS")
    assert rows[0][0].startswith("GRANT PROCESS, CONNECTION ADMIN ON *.* ")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_mariadb_keeps_port_and_data(mariadb: MariaDBServer, end: str) -> None:
    table = f"kept_over_{end}"
    mariadb_rows(mariadb, f"CREATE TABLE {table} (n int)", f"INSERT INTO {table} VALUES (7)")
    restart(mariadb, getattr(mariadb, end))
    rows = mariadb_rows(mariadb, f"SELECT n FROM {table}")
    mariadb_rows(mariadb, f"DROP TABLE {table}")
    assert rows == [(7,)]


@pytest.mark.parametrize("rows", [asyncpg_rows, psycopg_rows])
def test_pgbouncer_answers_to_the_user(
    pgbouncer: PgBouncer, rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    assert rows(pgbouncer.url, "SELECT session_user::text") == [(USER,)]


def test_pgbouncer_shares_few_connections(pgbouncer: PgBouncer) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def work() -> tuple[set[int], int]:
        clients = [
            await asyncpg.connect(pgbouncer.url, statement_cache_size=0)
            for _ in range(pgbouncer.pool_size + 5)
        ]
        query = "SELECT pg_backend_pid(), pg_sleep(0.01)"
        pids = await asyncio.gather(*[client.fetchval(query) for client in clients])
        for client in clients:
            await client.close()
        return set(pids), len(clients)

    backends, clients = run(work())
    assert len(backends) <= pgbouncer.pool_size < clients


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_pgbouncer_keeps_its_port(pgbouncer: PgBouncer, end: str) -> None:
    try:
        restart(pgbouncer, getattr(pgbouncer, end))
    finally:
        pgbouncer.start()
    assert asyncpg_rows(pgbouncer.url, "SELECT 1") == [(1,)]


def test_pgbouncer_survives_a_restart_of_postgres(
    pgbouncer: PgBouncer, postgres: PostgresServer
) -> None:
    asyncpg_rows(pgbouncer.url, "SELECT 1")
    restart(postgres, postgres.kill)
    assert asyncpg_rows(pgbouncer.url, "SELECT 1") == [(1,)]


def test_redis_may_be_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Valkey, where there is no program redis-server."""
    monkeypatch.setattr(RedisServer, "programs", ("no-redis-server",))
    monkeypatch.delenv("CENOTE_REDIS", raising=False)
    assert "no-redis-server not installed" in (RedisServer.missing() or "")
    monkeypatch.setenv("CENOTE_REDIS", f"{sys.executable} --protected-mode no")
    assert RedisServer.missing() is None
    monkeypatch.setenv("CENOTE_REDIS", "no-valkey-server")
    assert RedisServer.missing() == "CENOTE_REDIS: no-valkey-server not found"


def test_redis_keeps_its_port(redis_server: RedisServer) -> None:
    try:
        restart(redis_server, redis_server.kill)
    finally:
        redis_server.start()


def test_start_of_a_running_server_changes_nothing(redis_server: RedisServer) -> None:
    process = redis_server._process
    redis_server.start()
    assert redis_server._process is process


def test_a_port_is_none_that_clients_get(postgres_server: PostgresServer) -> None:
    assert postgres_server.port in PORTS


def test_the_proxy_counts_the_round_trips_of_a_query(postgres_server: PostgresServer) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def work(proxy: FaultProxy) -> int:
        connection = await asyncpg.connect(
            host=proxy.host, port=proxy.port, user=USER, password=PASSWORD, database=DATABASE
        )
        before = proxy.round_trips
        await connection.execute("SELECT 1")
        after = proxy.round_trips
        await connection.close()
        return after - before

    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        assert run(work(proxy)) == 1


def test_a_missing_server_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MariaDBServer, "programs", ("mariadbd-of-nowhere", "sh"))
    assert MariaDBServer.missing() == (
        "mariadbd-of-nowhere not installed: apt-get install mariadb-server "
        "(or: brew install mariadb)"
    )


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisServer, "programs", ("sh",))
    monkeypatch.setattr(
        RedisServer, "_command", lambda self: ["sh", "-c", "echo no memory; exit 1"]
    )
    with pytest.raises(ChildProcessError, match="sh ended: no memory"), RedisServer():
        pass
