"""The lifespan and the readiness endpoint, in Starlette and FastAPI themselves."""

import asyncio
import contextlib
import json

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Holding, RecordingStrategy, Thing, Tripwire, outcome

from cenote.extras.asgi import lifespan, readiness  # isort: skip

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from starlette.applications import Starlette  # noqa: E402
from starlette.responses import PlainTextResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402


def client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def ask(app, method="GET", path="/ready"):
    async with client(app) as requests:
        return await requests.request(method, path)


def ready_app(*targets, **options):
    return Starlette(routes=[Route("/ready", readiness(*targets, **options))])


@contextlib.asynccontextmanager
async def running(app):
    """As a server does it: by the messages of the ASGI specification."""
    orders, answers = asyncio.Queue(), asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    task = asyncio.create_task(app(scope, orders.get, answers.put))
    for order in ("startup", "shutdown"):
        orders.put_nowait({"type": f"lifespan.{order}"})
        assert await answers.get() == {"type": f"lifespan.{order}.complete"}
        if order == "startup":
            yield
    await task


@pytest.fixture
def database(tmp_path):
    return cenote.Database(f"sqlite:///{tmp_path}/file.db", name="shop", min_size=1)


# -- lifespan ------------------------------------------------------------------------------------


async def test_lifespan_opens_in_order_and_closes_in_reverse(make_pool):
    pools = [make_pool(Thing, min_size=1, name=name) for name in ("first", "second")]
    seen = []
    for pool in pools:
        pool.subscribe(
            lambda event: (
                seen.append((event.pool.name, event.kind))
                if event.kind in ("opened", "closed")
                else None
            )
        )
    async with lifespan(*pools)(None):
        assert [pool.idle_count for pool in pools] == [1, 1]
    assert seen == [
        ("first", "opened"), ("second", "opened"), ("second", "closed"), ("first", "closed"),
    ]  # fmt: skip


async def test_starlette_runs_the_lifespan(database):
    async def number(request):
        return PlainTextResponse(str(await database.fetch_val("select 42")))

    routes = [Route("/number", number), Route("/ready", readiness(database))]
    app = Starlette(lifespan=lifespan(database, drain=1), routes=routes)
    async with running(app):
        answer = await ask(app)
        assert answer.status_code == 200
        assert answer.json()["pools"][0]["idle"] == 1  # min_size
        assert (await ask(app, path="/number")).text == "42"
    assert database.closed


async def test_fastapi_runs_the_lifespan(database):
    fastapi = pytest.importorskip("fastapi")
    app = fastapi.FastAPI(lifespan=lifespan(database))
    app.add_route("/ready", readiness(database))

    @app.get("/number")
    async def number() -> int:
        return await database.fetch_val("select 42")

    async with running(app):
        assert (await ask(app, path="/number")).json() == 42
        assert (await ask(app)).status_code == 200
        assert (await ask(app, "HEAD")).status_code == 200
    assert database.closed


async def test_a_lifespan_of_the_application_goes_around_ours(make_pool):
    pool = make_pool(Thing)
    ours = lifespan(pool)

    @contextlib.asynccontextmanager
    async def mine(app):
        async with ours(app):
            yield {"pool": pool}

    async with running(Starlette(lifespan=mine)):
        assert not pool.closed
    assert pool.closed


async def test_a_failed_open_ends_the_start_and_closes_others(make_pool):
    def broken():
        raise OSError("no server")

    pool, other = make_pool(Thing, min_size=1), make_pool(broken, min_size=1)
    with pytest.raises(OSError, match="no server"):
        async with lifespan(pool, other)(None):
            pytest.fail("not reached")
    assert pool.closed


async def test_an_error_of_the_application_closes_them_too(make_pool):
    pool = make_pool(Thing)
    with pytest.raises(ValueError, match="mine"):
        async with lifespan(pool)(None):
            raise ValueError("mine")
    assert pool.closed


@pytest.mark.virtual_time
@pytest.mark.parametrize("drain", [None, 5])
async def test_a_drain_waits_for_what_is_out(make_pool, drain):
    pool = make_pool(Thing)
    block = lifespan(pool, drain=drain)(None)
    await block.__aenter__()
    holding = Holding(pool)
    await settle()
    closing = asyncio.ensure_future(block.__aexit__(None, None, None))
    await settle()
    assert closing.done() == (drain is None)
    await holding.leave()
    await closing
    assert pool.closed


async def test_a_database_is_drained(database):
    block = lifespan(database, drain=5)(None)
    await block.__aenter__()
    await database.execute("create table t (x)")
    async with database.transaction():
        await database.execute("insert into t values (1)")
        closing = asyncio.create_task(block.__aexit__(None, None, None))
        await settle()
        await database.execute("insert into t values (2)")  # its connection is still there
    await closing
    assert database.closed


async def test_closing_what_the_application_closed_is_harmless(make_pool, database):
    pool = make_pool(Thing)
    async with lifespan(pool, database, drain=1)(None):
        await pool.close()
        await database.close()


@pytest.mark.parametrize("make", [lifespan, readiness])
def test_what_is_no_pool_is_refused(make):
    with pytest.raises(TypeError, match=r"^expected pools and databases"):
        make("main")


def test_bad_options_are_refused_by_name():
    with pytest.raises(ValueError, match="drain"):
        lifespan(drain=-1)
    with pytest.raises(ValueError, match="max_waiting"):
        readiness(max_waiting=-1)
    with pytest.raises(TypeError, match="details"):
        readiness(details="no")


