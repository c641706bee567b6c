"""Who may see the dashboard: from where, by which name, from which page, with which token."""

import asyncio
import json
import re
import socket
import time
from functools import partial

import httpx
import pytest

import cenote
from cenote.extras.dashboard import guard, requests
from cenote.extras.dashboard.session import LIFETIME, Sessions
from tests.support.clock import advance
from tests.support.kit import Thing
from tests.support.viewer import TOKEN, ask, order, scope, until, watching

app = cenote.dashboard.app
OTHER = "another-token-altogether"
HTML = {"accept": "text/html,application/xhtml+xml"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
ELSEWHERE = ("192.0.2.7", 50000)


async def status_of(application, method="GET", path="/", **more):
    return (await ask(application, method, path, **more))[0]


# -- from where ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "address", "allowed"),
    [
        (("127.0.0.1", 1), "127.0.0.1", True),
        (("127.8.8.8", 1), "127.0.0.1", True),
        (("::1", 1), "::1", True),
        (("::ffff:127.0.0.1", 1), "::", True),
        (["127.0.0.1", 1], "127.0.0.1", True),
        (("192.0.2.7", 1), "192.0.2.2", False),
        (("192.0.2.2", 1), "192.0.2.2", False),
        (("10.0.0.1", 1), "127.0.0.1", False),
        (("2001:db8::1", 1), "::", False),
        (("::ffff:192.0.2.7", 1), "::", False),
        (("127.0.0.1.evil.example", 1), "127.0.0.1", False),
        (("testclient", 1), "testserver", False),
        (("", 0), "127.0.0.1", False),
        (None, None, False),  # a Unix socket, perhaps behind a proxy
        (None, "127.0.0.1", False),  # nobody knows
    ],
)
@pytest.mark.parametrize("path", ["/", "/events?", "/control"])
async def test_only_clients_on_this_machine_are_answered(client, address, allowed, path):
    if path == "/":
        status = await status_of(app(), client=client, address=address)
        assert status == (200 if allowed else 403)
    elif path == "/control":
        more = {
            "client": client,
            "address": address,
            "headers": {"authorization": f"Bearer {TOKEN}"},
        }
        status = await status_of(app(control_token=TOKEN), "POST", path, **more)
        assert status == (415 if allowed else 403)
    else:
        async with watching(app(), client=client, address=address) as viewer:
            assert viewer.status == (200 if allowed else 403)


@pytest.mark.parametrize(
    "request_of",
    [{"client": None, "server": ("/run/app.sock", None)}, {"client": None, "server": None}, {}],
)
def test_a_client_without_an_address_is_refused(request_of):
    said = guard.refuses_stranger(request_of, {})
    assert "has no address, as by a Unix socket, and may have come through a proxy." in said
    for way in ("token=...", "authorize=...", "public=True"):
        assert way in said


@pytest.mark.parametrize(
    "name",
    ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP"],
)
async def test_a_client_behind_a_proxy_is_refused(name):
    status, _, body = await ask(app(), "GET", "/", headers={name.lower(): "127.0.0.1"})
    assert status == 403
    assert f"has the header {name.title()}. " in json.loads(body)["error"]
    assert await status_of(app(public=True), headers={name: "192.0.2.7"}) == 200


async def test_a_proxy_without_a_header_is_known_by_its_age():
    """nginx with nothing but proxy_pass: its Host is the address to which it passes."""
    request = scope("GET", "/", host="127.0.0.1:8000")
    assert guard.refuses_stranger(request, {}) is None
    assert "HTTP/1.0" in guard.refuses_stranger({**request, "http_version": "1.0"}, {})


@pytest.mark.parametrize("headers", [{}, HTML])
async def test_a_refusal_says_what_can_be_done(headers):
    status, head, body = await ask(app(), "GET", "/", headers=headers, client=ELSEWHERE)
    assert status == 403
    said = body.decode()
    assert "answers only clients on its own machine; this one is 192.0.2.7." in said
    for way in ("token=...", "authorize=...", "public=True"):
        assert way in said
    assert head["content-type"].startswith("text/html" if headers else "application/json")


async def test_an_address_is_no_markup():
    refused = {"headers": HTML, "client": ("<script>alert(1)</script>", 1)}
    _, head, body = await ask(app(), "GET", "/", **refused)
    assert b"<script" not in body
    assert "script-src" not in head["content-security-policy"]
    assert "default-src 'none'" in head["content-security-policy"]


async def test_the_app_that_everybody_mounts_is_closed():
    assert await status_of(cenote.dashboard, client=ELSEWHERE) == 403
    assert await status_of(cenote.dashboard) == 200


async def test_the_control_token_opens_nothing():
    headers = {"authorization": f"Bearer {TOKEN}"}
    closed = app(control_token=TOKEN)
    assert await status_of(closed, headers=headers, client=ELSEWHERE) == 403


