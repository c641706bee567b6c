"""The dashboard as an application: its routes, its page, and its options."""

import base64
import hashlib
import json
import re
import subprocess
import sys

import pytest

import cenote
from cenote.extras.dashboard import Dashboard
from tests.support.viewer import (
    TOKEN,
    ask,
)

app = cenote.dashboard.app


def test_importing_cenote_does_not_import_the_dashboard():
    code = (
        "import sys, cenote\n"
        "assert not any(name.startswith('cenote.extras') for name in sys.modules)\n"
        "assert not hasattr(cenote, 'dashbord')\n"
        "from cenote import dashboard\n"
        "assert dashboard is cenote.dashboard and callable(cenote.serve_dashboard)\n"
        "assert 'cenote.extras.prometheus' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cenote_dashboard_is_an_app():
    assert isinstance(cenote.dashboard, Dashboard)
    assert isinstance(cenote.dashboard.app(), Dashboard)


async def test_the_page_is_whole_and_lets_nothing_else_in():
    status, headers, body = await ask(cenote.dashboard, "GET", "/")
    assert status == 200
    page = body.decode()
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "/*" + "dark*/" not in page
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert int(headers["content-length"]) == len(body)


async def test_every_route_has_its_answer():
    dashboard = app()
    assert (await ask(dashboard, "HEAD", "/"))[::2] == (200, b"")
    assert (await ask(dashboard, "GET", "/other"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/", "GET, HEAD"),
        ("POST", "", "GET, HEAD"),
        ("HEAD", "/events", "GET"),
        ("GET", "/control", "POST"),
        ("GET", "/logout", "POST"),
    ],
)
async def test_another_method_is_told_which_ones_are_allowed(method, path, allowed):
    status, headers, _ = await ask(app(), method, path)
    assert (status, headers["allow"]) == (405, allowed)


async def test_too_many_fields_are_refused():
    query = "&".join(f"field{number}=1" for number in range(9))
    status, _, body = await ask(app(), "GET", "/events", query=query)
    assert (status, json.loads(body)) == (400, {"error": "The address has too many fields."})


@pytest.mark.parametrize("whole", [True, False])
async def test_the_dashboard_may_be_mounted(whole):
    """Some servers give the whole path, some only what is below the mount."""
    dashboard = app()
    prefix = "/ops/pools" if whole else ""
    status, headers, _ = await ask(dashboard, "GET", prefix, root="/ops/pools")
    assert (status, headers["location"]) == (307, "/ops/pools/")
    assert (await ask(dashboard, "GET", prefix + "/", root="/ops/pools"))[0] == 200
    assert (await ask(dashboard, "GET", prefix + "/x", root="/ops/pools"))[0] == 404


async def test_lifespan_is_answered_and_websockets_are_refused():
    said = []
    stages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive():
        return {"type": next(stages)}

    async def send(message):
        said.append(message["type"])

    await app()({"type": "lifespan"}, receive, send)
    await app()({"type": "websocket"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        *(
            ({name: value}, error, f"^{name} must ")
            for name in ("token", "control_token")
            for value, error in (
                ("", ValueError),
                ("with space, but long enough", ValueError),
                ("schlüssel, der lang genug ist", ValueError),
                ("fifteen-letters", ValueError),
                (7, TypeError),
                (b"bytes that are long", TypeError),
            )
        ),
        ({"authorize": "me"}, TypeError, "^authorize must be callable, not str"),
        ({"public": 1}, TypeError, "^public must be True or False, not int"),
        ({"public": "yes"}, TypeError, "^public must be True or False, not str"),
        ({"public": True, "token": TOKEN}, ValueError, "public=True .* token"),
        ({"public": True, "authorize": bool}, ValueError, "public=True .* authorize"),
        ({"hosts": "example.com"}, TypeError, "hosts"),
        ({"hosts": [1]}, TypeError, "hosts"),
        ({"hosts": ["a b"]}, ValueError, "hosts"),
        ({"hosts": ["http://a"]}, ValueError, "hosts"),
        ({"hosts": None}, TypeError, "hosts"),
        ({"interval": 0}, ValueError, "interval"),
        ({"interval": float("nan")}, ValueError, "interval"),
        ({"interval": "1"}, TypeError, "interval"),
    ],
)
async def test_bad_options_are_named(options, error, words):
    with pytest.raises(error, match=words):
        cenote.dashboard.app(**options)
    with pytest.raises(error, match=words):
        await cenote.serve_dashboard(port=0, **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"host": 1}, TypeError, "host must"),
        ({"port": -1}, ValueError, "port must"),
        ({"port": 65536}, ValueError, "port must"),
        ({"port": "80"}, TypeError, "port must"),
    ],
)
async def test_bad_addresses_are_named(options, error, words):
    with pytest.raises(error, match=words):
        await cenote.serve_dashboard(**options)
