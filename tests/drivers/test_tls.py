"""TLS as people use it, on every network driver, with certificates that are made for the test."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("cryptography")

import cenote
from cenote.testing import FaultProxy
from tests.support.certificates import (
    CERTIFIED,
    HOST,
    Authority,
    Certificate,
    CertifiedMariaDB,
    CertifiedMySQL,
    CertifiedPostgres,
)
from tests.support.servers import DATABASE, PASSWORD

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

PACKAGES = {"asyncpg": "asyncpg", "psycopg": "psycopg", "mariadb": "asyncmy", "mysql": "asyncmy"}
SERVERS: dict[str, Any] = {
    "asyncpg": CertifiedPostgres,
    "psycopg": CertifiedPostgres,
    "mariadb": CertifiedMariaDB,
    "mysql": CertifiedMySQL,
}
SSL_REQUEST = 8  # bytes, with which a client of PostgreSQL asks for TLS


@dataclass(frozen=True, slots=True)
class Subject:
    """A driver and its server, and what the options of TLS are called there."""

    name: str
    server: Any
    authority: Authority

    @property
    def is_mysql(self) -> bool:
        return PACKAGES[self.name] == "asyncmy"

    def url(self, mode: str, *, host: str = HOST, user: str = "app", **files: Any) -> str:
        """`files`: ca, cert and key."""
        names = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}
        if not self.is_mysql:
            names = {"ca": "sslrootcert", "cert": "sslcert", "key": "sslkey"}
        options = "".join(f"&{names[name]}={path}" for name, path in files.items())
        url = self.server.tcp_url(user=user).replace(f"@{self.server.host}:", f"@{host}:")
        if self.name == "psycopg":
            url = url.replace("postgresql://", "postgresql+psycopg://")
        return f"{url}?sslmode={mode}{options}"

    async def cipher(self, url: str) -> str:
        """With what the connection is encrypted; empty if it is not."""
        async with cenote.Database(url, strategy=None) as db:
            if self.is_mysql:
                row = await db.fetch_one("show session status like 'Ssl_cipher'")
                assert row is not None
                return str(row[1])
            query = "select coalesce(cipher, '') from pg_stat_ssl where pid = pg_backend_pid()"
            return str(await db.fetch_val(query))

    async def refusal(self, url: str, proxy: FaultProxy | None = None) -> str:
        """What the error says; nothing is left open."""
        with proxy or FaultProxy(self.server.host, self.server.port) as between:
            local = url.replace(f":{self.server.port}/", f":{between.port}/")
            db = cenote.Database(local, strategy=None)
            try:
                with pytest.raises(cenote.ConnectError) as caught:
                    await db.fetch_val("select 1")
            finally:
                await db.close()
            await asyncio.to_thread(between.wait_for, lambda counts: not counts.open)
        return f"{caught.value} {caught.value.__cause__}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def started(authority: Authority) -> Iterator[dict[Any, Any]]:
    """The servers that run, by class."""
    servers: dict[Any, Any] = {}
    yield servers
    for server in servers.values():
        server.__exit__(None, None, None)


@pytest.fixture(params=[*SERVERS])
def subject(
    request: pytest.FixtureRequest, started: dict[Any, Any], authority: Authority
) -> Subject:
    pytest.importorskip(PACKAGES[request.param])
    kind = SERVERS[request.param]
    if reason := kind.missing():
        pytest.skip(reason)
    if kind not in started:
        started[kind] = kind(authority).__enter__()
    return Subject(request.param, started[kind], authority)


# -- the server's certificate ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_verified_connection_is_encrypted(subject: Subject, mode: str) -> None:
    assert await subject.cipher(subject.url(mode, ca=subject.authority.certificate))


async def test_a_certificate_for_another_host_is_refused(subject: Subject) -> None:
    ca = subject.authority.certificate
    text = await subject.refusal(subject.url("verify-full", host="127.0.0.1", ca=ca))
    assert "127.0.0.1" in text.partition("cannot connect")[2]
    assert "TLS failed. Check sslmode and the certificates" in text
    assert await subject.cipher(subject.url("verify-ca", host="127.0.0.1", ca=ca))


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_certificate_of_a_stranger_is_refused(
    subject: Subject, stranger: Authority, mode: str
) -> None:
    """With `require`, too: an authority that is given is always verified with."""
    text = await subject.refusal(subject.url(mode, ca=stranger.certificate))
    assert "certificate verify failed" in text.lower()
    assert "TLS failed. Check sslmode and the certificates" in text


async def test_without_an_authority_no_own_one_is_believed(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no root.crt there
    text = await subject.refusal(subject.url("verify-full"))
    assert "certificate" in text.lower()
    assert await subject.cipher(subject.url("require"))


# -- the client's certificate ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def certified(authority: Authority) -> Certificate:
    return authority.issue(CERTIFIED)


async def test_a_client_logs_in_with_its_certificate(
    subject: Subject, certified: Certificate
) -> None:
    files = {"cert": certified.certificate, "key": certified.key}
    ca = subject.authority.certificate
    assert await subject.cipher(subject.url("verify-full", user=CERTIFIED, ca=ca, **files))


async def test_a_client_without_a_certificate_is_refused(subject: Subject) -> None:
    ca = subject.authority.certificate
    text = await subject.refusal(subject.url("verify-full", user=CERTIFIED, ca=ca))
    assert "certificate" in text or "Access denied" in text


async def test_a_client_with_a_certificate_of_a_stranger_is_refused(
    subject: Subject, stranger: Authority
) -> None:
    other = stranger.issue(CERTIFIED)
    files = {"cert": other.certificate, "key": other.key}
    ca = subject.authority.certificate
    assert await subject.refusal(subject.url("verify-full", user=CERTIFIED, ca=ca, **files))


# -- the default login of MySQL --------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["mysql"], indirect=True)
async def test_the_first_login_of_mysql_by_tls_needs_no_key(subject: Subject) -> None:
    """caching_sha2_password: the server has no hash yet, and gets the password by TLS."""
    root = f"mysql://root@/mysql?unix_socket={quote(str(subject.server.socket_path))}"
    ca = subject.authority.certificate
    async with cenote.Database(root) as admin:
        await admin.execute("drop user if exists first@'%'")
        await admin.execute(f"create user first@'%' identified by '{PASSWORD}'")
        await admin.execute(f"grant all on {DATABASE}.* to first@'%'")
        for _ in range(2):  # the second time by its hash
            url = subject.url("verify-full", user="first", ca=ca)
            assert await subject.cipher(f"{url}&get_server_public_key=0")
        await admin.execute("drop user first@'%'")


# -- a server without TLS --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
@pytest.mark.parametrize("name", [*SERVERS])
async def test_nothing_is_said_to_a_server_without_tls(
    request: pytest.FixtureRequest, name: str, mode: str, authority: Authority
) -> None:
    pytest.importorskip(PACKAGES[name])
    fixture = name if PACKAGES[name] == "asyncmy" else "postgres"
    if name == "mysql" and (reason := CertifiedMySQL.missing()):
        pytest.skip(reason)
    server = request.getfixturevalue(f"{fixture}_server")
    plain = Subject(name, server, authority)
    proxy = FaultProxy(server.host, server.port)
    url = plain.url(mode, host="127.0.0.1", ca=authority.certificate)
    assert "TLS failed" in await plain.refusal(url, proxy)
    # asyncmy says hello in TLS; what it does not say is in test_mysql_login.py.
    assert plain.is_mysql or proxy.client_bytes == SSL_REQUEST * proxy.connections


async def test_without_a_word_on_tls_postgresql_uses_what_there_is(subject: Subject) -> None:
    if subject.is_mysql:
        assert await subject.cipher(subject.url("disable")) == ""
        return
    assert await subject.cipher(subject.url("prefer"))
    bare = subject.url("prefer").partition("?")[0]
    assert await subject.cipher(bare)
