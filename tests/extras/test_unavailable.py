"""503 while the database is away: the exception handler, and the readiness of a lost server."""

import socket
import warnings
from typing import Any

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Moody, outcome

from cenote.extras.asgi import lifespan, readiness, unavailable  # isort: skip

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")
fastapi = pytest.importorskip("fastapi")

with warnings.catch_warnings():  # newer versions want another client than httpx
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient
from starlette.applications import Starlette  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import PlainTextResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

AWAY = [
    cenote.ConnectError("no"),
    cenote.ServiceUnavailableError("open"),
    cenote.AcquireTimeoutError("full"),
    cenote.PoolOverloadedError("many"),
    cenote.PoolClosedError("closed"),
]


async def ask(app: Any, path: str = "/", method: str = "GET") -> Any:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path)


def failing(error: Exception, kind: type[Exception] = cenote.PoolError) -> Any:
    async def endpoint(request: Request) -> PlainTextResponse:
        raise error

    return Starlette(
        routes=[Route("/", endpoint, methods=["GET", "HEAD"])],
        exception_handlers={kind: unavailable},
    )


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
async def test_a_database_that_is_away_is_503(error: Exception) -> None:
    answer = await ask(failing(error))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "detail": "The database is unavailable at the moment. Try again later."
    }
    assert (await ask(failing(error), method="HEAD")).content == b""


@pytest.mark.parametrize(("seconds", "header"), [(None, "1"), (0.2, "1"), (2.1, "3"), (30, "30")])
async def test_retry_after_is_that_of_the_error(seconds: float | None, header: str) -> None:
    error = cenote.ServiceUnavailableError("open")
    error.retry_after = seconds
    assert (await ask(failing(error))).headers["retry-after"] == header


async def test_lost_connections_are_503_as_well() -> None:
    answer = await ask(failing(ConnectionResetError("cut"), ConnectionError))
    assert answer.status_code == 503


@pytest.mark.parametrize(
    "error", [cenote.NotAcquiredError("twice"), cenote.TransactionLostError("by a raw COMMIT")]
)
async def test_mistakes_of_the_program_stay_500(error: Exception) -> None:
    assert (await ask(failing(error))).status_code == 500


def test_a_websocket_is_told_to_come_back() -> None:
    app = fastapi.FastAPI()
    app.add_exception_handler(cenote.PoolError, unavailable)

    @app.websocket("/")
    async def endpoint(websocket: fastapi.WebSocket) -> None:
        await websocket.accept()
        raise cenote.ConnectError("no")

    with TestClient(app) as client, client.websocket_connect("/") as connection:
        assert connection.receive() == {"type": "websocket.close", "code": 1013, "reason": ""}


@pytest.mark.own_loop
def test_one_module_serves_two_test_clients() -> None:
    """With a module-level database, as FastAPI applications have it."""
    db = cenote.Database("sqlite:///:memory:")
    app = fastapi.FastAPI(lifespan=lifespan(db, drain=1))
    app.add_route("/ready", readiness(db))
    app.add_exception_handler(cenote.PoolError, unavailable)

    @app.get("/")
    async def endpoint() -> int:
        return int(await db.fetch_val("select 1"))

    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/").json() == 1
            assert client.get("/ready").status_code == 200
    with_closed = TestClient(app)
    assert with_closed.get("/").status_code == 503


@pytest.mark.real_time("talks to a real server")
async def test_a_dead_server_is_503_and_not_ready() -> None:
    pytest.importorskip("asyncpg")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        db = cenote.Database(f"postgresql://app@127.0.0.1:{bound.getsockname()[1]}/shop")

        async def endpoint(request: Request) -> PlainTextResponse:
            return PlainTextResponse(str(await db.fetch_val("select 1")))

        app = Starlette(
            routes=[Route("/", endpoint), Route("/ready", readiness(db))],
            exception_handlers={cenote.PoolError: unavailable},
        )
        for _ in range(8):  # the last ones are refused by the breaker
            assert (await ask(app)).status_code == 503
            assert (await ask(app, "/ready")).status_code == 503
        await db.close()


# -- readiness after a failed attempt ------------------------------------------------------------


@pytest.mark.virtual_time
@pytest.mark.parametrize("strategy", [None, cenote.ConsecutiveFailures(3, 1.0, 1)])
async def test_ready_again_after_a_success(make_pool: Any, strategy: Any) -> None:
    """And without any request: the check itself has it tried."""
    factory = Moody(down=True)
    pool = make_pool(factory, strategy=strategy)
    app = readiness(pool)
    assert (await ask(app)).status_code == 200  # nothing was tried yet
    assert isinstance(await outcome(pool.acquire()), OSError)
    asked = len(factory.asked)
    for _ in range(20):
        assert (await ask(app)).status_code == 503
        await settle()
    assert len(factory.asked) <= asked + 1
    await advance(30)
    assert len(factory.asked) <= asked + 1  # only when somebody asks
    factory.down = False
    assert (await ask(app)).status_code == 503
    await settle()
    assert (await ask(app)).status_code == 200
    assert pool.idle_count == 1


@pytest.mark.virtual_time
async def test_attempts_are_a_second_apart(make_pool: Any) -> None:
    factory = Moody(down=True)
    pool = make_pool(factory)
    app = readiness(pool)
    assert isinstance(await outcome(pool.acquire()), OSError)
    asked = len(factory.asked)
    for _ in range(100):
        await ask(app)
        await advance(0.1)
    assert 8 <= len(factory.asked) - asked <= 11
    await pool.close()
