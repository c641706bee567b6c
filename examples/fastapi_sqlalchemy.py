"""A FastAPI service on SQLAlchemy's ORM whose engine has `CenotePool`; then its database goes away.

    python examples/fastapi_sqlalchemy.py postgresql+asyncpg://app:secret@localhost/shop

The address may be in DATABASE_URL, too. The service stands behind a `FaultProxy`, so that this
program can take the database away from it without harm to anybody else. It is not served to the
network: its requests are made by this program. It needs fastapi, sqlalchemy[asyncio], asyncpg and
httpx.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, cast

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from sqlalchemy import exc, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import cenote
from cenote.adapters.sqlalchemy import CenotePool
from cenote.extras.asgi import unavailable
from cenote.testing import FaultProxy

# -- the service -----------------------------------------------------------------------------------


AWAY = ("08", "57P0", "53300")  # SQLSTATE of a server that is lost, ends, starts or is full


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "cenote_example_notes"

    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


def engine_for(url: str) -> AsyncEngine:
    return create_async_engine(
        url,
        poolclass=CenotePool,  # the one line
        pool_size=3,
        max_overflow=0,
        pool_timeout=2,
        pool_pre_ping=True,
        cenote_options={
            "name": "notes",
            "strategy": cenote.ConsecutiveFailures(3, recovery_timeout=0.2, success_threshold=1),
        },
    )


async def session(request: Request) -> AsyncIterator[AsyncSession]:
    """A session for each request: committed at its end, rolled back if it raises."""
    async with AsyncSession(request.app.state.engine) as opened, opened.begin():
        yield opened


Session = Annotated[AsyncSession, Depends(session, scope="function")]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    engine: AsyncEngine = app.state.engine
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
app.mount("/pools", cenote.dashboard)  # answers this machine only, unless given a token
app.add_exception_handler(cenote.PoolError, unavailable)  # 503 with Retry-After


@app.exception_handler(OSError)  # no connection could be made
@app.exception_handler(exc.TimeoutError)  # every connection is in use
async def without_connection(request: Request, error: Exception) -> Response:
    return Response(status_code=503, headers={"retry-after": "1"})


@app.exception_handler(exc.DBAPIError)
async def lost_connection(request: Request, error: exc.DBAPIError) -> Response:
    state = cenote.sqlstate(error.orig or error) or ""
    away = error.connection_invalidated or state.startswith(AWAY)
    return Response(status_code=503 if away else 500)


@app.post("/notes", status_code=201)
async def write(text: str, session: Session) -> int:
    note = Note(text=text)
    session.add(note)
    await session.flush()
    return note.id


@app.get("/notes/{number}")
async def read(number: int, session: Session) -> str:
    note = await session.get(Note, number)
    if note is None:
        raise HTTPException(404)
    return note.text


@app.get("/report")
async def report(session: Session) -> None:
    await session.execute(text("select pg_sleep(60)"))


# -- what happens to it ----------------------------------------------------------------------------


async def show(client: httpx.AsyncClient, proxy: FaultProxy) -> None:
    pool = cast(CenotePool, app.state.engine.pool)
    for word in ("milk", "bread"):
        answer = await client.post("/notes", params={"text": word})
        print(f"POST /notes: {answer.status_code}, note {answer.json()}")

    busy = asyncio.Event()
    pool.pool.subscribe(lambda event: busy.set() if pool.checkedout() == 3 else None)
    requests = [asyncio.create_task(client.get("/report")) for _ in range(3)]
    await busy.wait()
    print(f"three reports run: {pool.status()}")
    for holder in pool.pool.holders():
        assert holder.file is not None
        print(f"a connection is held by {Path(holder.file).name}:{holder.line}")
    answer = await client.get("/notes/1")
    print(f"GET /notes/1, with no connection free: {answer.status_code}")

    proxy.refuse()
    proxy.reset()
    print("the database is gone")
    print("the reports:", *[(await request).status_code for request in requests])
    while pool.pool.state is not cenote.CircuitState.INACTIVE:
        await client.get("/notes/1")
    answer = await client.get("/notes/1")
    print(f"GET /notes/1, the breaker is open: {answer.status_code},", end=" ")
    print(f"Retry-After: {answer.headers['retry-after']}")
    page = await client.get("/pools/")
    print(f"GET /pools/, the dashboard: {page.status_code}")

    proxy.refuse(False)
    print("the database is back")
    while answer.status_code != 200:
        await asyncio.sleep(float(answer.headers["retry-after"]))
        answer = await client.get("/notes/1")
    print(f"GET /notes/1: {answer.status_code}, {answer.json()}")
    print(f"the breaker is {pool.pool.state}, {pool.status()}")


async def main(url: str) -> None:
    address = make_url(url)
    with FaultProxy(address.host or "localhost", address.port or 5432) as proxy:
        through = address.set(host=proxy.host, port=proxy.port)
        app.state.engine = engine_for(through.render_as_string(hide_password=False))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            await show(client, proxy)


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DATABASE_URL")
    if given is None:
        sys.exit(f"usage: {sys.argv[0]} postgresql+asyncpg://user:password@host/database")
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="log: %(message)s")
    asyncio.run(main(given))
