"""What comes in as a parameter stays data, and what was to be encrypted is."""

import shutil
from collections.abc import Iterator
from traceback import TracebackException
from typing import Any
from urllib.parse import quote

import pytest

import cenote
from tests.support import backends
from tests.support.backends import Backend
from tests.support.servers import PASSWORD, MariaDBServer, PostgresServer

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

ATTACKS = [
    "'; drop table {table}; --",
    "\\'; drop table {table}; -- ",
    "x' or '1'='1",
    '"; drop table {table}; #',
    "%s %(a)s %% :a ? ?? $1 {{}}",
    "\\",
    "\\' or 1=1 -- ",
    "$$; drop table {table}; $$",
    "/* */ ' \" ` \n \t \r; select 1",
    "\N{FULLWIDTH APOSTROPHE}\N{MODIFIER LETTER APOSTROPHE}' or 1=1",
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_injection_arrives_as_data(backend: Backend, attack: str) -> None:
    async with backend.database(max_size=2) as db, backend.table(db) as table:
        value = attack.format(table=table)
        await db.execute(f"insert into {table} values (?, ?)", [1, value])
        await db.execute(f"insert into {table} values (:id, :name)", {"id": 2, "name": value})
        await db.execute_many(f"insert into {table} values (?, ?)", [[3, value], [4, value]])
        async with await db.prepare(f"insert into {table} values (?, ?)") as statement:
            await statement.execute([5, value])
        async with db.transaction() as tx:
            await tx.execute(f"insert into {table} values (?, ?)", [6, value])
        by_position = f"select name from {table} where name = ? order by id"
        by_name = f"select name from {table} where name = :name order by id"
        assert [row[0] for row in await db.fetch_all(by_position, [value])] == [value] * 6
        assert [row[0] for row in await db.fetch_all(by_name, {"name": value})] == [value] * 6
        assert [row[0] async for row in db.iterate(by_position, [value])] == [value] * 6
        assert await db.fetch_val(f"select count(*) from {table} where name <> ?", [value]) == 0


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg", "mysql"], indirect=True)
@pytest.mark.parametrize("way", ["refused", "no such database", "too slow", "on_connect"])
async def test_no_variable_of_a_traceback_shows_the_password(backend: Backend, way: str) -> None:
    options: dict[str, Any] = {}
    url = backend.url.replace(quote(PASSWORD, safe=""), "hunter2-wrong")
    if way == "no such database":
        url = f"{backend.url}_not"
    elif way == "too slow":
        options["create_timeout"] = 0.0005
    elif way == "on_connect":
        url = backend.url
        options["on_connect"] = lambda connection: 1 / 0
    db = cenote.Database(url, max_size=1, **options)
    del url
    with pytest.raises(Exception, match=r".") as caught:
        await db.fetch_val("select 1")
    await db.close()
    shown = "".join(TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "hunter2-wrong" not in shown
    assert PASSWORD not in shown


@pytest.fixture(scope="module", params=["asyncpg", "psycopg", "mysql"])
def encrypted(request: pytest.FixtureRequest) -> Iterator[Backend]:
    kind: Any = MariaDBServer if request.param == "mysql" else PostgresServer
    pytest.importorskip("asyncmy" if request.param == "mysql" else request.param)
    if reason := kind.missing():
        pytest.skip(reason)
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    with kind(tls=True) as server:
        yield getattr(backends, request.param)(server)


ENCRYPTED = {
    "asyncpg": "select ssl from pg_stat_ssl where pid = pg_backend_pid()",
    "psycopg": "select ssl from pg_stat_ssl where pid = pg_backend_pid()",
    "mysql": "select variable_value <> '' from information_schema.session_status "
    "where variable_name = 'Ssl_cipher'",
}


async def test_no_pooled_connection_drops_tls(encrypted: Backend) -> None:
    query = ENCRYPTED[encrypted.name]
    root = "ssl_ca" if encrypted.name == "mysql" else "sslrootcert"
    for options in (
        "sslmode=require",
        f"sslmode=verify-ca&{root}={encrypted.server.certificate}",
        f"sslmode=verify-full&{root}={encrypted.server.certificate}",
    ):
        async with encrypted.database(f"{encrypted.url}?{options}", max_size=3) as db:
            async with db.transaction(), db.connection():
                assert await db.fetch_val(query)
                async for row in db.iterate(query):
                    assert row[0]
            for touch, _ in encrypted.touches[:2]:  # reset
                await db.execute(touch)
                await db.release()
                assert await db.fetch_val(query)
            await db.pool.retire()  # replaced
            assert await db.fetch_val(query)


async def test_a_wrong_authority_is_refused(encrypted: Backend, tmp_path: Any) -> None:
    with PostgresServer(tls=True) as other:
        root = "ssl_ca" if encrypted.name == "mysql" else "sslrootcert"
        url = f"{encrypted.url}?sslmode=verify-ca&{root}={other.certificate}"
        db = cenote.Database(url, max_size=1)
        with pytest.raises(Exception, match=r"(?i)certificate"):
            await db.fetch_val("select 1")
        await db.close()


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg", "mysql"], indirect=True)
async def test_a_server_without_tls_is_refused_when_required(backend: Backend) -> None:
    db = cenote.Database(f"{backend.url}?sslmode=require", max_size=1)
    with pytest.raises(Exception, match=r"(?i)ssl|tls"):
        await db.fetch_val("select 1")
    await db.close()
