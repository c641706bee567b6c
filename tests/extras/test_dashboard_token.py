"""The token of the dashboard, and the session of a browser that has signed in."""

import asyncio
import re
import time

import pytest

import cenote
from cenote.extras.dashboard import requests
from cenote.extras.dashboard.session import LIFETIME, Sessions
from cenote.testing import advance
from tests.support.viewer import (
    ELSEWHERE,
    HTML,
    OTHER,
    TOKEN,
    ask,
    order,
    status_of,
    watching,
)

app = cenote.dashboard.app
FORM = {"content-type": "application/x-www-form-urlencoded"}


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
