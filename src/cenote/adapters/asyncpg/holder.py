"""The place of one connection in a pool, with the attributes that asyncpg's own holders have."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ...drivers.wire import Wire
from . import private
from .private import Proxy, asyncpg
from .session import SessionState, session_of

if TYPE_CHECKING:
    from .pool import Pool


class ConnectionHolder:
    """One place for a connection: the resource of the `cenote.Pool`.

    asyncpg calls `_release_on_close()` when anything closes the connection.
    """

    __slots__ = ("__weakref__", "_con", "_in_use", "_inactive_callback", "_pool", "_proxy",
                 "_timeout", "lost_by", "out", "session", "wire")  # fmt: skip

    def __init__(self, pool: Pool) -> None:
        self._pool = pool  # read by asyncpg as well
        self._con: Any = None  # None: there is no connection
        self._proxy: Any = None  # what the program has in its hands
        self._in_use: bool | None = None
        self._inactive_callback: None = None  # the cenote.Pool has the timer
        self._timeout: float | None = None  # of acquire(), which release() uses too
        self.out: bool = False  # acquired from the cenote.Pool
        self.lost_by: BaseException | None = None  # why the connection is given up
        self.session: SessionState | None = None
        self.wire: Wire | None = None

    @property
    def connection(self) -> Any:
        """The connection; None if it is closed."""
        return self._con

    @property
    def timeout(self) -> float | None:
        """The timeout with which it was acquired."""
        return self._timeout

    def is_connected(self) -> bool:
        """Return whether the connection is open."""
        return self._con is not None and not self._con.is_closed()

    def is_idle(self) -> bool:
        """Return whether nobody has the connection."""
        return not self._in_use

    def attach(self, con: Any) -> None:
        """Take a new connection."""
        self.session = session_of(con)
        self.wire = private.wire(con)
        self.lost_by = None
        self._con = con
        private.set_holder(con, weakref.ref(self))

    def lend(self, timeout: float | None) -> Any:
        """Return what the program gets: a proxy of asyncpg's own class."""
        self.out = True
        self._timeout = timeout
        self._proxy = proxy = Proxy(self, self._con)
        return proxy

    def use(self) -> None:
        """Count as acquired, to asyncpg's eyes: setup is over."""
        self._in_use = True

    def detach(self) -> None:
        """End the proxy: from now on every use of it raises."""
        if self._in_use and self._proxy is not None:
            self._proxy._detach()
        self._proxy = self._in_use = None
        self.out = False

    def take(self) -> Any:
        """Return the connection, and have none any more."""
        con, self._con = self._con, None
        self.detach()
        return con

    def is_alive(self) -> bool:
        """Return whether an idle connection is open, as far as this machine knows."""
        return self.is_connected() and not (self.wire is not None and self.wire.peer_closed())

    def terminate(self, error: BaseException | None = None) -> None:
        """Close at once; `error`: why, for the circuit breaker."""
        if self._con is not None:
            self.lost_by = error
            self._con.terminate()

    def _release_on_close(self) -> None:
        out, error = self.out, self.lost_by
        if error is None and self.session is not None and not self.session.ending:
            error = asyncpg.ConnectionDoesNotExistError("connection was closed by the server")
        self._con = None
        self.detach()
        self._pool.drop(self, error, out=out)
