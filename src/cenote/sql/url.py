"""Database URLs: parsed here, strictly, so that no driver's error ever shows a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_BROKEN_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNSEEN = re.compile(r"^\s|\s$|[\x00-\x1f\x7f]")  # as after reading a line of a file
_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_ENCODE = "a character such as / ? # @ : % in a user name or password must be percent-encoded"


class Secret:
    """A password that shows itself to nobody who does not ask for it."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def reveal(self) -> Any:
        return self._value

    def __repr__(self) -> str:
        return "***"


def without_frames(error: BaseException) -> None:
    """Forget where it was raised: the frames of a driver's connect() hold the password, and some
    tools print the variables of every frame."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chain += (link.__cause__, link.__context__)
            if isinstance(link, BaseExceptionGroup):
                chain += link.exceptions


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL says."""

    scheme: str
    hosts: tuple[tuple[str, int | None], ...]  # name or socket directory, and port
    user: str | None
    password: Secret | None
    database: str  # without the leading slash; "" if none is given
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The URL without credentials and options."""
        return f"{self.scheme}://{self._hosts}/{self.database}"

    @property
    def masked(self) -> str:
        """The URL with the user, without the password and the options."""
        user = "" if self.user is None else self.user
        secret = "" if self.password is None else ":***"
        at = "@" if user or secret else ""
        return f"{self.scheme}://{user}{secret}{at}{self._hosts}/{self.database}"

    @property
    def _hosts(self) -> str:
        names = ((f"[{name}]" if ":" in name else name, port) for name, port in self.hosts)
        return ",".join(name if port is None else f"{name}:{port}" for name, port in names)


def parse(url: object) -> Target:
    """The parts of a URL; ValueError says what is wrong with it, and shows no credentials."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a string, not {type(url).__name__}")
    if _UNSEEN.search(url):
        raise ValueError("url has a control character, or a space at one of its ends")
    found = _SCHEME.match(url)
    if found is None or found[2] is None:
        raise ValueError(
            "url must look like scheme://user:password@host:port/database, "
            "for example sqlite:///app.db or postgresql://app@localhost/shop"
        )
    rest, _, query = url[found.end() :].partition("?")
    if "#" in rest or "#" in query:
        raise ValueError(f"url has a '#', which has no meaning here: {_ENCODE}")
    authority, _, path = rest.partition("/")
    credentials, _, place = authority.rpartition("@")
    if "@" in path or "@" in query:  # else a part of a password would be taken for an option
        raise ValueError(f"url has an '@' after the first '/' or '?': {_ENCODE}")
    name, colon, secret = credentials.partition(":")
    options = _options(query)
    user = _one_of("user", _decoded("user name", name) if name else None, options)
    password = _one_of("password", _decoded("password", secret) if colon else None, options)
    return Target(
        scheme=found[1].lower(),
        hosts=tuple(_host(each) for each in place.split(",")) if place else (),
        user=user,
        password=None if password is None else Secret(password),
        database=_decoded("database", path),
        options=options,
    )


def _one_of(what: str, given: str | None, options: dict[str, str]) -> str | None:
    """What stands before the host, or else the option that says the same, which it takes out."""
    option = options.pop(what, None)
    if given is not None and option is not None:
        raise ValueError(f"url has a {what}, and the option {what!r} as well; keep one")
    return option if given is None else given


def _host(text: str) -> tuple[str, int | None]:
    if text.startswith("["):  # IPv6
        name, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"url has an IPv6 host without its closing ']': {_ENCODE}")
        port = rest[1:]
    else:
        name, _, port = text.partition(":")
    if not name:
        raise ValueError("url has an empty host: leave out the port, too, or name the host")
    if not port:
        return _decoded("host", name), None
    if not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        # Not shown: it may be the end of a password with a '/' in it.
        raise ValueError(f"url has a port that is not a number from 1 to 65535 ({_ENCODE})")
    return _decoded("host", name), int(port)


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        name = _decoded("option", name)
        if not equals or not name:
            raise ValueError("url has an option without a value: write ?name=value&name=value")
        if name in options:
            raise ValueError(f"url has the option {name!r} twice")
        options[name] = _decoded(f"option {name!r}", value.replace("+", " "))
    return options


def _decoded(what: str, text: str) -> str:
    if _BROKEN_PERCENT.search(text):
        raise ValueError(f"url has a '%' in its {what} that is not followed by two hex digits: "
                         f"write %25 for a percent sign")  # fmt: skip
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        decoded = ""
    if text and not decoded:  # not raised above: that error knows the whole text
        raise ValueError(f"url has a {what} that is not UTF-8 when decoded")
    if not is_text(decoded):
        raise ValueError(
            f"url has a {what} with a null character or an unpaired surrogate, which no server "
            f"accepts"
        )
    return decoded


def is_text(value: str) -> bool:
    """Whether drivers can send it: their own errors about what they cannot send would show it."""
    return not _UNSENDABLE.search(value)
