"""Keep-alive HTTP/1.1 connections in a pool, to a small server that this program starts itself.

The server hangs up after every tenth request of a connection, without a word, as real ones do. Most
of the dead connections are found by `before_acquire`; one that dies in mid-request is discarded.
"""

import asyncio
from collections import Counter

import cenote

TASKS = 40
REQUESTS = 10  # of each task
CONNECTIONS = 5


class ProtocolError(Exception):
    """What came was not HTTP, or was cut off."""


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def get(self, path: str) -> tuple[int, bytes]:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head.rstrip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            status = int(status_line.split()[1])
            body = await self.reader.readexactly(int(headers["content-length"]))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ProtocolError(f"the server hung up on {path}") from error
        except (ValueError, IndexError, KeyError) as error:
            raise ProtocolError(f"the answer to {path} is not HTTP") from error
        return status, body

    def is_open(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass  # the other side was faster


async def fetch(pool: cenote.Pool[Connection], path: str) -> tuple[int, bytes]:
    """GET is idempotent: one that met a dying connection is tried once more."""
    try:
        return await fetch_once(pool, path)
    except ProtocolError:
        return await fetch_once(pool, path)


async def fetch_once(pool: cenote.Pool[Connection], path: str) -> tuple[int, bytes]:
    async with pool.acquire(timeout=5) as connection:
        try:
            return await connection.get(path)
        except ProtocolError as error:
            # Half an answer may still be on its way: nobody must get this connection again.
            pool.discard(connection, error)
            raise


async def browse(pool: cenote.Pool[Connection], seen: Counter[int]) -> None:
    for number in range(REQUESTS):
        status, body = await fetch(pool, f"/page/{number}")
        assert body == f"you asked for /page/{number}".encode()
        seen[status] += 1


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()

    async def connect() -> Connection:
        return Connection(*await asyncio.open_connection(host, port))

    pool = cenote.Pool(
        connect,
        destructor=Connection.close,
        before_acquire=Connection.is_open,
        max_size=CONNECTIONS,
        name="http",
    )
    seen: Counter[int] = Counter()
    async with server, pool:
        await asyncio.gather(*(browse(pool, seen) for _ in range(TASKS)))
        try:
            await fetch(pool, "/garbage")
        except ProtocolError as error:
            print(f"as expected: {error}")

    stats = pool.stats()
    print(f"{TASKS} tasks made {seen[200]} requests over at most {CONNECTIONS} connections at once")
    print(f"connections opened: {stats.created}, closed: {sum(stats.destroyed.values())}")
    print(f"found dead before use: {stats.rejected}")
    print(f"discarded in mid-request: {stats.destroyed.get('discarded', 0)}")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        for _ in range(10):
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split()[1].decode()
            if path == "/garbage":
                writer.write(b"what?\r\n\r\n")
                continue
            body = f"you asked for {path}".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass  # the client hung up
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(main())
