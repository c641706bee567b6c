"""Errors of connecting: what a driver raised becomes a `ConnectError` that says where and why."""

from __future__ import annotations

import os
import re
import socket
import ssl

from ..errors import ConnectError, PoolError
from ..mask import explained
from ..messages import seconds
from ..pool.words import Words
from . import messages
from .url import Target

PORTS = {"mysql": 3306, "mariadb": 3306, "postgresql": 5432, "postgres": 5432,
         "postgresql+asyncpg": 5432, "postgresql+psycopg": 5432}  # fmt: skip
UNKNOWN_HOST = (
    "failed to resolve host", "could not translate host", "name or service not known",
    "nodename nor servname", "getaddrinfo failed", "temporary failure in name resolution",
)  # fmt: skip
NO_TLS = (
    "rejected ssl upgrade", "does not support ssl", "doesn't support ssl",
    "server doesn't support it", "ssl connection error", "ssl error", "certificate verify failed",
    "server certificate for", "[ssl:", "certificate file", "private key file",
)  # fmt: skip
TLS_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")  # of PostgreSQL
TLS_REQUIRED = ("no encryption", "require_secure_transport")
STARTING = ("57P03",)  # cannot_connect_now: it starts up, shuts down or recovers
NOT_UP = ("is starting up", "is shutting down", "not yet accepting", "in recovery mode")
# Of no host, when target_session_attrs asks for something.
NOT_AS_WANTED = (
    "target attribute requirement", "not in hot standby", "in hot standby mode",
    "session is not read-only", "session is read-only",
)  # fmt: skip
ACCESS_DENIED, UNKNOWN_DATABASE = (1044, 1045, 1698), 1049  # of MySQL
# It was closed before it was made.
CUT_OFF = (
    "connection reset by peer", "server closed the connection", "connection was closed",
    "lost connection", "unexpected connection_lost", "broken pipe", "eof detected",
    "connection aborted", "[errno 104]", "[errno 54]",
    "[errno 9]",  # of asyncmy, whose transport is closed before its first use
)  # fmt: skip
POOLER = ("server login has been failing", "server_login_retry")  # of PgBouncer
LOOK = "Check the URL and connect_args, and look at the log of the server."
NO_DATABASE = re.compile(r'database ".*" does not exist')  # psycopg gives no SQLSTATE


def connect_error(label: str, target: Target, error: BaseException) -> PoolError:
    """Return the error for tasks that wait for a connection, after the driver raised this."""
    if isinstance(error, ConnectError):
        return error
    said = " ".join(explained(error).split())
    remedy = remedy_for(error, target)
    why = f"{remedy[:-1]} ({said})." if remedy else f"{said.removesuffix('.')}. {LOOK}"
    return messages.cannot_connect(
        label, place_of(target), why, timeout=isinstance(error, TimeoutError)
    )


def words_for(target: Target) -> Words:
    """Return what the log says of connections to this target, in place of the names of hooks."""
    return Words(
        factory=f"connecting to {place_of(target)}",
        destructor="closing a connection",
        healthcheck="the ping of an idle connection",
        before_acquire="the check of an idle connection",
        before_release="the reset of a connection",
        resource="connection",
        after_closing="Call open() of the Database to use it again.",
    )


def connect_timeout(label: str, target: Target, limit: float) -> ConnectError:
    """Return the error for a connection that was not made within `create_timeout`."""
    why = (
        f"no connection within {seconds(limit)} (create_timeout). Check host and port, "
        f"whether a firewall is in between, and whether on_connect ends."
    )
    error = messages.cannot_connect(label, place_of(target), why, timeout=True)
    error.__cause__ = TimeoutError(f"create_timeout={limit:g}")
    return error


def password_error(label: str, target: Target, error: Exception) -> ConnectError:
    """Return the error for the tasks that wait, after the function `password` raised this one."""
    why = f"the function given as password failed ({' '.join(explained(error).split())})."
    return messages.cannot_connect(label, place_of(target), why, timeout=False)


def place_of(target: Target) -> str:
    """Return where connections lead, in words; without user and password."""
    if target.scheme == "sqlite":
        return "a database in memory" if target.database == ":memory:" else f"{_file(target)!r}"
    options = target.options
    path = options.get("host") or options.get("unix_socket")
    hosts = ", ".join(
        f"host {name!r}, port {port or options.get('port') or PORTS.get(target.scheme, '?')}"
        for name, port in target.hosts
    )
    place = hosts or (f"{path!r}" if path else "the server of this machine")
    database = target.database or options.get("dbname")
    return f"{place}, database {database!r}" if database else place


def remedy_for(error: BaseException, target: Target) -> str:
    """Return what the error means and what to do, as sentences; empty if that is not known."""
    if target.scheme == "sqlite":
        return _remedy_of_file(_file(target), str(error))
    text = str(error).lower()
    state = getattr(error, "sqlstate", None)
    number = error.args[0] if error.args else None
    if isinstance(error, socket.gaierror) or any(each in text for each in UNKNOWN_HOST):
        return "the name of the host is not known. Correct it in the URL."
    if isinstance(error, FileNotFoundError) and (absent := _absent_file(target)):
        return f"the file of {absent} is not there. Correct the path in the URL."
    if isinstance(error, ssl.SSLError) or any(each in text for each in NO_TLS):
        return "TLS failed. Check sslmode and the certificates on both sides."
    if any(each in text for each in NOT_AS_WANTED):
        return "no server there is as target_session_attrs asks. Correct it, or name other hosts."
    if any(each in text for each in TLS_REQUIRED):
        return "the server wants TLS. Add sslmode=require to the URL, or check its rules."
    if any(each in text for each in POOLER):
        return "a pooler answers there that cannot reach its server. Check the server behind it."
    if state in STARTING or any(each in text for each in NOT_UP):
        return "the server is starting up or shutting down. Try again in a moment."
    if state in ("28P01", "28000") or number in ACCESS_DENIED or "authentication failed" in text:
        return f"user {target.user!r} is refused. Check the user, the password and their rights."
    if state == "3D000" or number == UNKNOWN_DATABASE or NO_DATABASE.search(text):
        return "there is no such database. Create it, or correct its name in the URL."
    if isinstance(error, ConnectionRefusedError) or "refused" in text or "errno 111" in text:
        return "nothing listens there. Start the server, or correct host and port in the URL."
    if isinstance(error, FileNotFoundError) or "no such file" in text:
        return "there is no such socket. Start the server, or correct the path in the URL."
    if isinstance(error, TimeoutError) or "timeout expired" in text:
        return "no answer in time. Check host and port, and whether a firewall is in between."
    if isinstance(error, ConnectionResetError) or any(each in text for each in CUT_OFF):
        return "the server has hung up. Check that host and port are its own, then look at its log."
    return ""


def _absent_file(target: Target) -> str | None:
    """The option that names a file for TLS that does not exist, which asyncpg does not say."""
    for name in TLS_FILES:
        path = target.options.get(name)
        if path and path != "system" and not os.path.exists(path):
            return f"{name}={path}"
    return None


def _file(target: Target) -> str:
    return os.path.abspath(target.database)


def _remedy_of_file(path: str, said: str) -> str:
    if "not a database" in said:
        return "that file is no SQLite database. Name another file in the URL."
    if "unable to open" not in said:
        return "it cannot be used. Check the URL, the file and the disk that it is on."
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return f"the directory {directory!r} does not exist. Create it, or correct the URL."
    if os.path.isdir(path):
        return "that is a directory. Name a file in the URL."
    return "the file cannot be opened or made. Check its rights, and those of its directory."
