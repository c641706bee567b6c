"""What is said about mistakes that the drivers do not explain: notes, errors and a warning."""

import asyncio
import gc
import warnings

import pytest

import cenote
from tests.support.backends import Backend

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_the_command_timeout_is_named(backend: Backend) -> None:
    for options in (
        {"url": f"{backend.url}?command_timeout=0.05"},
        {"connect_args": {"command_timeout": 0.05}},
    ):
        async with backend.database(**options) as db:  # type: ignore[arg-type]
            for slow in (db.execute(backend.slow), db.fetch_all(backend.slow)):
                with pytest.raises(TimeoutError) as caught:
                    await slow
                text = str(caught.value)  # asyncpg's own is empty
                assert text.startswith("the statement took longer than asyncpg's command_timeout")
                assert "(0.05 s)" in text
                assert not notes(caught.value)


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
async def test_a_message_that_is_too_long_names_the_limit(backend: Backend) -> None:
    driver = cenote.Database(backend.url)._driver
    from asyncmy.errors import InternalError

    hint = driver.hint(InternalError("Packet sequence number wrong - got 2 expected 7"))
    assert hint is not None
    assert "max_allowed_packet" in hint
    assert driver.hint(InternalError("another")) is None


async def test_the_pool_outside_of_a_loop_says_where_it_is() -> None:
    db = cenote.Database("sqlite:///:memory:", name="shop")
    with pytest.raises(RuntimeError, match=r"database shop: .*none is running here.*asyncio\.run"):
        await asyncio.to_thread(lambda: db.pool)
    assert db.pool is not None
    await db.close()


def forget(transaction: object) -> None:
    del transaction
    gc.collect()


async def test_a_transaction_that_nobody_enters_is_warned_of(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.warns(RuntimeWarning, match=r"db\.transaction\(\) was never entered"):
            forget(db.transaction())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with db.transaction():
                pass
            await db.begin()
            await db.rollback()
            with pytest.raises(ValueError, match="isolation"):
                db.transaction(isolation="none")
            closed = cenote.Database(backend.url)
            await closed.close()
            with pytest.raises(cenote.PoolClosedError):
                async with closed.transaction():
                    pass
            gc.collect()


@pytest.mark.parametrize(
    ("url", "name", "near"),
    [
        ("sqlite:///:memory:", "timout", "timeout"),
        ("postgresql://app@localhost/app", "comand_timeout", "command_timeout"),
        ("postgresql+psycopg://app@localhost/app", "aplication_name", "application_name"),
        ("mysql://app@localhost/app", "read_timout", "read_timeout"),
    ],
)
def test_arguments_that_the_driver_does_not_know_are_refused(
    url: str, name: str, near: str
) -> None:
    for module in ("asyncpg", "psycopg", "asyncmy"):
        pytest.importorskip(module)
    with pytest.raises(ValueError, match=f"'{name}' \\(did you mean {near}\\?\\)"):
        cenote.Database(url, connect_args={name: 1})
    with pytest.raises(ValueError, match="unknown argument 'foo'; the driver's connect"):
        cenote.Database(url, connect_args={"foo": 1})
    cenote.Database(url, connect_args={near: 1})


@pytest.mark.parametrize(
    ("url", "name", "near"),
    [
        ("sqlite:///a.db", "timout", "timeout"),
        ("postgresql://app@localhost/app", "aplication_name", "application_name"),
        ("postgresql+psycopg://app@localhost/app", "ssl_mode", "sslmode"),
        ("mysql://app@localhost/app", "read_timout", "read_timeout"),
    ],
)
def test_options_of_the_url_are_refused_with_the_nearest(url: str, name: str, near: str) -> None:
    for module in ("asyncpg", "psycopg", "asyncmy"):
        pytest.importorskip(module)
    with pytest.raises(ValueError, match=f"unknown option '{name}' \\(did you mean {near}\\?\\)"):
        cenote.Database(f"{url}?{name}=1")
