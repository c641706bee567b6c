"""Every ledger does what the reference does, operation by operation."""

import asyncio
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from cenote.fleet.ledger import LedgerConfig
from cenote.fleet.local import LocalLedger
from cenote.fleet.redis import RedisLedger
from tests.support.ledgers import FOREVER, TTL, LedgerMachine
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.once, pytest.mark.own_loop]

OFTEN = settings(max_examples=30, stateful_step_count=25)
VERY_OFTEN = settings(max_examples=2000, stateful_step_count=60)


class LocalMachine(LedgerMachine):
    lasts = FOREVER
    learns = False

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        path = str(Path(self.directory.name, "fleet"))
        self.config = LedgerConfig("", "shop", TTL, path)

    def teardown(self):
        super().teardown()
        self.directory.cleanup()

    async def connect(self, news):
        ledger = LocalLedger(self.config, clock=self.clock)
        await ledger.open(news)
        return ledger

    async def deliver(self):
        for _ in range(4):  # written, polled, read
            await asyncio.sleep(0)

    @precondition(lambda self: len(self.open) > 1)
    @rule()
    def die(self):
        """A process ends: the others clear its seat."""
        gone = self.open.pop()
        gone.ledger._let_go()
        self.reference.drop(sorted(gone.members), self.now)
        for member in gone.members:
            self.held[member] = 0
        self.reopen()
        self.rows_are_equal()


def test_local_ledger_decides_like_the_reference():
    run_state_machine_as_test(LocalMachine, settings=OFTEN)


@pytest.mark.exhibit
def test_local_ledger_decides_like_reference_very_often():
    run_state_machine_as_test(LocalMachine, settings=VERY_OFTEN)


class RedisMachine(LedgerMachine):
    server = None
    connections = 1

    def __init__(self):
        super().__init__()
        self.name = uuid4().hex
        self.ends = asyncio.Queue()

    async def connect(self, news):
        ledger = RedisLedger(LedgerConfig(self.server.url, self.name, TTL), clock=self.clock)
        end = f"end {len(self.open)}"
        await ledger.open(lambda each: (self.ends.put_nowait if each.member == end else news)(each))
        await ledger._follow(end)
        channel = ledger._channel(end)
        while (await ledger._client.pubsub_numsub(channel))[0][1] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return ledger

    async def deliver(self):
        """News comes in order: after a message of ours all has come."""
        for at, each in enumerate(self.open):
            await each.ledger._client.publish(each.ledger._channel(f"end {at}"), "")
            async with asyncio.timeout(WAIT):
                await self.ends.get()


def test_redis_ledger_decides_like_the_reference(redis_server):
    machine = type("RedisMachine", (RedisMachine,), {"server": redis_server})
    run_state_machine_as_test(machine, settings=OFTEN)


@pytest.mark.exhibit
def test_redis_ledger_decides_like_reference_very_often(redis_server):
    machine = type("RedisMachine", (RedisMachine,), {"server": redis_server})
    run_state_machine_as_test(machine, settings=VERY_OFTEN)
