"""Ways of logging in that are refused, and the public key of the server."""

from __future__ import annotations

from ..options import check_readable

CANNOT_LOG_IN = 2061  # the code of MySQL's own clients
IN_CLEAR = frozenset({b"mysql_clear_password", b"dialog"})
BROKEN = frozenset({b"mysql_old_password"})

NOT_ASKED_FOR = b"not asked for"  # in the place of the server's public key
KEY_NOT_ASKED_FOR = (
    "the server wants the password, encrypted with its public key, which may not be asked for "
    "(get_server_public_key=0): nothing was sent. Add sslmode=verify-full (and ssl_ca) to the URL, "
    "or server_public_key=FILE."
)


def login_refusal(plugin: bytes, *, secure: bool) -> str | None:
    """Why the password is not sent in this way; `secure`: by TLS. None: it is sent."""
    name = plugin.decode("ascii", "replace")
    if plugin in IN_CLEAR and not secure:
        return (
            f"the server asks for the password in clear text ({name}), but the connection has "
            f"no TLS: nothing was sent. Add sslmode=verify-full (and ssl_ca) to the URL, or "
            f"give the user another authentication plugin."
        )
    if plugin in BROKEN:
        return (
            f"the server asks for {name}, which does not protect the password: nothing was "
            f"sent. Give the user another authentication plugin."
        )
    return None


def public_key(path: str | None, *, ask: bool) -> bytes | None:
    """The key of the server with which a password is encrypted on a connection without TLS, out of
    this file; None: the server is asked. Raises `ValueError` for a file that has none."""
    if path is None:
        return None if ask else NOT_ASKED_FOR
    key = check_readable("server_public_key", path)
    if b"PUBLIC KEY" not in key:
        raise ValueError(f"url option 'server_public_key': {path} has no public key in PEM")
    return key
