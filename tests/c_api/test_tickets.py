"""Tickets of `acquire_call`: they cancel it, and may be dropped."""

import asyncio
import gc

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import Thing, forget
from tests.support.probe import (
    ALL,
    SOURCE,
    called,
    native_only,
    only,
    python,
)

pytestmark = native_only


async def test_cancel_before_it_runs(make_c, probe):
    pool, handlers = make_c()
    plan = probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    assert probe.ticket_cancel(ticket) == 1
    assert plan.log == []
    await settle()
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert plan.freed == 1
    assert probe.ticket_cancel(ticket) == 0
    assert handlers.log == []


async def test_cancel_while_it_waits(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan, next_plan = probe.Plan(), probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    probe.acquire_call(pool, -1.0, next_plan)
    await settle()
    assert probe.ticket_cancel(ticket) == 1
    assert probe.ticket_cancel(ticket) == 1  # it has not heard of the first one yet
    assert plan.log == []
    await settle()
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert plan.freed == 1
    assert probe.ticket_cancel(ticket) == 0
    assert pool.stats().cancelled == 1
    pool.release(resource)
    await settle()
    assert only(next_plan.log, "resource") is resource
    pool.release(resource)


async def test_cancel_after_it_was_handed_a_resource(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    pool.release(resource)
    assert probe.ticket_cancel(ticket) == 1
    await settle()
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_cancel_after_the_end(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert probe.ticket_cancel(ticket) == 0
    assert probe.ticket_cancel(ticket) == 0
    await settle()
    assert (called(plan), plan.freed) == (["resource"], 1)
    pool.release(plan.log[0][1])


async def test_cancel_inside_the_callback(make_c, probe):
    pool, _ = make_c()
    plan, answers = probe.Plan(), []
    plan.call = lambda name, resource: answers.append(probe.ticket_cancel(ticket))
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert answers == [0]
    assert (called(plan), plan.freed) == (["resource"], 1)
    pool.release(plan.log[0][1])


async def cancel_inside(where, pool, handlers, probe, mode):
    """Cancel an acquire_call in its hook, which then does `mode`: the log, and the answer."""
    if where == "before_acquire":
        pool.release(await pool.acquire())
    plan, answers = probe.Plan(), []

    def cancel(name, resource):
        if name == where:
            handlers.call = None
            answers.append(probe.ticket_cancel(ticket))

    handlers.call = cancel
    setattr(handlers, where, mode)
    ticket = probe.acquire_call(pool, -1.0, plan)
    await settle()
    setattr(handlers, where, probe.WELL)
    [answer] = answers
    return plan.log, answer


@pytest.mark.parametrize("where", ["factory", "before_acquire"])
async def test_cancel_inside_a_hook_keeps_its_word(make_c, probe, where):
    pool, handlers = make_c()
    [(end, argument)], answer = await cancel_inside(where, pool, handlers, probe, probe.WELL)
    assert answer == (end == "error")
    if end == "resource":
        pool.release(argument)


@pytest.mark.parametrize("where", ["factory", "before_acquire"])
@pytest.mark.parametrize("error", [OSError, SystemError])
async def test_cancel_inside_a_hook_that_fails_keeps_its_word(make_c, probe, where, error):
    """Found by fuzzing: the callback was given the error of the hook instead."""
    pool, handlers = make_c(max_size=1)
    handlers.error = OSError
    mode = probe.SILENT if error is SystemError else probe.RAISE
    log, answer = await cancel_inside(where, pool, handlers, probe, mode)
    assert answer == 1
    reported = only(log, "error")
    assert isinstance(reported, asyncio.CancelledError)
    if where == "factory":
        assert isinstance(reported.__cause__, error)
    pool.release(await pool.acquire())


async def test_the_ticket_may_be_dropped(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    gc.collect()
    assert plan.freed == 0
    pool.release(resource)
    await settle()
    assert only(plan.log, "resource") is resource
    pool.release(resource)


def test_asyncio_run_cancels_what_still_waits(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(probe.Plan(), ALL, {"max_size": 1})]

    async def main():
        await box[0].acquire()
        ticket = probe.acquire_call(box[0], -1.0, plan)
        await settle()
        return ticket

    ticket = asyncio.run(main())
    assert isinstance(only(plan.log, "error"), asyncio.CancelledError)
    assert plan.freed == 1
    assert probe.ticket_cancel(ticket) == 0
    plan.log.clear()
    del ticket
    forget(box)


@pytest.mark.parametrize("wrong", [None, 3, "NULL", cenote.Pool(Thing)])
def test_what_is_no_ticket_is_refused(probe, wrong):
    name = "NULL" if wrong == "NULL" else type(wrong).__name__
    with pytest.raises(TypeError, match=f"a ticket of acquire_call is needed, not {name}"):
        probe.ticket_cancel(probe.NULL if wrong == "NULL" else wrong)


TICKET_OF_A_CLOSED_LOOP = """
import asyncio, warnings, cenote, probe
warnings.simplefilter("ignore")
for steps in range(2):
    pool, plan = cenote.Pool(object, max_size=1), probe.Plan()

    async def main():
        await pool.acquire()
        ticket = probe.acquire_call(pool, 5.0, plan)
        for _ in range(steps):
            await asyncio.sleep(0)
        return ticket

    loop = asyncio.new_event_loop()
    ticket = loop.run_until_complete(main())
    loop.close()
    print(probe.ticket_cancel(ticket), plan.log)
"""


def test_a_ticket_of_a_closed_loop_is_not_cancelled(probe_path):
    done = python(TICKET_OF_A_CLOSED_LOOP, path=[SOURCE, probe_path.parent])
    assert done.stdout == "0 []\n0 []\n", done.stderr
