"""The probes of one pool: their answers, in time and late."""

import asyncio

import pytest

import cenote
from cenote.fleet.probes import MOST_PENDING, STILL_TRUE, PoolProbes
from cenote.testing import advance, settle
from tests.support.kit import Gate, Thing, raising

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("factory", "answer"),
    [
        (Thing, True),
        (raising(OSError("down")), False),
        (raising(cenote.BackendFullError("full")), True),
    ],
)
async def test_the_factory_gives_the_answer(make_pool, factory, answer):
    assert await PoolProbes(make_pool(factory)).ask(1.0) is answer


async def test_no_room_is_no_answer(make_pool):
    pool = make_pool(Thing, max_size=1)
    probes = PoolProbes(pool)
    thing = await pool.acquire()
    assert not probes.can_ask()
    assert await probes.ask(1.0) is None
    await pool.release(thing)
    assert probes.can_ask()
    assert await probes.ask(1.0) is True
    assert thing not in pool.idle_resources()
    await pool.close()
    assert not probes.can_ask()
    assert await probes.ask(1.0) is False


async def test_a_late_success_is_the_next_answer_once(make_pool):
    factory = Gate(lambda: Thing())
    pool = make_pool(factory)
    probes = PoolProbes(pool)
    assert await probes.ask(1.0) is False
    factory.open()
    await settle()
    factory.shut()
    assert await probes.ask(1.0) is True
    assert factory.entered == 1
    assert await probes.ask(1.0) is False
    factory.open()
    await settle()
    factory.shut()
    await advance(STILL_TRUE)
    assert await probes.ask(1.0) is False  # it may have changed since
    factory.open()
    await settle()


async def test_few_probes_without_an_answer_are_left(make_pool):
    factory = Gate(lambda: Thing())
    pool = make_pool(factory, create_timeout=100)
    probes = PoolProbes(pool)
    for _ in range(MOST_PENDING + 2):
        assert await probes.ask(1.0) is False
    assert factory.entered == MOST_PENDING
    asking = asyncio.ensure_future(probes.ask(1.0))
    await settle()
    factory.calls[1].set_result(Thing())
    assert await asking is True
    assert len(probes.cancel()) == MOST_PENDING - 1
    factory.open()
    await settle()
