"""The proxy for faults, with plain sockets and a server that echoes."""

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cenote.testing import FaultProxy
from tests.support.waiting import WAIT

pytestmark = pytest.mark.once

SILENCE = 0.05  # real seconds in which nothing must happen


class EchoServer:
    """A thread for each connection; notes how each one ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.ends: list[str] = []
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    def wait_for_ends(self, expected: list[str]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ends == expected, WAIT), self.ends

    def hang_up(self) -> None:
        with self._changed:
            for connection in self._open:
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._listener.fileno() != -1:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                self._open.add(connection)
            threading.Thread(target=self._echo, args=[connection], daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        end = "FIN"
        try:
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)
        except ConnectionResetError:
            end = "RST"
        with self._changed:
            self._open.discard(connection)
            self.ends.append(end)
            self._changed.notify_all()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


def connect(proxy: FaultProxy) -> socket.socket:
    client = socket.create_connection((proxy.host, proxy.port), timeout=WAIT)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return receive(client, len(request))


def receive(client: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (chunk := client.recv(65536)):
        data += chunk
    return bytes(data)


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(WAIT)
    return False


def test_bytes_pass_in_both_directions(proxy: FaultProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert ask(first, b"one") == b"one"
        assert ask(second, b"two") == b"two"


def test_more_bytes_pass_than_the_sockets_hold(proxy: FaultProxy) -> None:
    data = bytes(range(256)) * 262144  # 64 MiB
    with connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=[data])
        sender.start()
        proxy.wait_for(lambda counts: counts.server_bytes > 0)  # and nobody reads yet
        assert receive(client, len(data)) == data
        sender.join()
    assert proxy.client_bytes == proxy.server_bytes == len(data)


def test_a_half_close_is_passed_on(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 5) == b"last"  # then the end
    echo.wait_for_ends(["FIN"])


def test_the_end_of_the_server_is_passed_on(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        echo.hang_up()
        assert client.recv(1) == b""


def test_a_reset_is_passed_on(proxy: FaultProxy, echo: EchoServer) -> None:
    client = connect(proxy)
    ask(client, b"hello")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    echo.wait_for_ends(["RST"])
    assert proxy.open == 0


def test_connections_are_counted_while_open(proxy: FaultProxy) -> None:
    assert (proxy.connections, proxy.open) == (0, 0)
    with connect(proxy):
        assert (proxy.connections, proxy.open) == (1, 1)
        with connect(proxy):
            assert (proxy.connections, proxy.open) == (2, 2)
        assert (proxy.connections, proxy.open) == (2, 1)
    assert (proxy.connections, proxy.open) == (2, 0)


def test_bytes_and_round_trips_are_counted(proxy: FaultProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        ask(first, b"12345")
        ask(first, b"123")
        assert proxy.round_trips == 2
        ask(second, b"1")
        assert proxy.round_trips == 3
        assert proxy.client_bytes == proxy.server_bytes == 9
        assert proxy.client_chunks == 3


def test_a_request_in_two_parts_is_one_round_trip(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.black_hole(True)  # so that no reply comes in between
        client.sendall(b"half")
        assert (proxy.client_chunks, proxy.round_trips) == (2, 2)
        client.sendall(b"other half")
        assert (proxy.client_chunks, proxy.round_trips) == (3, 2)


def test_wait_for_waits_for_a_count(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        opened = proxy.counts()
        assert opened.open == 1
        threading.Timer(SILENCE, client.close).start()
        proxy.wait_for(lambda counts: counts.open == 0)
        with pytest.raises(TimeoutError, match=r"not within 0.01 s: Counts.*open=0"):
            proxy.wait_for(lambda counts: counts.open == 1, timeout=0.01)
    assert opened.open == 1


def test_counts_remain_after_the_end(echo: EchoServer) -> None:
    with FaultProxy("127.0.0.1", echo.port) as proxy, connect(proxy) as client:
        ask(client, b"hello")
    assert (proxy.connections, proxy.open, proxy.round_trips) == (1, 0, 1)


def test_reset_ends_connections_with_an_error(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        ask(first, b"hello")
        proxy.reset()
        assert proxy.open == 0
        for client in (first, second):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        echo.wait_for_ends(["RST", "RST"])
        with connect(proxy) as third:
            assert ask(third, b"again") == b"again"


def test_cut_ends_connections_in_order(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.cut()
        assert proxy.open == 0
        assert client.recv(1) == b""
        echo.wait_for_ends(["FIN"])
        with connect(proxy) as other:
            assert ask(other, b"again") == b"again"


def test_black_hole_swallows_both_directions(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.black_hole(True)
        client.sendall(b"lost")
        assert is_silent(client)
        assert (proxy.open, proxy.client_bytes, proxy.server_bytes) == (1, 9, 5)
        proxy.black_hole(False)
        assert ask(client, b"again") == b"again"


def test_black_hole_accepts_new_connections_and_stays_silent(proxy: FaultProxy) -> None:
    proxy.black_hole(True)
    with connect(proxy) as client:
        client.sendall(b"lost")
        assert is_silent(client)
        assert (proxy.connections, proxy.open, proxy.client_bytes) == (1, 1, 4)
        proxy.black_hole(False)
        client.sendall(b"lost, too")
        assert is_silent(client)
        with connect(proxy) as other:
            assert ask(other, b"hello") == b"hello"
    assert proxy.open == 0


def test_black_hole_holds_back_the_end_of_the_client(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.black_hole(True)
    assert proxy.open == 0
    assert echo.ends == []
    proxy.black_hole(False)
    echo.wait_for_ends(["FIN"])


def test_black_hole_holds_back_the_end_of_the_server(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.black_hole(True)
        echo.hang_up()
        echo.wait_for_ends(["FIN"])
        assert is_silent(client)
        assert proxy.open == 1
        proxy.black_hole(False)
        assert client.recv(1) == b""


def test_half_open_leaves_the_client_alone(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.half_open()
        echo.wait_for_ends(["FIN"])
        client.sendall(b"lost")
        assert is_silent(client)
        assert proxy.open == 1
        with connect(proxy) as other:
            assert ask(other, b"again") == b"again"
    assert proxy.open == 0


def test_refuse_rejects_new_connections_only(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.refuse(True)
        with pytest.raises(ConnectionResetError), connect(proxy) as refused:
            refused.recv(1)
        assert (proxy.connections, proxy.open) == (2, 1)
        assert ask(client, b"still") == b"still"
        proxy.refuse(False)
        with connect(proxy) as other:
            assert ask(other, b"again") == b"again"


def test_a_server_that_is_down_resets_the_client(echo: EchoServer) -> None:
    echo.close()
    with FaultProxy("127.0.0.1", echo.port) as proxy:
        with pytest.raises(ConnectionResetError), connect(proxy) as client:
            client.recv(1)
        assert (proxy.connections, proxy.open) == (1, 0)


def test_delay_holds_back_every_reply(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.slow(0.01)
        assert ask(client, b"slow") == b"slow"
        proxy.slow(2 * WAIT)
        client.sendall(b"slower")
        proxy.wait_for(lambda counts: counts.server_bytes == len(b"hello slow slower") - 2)
        assert is_silent(client)
        proxy.slow(0)
        with connect(proxy) as other:
            assert ask(other, b"fast") == b"fast"


def test_delay_keeps_the_order(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.slow(0.1)
        client.sendall(b"first ")
        proxy.wait_for(lambda counts: counts.server_bytes == 11)
        proxy.slow(0)
        client.sendall(b"second")
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 100) == b"first second"


def test_hold_replies_keeps_them_until_it_is_over(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        proxy.hold_replies(True)
        client.sendall(b"first ")
        proxy.wait_for(lambda counts: counts.held == 1)
        client.sendall(b"second")
        proxy.wait_for(lambda counts: counts.held == 2)
        assert is_silent(client)
        proxy.hold_replies(False)
        assert receive(client, 12) == b"first second"
        assert ask(client, b"third") == b"third"


@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_cut_reply_after_passes_so_many_bytes(
    proxy: FaultProxy, echo: EchoServer, count: int
) -> None:
    with connect(proxy) as client, connect(proxy) as other:
        ask(client, b"hello")
        proxy.cut_reply_after(count)
        client.sendall(b"world")
        if count:
            assert receive(client, count) == b"world"[:count]
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        echo.wait_for_ends(["RST"])
        assert proxy.open == 1
        assert ask(other, b"untouched") == b"untouched"


def test_cut_reply_after_counts_on_over_replies(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        proxy.cut_reply_after(8)
        assert ask(client, b"hello") == b"hello"
        client.sendall(b"world")
        assert receive(client, 3) == b"wor"
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_cut_reply_after_passes_all_bytes_of_a_long_reply(proxy: FaultProxy) -> None:
    data = bytes(16 * 1024 * 1024)
    count = len(data) - 1
    proxy.cut_reply_after(count)
    with connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=[data])
        sender.start()
        assert len(receive(client, count)) == count
        sender.join()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


@pytest.mark.real_time("talks to a real server")
async def test_the_proxy_is_an_async_block_too(echo: EchoServer) -> None:
    async with FaultProxy("127.0.0.1", echo.port) as proxy:
        with connect(proxy) as client:
            assert ask(client, b"hello") == b"hello"
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)


def test_a_server_of_ipv6_is_reached() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with listener, FaultProxy("::1", listener.getsockname()[1]) as proxy, connect(proxy) as client:
        server, _ = listener.accept()
        with server:
            server.sendall(b"hello")
            assert receive(client, 5) == b"hello"


@pytest.mark.parametrize(
    ("host", "port", "error", "text"),
    [
        (None, 80, TypeError, "host must be a string, not NoneType"),
        ("127.0.0.1", "80", TypeError, "port must be a whole number, not str"),
        ("127.0.0.1", 0, ValueError, "port must be 1 or more, not 0"),
        ("127.0.0.1", 65536, ValueError, "port must be at most 65535, not 65536"),
    ],
)
def test_a_place_that_is_none_is_refused(host: Any, port: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        FaultProxy(host, port)


def test_an_unknown_host_is_raised_by_the_block() -> None:
    proxy = FaultProxy("no-such-host.invalid", 80)
    with pytest.raises(socket.gaierror):
        proxy.__enter__()


def test_bad_arguments_of_faults_are_refused(proxy: FaultProxy) -> None:
    for seconds in (-1, float("nan"), "1"):
        with pytest.raises((TypeError, ValueError), match=r"^seconds must be"):
            proxy.slow(seconds)  # type: ignore[arg-type]
    for n_bytes in (-1, 1.5, "1"):
        with pytest.raises((TypeError, ValueError), match=r"^n_bytes must be"):
            proxy.cut_reply_after(n_bytes)  # type: ignore[arg-type]


def test_a_proxy_outside_its_block_says_so() -> None:
    with pytest.raises(RuntimeError, match="is not running yet: use it in `with FaultProxy"):
        FaultProxy("127.0.0.1", 1).reset()