async def test_a_public_dashboard_answers_everybody():
    assert await status_of(app(public=True), client=ELSEWHERE) == 200
    async with watching(app(public=True), client=ELSEWHERE) as viewer:
        assert viewer.status == 200


# -- by which name -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        ([], "localhost", True),
        ([], "localhost:8765", True),
        ([], "LOCALHOST.", True),
        ([], "127.0.0.1:8765", True),
        ([], "[::1]:8765", True),
        ([], "10.0.0.5", True),  # an address cannot be made to point elsewhere
        ([], "[fd00::7]:80", True),
        ([], "evil.example", False),
        ([], "localhost.evil.example", False),
        ([], "127.0.0.1.evil.example", False),
        ([], "10.0.0.5.evil.example", False),
        ([], "", False),
        ([], "localhost:99999999", False),
        ([], "[::1", False),
        ([], "ops.internal", False),
        (["ops.internal"], "ops.internal:80", True),
        (["ops.internal"], "OPS.internal.", True),
        (["ops.internal"], "evil.example", False),
        (["ops.internal"], "localhost", True),
        (["*"], "anything", True),
        (["fd00::7"], "[fd00::7]:80", True),
    ],
)
@pytest.mark.parametrize("opened", [{}, {"public": True}, {"authorize": lambda scope: True}])
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.5", None])
async def test_names_are_refused_unless_they_are_known(hosts, host, allowed, opened, address):
    asked = {"host": host, "address": address, "client": ("127.0.0.1", 1)}
    status, _, body = await ask(app(hosts=hosts, **opened), "GET", "/", **asked)
    assert status == (200 if allowed else 403)
    if not allowed:
        assert "hosts=" in json.loads(body)["error"]


async def test_a_token_makes_names_free_unless_some_are_given():
    asked = {"host": "shop.example", "headers": {"authorization": f"Bearer {TOKEN}"}}
    assert await status_of(app(token=TOKEN), **asked) == 200
    assert await status_of(app(token=TOKEN, hosts=["other.example"]), **asked) == 403
    both = app(token=TOKEN, authorize=lambda scope: True)
    assert await status_of(both, **asked) == 403


# -- from which page -----------------------------------------------------------------------------

ORIGINS = [
    ({}, True),  # no browser
    ({"origin": "http://localhost:8765"}, True),
    ({"origin": "http://LOCALHOST:8765"}, True),
    ({"origin": "http://localhost"}, False),  # another port
    ({"origin": "http://evil.example"}, False),
    ({"origin": "null"}, False),
    ({"origin": "http://" + "a" * 4000}, False),
    ({"origin": "http://["}, False),  # no address at all
    ({"origin": "http://[localhost]:8765"}, False),
    ({"origin": "https://proxy.example"}, True),  # in hosts
    ({"sec-fetch-site": "cross-site"}, False),
    ({"sec-fetch-site": "same-site"}, False),  # another port of this host
    ({"sec-fetch-site": "same-origin"}, True),
    ({"sec-fetch-site": "same-origin", "origin": "https://shop.example"}, True),  # a proxy's name
    ({"sec-fetch-site": "none"}, True),
]


@pytest.mark.parametrize(("headers", "allowed"), ORIGINS)
async def test_the_origin_of_a_button_is_checked(headers, allowed):
    application = app(control_token=TOKEN, hosts=["proxy.example"])
    status, said = await order(application, "check", host="localhost:8765", **headers)
    assert status == (200 if allowed else 403)
    if not allowed:
        assert "origin" in said["error"]


@pytest.mark.parametrize(("headers", "allowed"), ORIGINS)
async def test_a_page_of_another_origin_cannot_open_a_stream(headers, allowed):
    application = app(hosts=["proxy.example"])
    async with watching(application, headers=headers, host="localhost:8765") as viewer:
        assert viewer.status == (200 if allowed else 403)
        assert application._collector().viewers == int(allowed)


async def test_a_link_from_another_site_may_lead_here():
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert await status_of(app(), headers=headers) == 200


# -- with which token ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN}", True),
        (f"Bearer {OTHER}", True),  # whoever may press may look
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        ("Bearer ", False),
        ("Bearer sésame", False),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        (None, False),
    ],
)
@pytest.mark.parametrize("client", [("127.0.0.1", 1), ELSEWHERE, None])
async def test_a_token_lets_in_whoever_knows_it(header, allowed, client):
    """From wherever: behind a proxy everybody seems to be here."""
    application = app(token=TOKEN, control_token=OTHER)
    headers = {} if header is None else {"authorization": header}
    status, head, _ = await ask(application, "GET", "/", headers=headers, client=client)
    assert status == (200 if allowed else 401)
    if not allowed:
        assert head["www-authenticate"] == 'Bearer realm="cenote"'
    async with watching(application, headers=headers, client=client) as viewer:
        assert viewer.status == (200 if allowed else 401)


