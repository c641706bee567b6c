"""Logging in to MySQL: no password in clear text without TLS, and no TLS weaker than asked for."""

import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import cenote
from tests.support.servers import DATABASE, PASSWORD, MySQLServer, environment
from tests.support.waiting import WAIT

pytest.importorskip("asyncmy")
pytestmark = [pytest.mark.real_time("talks to servers"), pytest.mark.once]

SECRET = "hunter2-secret"

# PROTOCOL_41, SSL, SECURE_CONNECTION, PLUGIN_AUTH, PLUGIN_AUTH_LENENC_CLIENT_DATA
TLS = 0x800
CAPABILITIES = 0x200 | TLS | 0x8000 | 0x80000 | 0x200000
SSL_REQUEST = 32  # bytes
FULL_LOGIN, PUBLIC_KEY = b"\x01\x04", b"\x01"


class FakeServer:
    """Greets one client, and asks it for its password in a way of its own."""

    def __init__(
        self,
        ask: Callable[["FakeServer"], None],
        context: ssl.SSLContext | None,
        capabilities: int = CAPABILITIES,
        plugin: str = "caching_sha2_password",
    ) -> None:
        self._capabilities = capabilities
        self._plugin = plugin
        self.heard = b""  # everything that the client has said, decrypted
        self._ask = ask
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(WAIT)
        try:
            self._greet()
            answer = self.read()
            if len(answer) == SSL_REQUEST and self._context is not None:
                self._socket = self._context.wrap_socket(self._socket, server_side=True)
                self.read()
            self._ask(self)
        except (OSError, EOFError):
            pass  # the client has hung up
        finally:
            self._socket.close()

    def _greet(self) -> None:
        capabilities = self._capabilities
        salt = b"12345678" + b"123456789012"
        self.number = 0
        self.say(
            b"\x0a" + b"8.4.0\0" + struct.pack("<I", 7) + salt[:8] + b"\0"
            + struct.pack("<HBHHB", capabilities & 0xFFFF, 45, 2, capabilities >> 16, 21)
            + bytes(10) + salt[8:] + b"\0" + self._plugin.encode() + b"\0"
        )  # fmt: skip

    def say(self, payload: bytes) -> None:
        head = struct.pack("<I", len(payload))[:3] + bytes([self.number])
        self._socket.sendall(head + payload)

    def read(self) -> bytes:
        head = self._exactly(4)
        self.number = (head[3] + 1) & 0xFF
        return self._exactly(int.from_bytes(head[:3], "little"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
            self.heard += more
        return data

    def join(self) -> None:
        """Wait until the client has hung up."""
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        self._listener.close()


@contextmanager
def fake(
    ask: Callable[[FakeServer], None],
    context: ssl.SSLContext | None = None,
    capabilities: int = CAPABILITIES,
    plugin: str = "caching_sha2_password",
) -> Iterator[FakeServer]:
    server = FakeServer(ask, context, capabilities, plugin)
    try:
        yield server
    finally:
        server.join()


async def connect(server: FakeServer, options: str = "") -> BaseException:
    """The error of the attempt."""
    url = f"mysql://app:{SECRET}@127.0.0.1:{server.port}/app{options}"
    db = cenote.Database(url, strategy=None)
    try:
        with pytest.raises(Exception) as caught:
            await db.fetch_val("select 1")
    finally:
        await db.close()
    return caught.value


def in_clear(server: FakeServer) -> None:
    server.say(b"\xfemysql_clear_password\0")
    server.read()


def by_dialog(server: FakeServer) -> None:
    server.say(b"\xfedialog\0" + b"\x04" + b"Password: ")
    server.read()


def in_the_old_way(server: FakeServer) -> None:
    server.say(b"\xfemysql_old_password\0" + b"12345678\0")
    server.read()


@pytest.mark.parametrize("ask", [in_clear, by_dialog])
async def test_no_password_in_clear_text_without_tls(ask: Callable[[FakeServer], None]) -> None:
    with fake(ask) as server:
        error = await connect(server)
    assert SECRET.encode() not in server.heard
    text = str(error)
    assert "the server asks for the password in clear text" in text
    assert "nothing was sent" in text
    assert "sslmode=verify-full" in text
    assert SECRET not in repr(error)


async def test_a_way_of_the_caller_gives_no_password_away_either() -> None:
    class Handler:
        def __init__(self, connection: Any) -> None:
            self.connection = connection

        def authenticate(self, packet: Any) -> Any:
            self.connection.write_packet(SECRET.encode())

    with fake(in_clear) as server:
        url = f"mysql://app:{SECRET}@127.0.0.1:{server.port}/app"
        args = {"auth_plugin_map": {"mysql_clear_password": Handler}}
        db = cenote.Database(url, strategy=None, connect_args=args)
        with pytest.raises(Exception, match="clear text"):
            await db.fetch_val("select 1")
        await db.close()
    assert SECRET.encode() not in server.heard


async def test_the_way_of_before_4_1_is_refused() -> None:
    with fake(in_the_old_way) as server:
        error = await connect(server)
    assert "mysql_old_password, which does not protect the password" in str(error)
    assert SECRET.encode() not in server.heard


def certify(directory: Path) -> ssl.SSLContext:
    """A certificate that is its own authority: certificate.pem and key.pem."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", directory / "key.pem", "-out", directory / "certificate.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, *files]
    subprocess.run(command, check=True, capture_output=True, env=environment())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
    return context


@pytest.mark.parametrize("ask", [in_clear, by_dialog])
async def test_with_tls_the_server_gets_what_it_asks_for(
    ask: Callable[[FakeServer], None], tmp_path: Path
) -> None:
    context = certify(tmp_path)
    with fake(ask, context) as server:
        await connect(server, f"?sslmode=verify-full&ssl_ca={tmp_path / 'certificate.pem'}")
    assert SECRET.encode() in server.heard


async def test_a_full_login_without_tls_is_encrypted(tmp_path: Path) -> None:
    """As MySQL does it by default."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    asked: list[bytes] = []

    def ask(server: FakeServer) -> None:
        server.say(FULL_LOGIN)
        asked.append(server.read())
        server.say(PUBLIC_KEY + pem)
        asked.append(server.read())

    with fake(ask) as server:
        await connect(server)
    assert asked[0] == b"\x02"
    assert len(asked[1]) == 256
    assert SECRET.encode() not in server.heard


async def test_a_server_without_tls_hears_neither_user_nor_password() -> None:
    with fake(in_clear, capabilities=CAPABILITIES & ~TLS) as server:
        error = await connect(server, "?sslmode=require")
    assert "TLS failed" in str(error)
    assert b"app" not in server.heard
    assert SECRET.encode() not in server.heard


def key_pair(directory: Path) -> Path:
    """The file of a public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    format_ = serialization.PublicFormat.SubjectPublicKeyInfo
    path = directory / "public_key.pem"
    path.write_bytes(key.public_bytes(serialization.Encoding.PEM, format_))
    return path


@pytest.mark.parametrize("plugin", ["caching_sha2_password", "sha256_password"])
async def test_a_key_that_is_given_is_not_asked_for(tmp_path: Path, plugin: str) -> None:
    answers: list[bytes] = []

    def ask(server: FakeServer) -> None:
        if plugin == "sha256_password":
            server.say(b"\xfe" + plugin.encode() + b"\0" + b"12345678" + b"123456789012" + b"\0")
        else:
            server.say(FULL_LOGIN)
        answers.append(server.read())

    with fake(ask, plugin=plugin) as server:
        await connect(server, f"?server_public_key={key_pair(tmp_path)}")
    assert [len(answer) for answer in answers] == [256]
    assert SECRET.encode() not in server.heard


async def test_a_key_that_must_not_be_asked_for_is_not(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def ask(server: FakeServer) -> None:
        server.say(FULL_LOGIN)
        asked.append(server.read())

    with fake(ask) as server:
        error = await connect(server, "?get_server_public_key=0")
    assert asked == []  # it has hung up
    assert "which may not be asked for (get_server_public_key=0): nothing was sent" in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("server_public_key=no-such-file", "'server_public_key' cannot be read"),
        (f"server_public_key={__file__}", "has no public key in PEM"),
        ("get_server_public_key=perhaps", "'get_server_public_key' must be one of 1, true"),
    ],
)
def test_bad_options_of_the_public_key_are_refused(options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cenote.Database(f"mysql://app@localhost/app?{options}")


def test_a_key_is_given_in_one_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="both set the server's public key"):
        cenote.Database(
            f"mysql://app@localhost/app?server_public_key={key_pair(tmp_path)}",
            connect_args={"server_public_key": b"another"},
        )


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_ca_is_never_dropped(mode: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    context = certify(tmp_path)
    certify(other)
    with fake(in_clear, context) as server:
        error = await connect(server, f"?sslmode={mode}&ssl_ca={other / 'certificate.pem'}")
    assert "certificate verify failed" in str(error).lower()
    assert SECRET.encode() not in server.heard


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ("sslmode=disable&ssl_ca=a.pem", {}, "url has ssl_ca and sslmode=disable"),
        ("sslmode=disable&ssl_cert=a.pem", {}, "url has ssl_cert and sslmode=disable"),
        ("sslmode=require&ssl_key=a.pem", {}, "ssl_key without ssl_cert"),
        ("ssl_key=a.pem", {}, "ssl_key without ssl_cert"),
        ("sslmode=verify-full", {"ssl": False}, "connect_args has 'ssl' as well"),
        ("sslmode=verify-full", {"ssl": True}, "connect_args has 'ssl' as well"),
        ("sslmode=prefer", {}, "'sslmode' must be one of disable"),
    ],
)
def test_options_of_tls_that_contradict(
    options: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cenote.Database(f"mysql://app@localhost/app?{options}", connect_args=arguments)


# -- a real MySQL --------------------------------------------------------------------------------


async def test_the_first_login_of_a_user_of_mysql(mysql_server: MySQLServer) -> None:
    """The server has no hash of the password yet, so it has to be sent, encrypted."""
    root = f"mysql://root@/mysql?unix_socket={quote(str(mysql_server.socket_path))}"
    async with cenote.Database(root) as db:
        await db.execute("drop user if exists fresh@'%'")
        await db.execute(f"create user fresh@'%' identified by '{PASSWORD}'")
        await db.execute(f"grant all on {DATABASE}.* to fresh@'%'")
    async with cenote.Database(mysql_server.tcp_url(user="fresh")) as db:
        for _ in range(2):  # the second time by its hash
            assert await db.fetch_val("select substring_index(user(), '@', 1)") == "fresh"
            await db.pool.retire()  # type: ignore[union-attr]
    db = cenote.Database(mysql_server.tcp_url(user="fresh", password="wrong"))
    with pytest.raises(Exception, match="Access denied for user 'fresh'"):
        await db.fetch_val("select 1")
    await db.close()


async def test_the_public_key_is_taken_as_the_option_says(
    mysql_server: MySQLServer, tmp_path: Path
) -> None:
    path = tmp_path / "public_key.pem"
    path.write_bytes(mysql_server.public_key)
    root = f"mysql://root@/mysql?unix_socket={quote(str(mysql_server.socket_path))}"
    url = mysql_server.tcp_url(user="unhashed")
    async with cenote.Database(root) as admin:
        await admin.execute("drop user if exists unhashed@'%'")
        await admin.execute(f"create user unhashed@'%' identified by '{PASSWORD}'")
        await admin.execute(f"grant all on {DATABASE}.* to unhashed@'%'")
        db = cenote.Database(f"{url}?get_server_public_key=0", strategy=None)
        with pytest.raises(cenote.ConnectError, match="nothing was sent"):
            await db.fetch_val("select 1")
        async with cenote.Database(f"{url}?server_public_key={path}") as other:
            assert await other.fetch_val("select 1") == 1
        # From now on the server has its hash, and needs no password.
        assert await db.fetch_val("select 1") == 1
        await db.close()
        await admin.execute("drop user unhashed@'%'")


def test_the_extra_has_what_the_default_login_of_mysql_needs() -> None:
    from importlib.metadata import requires

    needed = [
        each for each in requires("cenote") or () if "extra == 'mysql'" in each.replace('"', "'")
    ]
    assert any(each.startswith("cryptography") for each in needed)
    assert any(each.startswith("asyncmy") for each in needed)
