"""The pools that a user would take instead, as rivals.

Each is used as its own documentation says, with its defaults, over connections that do nothing and
have just what that pool asks of them. So what is measured is the pool, without server and driver.
"""

import importlib
from typing import Any

from .rivals import LONG, Make, PoolRival, QueueRival, Rival, SemaphoreRival, TimedPoolRival

CENOTE = "cenote.Pool"
TIMED = "cenote.Pool, with a timeout"


def load(name: str) -> Any:
    """A module that may be missing, or have no types."""
    return importlib.import_module(name)


class Block:
    """take and give of a pool that has nothing but a context manager."""

    @staticmethod
    async def enter(block: Any) -> Any:
        await block.__aenter__()
        return block

    @staticmethod
    def leave(block: Any) -> Any:
        return block.__aexit__(None, None, None)


# -- asyncpg -------------------------------------------------------------------------------------


class QuietProtocol:
    """What asyncpg's pool asks a connection's protocol."""

    queries_count = 0

    def is_connected(self) -> bool:
        return True

    def is_in_transaction(self) -> bool:
        return False

    def _is_cancelling(self) -> bool:
        return False


class AsyncpgRival(Rival):
    """With the default reset, which here costs only what Python does of it: nothing is sent."""

    package = module = "asyncpg"
    reset: Any = None

    @staticmethod
    def resource() -> Any:
        return quiet_asyncpg()()

    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)

        async def connect(*arguments: object, **options: object) -> Any:
            return self.make()

        self._pool = load("asyncpg").create_pool(
            min_size=size,
            max_size=size,
            connect=connect,
            connection_class=quiet_asyncpg(),
            reset=self.reset,
        )
        self.take = self._pool.acquire
        self.give = self._pool.release

    async def open(self) -> None:
        await self._pool

    async def close(self) -> None:
        self._pool.terminate()


async def reset_nothing(connection: object) -> None:
    pass


class AsyncpgWithoutResetRival(AsyncpgRival):
    reset = staticmethod(reset_nothing)


def quiet_asyncpg(cache: dict[str, Any] = {}) -> Any:  # noqa: B006 - made once
    """A subclass of asyncpg's connection: its pool takes no other."""
    if "class" not in cache:
        base = load("asyncpg").Connection

        def start(self: Any) -> None:
            self._protocol = QuietProtocol()
            self._aborted = False
            self._proxy = self._top_xact = self._source_traceback = None
            self._listeners, self._log_listeners = {}, set()
            self._pool_release_ctr = 0

        async def execute(self: Any, *arguments: object, **options: object) -> str:
            return ""

        def end(self: Any) -> None:
            self._aborted = True

        cache["class"] = type(
            "QuietConnection",
            (base,),
            {
                "__init__": start,
                "execute": execute,
                "get_reset_query": lambda self: "RESET ALL;",
                "terminate": end,
                "_cleanup": end,
                "__repr__": object.__repr__,
            },
        )
    return cache["class"]


# -- psycopg_pool --------------------------------------------------------------------------------


class QuietPsycopg:
    """What psycopg_pool asks of a connection."""

    class pgconn:
        transaction_status = 0  # idle

    autocommit = True
    closed = False
    __slots__ = ("_created_at", "_expire_at", "_pool")

    async def __aenter__(self) -> "QuietPsycopg":
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def close(self) -> None:
        pass


class PsycopgRival(Rival):
    package = "psycopg-pool"
    module = "psycopg_pool"
    resource = staticmethod(QuietPsycopg)

    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)

        async def connect(*arguments: object, **options: object) -> Any:
            return self.make()

        self._pool = load("psycopg_pool").AsyncConnectionPool(
            "",
            connection_class=type("Quiet", (), {"connect": staticmethod(connect)}),
            min_size=size,
            max_size=size,
            timeout=LONG,
            open=False,
        )
        self.take = lambda: Block.enter(self._pool.connection())
        self.give = Block.leave

    async def open(self) -> None:
        await self._pool.open(wait=True)

    async def close(self) -> None:
        await self._pool.close()


# -- SQLAlchemy ----------------------------------------------------------------------------------


class QuietDBAPI:
    """A DBAPI connection; the pool rolls back when it returns."""

    __slots__ = ("__weakref__",)

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        pass


class AlchemyRival(Rival):
    """The pool of the async engine. It waits inside of a greenlet, as the engine lets it."""

    package = module = "sqlalchemy"
    resource = staticmethod(QuietDBAPI)

    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)
        pool = load("sqlalchemy.pool")
        spawn = load("sqlalchemy.util").greenlet_spawn
        self._pool = pool.AsyncAdaptedQueuePool(
            self.make, pool_size=size, max_overflow=0, timeout=LONG
        )
        connect = self._pool.connect
        self.take = lambda: spawn(connect)
        self.give = lambda taken: spawn(taken.close)

    async def open(self) -> None:
        everything = [await self.take() for _ in range(self.size)]
        for taken in everything:
            await self.give(taken)  # type: ignore[misc]

    async def close(self) -> None:
        await load("sqlalchemy.util").greenlet_spawn(self._pool.dispose)


# -- aiomysql ------------------------------------------------------------------------------------


class QuietReader:
    eof_received = False

    @staticmethod
    def at_eof() -> bool:
        return False

    @staticmethod
    def exception() -> None:
        return None


