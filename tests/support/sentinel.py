"""A Redis server with a replica, and a Sentinel that knows which of them is the master."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers import RedisServer

SERVICE = "shop"


class MasterServer(RedisServer):
    """A server that does not wait for more replicas before it serves the first one."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--repl-diskless-sync-delay", "0"]


class ReplicaServer(MasterServer):
    """A replica of another server."""

    def __init__(self, master: RedisServer) -> None:
        super().__init__()
        self._master = master

    def _command(self) -> list[str]:
        master = self._master
        return [*super()._command(), "--replicaof", f"{master.host} {master.port}"]


class SentinelServer(RedisServer):
    """A Sentinel that decides alone, and soon."""

    def __init__(self, master: RedisServer) -> None:
        super().__init__()
        self._master = master

    def _command(self) -> list[str]:
        master = self._master
        path = self._write(
            "sentinel.conf",
            f"bind {self.host}\nport {self.port}\ndir {self.directory}\n"
            f"sentinel monitor {SERVICE} {master.host} {master.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\n"
            f"sentinel failover-timeout {SERVICE} 5000\n",
        )
        return ["redis-server", str(path), "--sentinel"]


@contextmanager
def service() -> Iterator[tuple[RedisServer, RedisServer, SentinelServer]]:
    """Master, replica and Sentinel."""
    with (
        MasterServer() as master,
        ReplicaServer(master) as replica,
        SentinelServer(master) as sentinel,
    ):
        yield master, replica, sentinel
