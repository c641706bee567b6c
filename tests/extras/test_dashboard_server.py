"""The buttons of the dashboard, its own small server, and the servers of others."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cenote
from cenote.extras.dashboard import asgi, server
from cenote.extras.dashboard.head import LONGEST_HEAD, BadRequest, parse
from cenote.testing import settle
from tests.support.kit import Thing
from tests.support.viewer import TOKEN, Viewer, ask, order, press, scope, until, watching
from tests.support.waiting import WAIT

# -- the buttons ---------------------------------------------------------------------------------

app = cenote.dashboard.app


async def test_a_dashboard_without_control_only_shows(make_pool):
    pool = make_pool(Thing, name="p")
    async with watching(app()) as viewer:
        assert viewer.messages[0]["control"] is False
        status, said = await order(app(), "deactivate")
        assert (status, pool.state) == (403, "ACTIVE")
        assert "read-only" in said["error"]


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "sésame"])
async def test_a_wrong_token_is_refused(make_pool, token):
    pool = make_pool(Thing)
    application = app(control_token=TOKEN)
    async with watching(application) as viewer:
        assert viewer.messages[0]["control"] is True
        status, said = await order(application, "deactivate", token=token)
        assert (status, pool.state) == (403, "ACTIVE")
        assert "token is" in said["error"]


async def test_every_button_changes_the_pool(make_pool):
    pool = make_pool(Thing, name="p")
    application = app(control_token=TOKEN)
    async with watching(application) as viewer:
        for action, state in [
            ("deactivate", "INACTIVE"),
            ("recover", "RECOVERING"),
            ("activate", "ACTIVE"),
        ]:
            assert await press(application, viewer, action, "p") == (200, {"done": action})
            assert pool.state == state
        assert (await order(application, "activate", 999, process=viewer.process))[0] == 404


async def test_an_order_that_reaches_another_process_does_nothing(make_pool):
    """Each process has an app of its own, and numbers its pools by itself."""
    pool = make_pool(Thing, name="p")
    watched, other = app(control_token=TOKEN), app(control_token=TOKEN)
    async with watching(watched) as viewer, watching(other):
        status, said = await press(other, viewer, "deactivate", "p")
        assert (status, pool.state) == (409, "ACTIVE")
        assert said["error"].startswith("another process of this program answered; ")
        assert (await press(watched, viewer, "deactivate", "p"))[0] == 200
        assert pool.state == "INACTIVE"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"action": "close", "pool": 1}', 400),
        (b'{"action": "activate", "pool": "1"}', 400),
        (b'{"action": "activate", "pool": true}', 400),
        (b'{"action": ["activate"], "pool": 1}', 400),
        (b'{"action": "activate", "pool": 1}', 400),
        (b'{"action": "activate", "pool": 1, "process": 7}', 400),
        (b"\xff", 400),
        (b"[" * 4000, 400),
        (b" " * 5000, 413),
    ],
)
async def test_bad_orders_are_refused_and_change_nothing(body, status):
    assert (await order(app(control_token=TOKEN), "", body=body))[0] == status


async def test_an_order_must_be_json():
    answer = await order(app(control_token=TOKEN), "check", **{"content-type": "text/plain"})
    assert answer[0] == 415


# -- the server ----------------------------------------------------------------------------------

sockets = pytest.mark.real_time("sockets")


async def raw(port, request, *, eof=False):
    """What the server answers to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        if eof:
            writer.write_eof()
        async with asyncio.timeout(WAIT):
            return await reader.read()
    finally:
        writer.close()


@sockets
async def test_the_server_serves_the_page():
    async with await cenote.serve_dashboard(port=0) as served:
        assert served.url == f"http://127.0.0.1:{served.port}/"
        assert served.url in repr(served)
        answer = await raw(served.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close" in head
        assert body.startswith(b"<!doctype html>")
    assert "closed" in repr(served)
    with pytest.raises(OSError):
        await raw(served.port, b"")
    await served.close()  # again


@sockets
async def test_the_server_binds_to_the_loopback_or_warns(caplog):
    async with await cenote.serve_dashboard(port=0) as served:
        (listening,) = served._server.sockets
        assert listening.getsockname()[0] == "127.0.0.1"
    assert not caplog.records
    with pytest.raises(ValueError, match=r"host '0\.0\.0\.0' is open to other machines: .*token="):
        await cenote.serve_dashboard(host="0.0.0.0", port=0)
    async with await cenote.serve_dashboard(host="0.0.0.0", port=0, token=TOKEN) as served:
        assert served.url == f"http://127.0.0.1:{served.port}/"
        bound = f"0.0.0.0:{served.port}"
    (record,) = caplog.records
    assert record.message == f"the dashboard listens on {bound}, open to other machines"


@sockets
async def test_a_port_that_is_taken_is_an_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError):
            await cenote.serve_dashboard(port=other.getsockname()[1])


