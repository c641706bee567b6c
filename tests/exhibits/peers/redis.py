"""redis-py's tests of asyncio, on one Redis server, with both protocols."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import RedisServer

from .fetch import packages
from .peer import Peer, Setting

# Those that use a pool. Left out are clusters, which have pools of their own, TLS with certificates
# that are not in the distribution, modules of the server, and scenarios of Redis Enterprise.
FILES = (
    "client", "commands", "connect", "connection", "connection_pool", "credentials", "cwe_404",
    "encoding", "hash", "lock", "monitor", "pipeline", "pubsub", "retry", "scripting", "sentinel",
    "sentinel_managed_connection", "usage_counter", "utils", "multidb",
)  # fmt: skip
TESTS = tuple(
    f"tests/test_asyncio/test_{name}{'' if name == 'multidb' else '.py'}" for name in FILES
)
ABOUT_POOLS = ("client", "connection_pool", "cwe_404", "sentinel", "sentinel_managed_connection")
NEEDED = ("pybreaker", "redis-entraid")


class DebuggedServer(RedisServer):
    """A server with the commands by which the tests make it slow."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--enable-debug-command", "yes"]


@contextmanager
def prepare(source: Path) -> Iterator[Setting]:
    """Start a server; the tests find the library in the source tree, of the same version."""
    environment = {"PYTHONPATH": str(packages("redis", NEEDED))}
    with DebuggedServer() as server:
        yield Setting(source, ("--redis-url", f"{server.url}/0"), environment)


PEER = Peer(
    name="redis",
    distribution="redis",
    suites={
        "tests/test_asyncio, RESP3": (*TESTS, "--protocol=3"),
        "tests/test_asyncio, RESP2": (*TESTS, "--protocol=2"),
    },
    short=tuple(f"tests/test_asyncio/test_{name}.py" for name in ABOUT_POOLS),
    plug="plug_redis",
    prepare=prepare,
    missing=RedisServer.missing,
)