async def test_a_token_in_the_address_is_nothing():
    for name in ("token", "access_token", "control_token"):
        assert await status_of(app(token=TOKEN), query=f"{name}={TOKEN}") == 401


async def test_the_token_does_not_press():
    application = app(token=TOKEN, control_token=OTHER)
    assert (await order(application, "check", token=TOKEN))[0] == 403
    assert (await order(application, "check", token=OTHER))[0] == 200
    assert (await order(application, "check", token="wrong" * 4))[0] == 401


async def sign_in(application, token=TOKEN, **more):
    """Status, cookie and body of the answer to the form."""
    headers = {**FORM, **HTML, **more.pop("headers", {})}
    body = f"token={token}".encode()
    answer = await ask(application, "POST", "/login", body=body, headers=headers, **more)
    return answer[0], answer[1], answer[2].decode()


async def test_signing_in_and_out():
    application = app(token=TOKEN)
    status, _, body = await ask(application, "GET", "/", headers=HTML, client=ELSEWHERE)
    assert status == 401
    assert b'<form method="post" action="login">' in body
    status, head, _ = await sign_in(application, client=ELSEWHERE)
    assert (status, head["location"]) == (303, "./")
    cookie, *attributes = head["set-cookie"].split("; ")
    assert attributes == [f"Max-Age={LIFETIME}", "HttpOnly", "SameSite=Strict"]
    assert TOKEN not in cookie
    signed_in = {"headers": {"cookie": f"theme=dark; {cookie}"}, "client": ELSEWHERE}
    assert await status_of(application, **signed_in) == 200
    async with watching(application, **signed_in) as viewer:
        assert viewer.status == 200
        assert viewer.messages[0]["session"] is True
    status, head, _ = await ask(application, "POST", "/logout", **signed_in)
    assert status == 200
    assert re.match(r"cenote-\w+=; Max-Age=0; HttpOnly", head["set-cookie"])


async def test_the_cookie_of_https_stays_there():
    _, head, _ = await sign_in(app(token=TOKEN), scheme="https")
    assert head["set-cookie"].endswith("; Secure")


async def test_a_wrong_token_is_asked_for_again():
    status, head, body = await sign_in(app(token=TOKEN), "<b>wrong</b>")
    assert status == 401
    assert "set-cookie" not in head
    assert "That token is wrong." in body
    assert "<form" in body
    assert "wrong</b>" not in body
    assert head["referrer-policy"] == "same-origin"  # else the origin of the form would be null


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", FORM, 401),
        (b"token=", FORM, 401),
        (b"token=%ff%00", FORM, 401),
        (b"a&" * 9, FORM, 400),
        (b"x" * 5000, FORM, 413),
        (f"token={TOKEN}".encode(), {}, 415),
        (f"token={TOKEN}".encode(), {**FORM, "origin": "http://evil.example"}, 403),
        (f"token={TOKEN}".encode(), {**FORM, "sec-fetch-site": "cross-site"}, 403),
        (f"x=1&token={TOKEN}&y=2".encode(), FORM, 303),
        (f"token=+{TOKEN}%0A".encode(), FORM, 303),  # pasted with what is around it
    ],
)
async def test_every_form_of_signing_in_is_checked(body, headers, status):
    assert await status_of(app(token=TOKEN), "POST", "/login", body=body, headers=headers) == status


async def test_signing_in_without_a_token_leads_to_the_page():
    assert await status_of(app(), "POST", "/login", headers=FORM) == 303
    assert await status_of(app(), "GET", "/login") == 303
    assert await status_of(app(), "POST", "/logout") == 404
    async with watching(app()) as viewer:
        assert viewer.messages[0]["session"] is False


def test_a_session_ends_and_cannot_be_made():
    sessions = Sessions(TOKEN)
    now = time.time()
    cookie = sessions.begin(now, secure=False).partition(";")[0]
    assert sessions.holds(cookie, now)
    assert sessions.holds(cookie, now + LIFETIME - 2)
    assert not sessions.holds(cookie, now + LIFETIME + 1)
    name, _, value = cookie.partition("=")
    until, _, signature = value.partition("-")
    for forged in (
        "",
        value[:-1],
        f"{until}-",
        f"{int(until) + 1}-{signature}",
        f"{until}-{'0' * 64}",
        f"-{signature}",
        "é-é",
    ):
        assert not sessions.holds(f"{name}={forged}", now)
    assert sessions.holds(f"{name}=old; {cookie}", now)  # two, of different paths
    assert not Sessions(OTHER).holds(cookie, now)


