"""The page: one document with everything in it, and the policy that lets nothing else in."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "page"
SCRIPTS: Final = ("format.js", "charts.js", "tiles.js", "panels.js", "main.js")


class Page(NamedTuple):
    body: bytes
    policy: str  # the Content-Security-Policy


@cache
def page() -> Page:
    style = _style()
    script = "".join(["\n'use strict';\n", *(_read(name) for name in SCRIPTS)])
    document = _read("page.html").replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        f"script-src '{_digest(script)}'",
        "connect-src 'self'",
        "img-src data:",  # the icon
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
    return Page(document.encode(), "; ".join(policy))


def _style() -> str:
    """The colours of the dark theme are written once: chosen by hand, or by the system."""
    style = _read("page.css")
    chosen = re.search(r'data-theme="dark"\] \{(.*?)\}', style, re.DOTALL)
    assert chosen is not None
    return style.replace("/*dark*/", chosen[1])


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
