"""The access to the dashboard: from which client, by which name, from which page."""

import json

import pytest

import cenote
from cenote.extras.dashboard import guard, requests
from tests.support.viewer import (
    ELSEWHERE,
    HTML,
    TOKEN,
    ask,
    order,
    scope,
    status_of,
    watching,
)

app = cenote.dashboard.app


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


@pytest.mark.parametrize("name", ["Host", "Authorization", "Origin", "Sec-Fetch-Site"])
async def test_what_decides_must_not_come_twice(name):
    request = requests.headers_of
    twice = {"headers": [(name.lower().encode(), b"a"), (name.encode(), b"b")]}
    with pytest.raises(requests.Refusal, match=f"{name} must not come twice"):
        request(twice)
    assert request({"headers": [(b"cookie", b"a=1"), (b"Cookie", b"b=2")]}) == {
        "cookie": "a=1; b=2"
    }
