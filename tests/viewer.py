"""A page of the dashboard in memory: it asks the ASGI app, and puts together what it is told."""

import asyncio
import json
from contextlib import asynccontextmanager

from clock import settle

TOKEN = "sesame-open"


def scope(method, path, headers=(), query="", root="", host="localhost", address="127.0.0.1"):
    named = {"host": host, **dict(headers)}
    return {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        "server": (address, 8765),
    }


async def ask(application, method, path, *, body=b"", **more):
    """Status, headers and body of the answer."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await application(scope(method, path, **more), receive, send)
    head, *rest = sent
    headers = {name.decode(): value.decode() for name, value in head["headers"]}
    return head["status"], headers, b"".join(part["body"] for part in rest)


async def order(application, action, pool=1, *, token=TOKEN, body=None, **headers):
    """Press a button: the status and what is said."""
    named = {"content-type": "application/json", "authorization": f"Bearer {token}", **headers}
    if token is None:
        del named["authorization"]
    if body is None:
        body = json.dumps({"pool": pool, "action": action}).encode()
    status, _, answer = await ask(application, "POST", "/control", body=body, headers=named)
    return status, json.loads(answer)


class Viewer:
    """A page: it puts together what it is told, as the real one does."""

    def __init__(self):
        self.pools, self.ids, self.tiles, self.events = {}, [], {}, []
        self.details, self.messages, self.status = {}, [], None
        self.free = asyncio.Event()  # whether it reads
        self.free.set()
        self.hang_up = asyncio.Event()

    async def receive(self):
        await self.hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.free.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        for part in message.get("body", b"").decode().splitlines():
            if part.startswith("data: "):
                self.take(json.loads(part.removeprefix("data: ")))

    def take(self, message):
        self.messages.append(message)
        self.ids = message.get("ids", self.ids)
        for pool in message.get("pools", ()):
            self.pools[pool["id"]] = pool
        details = message.get("details", {})
        for row in details.get("tiles", ()):
            self.tiles[row[0]] = row if len(row) > 1 else None
        places = details.get("places", len(self.tiles))
        self.tiles = {place: row for place, row in self.tiles.items() if place < places}
        self.events += details.get("events", ())
        self.details.update(details)

    @property
    def states(self):
        return [row and row[1] for _, row in sorted(self.tiles.items())]

    def pool(self, name):
        return next(pool for pool in self.pools.values() if pool["name"] == name)


@asynccontextmanager
async def watching(application, query="", **more):
    viewer = Viewer()
    request = scope("GET", "/events", query=query, **more)
    task = asyncio.create_task(application(request, viewer.receive, viewer.send))
    await settle()
    try:
        yield viewer
    finally:
        viewer.hang_up.set()
        viewer.free.set()
        await task


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
