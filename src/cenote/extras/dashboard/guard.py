"""Access control of the dashboard: by client address, host name, origin and token."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from logging import ERROR
from typing import Any, Final
from urllib.parse import urlsplit

from ... import options
from ...log import log
from .session import Sessions

Scope = MutableMapping[str, Any]
Authorize = Callable[[Scope], object] | Callable[[Scope], Awaitable[object]]

SHORTEST_TOKEN: Final = 16  # characters; a shorter one can be guessed
LONGEST_HOST: Final = 255  # characters
AUTHORIZE_TIMEOUT: Final = 10.0  # seconds that `authorize` may take
# Headers that a proxy adds: the client is then the client of the proxy.
FORWARDED: Final = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-original-for", "x-envoy-external-address"}
    | {"cf-connecting-ip", "true-client-ip", "fastly-client-ip", "fly-client-ip"}
)
HOW_TO_OPEN: Final = (
    "To open it to others, start it with token=... to ask for a token, authorize=... to decide for "
    "every request, or public=True to let everybody in."
)
NO_ADDRESS: Final = (
    "this one has no address, as by a Unix socket, and may have come through a proxy"
)
NO_YIELD: Final = "it must return whether the request is let in, not yield"


class Guard:
    """Decides about requests. Each `refuses` method returns why one is refused, or None."""

    def __init__(
        self,
        *,
        token: str | None,
        authorize: Authorize | None,
        public: bool,
        control_token: str | None,
        hosts: Iterable[str],
    ) -> None:
        self._token = check_token("token", token)
        self._authorize = check_authorize(authorize)
        self._public = options.flag("public", public)
        if self._public and (token is not None or authorize is not None):
            other = "token" if token is not None else "authorize"
            raise ValueError(f"public=True lets everybody in, which makes {other} useless")
        self._control = check_token("control_token", control_token)
        self._hosts = check_hosts(hosts)
        self.sessions: Sessions | None = None if token is None else Sessions(token)

    @property
    def controls(self) -> bool:
        """Whether the breaker can be switched from the page."""
        return self._control is not None

    @property
    def is_open(self) -> bool:
        """Whether clients on other machines may be let in."""
        return self._public or self._token is not None or self._authorize is not None

    # -- the place -------------------------------------------------------------------------------

    def refuses_host(self, headers: Mapping[str, str]) -> str | None:
        """Check the Host header.

        This prevents DNS rebinding: a foreign site can make its own name resolve to an address of
        this network and read what is there, but its name is in the Host header. An IP address
        cannot be rebound, and `localhost` is the browser's own machine. If only a token gives
        access, a foreign page does not have it.
        """
        only_token = self._token is not None and self._authorize is None
        if "*" in self._hosts or (only_token and not self._hosts):
            return None
        name = host_name(headers.get("host", ""))
        if name in self._hosts or name == "localhost" or as_address(name) is not None:
            return None
        return (
            "This dashboard does not answer to that host name. If it is meant to, "
            "start it with hosts=[...] and the name."
        )

    def refuses_origin(self, headers: Mapping[str, str]) -> str | None:
        """Check the origin of the page that sent the request; links from other sites are fine."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None:  # the browser itself knows
            foreign = site not in ("none", "same-origin")
        elif origin is None:  # no browser
            foreign = False
        else:
            place = place_of(origin)
            own = headers.get("host", "").lower()
            foreign = not place or (place != own and host_name(place) not in self._hosts)
        return "This comes from a page of another origin." if foreign else None

    # -- the person ------------------------------------------------------------------------------

    async def refuses(self, scope: Scope, headers: Mapping[str, str]) -> str | None:
        """Check the client: by token, by the application, or by its address."""
        if self._public:
            return None
        if not self.is_open:
            return refuses_stranger(scope, headers)
        if self._has_token(headers):
            return None
        if self._authorize is not None and await self._asks_application(scope):
            return None
        if self._token is None:
            return "The application does not let you see this dashboard."
        if "authorization" in headers:
            return "The token is wrong."
        return "The token is missing: sign in on the page, or send 'Authorization: Bearer ...'."

    def is_token(self, given: str) -> bool:
        return is_same(given.strip(), self._token)

    def refuses_control(self, headers: Mapping[str, str]) -> str | None:
        if self._control is None:
            return "This dashboard is read-only: it was started without control_token."
        given = bearer(headers)
        if not given:
            return "The control token is missing: send it as 'Authorization: Bearer ...'."
        return None if is_same(given, self._control) else "The control token is wrong."

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        if self.sessions is None:
            return False
        given = bearer(headers)
        # The control token also gives read access: a request has room for one token only.
        if given and (is_same(given, self._token) or is_same(given, self._control)):
            return True
        return self.sessions.holds(headers.get("cookie", ""), time.time())

    async def _asks_application(self, scope: Scope) -> bool:
        assert self._authorize is not None
        answer = self._authorize(scope)
        if inspect.isawaitable(answer):
            async with asyncio.timeout(AUTHORIZE_TIMEOUT):
                while inspect.isawaitable(answer):  # an awaitable is true, whatever its result
                    answer = await answer
        if inspect.isgenerator(answer) or inspect.isasyncgen(answer):  # so is this
            log(ERROR, "authorize returned a generator, so every request is refused: %s", NO_YIELD)
            return False
        return bool(answer)


