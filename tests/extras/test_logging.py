"""What is logged: structured, quiet unless something is wrong, one line for a change of state."""

import inspect
import json
import logging

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import STYLES, Holding, Thing, outcome, styled

from cenote.extras.logging import FIELDS, KINDS, attach  # isort: skip

STANDARD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}


def structured(record):
    """What a structured log has beside the message."""
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


# -- what the pool logs by itself ----------------------------------------------------------------


async def test_a_change_of_the_breaker_is_one_line(make_pool, caplog):
    caplog.set_level(logging.DEBUG, "cenote")
    pool = make_pool(Thing, name="main")
    await pool.open()
    for switch in (pool.deactivate, pool.deactivate, pool.recover, pool.activate):
        switch()
    assert [(record.name, record.levelname, structured(record)) for record in caplog.records] == [
        (
            "cenote",
            level,
            {"cenote_pool": "main", "cenote_event": "state_changed", "cenote_reason": state},
        )
        for level, state in (("WARNING", "INACTIVE"), ("INFO", "RECOVERING"), ("INFO", "ACTIVE"))
    ]
    assert "circuit breaker ACTIVE -> INACTIVE" in caplog.records[0].getMessage()


async def test_ordinary_work_is_silent(make_pool, caplog):
    caplog.set_level(logging.DEBUG, "cenote")
    pool = make_pool(Thing, max_size=1, before_acquire=lambda _: False)
    for _ in range(3):
        async with pool.acquire():
            pass
    with pytest.raises(cenote.AcquireTimeoutError):
        async with pool.acquire():
            await pool.acquire(timeout=0)
    await pool.close()
    assert caplog.records == []


@pytest.mark.virtual_time
async def test_a_long_hold_has_fields(make_pool, caplog):
    pool = make_pool(Thing, hold_warning=2, name="main")
    holding = Holding(pool, name="holder")
    await advance(3)
    await holding.leave()
    (record,) = caplog.records
    fields = structured(record)
    assert fields.pop("cenote_reason").startswith(inspect.getsourcefile(Holding))
    assert fields == {
        "cenote_pool": "main",
        "cenote_event": "held_long",
        "cenote_task": "holder",
        "cenote_seconds": 2.0,
    }


async def test_a_failing_hook_names_the_pool(make_pool, caplog):
    pool = make_pool(Thing, destructor=lambda _: 1 / 0, name="main")
    pool.release(await pool.acquire())
    assert isinstance(await outcome(pool.close()), ExceptionGroup)
    (record,) = caplog.records
    assert structured(record) == {"cenote_pool": "main", "cenote_error": "ZeroDivisionError"}


@pytest.mark.parametrize("style", STYLES)
async def test_a_factory_error_that_is_raised_is_no_warning(make_pool, style, caplog):
    def down():
        raise OSError("down")

    caplog.set_level(logging.DEBUG, "cenote")
    pool = make_pool(styled(style, down), name="main")
    error = await outcome(pool.acquire())
    (record,) = (each for each in caplog.records if each.name == "cenote")
    assert (record.levelno, record.exc_info[1]) == (logging.DEBUG, error)
    assert "the factory failed" in record.message
    assert structured(record) == {"cenote_pool": "main", "cenote_error": "OSError"}


TIMEOUT = "pool 'main': timeout by task 'test' after 2.0 s with AcquireTimeoutError: "

# -- what is attached ----------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_events_are_lines_with_fields(make_pool, caplog):
    caplog.set_level(logging.INFO, "cenote")
    pool = make_pool(Thing, max_size=1, name="main")
    detach = attach(pool)
    holding = Holding(pool)
    await settle()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=2)
    await holding.leave()
    await pool.close()
    detach()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[2].startswith(TIMEOUT)
    assert "held by" in lines[2]  # why, and what to do
    lines[2] = TIMEOUT
    assert lines == [
        "pool 'main': opened",
        "pool 'main': created after 0.0 s",
        TIMEOUT,
        "pool 'main': destroyed (closed)",
        "pool 'main': closed",
    ]
    late = structured(caplog.records[2])
    assert late.pop("cenote_lane") is None
    assert late == {
        "cenote_pool": "main",
        "cenote_event": "timeout",
        "cenote_task": "test",
        "cenote_seconds": 2.0,
        "cenote_reason": None,
        "cenote_error": "AcquireTimeoutError",
    }
    for record in caplog.records:
        assert {record.name, record.levelname} == {"cenote", "INFO"}
        assert tuple(structured(record)) == FIELDS
        json.dumps(structured(record))


@pytest.mark.virtual_time
async def test_a_line_says_why_and_what_comes_next(make_pool, caplog):
    caplog.set_level(logging.INFO, "cenote")

    def fail():
        raise OSError("connect to db:5432\nrefused, password=s3cr3t.")

    pool = make_pool(fail, name="main")
    lane = pool.lane("batch")
    detach = attach(pool, kinds=["failed", "create_failed", "refused"])
    assert isinstance(await outcome(lane.acquire()), OSError)
    pool.deactivate()
    assert isinstance(await outcome(pool.acquire()), cenote.ServiceUnavailableError)
    detach()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    error = "OSError: connect to db:5432 refused, password=***"
    assert lines[:2] == [
        f"pool 'main': create_failed after 0.0 s with {error}; the slot is free for the next",
        f"pool 'main': failed by task 'test' in lane 'batch' after 0.0 s with {error}; "
        "the slot is free for the next",
    ]
    assert lines[2].startswith("pool 'main': refused (circuit) by task 'test' after 0.0 s with ")
    assert "ServiceUnavailableError: " in lines[2]
    assert all("\n" not in line for line in lines)


@pytest.mark.virtual_time
async def test_level_kinds_and_logger_can_be_chosen(make_pool, caplog):
    caplog.set_level(logging.DEBUG, "app")
    pool = make_pool(Thing, name="100 %s")
    detach = attach(
        pool, level=logging.DEBUG, kinds=["acquired", "state_changed"],
        logger=logging.getLogger("app"),
    )  # fmt: skip
    async with pool.acquire():
        pass
    pool.recover()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records
             if record.name == "app"]  # fmt: skip
    assert lines == [
        ("DEBUG", "pool '100 %s': acquired by task 'test' after 0.0 s"),
        ("DEBUG", "pool '100 %s': state_changed (RECOVERING)"),
    ]
    detach()
    pool.activate()
    assert len([record for record in caplog.records if record.name == "app"]) == 2


async def test_what_is_not_logged_costs_nothing(make_pool):
    pool = make_pool(Thing)
    detach = attach(pool)
    engine = pool._engine
    assert (engine.on_acquired, engine.on_released, engine.on_waiting) == ((), (), ())
    detach()
    assert engine.subscribers == ()


def test_every_kind_is_known(make_pool):
    with pytest.raises(ValueError, match=r"^kinds must be of opened, .*, not nonsense$"):
        attach(kinds=["nonsense"])
    assert len(set(KINDS)) == 16


async def test_no_line_has_a_password(caplog):
    pytest.importorskip("asyncpg")
    caplog.set_level(logging.DEBUG)
    db = cenote.Database("postgresql://app:s3cr3t@127.0.0.1:1/shop", acquire_timeout=0.1)
    detach = attach(db, kinds=KINDS)
    await outcome(db.fetch_val("select 1"))
    await db.close()
    detach()
    assert caplog.records
    for record in caplog.records:
        assert "s3cr3t" not in record.getMessage() + repr(vars(record))