@sockets
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /%2F HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: localhost\n\n\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
        (b"GET /" + b"x" * 2048 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70000 + b"\r\n\r\n", 431),
        (b"POST /control HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n", 413),
        (b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n", 400),
        (b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 403),
    ],
)
async def test_every_request_has_its_status(request_, status):
    async with await cenote.serve_dashboard(port=0) as served:
        answer = await raw(served.port, request_)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


def filled(before, byte, after=b""):
    """A head as long as it may be."""
    return before + byte * (LONGEST_HEAD - len(before) - len(after)) + after


HOSTILE = {
    "blanks and a forbidden byte": (filled(HEAD + b"X:", b" ", b"\x00"), 400),
    "blanks and a line feed": (filled(HEAD + b"X:", b" ", b"\n"), 400),
    "blanks in the middle": (filled(HEAD + b"X: a", b" ", b"b"), 200),
    "blanks only": (filled(HEAD + b"X:", b" "), 200),
    "tabs and blanks": (filled(HEAD + b"X:", b"\t", b" \x7f"), 400),
    "a name without an end": (filled(HEAD, b"x"), 400),
    "a name with a forbidden byte": (filled(HEAD, b"x", b"(: y"), 400),
    "blanks before the colon": (filled(HEAD + b"X", b" ", b": y"), 400),
    "colons": (filled(HEAD + b"X", b":"), 200),
    "line ends": (filled(HEAD, b"\r", b"\n"), 400),
    "many short lines": (HEAD + b"\r\n".join([b"X:"] * 99), 200),
    "too many short lines": (HEAD + b"\r\n".join([b"X:"] * 3000), 431),
    "a host without an end": (filled(b"GET / HTTP/1.1\r\nHost: ", b"a"), 403),
    "a host of brackets": (filled(b"GET / HTTP/1.1\r\nHost: ", b"["), 403),
    "a host of colons": (filled(b"GET / HTTP/1.1\r\nHost: a", b":", b"x"), 403),
    "blanks in the first line": (filled(b"GET ", b" ", b"/ HTTP/1.1\r\nHost: localhost"), 400),
    "a long address": (filled(b"GET /", b"%", b" HTTP/1.1\r\nHost: localhost"), 414),
    "an address that never ends": (filled(b"GET /", b"a"), 400),
    "many fields": (b"GET /events?" + b"a&" * 1000 + b" HTTP/1.1\r\nHost: localhost", 400),
    "a method without an end": (filled(b"", b"G"), 400),
}


@sockets
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_heads_are_answered(name):
    """All that a head may have: with a regular expression that goes back, hours."""
    head, status = HOSTILE[name]
    async with await cenote.serve_dashboard(port=0) as served:
        answer = await raw(served.port, head.removesuffix(b"\r\n") + b"\r\n\r\n")
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@given(
    st.lists(st.sampled_from([HEAD, b"\r\n", b"X: y", b" ", b":", b"\xff", b"\x00"]) | st.binary())
)
def test_any_head_is_read_or_refused(parts):
    try:
        head = parse(b"".join(parts))
    except BadRequest:
        return
    assert head.method.isupper()
    assert head.target.startswith(b"/")
    assert all(value == value.strip(b" \t") for _, value in head.headers)


def test_requests_are_parsed_without_regular_expressions():
    """Whatever Python runs on the way of a request: `re` may stop the loop, and so the program."""
    folder = Path(server.__file__).parent
    for name in ("answers", "asgi", "guard", "head", "requests", "server", "session"):
        assert not re.search(
            r"^(import re|from re import)\b", (folder / f"{name}.py").read_text(), re.M
        )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000])
