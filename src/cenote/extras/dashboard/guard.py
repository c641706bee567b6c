"""Who may ask: the names by which the page may be called, the origin of a POST, the token."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
LONGEST_HOST: Final = 255  # characters


class Guard:
    def __init__(self, *, control_token: str | None, hosts: Iterable[str]) -> None:
        self._token = None if control_token is None else check_token(control_token).encode()
        self._hosts = check_hosts(hosts)

    @property
    def controls(self) -> bool:
        return self._token is not None

    def refuses_host(self, headers: Mapping[str, str], server: str | None) -> str | None:
        """Why a request with this Host is refused; None: it is not.

        A page on a foreign site may let its own name point to 127.0.0.1 and so read what is there:
        its Host gives it away.
        """
        if "*" in self._hosts or not (self._hosts or is_loopback(server)):
            return None
        name = host_name(headers.get("host", ""))
        if name in self._hosts or (name in LOOPBACK_NAMES and is_loopback(server)):
            return None
        return (
            "This dashboard does not answer to that host name. If it is meant to, "
            "start it with hosts=[...] and the name."
        )

    def refuses_origin(self, headers: Mapping[str, str]) -> str | None:
        """Why a POST is refused because of the page it comes from."""
        origin = headers.get("origin")
        if origin is None:  # no browser
            foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        else:
            place = urlsplit(origin).netloc.lower()
            own = headers.get("host", "").lower()
            foreign = not place or (place != own and host_name(place) not in self._hosts)
        return "This comes from a page of another origin." if foreign else None

    def refuses_token(self, headers: Mapping[str, str]) -> str | None:
        if self._token is None:
            return "This dashboard is read-only: it was started without control_token."
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            return "The control token is missing: send it as 'Authorization: Bearer ...'."
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token):
            return "The control token is wrong."
        return None


def check_token(token: Any) -> str:
    if not isinstance(token, str):
        raise TypeError(f"control_token must be a string or None, not {type(token).__name__}")
    if not token or not all("!" <= character <= "~" for character in token):
        raise ValueError(
            "control_token must be one or more visible ASCII characters without spaces, "
            "for example secrets.token_urlsafe()"
        )
    return token


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


def host_name(host: str) -> str:
    """The name of `name:port`, in lower case; empty if it is none."""
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
    """The address that is written here, in brackets or without, or None if it is a name."""
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
