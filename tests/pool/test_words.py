"""What the log says of a hook that failed: what, why and what follows, in one line."""

import logging

import pytest

from cenote.pool.words import Words
from cenote.testing import advance
from tests.support.kit import STYLES, RecordingStrategy, Thing, outcome, raising, styled

styles = pytest.mark.parametrize("style", STYLES)


def only(caplog, word):
    [record] = [each for each in caplog.records if word in each.getMessage()]
    return record


@styles
async def test_a_hook_that_failed_is_one_line(make_pool, caplog, style):
    pool = make_pool(Thing, before_release=styled(style, raising(OSError("reset"))))
    await pool.release(await pool.acquire())
    record = only(caplog, "before_release")
    assert record.getMessage().endswith(
        "before_release failed: OSError: reset; the resource is destroyed"
    )
    assert (record.exc_info, record.exc_text) == (None, None)
    assert record.cenote_error == "OSError"


@styles
async def test_who_knows_no_hooks_reads_of_none(make_pool, caplog, style):
    answers = iter([False, OSError("reset")])

    def check(thing):
        answer = next(answers)
        if answer is not False:
            raise answer
        return answer

    listener = RecordingStrategy()
    pool = make_pool(Thing, before_release=styled(style, check), strategy=listener, name="shop")
    pool._word(Words(before_release="the reset of a connection", resource="connection"))
    for _ in range(2):
        await pool.release(await pool.acquire())
    assert str(listener.reports[0]) == "pool 'shop': the reset of a connection found it unusable"
    assert (
        only(caplog, "reset")
        .getMessage()
        .endswith("the reset of a connection failed: OSError: reset; the connection is destroyed")
    )


@styles
async def test_the_traceback_of_a_hook_comes_with_debug(make_pool, caplog, style):
    caplog.set_level(logging.DEBUG, "cenote")
    error = OSError("reset")
    pool = make_pool(Thing, before_acquire=styled(style, raising(error)))
    pool.release(await pool.acquire())
    pool.release(await pool.acquire())
    record = only(caplog, "before_acquire")
    assert record.exc_info[1] is error
    assert record.cenote_error == "OSError"


@pytest.mark.virtual_time
async def test_a_failed_refill_says_when_it_is_tried_again(make_pool, caplog, monkeypatch):
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    error = None

    def make():
        if error is not None:
            raise error
        return Thing()

    pool = make_pool(make, min_size=1)
    await pool.open()
    error = OSError("down.")
    await pool.retire()
    await advance(0.1)
    record = only(caplog, "factory")
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith(
        "the factory failed: OSError: down; min_size is tried again in 0.5 s"
    )
    error = None


async def test_what_open_raises_is_not_said_to_be_tried_again(make_pool, caplog):
    """The pool is new again after it, and tries nothing."""
    pool = make_pool(raising(OSError("down")), min_size=1)
    assert isinstance(await outcome(pool.open()), OSError)
    assert not caplog.records
    caplog.set_level(logging.DEBUG, "cenote")
    assert isinstance(await outcome(pool.open()), OSError)
    assert only(caplog, "factory").getMessage().endswith("the factory failed: OSError: down")


async def test_a_factory_error_that_is_raised_warns_nobody(make_pool, caplog):
    pool = make_pool(raising(OSError("down")))
    assert isinstance(await outcome(pool.acquire()), OSError)
    assert not caplog.records