def refuses_stranger(scope: Scope, headers: Mapping[str, str]) -> str | None:
    """Refuse clients on other machines, and requests that came through a proxy."""
    if sign := sign_of_proxy(scope, headers):
        came = f"this request came through a proxy: it {sign}"
        return f"This dashboard answers only clients on its own machine; {came}. {HOW_TO_OPEN}"
    client = scope.get("client")
    address = None if client is None else client[0]
    if is_loopback(address):
        return None
    # A Unix socket has no address: usually a proxy is connected to it.
    came = f"this one is {str(address)[:64]}" if address else NO_ADDRESS
    return f"This dashboard answers only clients on its own machine; {came}. {HOW_TO_OPEN}"


def sign_of_proxy(scope: Scope, headers: Mapping[str, str]) -> str | None:
    """Return the sign of a proxy, or None; not every proxy leaves one."""
    for name in headers:
        if name in FORWARDED or name.startswith("x-forwarded-"):
            return f"has the header {name.title()}"
    # Browsers do not use HTTP/1.0; nginx does, and adds no header by default.
    return "speaks HTTP/1.0" if scope.get("http_version") == "1.0" else None


def bearer(headers: Mapping[str, str]) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def is_same(given: str, secret: str | None) -> bool:
    """Compare in constant time."""
    return secret is not None and hmac.compare_digest(
        given.encode("utf-8", "replace"), secret.encode()
    )


# -- the options ---------------------------------------------------------------------------------


def check_token(name: str, token: Any) -> str | None:
    if options.text(name, token) is None:
        return None
    if not all("!" <= character <= "~" for character in token):
        raise ValueError(
            f"{name} must be visible ASCII characters without spaces, "
            f"for example secrets.token_urlsafe()"
        )
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(
            f"{name} must have {SHORTEST_TOKEN} characters or more, not {len(token)}: "
            f"use something that cannot be guessed, for example secrets.token_urlsafe()"
        )
    return str(token)


def check_authorize(authorize: Any) -> Callable[[Scope], object] | None:
    if options.optional_function("authorize", authorize) is None:
        return None
    for function in (authorize, type(authorize).__call__):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"authorize must not be a generator function: {NO_YIELD}")
    return authorize  # type: ignore[no-any-return]


def check_hosts(hosts: Any) -> frozenset[str]:
    if isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise TypeError("hosts must be a list of host names, such as ['ops.example.com']")
    names = set()
    for host in hosts:
        if not isinstance(host, str):
            raise TypeError(f"hosts must be a list of strings, not of {type(host).__name__}")
        name = "*" if host == "*" else host_name(f"[{host}]" if host.count(":") > 1 else host)
        if not name:
            raise ValueError(f"hosts has {host!r}, which is not a host name")
        names.add(name)
    return frozenset(names)


# -- names and addresses -------------------------------------------------------------------------


def place_of(origin: str) -> str:
    """Return the `name:port` of an origin, in lower case; empty if it has none."""
    if len(origin) >= 2 * LONGEST_HOST:
        return ""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as http://[
        return ""


def host_name(host: str) -> str:
    """Return the name of `name:port`, in lower case; empty if it is invalid."""
    host = host.strip().lower()
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    if len(name) > LONGEST_HOST or len(port) > 5 or not (port.isascii() and port.isdecimal()):
        return ""
    if name.startswith("[") and name.endswith("]"):
        return name if as_address(name) is not None else ""
    unfit = any(character in "[]:/@" or character.isspace() for character in name)
    return "" if unfit else name.rstrip(".")


def as_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address, which may be in brackets, or None if the text is a name."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None


def is_loopback(host: str | None) -> bool:
    if not host:
        return False
    if host == "localhost":
        return True
    address = as_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback
