"""Login sessions: a cookie with an end time, signed with the token. Nothing is stored."""

from __future__ import annotations

import hmac
from typing import Final

LIFETIME: Final = 12 * 60 * 60  # seconds after which the token is asked for again


class Sessions:
    """The sessions of one token; every process that has the token accepts them."""

    def __init__(self, token: str) -> None:
        self._key = token.encode()
        # A browser sends the cookies of a host to all its ports: each dashboard has a name.
        self._cookie = f"cenote-{self._sign('name')[:12]}"

    def begin(self, now: float, *, secure: bool) -> str:
        """Return the Set-Cookie header for a client that has given the token.

        It has no path, so the browser sends it only to the directory of the login.
        """
        until = str(int(now) + LIFETIME)
        return self._set(f"{until}-{self._sign(until)}", LIFETIME, secure)

    def end(self, *, secure: bool) -> str:
        """Return the Set-Cookie header that deletes the cookie."""
        return self._set("", 0, secure)

    def holds(self, cookies: str, now: float) -> bool:
        """Return whether this Cookie header has a session that has not ended."""
        for cookie in cookies.split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._cookie and self._lasts(value, now):
                return True
        return False

    def _lasts(self, value: str, now: float) -> bool:
        until, _, signature = value.partition("-")
        if not hmac.compare_digest(signature.encode(), self._sign(until).encode()):
            return False
        return now < int(until)  # signed here: it is a number

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, f"cenote dashboard {text}".encode(), "sha256").hexdigest()

    def _set(self, value: str, age: int, secure: bool) -> str:
        parts = [f"{self._cookie}={value}", f"Max-Age={age}", "HttpOnly", "SameSite=Strict"]
        return "; ".join([*parts, "Secure"] if secure else parts)
