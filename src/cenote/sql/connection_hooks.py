"""What the pool of a database calls: its hooks, which connect, check, clean and close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import DEBUG
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import PoolError
from ..hooks import is_awaitable
from ..log import log
from ..mask import explained
from ..options import Settings
from ..pool.hooks import was_cut
from ..pool.loop import is_monotonic
from .connecting import connect_error, password_error
from .driver import Driver, DriverConnection
from .messages import server_full
from .notes import note
from .url import without_frames

if TYPE_CHECKING:
    from .database import Database
    from .per_loop import LoopDatabase

COUNTING = 2.0  # seconds in which the server must have counted sessions
JUST_NOW = 0.0001  # seconds since the last answer: so long it is alive without looking


class ConnectionHooks:
    """The hooks of one pool, and the connections that they have made."""

    def __init__(self, loop_db: LoopDatabase) -> None:
        self._loop_db = loop_db
        self.database: Database = loop_db.database
        self.driver: Driver = loop_db.driver
        self.connections: set[DriverConnection] = set()  # all that are open
        self.closing: set[DriverConnection] = set()  # that end in proper form just now
        self.all_closed: asyncio.Event = asyncio.Event()  # after the end
        # Counted up when a connection is lost: the others are suspect.
        self.suspicion_epoch: int = 0
        # What a stand-in for the driver gives is made of a connection on which it has run.
        own = loop_db.driver is loop_db.database._driver
        self._on_connect = loop_db.database._on_connect if own else None
        loop = loop_db.loop
        self.time: Callable[[], float] = monotonic if is_monotonic(loop) else loop.time
        self.ping_after_idle: float = loop_db.database._ping_after_idle
        self.reset_always: bool = loop_db.database._reset == "always"
        settings = Settings.check(object, loop_db.database._pool_options)
        self.hook_timeout: float = settings.hook_timeout  # seconds

    @property
    def unchecked_for(self) -> float:
        """For how many seconds after its return a connection needs no check."""
        return min(JUST_NOW, self.ping_after_idle)

    async def connect(self) -> DriverConnection:
        """Make a connection, and run on_connect on it; the factory."""
        await self._loop_db.watch_loop()
        self.database._note_connection()
        connection = await self._make_connection()
        self.connections.add(connection)
        try:
            await self._greet_first(connection)
        except asyncio.CancelledError:
            connection.interrupt()
            if was_cut():
                return connection  # it keeps its slot until the destructor is done with it
            await self.disconnect(connection)
            raise
        except BaseException:
            await self.disconnect(connection)
            raise
        connection.suspicion_epoch = self.suspicion_epoch
        connection.last_heard = self.time()
        return connection

    async def _make_connection(self) -> DriverConnection:
        """Ask for the password, and connect. Raises `ConnectError`, `BackendFullError`."""
        try:
            password = await self.database._get_password()
        except Exception as error:
            target = self.driver.config.target
            raise password_error(self._loop_db.label, target, error) from error
        try:
            mark = self._loop_db.pool._mark()
            if mark is None:
                return await self.driver.connect(password)
            return await self.driver.connect_marked(password, mark)
        except BaseException as error:
            if password is not None:
                without_frames(error)
            if isinstance(error, Exception):
                raise self._connect_error(error) from error
            raise

    def _connect_error(self, error: BaseException) -> PoolError:
        label = self._loop_db.label
        if self.driver.is_full(error):
            return server_full(label, explained(error))
        return connect_error(label, self.driver.config.target, error)

    async def _greet_first(self, connection: DriverConnection) -> None:
        """on_connect, on a new connection; raises `ConnectError` if that was lost meanwhile."""
        try:
            await self._greet(connection)
        except Exception as error:
            if not (self.driver.is_disconnect(error) or connection.is_dead):
                await connection.look_again()  # perhaps it was the last word of the server
            if self.driver.is_disconnect(error) or connection.is_dead:
                raise self._connect_error(error) from error
            label = self._loop_db.label
            note(error, f"raised by on_connect, on a new connection of database {label}")
            raise

    async def _greet(self, connection: DriverConnection) -> None:
        """on_connect; what it sets is not touched."""
        on_connect = self._on_connect
        if on_connect is not None:
            answer = on_connect(connection.raw)
            if is_awaitable(answer):
                await connection.cancel_promptly(answer)
            if connection.in_transaction:
                await connection.rollback()
            connection.greeted()
        connection.mark_greeted()

    async def disconnect(self, connection: DriverConnection) -> None:
        """Close a connection in proper form; the destructor."""
        self.closing.add(connection)
        try:
            await connection.close()
        except asyncio.CancelledError:
            if self._loop_db.watches_loop and not was_cut():
                self.closing.discard(
                    connection
                )  # the loop goes down: there is a last moment for it
                return
        except BaseException:
            self.disconnected(connection)
            raise
        self.disconnected(connection)

    def disconnected(self, connection: DriverConnection) -> None:
        """Note that a connection is closed, in whatever form; if it is not, it is terminated."""
        connection.terminate()
        connection.mark_closed()
        self.connections.discard(connection)
        self.closing.discard(connection)
        while connection.leftovers:
            connection.leftovers.pop().abandon()
        if self._loop_db.over and not self.connections:
            self.all_closed.set()

    async def ping(self, connection: DriverConnection) -> bool:
        """Ask the server for an answer; the healthcheck. Return whether there was one."""
        try:
            await connection.ping()
        except BaseException as error:
            connection.mark_broken()
            if not isinstance(error, Exception):
                raise  # it took too long, or nobody waits for it any more
            log(DEBUG, "%s: ping failed: %r", self._loop_db.label, error)
            self.suspect_idle()
            return False
        connection.suspicion_epoch = self.suspicion_epoch
        connection.last_heard = self.time()
        return True

    def before_acquire(self, connection: DriverConnection) -> Any:
        """Return whether an idle connection lives, as far as is known here, or a ping of it."""
        if connection.broken:
            return False
        idle = self.time() - connection.last_heard
        has_unread_bytes = idle > JUST_NOW and connection.has_unread_bytes()
        if connection.looks_dead() or (has_unread_bytes and connection.peer_closed()):
            connection.mark_broken()
            self.suspect_idle()
            return False
        if (
            has_unread_bytes
            or connection.suspicion_epoch != self.suspicion_epoch
            or idle >= self.ping_after_idle
        ):
            return self.ping(connection)
        return True

    def before_release(self, connection: DriverConnection) -> Any:
        """Return whether a connection is as good as new, or an awaitable that makes it so."""
        if connection.broken or connection.looks_dead():
            return False
        connection.returned()
        always = self.reset_always
        if not (connection.touched or connection.leftovers or always or connection.in_transaction):
            connection.last_heard = self.time()
            return True
        return self._clean(connection, always)

    async def _clean(self, connection: DriverConnection, always: bool) -> bool:
        """Nothing of the last task is left; False: this connection cannot do it."""
        await connection.close_leftovers()
        if connection.in_transaction:
            await connection.rollback()
        if (connection.touched or always) and self.database._reset != "never":
            if not await connection.reset():
                return False
            await self._greet(connection)
        connection.touched = None
        connection.last_heard = self.time()
        # In a transaction still: SET autocommit = 0 and reset="never".
        return not (connection.in_transaction or connection.broken)

    async def count_marked(self, mark: str) -> int:
        """Ask the server how many sessions have this mark."""
        statement = self.driver.marked_statement
        assert statement is not None
        count: int = await self.database.fetch_val(statement, [f"%{mark}"], timeout=COUNTING)
        return count

    def suspect_idle(self) -> None:
        """A connection was lost: the others are looked at before they are used again."""
        self.suspicion_epoch += 1
        self._loop_db.pool._suspect_idle()

    def disown(self) -> object:
        """In a forked child: the connections are the parent's. Return what must not be closed."""
        kept, self.connections = self.connections, set()
        return kept
