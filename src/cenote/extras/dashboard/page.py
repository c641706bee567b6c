"""The HTML pages: single documents with a Content-Security-Policy that allows nothing else."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "page"
SCRIPTS: Final = (
    "format.js",
    "charts.js",
    "tiles.js",
    "trouble.js",
    "fleet.js",
    "panels.js",
    "main.js",
)


class Page(NamedTuple):
    """A document and its security policy."""

    body: bytes
    policy: str  # the Content-Security-Policy


@cache
def page() -> Page:
    """Return the page of the dashboard."""
    style = _style()
    script = "".join(["\n'use strict';\n", *(_read(name) for name in SCRIPTS)])
    document = _read("page.html").replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        *_policy(style),
        f"script-src '{_digest(script)}'",
        "connect-src 'self'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    )
    return Page(document.encode(), "; ".join(policy))


def login_page(problem: str | None = None) -> Page:
    """Return the page with the login form; the token is sent in a body, never in an address."""
    said = "" if problem is None else f'<p class="bad" role="alert">{escape(problem)}</p>'
    return _door(f"{said}{_read('login.html')}", "form-action 'self'")


def closed_page(reason: str) -> Page:
    """Return the page that says why access is denied, and who can change that."""
    return _door(f"<p>{escape(reason)}</p>", "form-action 'none'")


def _door(content: str, *more: str) -> Page:
    style = _style()
    document = _read("door.html").replace("/*style*/", style).replace("<!--content-->", content)
    return Page(document.encode(), "; ".join((*_policy(style), *more)))


def _policy(style: str) -> tuple[str, ...]:
    return (
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        "img-src data:",  # the icon
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )


@cache
def _style() -> str:
    """Return the style sheet; the colours of the dark theme are inserted for both selectors."""
    style = _read("page.css")
    chosen = re.search(r'data-theme="dark"\] \{(.*?)\}', style, re.DOTALL)
    assert chosen is not None
    return style.replace("/*dark*/", chosen[1])


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