@pytest.mark.parametrize("name", ["Host", "Authorization", "Origin", "Sec-Fetch-Site"])
async def test_what_decides_must_not_come_twice(name):
    request = requests.headers_of
    twice = {"headers": [(name.lower().encode(), b"a"), (name.encode(), b"b")]}
    with pytest.raises(requests.Refusal, match=f"{name} must not come twice"):
        request(twice)
    assert request({"headers": [(b"cookie", b"a=1"), (b"Cookie", b"b=2")]}) == {
        "cookie": "a=1; b=2"
    }


@pytest.mark.virtual_time
async def test_a_body_that_does_not_come_is_not_waited_for():
    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    request = {"type": "http", "method": "POST", "path": "/login"}
    headers = {"host": "localhost", **FORM}
    request["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    task = asyncio.create_task(app(token=TOKEN)(request, receive, send))
    await advance(requests.BODY_TIMEOUT + 1)
    await task
    assert sent[0]["status"] == 408


# -- by the application --------------------------------------------------------------------------


async def admit_later(scope):
    await asyncio.sleep(0)
    return scope["client"][0] == "192.0.2.7"


class Admit:
    async def __call__(self, scope):
        return await admit_later(scope)


@pytest.mark.parametrize(
    "authorize",
    [
        admit_later,
        Admit(),
        lambda scope: scope["client"][0] == "192.0.2.7",
        lambda scope: admit_later(scope),
    ],
)
async def test_the_application_decides_who_is_admitted(authorize):
    application = app(authorize=authorize)
    assert await status_of(application, client=ELSEWHERE) == 200
    async with watching(application, client=ELSEWHERE) as viewer:
        assert viewer.status == 200
    for path in ("/", "/events"):
        status, _, body = await ask(application, "GET", path)
        assert status == 403
        assert json.loads(body) == {"error": "The application does not let you see this dashboard."}


@pytest.mark.parametrize("answer", [None, False, 0, ""])
async def test_a_client_that_is_not_admitted_is_refused(answer):
    assert await status_of(app(authorize=lambda scope: answer)) == 403


def yield_at_once(scope):
    yield False


async def yield_later(scope):
    yield False


class Yield:
    async def __call__(self, scope):
        yield False


class Door:
    def admit(self, scope):
        yield False


GENERATORS = [yield_at_once, yield_later, partial(yield_later), Yield(), Door().admit]


@pytest.mark.parametrize("authorize", GENERATORS)
def test_a_dependency_that_yields_is_refused(authorize):
    with pytest.raises(TypeError, match="authorize must not be a generator function"):
        app(authorize=authorize)


@pytest.mark.parametrize("generate", GENERATORS)
@pytest.mark.parametrize("later", [False, True])
async def test_a_generator_is_no_yes(generate, later, caplog):
    async def answer_later(scope):
        return generate(scope)

    application = app(authorize=answer_later if later else lambda scope: generate(scope))
    for path in ("/", "/events"):
        caplog.clear()
        assert await status_of(application, path=path) == 403
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert "authorize answered with a generator" in record.getMessage()


@pytest.mark.parametrize("answer", [False, True])
async def test_what_is_still_to_come_is_no_yes(answer):
    async def decide():
        return answer

    async def forget_to_await(scope):
        return decide()

    assert await status_of(app(authorize=forget_to_await)) == (200 if answer else 403)


async def test_what_the_application_raises_is_its_own_matter():
    def fail(scope):
        raise LookupError(scope["path"])

    with pytest.raises(LookupError):  # the framework around it knows what to do
        await ask(app(authorize=fail), "GET", "/")


@pytest.mark.virtual_time
async def test_an_application_that_does_not_answer_is_cut_off():
    async def think(scope):
        await asyncio.Event().wait()

    task = asyncio.create_task(ask(app(authorize=think), "GET", "/"))
    await advance(guard.AUTHORIZE_TIMEOUT + 1)
    assert (await task)[0] == 503


async def test_either_the_token_or_the_application_admits():
    application = app(token=TOKEN, authorize=admit_later)
    assert await status_of(application, client=ELSEWHERE) == 200
    assert await status_of(application) == 401
    assert await status_of(application, headers={"authorization": f"Bearer {TOKEN}"}) == 200


# -- mounted, as people do it --------------------------------------------------------------------


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
        async with httpx.AsyncClient(transport=transport, timeout=30) as client:
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
            async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
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
        httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=30) as client,
    ):
        head = await client.head("/")
        assert (head.status_code, head.content) == (401, b"")
        assert (await client.get("/")).status_code == 401
        answer = await client.post("/login", data={"token": TOKEN}, follow_redirects=True)
        assert answer.status_code == 200
        async with client.stream("GET", "/events") as stream:
            assert stream.status_code == 200