@sockets
async def test_a_head_in_parts_is_put_together(size):
    request = filled(HEAD + b"X: ", b"y") + b"\r\n\r\n"
    request = request if size > 5 else HEAD + b"\r\n"
    async with await cenote.serve_dashboard(port=0) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        for start in range(0, len(request), size):
            writer.write(request[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)  # so that they do not arrive as one
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@sockets
@pytest.mark.parametrize(
    ("half", "status"),
    [
        (b"", None),
        (b"GET / HTTP/1.1\r\nHo", 408),
        (b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{", 408),
    ],
)
@pytest.mark.parametrize("eof", [True, False])
async def test_half_a_request_ends_in_time(half, status, eof, monkeypatch):
    monkeypatch.setattr(server, "READ_TIMEOUT", 1.0)
    async with await cenote.serve_dashboard(port=0) as served:
        try:
            answer = await raw(served.port, half, eof=eof)
        except ConnectionResetError:
            answer = b""
        if eof or status is None:  # nobody is there to be told, or nothing was asked
            assert answer == b""
        else:
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        await until(lambda: not served._tasks)


@sockets
async def test_a_slow_head_has_one_deadline(monkeypatch):
    """However many small parts it is sent in."""
    monkeypatch.setattr(server, "READ_TIMEOUT", 1.0)
    async with await cenote.serve_dashboard(port=0) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        answer = asyncio.create_task(reader.read())
        async with asyncio.timeout(WAIT):
            while not answer.done():
                writer.write(b"X")
                await asyncio.wait([answer], timeout=0.02)
        assert (await answer).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await until(lambda: not served._tasks)


@sockets
async def test_the_number_of_connections_is_limited(monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 1)
    async with await cenote.serve_dashboard(port=0) as served:
        _, first = await asyncio.open_connection("127.0.0.1", served.port)
        await until(lambda: len(served._tasks) == 1)
        turned_away = await raw(served.port, b"")
        assert turned_away.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in turned_away
        first.close()
        await until(lambda: not served._tasks)
        assert await raw(served.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


@sockets
async def test_a_client_that_never_stops_talking_is_cut_off(make_pool):
    pool = make_pool(Thing)
    async with await cenote.serve_dashboard(port=0) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(STREAM)
        await reader.readuntil(b"data: ")
        assert len(pool._engine.subscribers) == 1
        writer.write(b"x" * (2 * LONGEST_HEAD))
        await until(lambda: pool._engine.subscribers == () and not served._tasks)
        writer.close()


@sockets
async def test_a_failure_of_its_own_is_answered_and_logged(monkeypatch, caplog):
    async def fail(*_):
        raise LookupError("nobody thought of this")

    async with await cenote.serve_dashboard(port=0) as served:
        monkeypatch.setattr(served._app, "_answer", fail)
        assert (await raw(served.port, HEAD + b"\r\n")).startswith(b"HTTP/1.1 500 ")
    (record,) = caplog.records
    assert "LookupError" in record.exc_text


STREAM = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"


@sockets
async def test_a_stream_over_a_socket_has_events(make_pool):
    pool = make_pool(Thing, name="p")
    async with await cenote.serve_dashboard(port=0, interval=0.05) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(STREAM)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-type: text/event-stream" in head
        assert await reader.readline() == b"retry: 1000\n"
        await reader.readline()
        assert (await reader.readline()).startswith(b"id: ")
        message = json.loads((await reader.readline()).removeprefix(b"data: "))
        assert [shown["name"] for shown in message["pools"]] == ["p"]
        assert len(pool._engine.subscribers) == 1
        writer.close()
        await until(lambda: pool._engine.subscribers == ())


@sockets
async def test_a_browser_that_does_not_read_is_cut_off(make_pool, monkeypatch):
    monkeypatch.setattr(server, "SEND_TIMEOUT", 1.0)
    transports = []

    class Noted(server.Connection):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            transports.append(self._writer.transport)

    monkeypatch.setattr(server, "Connection", Noted)
    pool = make_pool(Thing, min_size=1000, max_size=1000)
    await pool.open()
    things = [await pool.acquire() for _ in range(1000)]
    async with await cenote.serve_dashboard(port=0, interval=0.05) as served:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", served.port))
            client.sendall(STREAM)
            await until(lambda: pool._engine.subscribers)
            while pool._engine.subscribers:  # every tile changes, nobody reads
                for thing in things:
                    pool.release(thing)
                things = [await pool.acquire() for _ in range(1000)]
                await asyncio.sleep(0.02)
            await until(lambda: not served._tasks)
            assert [each.get_write_buffer_size() for each in transports] == [0]
    for thing in things:
        pool.release(thing)


@sockets
async def test_closing_ends_the_streams(make_pool):
    pool = make_pool(Thing)
    served = await cenote.serve_dashboard(port=0)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(STREAM)
    await reader.readuntil(b"\r\n\r\n")
    await served.close()
    try:
        while await reader.read(65536):
            pass
    except ConnectionResetError:
        pass
    assert pool._engine.subscribers == ()
    writer.close()


def test_the_server_ends_with_its_loop():
    code = """if True:
        import asyncio, cenote, logging
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # a slow machine is not a failure
        async def main():
            pool = cenote.Pool(object)
            server = await cenote.serve_dashboard(port=0)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
            await reader.readuntil(b"data: ")
            writer.close()
            await pool.close()
        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


# -- in other servers ----------------------------------------------------------------------------


async def test_a_dashboard_mounted_in_starlette_works(make_pool):
    applications = pytest.importorskip("starlette.applications")
    from starlette.routing import Mount

    make_pool(Thing, name="p")
    whole = applications.Starlette(
        routes=[Mount("/ops/pools", cenote.dashboard.app(control_token=TOKEN))]
    )
    assert (await ask(whole, "GET", "/ops/pools/"))[0] == 200
    status, headers, _ = await ask(whole, "GET", "/ops/pools")
    assert (status, headers["location"]) == (307, "http://localhost/ops/pools/")
    viewer = Viewer()
    request = scope("GET", "/ops/pools/events")
    task = asyncio.create_task(whole(request, viewer.receive, viewer.send))
    await settle()
    assert viewer.pool("p")
    viewer.hang_up.set()
    await task


@asynccontextmanager
async def uvicorn_of(**options):
    """The dashboard under uvicorn: its port, and the function that stops it."""
    uvicorn = pytest.importorskip("uvicorn")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            "cenote:dashboard", log_config=None, log_level="error", ws="none", **options
        )
        running = uvicorn.Server(config)
        running.capture_signals = nullcontext
        task = asyncio.create_task(running.serve([listening]))
        await until(lambda: running.started)

        async def stop():
            running.should_exit = True
            await task

        try:
            yield listening.getsockname()[1], stop
        finally:
            await stop()


@sockets
async def test_a_dashboard_under_uvicorn_works(make_pool):
    pool = make_pool(Thing, name="p")
    async with uvicorn_of(timeout_graceful_shutdown=1) as (port, _):
        answer = await raw(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")
        refused = await raw(
            port, b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        )
        assert refused.startswith(b"HTTP/1.1 403")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(STREAM)
        await reader.readuntil(b'"name":"p"')
        assert len(pool._engine.subscribers) == 1
        writer.close()
        await until(lambda: pool._engine.subscribers == ())


@sockets
async def test_an_open_page_does_not_hold_up_uvicorn(make_pool, caplog, monkeypatch):
    monkeypatch.setattr(asgi, "STREAM", 1.0)
    make_pool(Thing, name="p")
    async with uvicorn_of() as (port, stop):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(STREAM)
        await reader.readuntil(b'"name":"p"')
        async with asyncio.timeout(WAIT):
            await stop()
        assert (await reader.read()).endswith(b"event: again\ndata:\n\n\r\n0\r\n\r\n")
        writer.close()
    assert not caplog.records


@sockets
async def test_an_open_page_is_ended_by_uvicorn_without_a_traceback(make_pool, caplog):
    make_pool(Thing, name="p")
    async with uvicorn_of(timeout_graceful_shutdown=0.1) as (port, stop):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(STREAM)
        await reader.readuntil(b'"name":"p"')
        await stop()
        assert (await reader.read()).endswith(b"\r\n0\r\n\r\n")  # the end of the body
        writer.close()
    (record,) = caplog.records
    assert record.message.startswith("Cancel 1 running task(s)")
    assert record.exc_info is None