class QuietMySQL:
    """What aiomysql's pool asks of a connection."""

    _reader = QuietReader
    closed = False
    last_usage = 0.0

    def get_transaction_status(self) -> bool:
        return False

    def close(self) -> None:
        pass


class AiomysqlRival(Rival):
    """Its pool connects by itself only when it is not full: here it is from the start."""

    package = module = "aiomysql"
    resource = staticmethod(QuietMySQL)

    async def open(self) -> None:
        self._pool = await load("aiomysql").create_pool(minsize=0, maxsize=self.size)
        self._pool._free.extend(self.make() for _ in range(self.size))
        self.take = self._pool.acquire
        self.give = self._pool.release

    async def close(self) -> None:
        self._pool.terminate()
        await self._pool.wait_closed()


# -- redis ---------------------------------------------------------------------------------------


class QuietRedis:
    """What the pool of redis-py asks of a connection."""

    __slots__ = ("__weakref__",)

    def __init__(self, **options: object) -> None:
        pass

    async def connect(self) -> None:
        pass

    async def disconnect(self, **options: object) -> None:
        pass

    async def can_read(self) -> bool:
        return False

    def should_reconnect(self) -> bool:
        return False

    async def re_auth(self) -> None:
        pass


class RedisRival(Rival):
    package = module = "redis"
    resource = staticmethod(QuietRedis)

    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)
        redis = load("redis.asyncio")
        self._pool = redis.BlockingConnectionPool(
            max_connections=size, timeout=LONG, connection_class=lambda **options: self.make()
        )
        self.take = self._pool.get_connection
        self.give = self._pool.release

    async def open(self) -> None:
        everything = [await self._pool.get_connection() for _ in range(self.size)]
        for taken in everything:
            await self._pool.release(taken)

    async def close(self) -> None:
        await self._pool.aclose()


# -- generic pools -------------------------------------------------------------------------------


class ConnectionPoolRival(Rival):
    package = "asyncio-connection-pool"
    module = "asyncio_connection_pool"

    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)
        library = load("asyncio_connection_pool")

        async def make_connection(strategy: object) -> Any:
            return self.make()

        async def close_connection(strategy: object, connection: object) -> None:
            pass

        strategy = type(
            "Strategy",
            (library.ConnectionStrategy,),
            {
                "make_connection": make_connection,
                "connection_is_closed": lambda strategy, connection: False,
                "close_connection": close_connection,
            },
        )
        pool = library.ConnectionPool(strategy=strategy(), max_size=size)
        self.take = lambda: Block.enter(pool.get_connection())
        self.give = Block.leave

    async def open(self) -> None:
        everything = [await self.take() for _ in range(self.size)]
        for taken in everything:
            await Block.leave(taken)


class GenericPoolRival(Rival):
    """Keyed by an endpoint, of which there is one here."""

    package = "generic-connection-pool"
    module = "generic_connection_pool"

    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)
        library = load("generic_connection_pool.asyncio")

        async def create(manager: object, endpoint: str) -> Any:
            return self.make()

        async def dispose(manager: object, endpoint: str, connection: object) -> None:
            pass

        manager = type(
            "Manager", (library.BaseConnectionManager,), {"create": create, "dispose": dispose}
        )
        self._pool = library.ConnectionPool(
            manager(), min_idle=size, max_size=size, total_max_size=size
        )
        self.take = lambda: self._pool.acquire("here")
        self.give = lambda taken: self._pool.release(taken, "here")

    async def open(self) -> None:
        everything = [await self._pool.acquire("here") for _ in range(self.size)]
        for taken in everything:
            await self._pool.release(taken, "here")

    async def close(self) -> None:
        await self._pool.close()


class AiomiscRival(Rival):
    package = module = "aiomisc"

    async def open(self) -> None:
        async def create(pool: object) -> Any:
            return self.make()

        async def destroy(pool: object, instance: object) -> None:
            pass

        async def check(pool: object, instance: object) -> bool:
            return True

        hooks = {"_create_instance": create, "_destroy_instance": destroy, "_check_instance": check}
        self._pool = type("Pool", (load("aiomisc").PoolBase,), hooks)(maxsize=self.size)
        self.take = lambda: Block.enter(self._pool.acquire())
        self.give = Block.leave
        everything = [await self.take() for _ in range(self.size)]
        for taken in everything:
            await Block.leave(taken)

    async def close(self) -> None:
        await self._pool.close()


ALL: dict[str, type[Rival]] = {
    CENOTE: PoolRival,
    TIMED: TimedPoolRival,
    "asyncio.Semaphore": SemaphoreRival,
    "asyncio.Queue": QueueRival,
    "asyncpg.Pool": AsyncpgRival,
    "asyncpg.Pool, no reset": AsyncpgWithoutResetRival,
    "psycopg_pool": PsycopgRival,
    "SQLAlchemy AsyncAdaptedQueuePool": AlchemyRival,
    "aiomysql.Pool": AiomysqlRival,
    "redis BlockingConnectionPool": RedisRival,
    "asyncio-connection-pool": ConnectionPoolRival,
    "generic-connection-pool": GenericPoolRival,
    "aiomisc.PoolBase": AiomiscRival,
}


def present() -> dict[str, type[Rival]]:
    return {name: rival for name, rival in ALL.items() if rival.missing() is None}


def absent() -> dict[str, str]:
    """With the name of each that cannot be measured, the reason."""
    return {name: reason for name, rival in ALL.items() if (reason := rival.missing())}
