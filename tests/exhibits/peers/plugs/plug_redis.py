"""A plugin of pytest: the pools of `redis.asyncio` are those of the adapter."""

import redis.asyncio
import redis.asyncio.client
import redis.asyncio.connection
import redis.asyncio.sentinel

from cenote.adapters.redis import BlockingConnectionPool, ConnectionPool, SentinelConnectionPool

THEIRS = redis.asyncio.SentinelConnectionPool
OURS = (BlockingConnectionPool, ConnectionPool, SentinelConnectionPool)
LIBRARY = redis.asyncio

for module in (LIBRARY, LIBRARY.client, LIBRARY.connection, LIBRARY.sentinel):
    for ours in OURS:
        if hasattr(module, ours.__name__):
            setattr(module, ours.__name__, ours)
for method in (LIBRARY.Sentinel.master_for, LIBRARY.Sentinel.slave_for):
    defaults = method.__defaults__ or ()
    assert THEIRS in defaults, defaults
    method.__defaults__ = tuple(
        SentinelConnectionPool if each is THEIRS else each for each in defaults
    )
