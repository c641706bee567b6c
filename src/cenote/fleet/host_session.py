"""The one session of a host at PostgreSQL: it locks tokens, and shows what the host needs.

Locks of a session are counted by the server, so a token that is locked twice has to be unlocked
twice: what is locked is remembered here, and never locked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..mask import explained
from ..sql.driver import ConnectConfig, Driver, DriverConnection
from ..sql.loading import load
from ..sql.url import Target, parse
from .hosts import HostRow, lock_key, session_prefix
from .ledger import LedgerConfigError, LedgerError

REFUSED: Final = ("28", "3D", "42")  # classes of SQLSTATE that do not change by themselves
REFUSAL: Final = "authentication failed"

LOOK: Final = """
select a.pid, a.application_name, extract(epoch from clock_timestamp())::float8, pg_backend_pid(),
       (select string_agg(l.objid::text, ',') from pg_locks l
        where l.pid = a.pid and l.locktype = 'advisory' and l.granted
          and l.classid = {key} and l.objsubid = 2 and l.database = a.datid)
from pg_stat_activity a, (select set_config('application_name', '{shown}', false)) as renamed
where a.datname = current_database()
  and (left(a.application_name, {length}) = '{prefix}' or a.pid = pg_backend_pid())
"""


@dataclass(frozen=True, slots=True)
class HostLook:
    """What a session has seen.

    Attributes:
        others: The other hosts of the fleet.
        now: The time of the server, in seconds.
    """

    others: tuple[HostRow, ...]
    now: float


def driver_for(url: str) -> Driver:
    """Return the driver for the URL of a fleet, of asyncpg and psycopg the one that is installed.

    Raises `ValueError` for a wrong URL, `ImportError` if there is no driver.
    """
    target = parse(url)
    try:
        return load(ConnectConfig(target, {}, 0))
    except ImportError:
        if target.scheme not in ("postgresql", "postgres"):
            raise
        try:
            return load(ConnectConfig(_with_psycopg(target), {}, 0))
        except ImportError:
            pass
        raise


def _with_psycopg(target: Target) -> Target:
    return Target(
        "postgresql+psycopg", target.hosts, target.user, target.password, target.database,
        target.options,
    )  # fmt: skip


class HostSession:
    """A session, from `connect()` on. Every method may raise `LedgerError`; then it is over."""

    def __init__(self, driver: Driver, connection: DriverConnection, name: str) -> None:
        self.tokens: set[int] = set()
        self.key: int = 0  # the process of the server
        self._driver, self._connection, self._name = driver, connection, name
        self._lock_key = lock_key(name)
        self._channel = f"cenote_fleet_{self._lock_key:08x}"

    @classmethod
    async def connect(
        cls, driver: Driver, name: str, timeout: float, woken: Callable[[], None]
    ) -> HostSession:
        """Connect. `woken` is called when another host has something to say, and when the
        connection is lost.

        Raises `LedgerConfigError` if that will not work by itself, such as through a pooler in
        transaction mode.
        """
        connection = await _connected(driver, timeout)
        session = cls(driver, connection, name)
        try:
            session.key = await _backend_of(connection, timeout)
            if _announced(connection) != session.key:
                await session._check_pooler(timeout)
            me = str(session.key)

            def heard(channel: str, said: str, sender: int) -> None:
                if said == me:
                    woken()

            connection.on_notification(heard, woken)
            await session._listen(timeout)
        except BaseException as error:
            connection.terminate()
            raise _as_ledger_error(driver, error) from error
        return session

    async def look(self, me: HostRow, timeout: float) -> HostLook:
        """Show what this host needs, and read what all others show."""
        shown = me.shown(self._name).replace("'", "")
        prefix = session_prefix(self._name)
        text = LOOK.format(key=self._lock_key, shown=shown, prefix=prefix, length=len(prefix))
        rows = await self._ask(text, timeout)
        others = []
        if rows[0][3] != self.key:
            raise pooler_error(self._driver)
        for pid, name, _, own, locked in rows:
            tokens = frozenset(map(int, locked.split(","))) if locked else frozenset[int]()
            if pid == own:
                self.tokens = set(tokens)
            elif (row := HostRow.read(pid, name, tokens)) is not None:
                others.append(row)
        return HostLook(tuple(others), rows[0][2])

    async def take(self, tokens: Iterable[int], timeout: float) -> None:
        """Lock those of these tokens that nobody else has locked meanwhile."""
        wanted = ",".join(str(each) for each in tokens if each not in self.tokens)
        if wanted:
            rows = await self._ask(
                f"select t from unnest(array[{wanted}]) as t "
                f"where pg_try_advisory_lock({self._lock_key}, t)", timeout,
            )  # fmt: skip
            self.tokens.update(row[0] for row in rows)

    async def give(self, tokens: Collection[int], timeout: float) -> None:
        """Unlock these tokens."""
        if tokens:
            listed = ",".join(map(str, tokens))
            await self._ask(
                f"select pg_advisory_unlock({self._lock_key}, t) from unnest(array[{listed}]) as t",
                timeout,
            )
            self.tokens.difference_update(tokens)

    async def tell(self, keys: Collection[int], timeout: float) -> None:
        """Wake these hosts."""
        if keys:
            listed = ",".join(f"'{each}'" for each in keys)
            await self._ask(
                f"select pg_notify('{self._channel}', k) from unnest(array[{listed}]) as k", timeout
            )

    async def listen_on(self, timeout: float) -> None:
        """Go on to listen, after anything else was asked."""
        try:
            await self._listen(timeout)
        except BaseException as error:
            raise self._failed(error) from error

    def end(self) -> None:
        """End the session; its locks end with it."""
        self._connection.terminate()

    async def _listen(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await self._connection.listen(self._channel)

    async def _ask(self, text: str, timeout: float) -> list[Any]:
        try:
            async with asyncio.timeout(timeout):
                return [*await self._connection.fetch_all(text, None)]
        except BaseException as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> BaseException:
        self.end()
        return _as_ledger_error(self._driver, error)

    async def _check_pooler(self, timeout: float) -> None:
        """Something stands between here and the server. If another client gets our own session in
        the middle of a transaction, sessions are shared."""
        other = await _connected(self._driver, timeout)
        try:
            await other.execute("BEGIN", None)
            found = await _backend_of(other, timeout)
            await other.execute("ROLLBACK", None)
        finally:
            other.terminate()
        if found == self.key:
            raise pooler_error(self._driver)


def pooler_error(driver: Driver) -> LedgerConfigError:
    """The error for a pooler that lends sessions for one transaction only."""
    return LedgerConfigError(
        f"{driver.config.target.masked} is a pooler in transaction mode, where a session is lent "
        f"for one transaction, and its locks are lost: give the fleet the address of the server "
        f"itself, or of a pool in session mode; the databases may go through the pooler"
    )


async def _connected(driver: Driver, timeout: float) -> DriverConnection:
    try:
        async with asyncio.timeout(timeout):
            return await driver.connect(driver.config.target.password)
    except BaseException as error:
        raise _as_ledger_error(driver, error) from error


async def _backend_of(connection: DriverConnection, timeout: float) -> int:
    async with asyncio.timeout(timeout):
        return int(await connection.fetch_val("select pg_backend_pid()", None))


def _announced(connection: DriverConnection) -> int:
    """The process of the server, as it has said itself when the connection was made."""
    raw: Any = connection.raw
    ask = getattr(raw, "get_server_pid", None)
    return int(raw.info.backend_pid if ask is None else ask())


def _as_ledger_error(driver: Driver, error: BaseException) -> BaseException:
    if isinstance(error, LedgerError) or not isinstance(error, Exception):
        return error
    where = driver.config.target.masked
    said = " ".join(explained(error).split())
    if isinstance(error, TimeoutError):
        return LedgerError(f"the ledger of the fleet in {where} does not answer")
    state = getattr(error, "sqlstate", None) or ""
    refused = state[:2] in REFUSED or REFUSAL in said  # psycopg gives no SQLSTATE for this
    kind = LedgerConfigError if refused else LedgerError
    return kind(f"the ledger of the fleet in {where} cannot be used: {said}")
