"""The dashboard in other applications, on sockets, and on the network."""

import asyncio
import socket

import httpx
import pytest

import cenote
from tests.support.kit import Thing
from tests.support.viewer import HTML, TOKEN, ask, until
from tests.support.waiting import WAIT

app = cenote.dashboard.app


def in_starlette(dashboard):
    applications = pytest.importorskip("starlette.applications")
    from starlette.routing import Mount

    return applications.Starlette(routes=[Mount("/pools", dashboard)])


def in_fastapi(dashboard):
    application = pytest.importorskip("fastapi").FastAPI()
    application.mount("/pools", dashboard)
    return application


frameworks = pytest.mark.parametrize("mounted", [in_starlette, in_fastapi])


def client_of(application, client="127.0.0.1", **more):
    transport = httpx.ASGITransport(application, client=(client, 50000))
    return httpx.AsyncClient(transport=transport, **{"base_url": "http://localhost", **more})


@frameworks
async def test_a_mounted_dashboard_is_closed(mounted):
    application = mounted(cenote.dashboard)
    async with client_of(application, "192.0.2.7") as client:
        answer = await client.get("/pools/")
        assert answer.status_code == 403
        assert "public=True" in answer.json()["error"]
        assert (await client.get("/pools/events")).status_code == 403
    async with client_of(application) as client:
        assert (await client.get("/pools/")).status_code == 200
        forwarded = {"X-Forwarded-For": "192.0.2.7"}
        assert (await client.get("/pools/", headers=forwarded)).status_code == 403


@frameworks
async def test_a_mounted_dashboard_takes_a_token(mounted):
    application = mounted(cenote.dashboard.app(token=TOKEN))
    async with client_of(application, "192.0.2.7", base_url="https://shop.example") as client:
        answer = await client.get("/pools/", headers=HTML)
        assert answer.status_code == 401
        assert 'action="login"' in answer.text
        answer = await client.post("/pools/login", data={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        (cookie,) = client.cookies.jar
        assert (cookie.path, cookie.secure) == ("/pools", True)
        assert (await client.get("/pools/")).text.startswith("<!doctype html>")
        assert (await client.post("/pools/logout")).json() == {"done": "logout"}
        assert (await client.get("/pools/")).status_code == 401


@frameworks
async def test_the_session_of_the_application_decides_when_mounted(mounted):
    middleware = pytest.importorskip("starlette.middleware.authentication")
    from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser

    class Backend(AuthenticationBackend):
        async def authenticate(self, connection):
            if "x-user" in connection.headers:
                return AuthCredentials(), SimpleUser(connection.headers["x-user"])
            return None

    dashboard = cenote.dashboard.app(
        authorize=lambda scope: scope["user"].is_authenticated, hosts=["shop.example"]
    )
    application = middleware.AuthenticationMiddleware(mounted(dashboard), backend=Backend())
    async with client_of(application, "192.0.2.7", base_url="https://shop.example") as client:
        assert (await client.get("/pools/")).status_code == 403
        assert (await client.get("/pools/", headers={"X-User": "ada"})).status_code == 200


@pytest.mark.parametrize(
    ("root", "target"),
    [
        ("//evil.example/pools", "/evil.example/pools/"),
        ("/\\evil.example/pools", "/%5Cevil.example/pools/"),
        ("/a\r\nset-cookie: b/pools", "/a%0D%0Aset-cookie:%20b/pools/"),
        ("/Ресурсы/pools", "/%D0%A0%D0%B5%D1%81%D1%83%D1%80%D1%81%D1%8B/pools/"),
        ("/a:b@c/pools", "/a:b@c/pools/"),
        ("", "/"),
    ],
)
async def test_the_redirection_to_the_page_stays_on_this_host(root, target):
    """Mounted at "/{tenant:path}/pools", say, the address is up to whoever asks."""
    status, head, _ = await ask(app(), "GET", root, root=root)
    assert (status, head["location"]) == (307, target)


@pytest.mark.real_time("sockets")
async def test_a_unix_socket_is_closed(tmp_path):
    """As nginx asks by one, told to speak HTTP/1.1: no header says that there is a proxy."""
    uvicorn = pytest.importorskip("uvicorn")
    path = str(tmp_path / "u")
    opened = cenote.dashboard.app(token=TOKEN)
    routes = {"/closed/": cenote.dashboard, "/opened/": opened}

    async def both(scope, receive, send):
        mounted = routes[scope["path"]]
        await mounted({**scope, "root_path": scope["path"].rstrip("/")}, receive, send)

    config = uvicorn.Config(
        both, uds=path, log_config=None, log_level="error", ws="none", lifespan="off"
    )
    running = uvicorn.Server(config)
    task = asyncio.create_task(running._serve())
    await until(lambda: running.started)
    try:
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, timeout=WAIT) as client:
            answer = await client.get("http://localhost/closed/")
            assert answer.status_code == 403
            assert "Unix socket" in answer.json()["error"]
            headers = {"authorization": f"Bearer {TOKEN}"}
            answer = await client.get("http://localhost/opened/", headers=headers)
            assert answer.status_code == 200
    finally:
        running.should_exit = True
        await task


@pytest.mark.real_time("sockets")
async def test_an_address_of_the_network_is_closed():
    """As a container does it: an application on 0.0.0.0, called by an address of this machine."""
    uvicorn = pytest.importorskip("uvicorn")
    address = own_address()
    with socket.socket() as listening:
        listening.bind(("0.0.0.0", 0))
        port = listening.getsockname()[1]
        config = uvicorn.Config(
            in_starlette(cenote.dashboard), log_config=None, log_level="error", ws="none"
        )
        running = uvicorn.Server(config)
        task = asyncio.create_task(running._serve([listening]))
        await until(lambda: running.started)
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=WAIT) as client:
                url = f"http://{address}:{port}/pools/"
                assert (await client.get(url)).status_code == 403
                assert (await client.get(f"{url}events")).status_code == 403
                assert (await client.get(f"http://127.0.0.1:{port}/pools/")).status_code == 200
        finally:
            running.should_exit = True
            await task


def own_address():
    """Of this machine, but not of the loopback: by which it would reach another network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"this machine has no network: {error}")
        return probe.getsockname()[0]


@pytest.mark.real_time("sockets")
async def test_the_server_asks_for_the_token(make_pool):
    make_pool(Thing, name="p")
    async with (
        await cenote.serve_dashboard(port=0, token=TOKEN) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=WAIT) as client,
    ):
        head = await client.head("/")
        assert (head.status_code, head.content) == (401, b"")
        assert (await client.get("/")).status_code == 401
        answer = await client.post("/login", data={"token": TOKEN}, follow_redirects=True)
        assert answer.status_code == 200
        async with client.stream("GET", "/events") as stream:
            assert stream.status_code == 200
