"""A page of the dashboard in memory: it asks the ASGI app, and puts together what it is told."""

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

from cenote.extras.dashboard import collector, history
from cenote.testing import settle
from tests.support.waiting import eventually

TOKEN = "open-sesame-open-sesame"
OTHER = "another-token-altogether"
AGAIN = b"event: again\ndata:\n\n"
HTML = {"accept": "text/html,application/xhtml+xml"}
ELSEWHERE = ("192.0.2.7", 50000)  # a client on another machine
IDLE, ACTIVE, CREATING, HOOK, DESTROYING = range(5)  # the states of a tile


def use_virtual_clocks(monkeypatch):
    """Make the dashboard read the clock of the loop instead of those of the system."""
    now = asyncio.get_running_loop().time
    for module in (collector, history):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=now, monotonic=now))


def scope(
    method,
    path,
    headers=(),
    query="",
    root="",
    host="localhost",
    address="127.0.0.1",
    client=("127.0.0.1", 50000),
    scheme="http",
):
    named = {"host": host, **dict(headers)}
    return {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        "scheme": scheme,
        "server": None if address is None else (address, 8765),
        "client": client,
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


async def status_of(application, method="GET", path="/", **more):
    """Only the status of the answer."""
    return (await ask(application, method, path, **more))[0]


async def order(application, action, pool=1, *, process="", token=TOKEN, body=None, **headers):
    """Press a button: the status and what is said. `process` is what the events named."""
    named = {"content-type": "application/json", "authorization": f"Bearer {token}", **headers}
    if token is None:
        del named["authorization"]
    if body is None:
        body = json.dumps({"process": process, "pool": pool, "action": action}).encode()
    status, _, answer = await ask(application, "POST", "/control", body=body, headers=named)
    return status, json.loads(answer)


async def press(application, viewer, action, name):
    """Press a button for the pool that the viewer sees by this name."""
    return await order(application, action, viewer.pool(name)["id"], process=viewer.process)


class Viewer:
    """A page: it puts together what it is told, as the real one does."""

    def __init__(self):
        self.pools, self.ids, self.tiles, self.events = {}, [], {}, []
        self.details, self.messages, self.status = {}, [], None
        self.process = None
        self.fleets = []
        self.raw, self.last, self.ended = b"", "", False  # all bytes; the last id; the whole answer
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
        self.raw += message.get("body", b"")
        self.ended = message["type"] == "http.response.body" and not message.get("more_body")
        for part in message.get("body", b"").decode().splitlines():
            if part.startswith("id: "):
                self.last = part.removeprefix("id: ")
            elif part.startswith("data: "):
                self.take(json.loads(part.removeprefix("data: ")))

    def take(self, message):
        self.messages.append(message)
        self.process = message.get("process", self.process)
        self.ids = message.get("ids", self.ids)
        self.fleets = message.get("fleets", self.fleets)
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


async def follow(application, viewer, query, **more):
    """One stream after the other, as the page does it."""
    after = ""
    while True:
        request = scope("GET", "/events", query=f"{query}{after}", **more)
        await application(request, viewer.receive, viewer.send)
        if not viewer.raw.endswith(AGAIN) or viewer.hang_up.is_set():
            return
        after = f"&after={viewer.last}&pool={viewer.details['id']}" if viewer.details else ""


@asynccontextmanager
async def watching(application, query="", **more):
    viewer = Viewer()
    task = asyncio.create_task(follow(application, viewer, query, **more))
    await settle()
    try:
        yield viewer
    finally:
        viewer.hang_up.set()
        viewer.free.set()
        await task


until = eventually