# -- readiness -----------------------------------------------------------------------------------


async def test_readiness_shows_the_counts_and_takes_no_connection(make_pool):
    pool = make_pool(Thing, min_size=1, max_size=2, name="main")
    await pool.open()
    holding = Holding(pool)
    await settle()
    before = pool.stats()
    answer = await ask(ready_app(pool))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "ready": True,
        "pools": [
            {
                "name": "main", "ready": True, "phase": "open", "breaker": "ACTIVE",
                "idle": 0, "active": 1, "waiting": 0, "max_size": 2,
            }
        ],
    }  # fmt: skip
    assert pool.stats() == before
    await holding.leave()


async def test_a_full_pool_is_answered_at_once(make_pool):
    pool = make_pool(Thing, max_size=1)
    async with pool.acquire():
        assert (await ask(ready_app(pool))).status_code == 200


@pytest.mark.parametrize("waiting", [1, 2])
async def test_too_many_waiters_are_not_ready(make_pool, waiting):
    pool = make_pool(Thing, max_size=1)
    holdings = [Holding(pool) for _ in range(waiting + 1)]
    await settle()
    answer = await ask(ready_app(pool, max_waiting=1))
    assert answer.status_code == (200 if waiting == 1 else 503)
    for holding in holdings:
        await holding.leave()


@pytest.mark.virtual_time
async def test_an_open_breaker_is_not_ready_before_its_recovery(make_pool):
    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=10)
    pool = make_pool(Thing, strategy=strategy)
    app = readiness(pool)
    pool.discard(await pool.acquire(), OSError("lost"))
    status, shown = app.look()
    assert status == 503
    assert shown["pools"][0]["breaker"] == "INACTIVE"
    assert 8 < strategy.retry_after() <= 10
    await advance(11)
    assert strategy.retry_after() == 0
    assert app.look()[0] == 200
    assert pool.state is cenote.CircuitState.INACTIVE  # only asked
    pool.recover()
    assert app.look()[0] == 200
    pool.activate()
    pool.deactivate()


async def test_should_recover_is_for_acquires_alone(make_pool):
    strategy = Tripwire()
    pool = make_pool(Thing, strategy=strategy)
    pool.discard(await pool.acquire(), OSError("lost"))
    for _ in range(3):
        assert (await ask(ready_app(pool))).status_code == 200  # only an acquire can find out
    assert strategy.asked == 0
    assert isinstance(await outcome(pool.acquire()), cenote.ServiceUnavailableError)
    assert strategy.asked == 1


async def test_a_breaker_without_a_way_back_is_not_ready(make_pool, caplog):
    class Broken(Tripwire):
        def retry_after(self):
            raise ValueError("no")

    for strategy in (None, RecordingStrategy(), cenote.ConsecutiveFailures(), Broken()):
        pool = make_pool(Thing, strategy=strategy)
        await pool.open()
        pool.deactivate()
        assert (await ask(ready_app(pool))).status_code == 503
    assert "the strategy failed in retry_after()" in caplog.text


@pytest.mark.virtual_time
async def test_a_pool_that_is_being_closed_is_not_ready(make_pool):
    pool, other = make_pool(Thing), make_pool(Thing)
    holding = Holding(pool)
    await settle()
    closing = asyncio.create_task(pool.close(drain=5))
    await settle()
    answer = await ask(ready_app(pool, other))
    assert answer.status_code == 503
    assert [(each["ready"], each["phase"]) for each in answer.json()["pools"]] == [
        (False, "draining"), (True, "new"),
    ]  # fmt: skip
    await holding.leave()
    await closing
    assert (await ask(ready_app(pool))).json()["pools"][0]["phase"] == "closed"


async def test_a_database_that_nobody_has_used_yet(database):
    answer = await ask(ready_app(database))
    assert answer.status_code == 200
    assert answer.json()["pools"] == [{"name": "shop", "ready": True, "phase": "new"}]
    await database.close()
    assert (await ask(ready_app(database))).status_code == 503


async def test_neither_host_nor_database_is_shown():
    database = cenote.Database("sqlite:///:memory:")
    for _ in range(2):
        answer = await ask(ready_app(database))
        assert answer.status_code == 200
        assert answer.json()["pools"][0]["name"] is None
        assert "sqlite" not in answer.text
        await database.fetch_val("select 1")
    await database.close()


async def test_credentials_and_details_are_not_shown():
    pytest.importorskip("asyncpg")
    database = cenote.Database("postgresql://app:s3cr3t@127.0.0.1:1/shop?application_name=x")
    assert isinstance(await outcome(database.fetch_val("select 1")), OSError)
    answer = await ask(ready_app(database))
    assert answer.json()["pools"][0]["name"] is None
    shown = ("s3cr3t", "app:", "app@", "application", "127.0.0.1", "shop", "postgresql")
    assert not any(secret in answer.text for secret in shown)
    assert (await ask(ready_app(database, details=False))).text == json.dumps({"ready": False})
    await database.close()


async def test_readiness_allows_only_get_and_head(make_pool):
    app = ready_app(make_pool(Thing))
    answer = await ask(app, "HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    answer = await ask(app, "POST")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_readiness_answers_http_only(make_pool):
    with pytest.raises(RuntimeError, match="not 'websocket'"):
        await readiness(make_pool(Thing))({"type": "websocket"}, None, None)
