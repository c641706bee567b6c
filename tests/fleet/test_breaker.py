"""The circuit breaker of a fleet, with pools in virtual time, on a ledger in memory."""

import asyncio
import contextlib

import pytest

import cenote
from cenote import CircuitState
from cenote.fleet.breaker import FleetBreaker
from cenote.fleet.ledger import FleetState, Sync
from cenote.testing import advance, now, settle
from tests.support.kit import Thing
from tests.support.memory_ledger import MemoryStore
from tests.support.waiting import eventually

pytestmark = pytest.mark.virtual_time

ACTIVE, INACTIVE, RECOVERING = (
    CircuitState.ACTIVE, CircuitState.INACTIVE, CircuitState.RECOVERING,
)  # fmt: skip


class Backend:
    """What all processes connect to. `cut_off`: hosts that cannot reach it; `full_for`: hosts to
    which it says that it is full."""

    def __init__(self):
        self.down = False
        self.cut_off = set()
        self.full_for = set()
        self.connects = []  # time, process
        self.takes = 0.002

    def reaches(self, process):
        return not self.down and process.host not in self.cut_off


class Process:
    """A process with one pool, its member in the fleet, and a beat of two seconds."""

    def __init__(self, fleet, name, make_pool, *, local=None, **options):
        self.fleet, self.name, self.host = fleet, name, name[0]
        self.ledger = fleet.store.connect()
        self.strategy = FleetBreaker(local or cenote.ConsecutiveFailures(3, 1.0, 1))
        options = {"max_size": 4, "before_release": self.works, **options}
        self.pool = make_pool(self.connect, strategy=self.strategy, name=name, **options)
        self.switches = []  # time, state
        self.errors = 0
        self.seq = 0

    async def connect(self):
        self.fleet.backend.connects.append((now(), self.name))
        reached = self.fleet.backend.reaches(self)
        await asyncio.sleep(self.fleet.backend.takes)
        if self.host in self.fleet.backend.full_for:
            raise cenote.BackendFullError("full")
        if not reached:
            raise OSError("the backend is down")
        return Thing()

    def works(self, thing):
        return self.fleet.backend.reaches(self)

    async def start(self):
        await self.pool.open()
        self.pool.subscribe(
            lambda event: self.switches.append((now(), event.reason)), kinds=["state_changed"]
        )
        await self.ledger.open(lambda news: news.circuit and self.member.heard(news.circuit))
        self.member = self.strategy.join(self.pool, self.name, self.ledger)
        await self.beat()
        self.beating = asyncio.create_task(self.beats())

    async def beats(self):
        while True:
            await asyncio.sleep(2)
            with contextlib.suppress(cenote.fleet.ledger.LedgerError):
                await self.beat()

    async def beat(self):
        self.seq += 1
        request = Sync(
            self.name, self.seq, 1, 1, 1, 4, 100, self.host, 1, self.name,
            breaker=self.member.state, epoch=self.member.epoch,
        )  # fmt: skip
        self.member.heard((await self.ledger.sync(request)).circuit)

    async def use(self, times=1):
        """Use the backend; returns how often that worked."""
        worked = 0
        for _ in range(times):
            with contextlib.suppress(cenote.PoolError, OSError):
                async with self.pool.acquire(timeout=1):
                    worked += self.fleet.backend.reaches(self)
        return worked

    async def stop(self):
        self.beating.cancel()
        self.member.end()
        await self.ledger.close()


class Fleet:
    def __init__(self, store):
        self.store = store
        self.backend = Backend()
        self.processes = []

    def __getitem__(self, name):
        return next(each for each in self.processes if each.name == name)

    @property
    def states(self):
        return {each.pool.state for each in self.processes}

    @property
    def circuit(self):
        return self.store.reference.ballot

    def connects(self, since=0.0):
        return [name for time, name in self.backend.connects if time >= since]


@pytest.fixture
def fleet():
    return Fleet(MemoryStore())


@contextlib.asynccontextmanager
async def started(fleet, names, make_pool, **options):
    fleet.processes = [Process(fleet, name, make_pool, **options) for name in names.split()]
    for each in fleet.processes:
        await each.start()
    try:
        yield
    finally:
        for each in fleet.processes:
            await each.stop()
        await settle()


# -- the backend goes down and comes back ----------------------------------------------------------


@pytest.mark.parametrize("names", ["a1", "a1 a2 a3", "a1 b1", "a1 a2 b1 b2 c1 c2"])
async def test_all_open_as_soon_as_one_has_found_out(fleet, make_pool, names):
    async with started(fleet, names, make_pool, min_size=1):
        fleet.backend.down = True
        begun = now()
        await fleet["a1"].use(3)
        assert fleet["a1"].pool.state is INACTIVE  # at once, whatever the ledger says
        await advance(0.25)
        assert fleet.states == {INACTIVE}
        assert fleet.circuit.state is FleetState.INACTIVE
        assert max(time for each in fleet.processes for time, _ in each.switches) <= begun + 0.25
        with pytest.raises(cenote.ServiceUnavailableError) as caught:
            await fleet.processes[-1].pool.acquire()
        assert 0.7 < caught.value.retry_after <= 1


async def test_one_process_a_second_makes_a_probe(fleet, make_pool):
    async with started(fleet, "a1 a2 a3 b1 b2 b3", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.25)
        begun = now()
        await advance(20)
        assert 17 <= len(fleet.connects(since=begun)) <= 20
        assert fleet.states == {INACTIVE}


async def test_all_come_back_soon_after_the_backend(fleet, make_pool):
    async with started(fleet, "a1 a2 b1 b2", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(30)
        fleet.backend.down = False
        begun = now()
        await advance(1.5)
        assert fleet.states == {ACTIVE}
        back = [each.switches[-1][0] - begun for each in fleet.processes]
        assert max(back) <= 1.5
        assert len(set(back)) > 1  # not all at once
        assert [await each.use() for each in fleet.processes] == [1, 1, 1, 1]


async def test_it_opens_again_after_it_has_closed(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        for _ in range(3):
            fleet.backend.down = True
            await fleet["b1"].use(3)
            await advance(0.3)
            assert fleet.states == {INACTIVE}
            fleet.backend.down = False
            await advance(2)
            assert fleet.states == {ACTIVE}
            assert await fleet["a1"].use(3) == 3


async def test_a_quiet_fleet_says_nothing_and_has_no_task(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        await advance(20)
        assert await fleet["a1"].use(50) == 50
        assert {operation for _, operation, _ in fleet.store.calls} == {"sync"}
        assert not [each for each in asyncio.all_tasks() if "breaker" in each.get_name()]
        assert fleet["a1"].strategy.report_success == fleet["a1"].strategy.local.report_success


# -- looking ---------------------------------------------------------------------------------------


async def test_a_success_spares_the_probe_of_a_suspicion(fleet, make_pool):
    async with started(fleet, "a1 b1 c1", make_pool):
        await fleet["b1"].use()
        held = await fleet["b1"].pool.acquire()
        fleet.backend.cut_off = {"a"}
        await fleet["a1"].use(3)
        await advance(0.01)
        assert fleet.circuit.state is FleetState.SUSPECT
        fleet["b1"].pool.release(held)
        begun = now()
        await advance(0.2)
        assert fleet.connects(since=begun) == ["c1"]
        assert fleet.circuit.votes == {"a1": True, "b1": False, "c1": False}


async def test_a_full_pool_gives_an_idle_resource_for_the_look(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool, min_size=1, max_size=1):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.3)
        assert fleet.states == {INACTIVE}


async def test_who_cannot_look_does_not_vote(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool, max_size=1):
        held = await fleet["b1"].pool.acquire()
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(2.9)
        assert fleet.circuit.votes == {"a1": True}
        fleet["b1"].pool.release(held)
        assert fleet["b1"].pool.state is ACTIVE


async def test_a_look_without_an_answer_is_a_vote(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        fleet.backend.takes = 100
        await advance(0.9)
        assert fleet["b1"].pool.state is ACTIVE
        await advance(0.3)
        assert fleet["b1"].pool.state is INACTIVE
        await advance(100)


async def test_a_backend_that_is_full_works(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.cut_off, fleet.backend.full_for = {"a"}, {"b"}
        await fleet["a1"].use(3)
        await advance(0.3)
        assert fleet.circuit.votes == {"a1": True, "b1": False}
        fleet.backend.full_for = set()


# -- one host is cut off ---------------------------------------------------------------------------


async def test_a_host_that_is_cut_off_stays_open_alone(fleet, make_pool):
    async with started(fleet, "a1 a2 b1 b2 c1 c2", make_pool, min_size=1):
        fleet.backend.cut_off = {"a"}
        for _ in range(40):
            assert [await fleet[name].use() for name in ("b1", "b2", "c1", "c2")] == [1] * 4
            assert await fleet["a1"].use() + await fleet["a2"].use() == 0
            await advance(0.25)
        assert {fleet[name].pool.state for name in ("a1", "a2")} <= {INACTIVE, RECOVERING}
        assert not [fleet[name].switches for name in ("b1", "b2", "c1", "c2")
                    if fleet[name].switches]  # fmt: skip
        fleet.backend.cut_off = set()
        await advance(10)
        assert await fleet["a1"].use() == 1  # its local strategy has let it pass as a probe
        assert fleet["a1"].pool.state is ACTIVE


async def test_a_suspicion_is_not_raised_again_by_failed_recoveries(fleet, make_pool):
    async with started(fleet, "a1 b1 c1", make_pool):
        fleet.backend.cut_off = {"a"}
        for _ in range(100):
            await fleet["a1"].use()
            await advance(0.25)
        assert len([each for each in fleet.connects() if each == "b1"]) == 1
        assert len(fleet["a1"].switches) > 4


async def test_a_suspicion_without_majority_ends(fleet, make_pool):
    async with started(fleet, "a1 b1 c1", make_pool):
        fleet.backend.cut_off = {"a"}
        await fleet["a1"].use(3)
        await advance(3.2)
        assert fleet.circuit.state is FleetState.ACTIVE
        assert {each.member.epoch for each in fleet.processes} == {2}
        calls = len(fleet.store.calls)
        await advance(1)
        assert {operation for _, operation, _ in fleet.store.calls[calls:]} <= {"sync"}


# -- the ledger is away ----------------------------------------------------------------------------


async def test_without_ledger_each_goes_on_alone(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        for each in fleet.processes:
            each.ledger.away = True
        fleet.backend.down = True
        await fleet["a1"].use(3)
        assert fleet["a1"].pool.state is INACTIVE
        assert await fleet["b1"].use(2) == 0
        await advance(0.5)
        assert fleet["b1"].pool.state is ACTIVE
        fleet.backend.down = False
        await advance(1)
        assert await fleet["a1"].use() == 1
        assert fleet.states == {ACTIVE}


@pytest.mark.parametrize("judge", ["a1", "b1"])
async def test_a_ledger_lost_while_open_leaves_it_to_each(fleet, make_pool, judge):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet[judge].use(3)
        await advance(0.3)
        assert fleet.states == {INACTIVE}
        for each in fleet.processes:
            each.ledger.away = True
        await advance(2)
        assert [each.pool.state for each in fleet.processes if each.name == judge] == [INACTIVE]
        assert [each.pool.state for each in fleet.processes if each.name != judge] == [RECOVERING]
        for each in fleet.processes:
            assert await each.use() == 0  # a probe of the local strategy
            assert each.pool.state is INACTIVE
        fleet.backend.down = False
        await advance(2)
        assert [await each.use() for each in fleet.processes] == [1, 1]
        assert fleet.states == {ACTIVE}


async def test_a_ledger_that_returns_does_not_stop_who_works(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.3)
        fleet["b1"].ledger.away = fleet["a1"].ledger.away = True
        await advance(2)
        fleet.backend.down = False
        await advance(2)
        assert await fleet["b1"].use() == 1
        fleet["b1"].ledger.away = fleet["a1"].ledger.away = False
        before = len(fleet["b1"].switches)
        for _ in range(100):
            await advance(0.05)
            assert await fleet["b1"].use() == 1
        assert len(fleet["b1"].switches) == before
        assert fleet.states == {ACTIVE}
        assert fleet.circuit.state is FleetState.ACTIVE


async def test_a_ledger_without_its_data_lets_all_judge_again(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(5)
        fleet.store.forget()
        fleet.backend.down = False
        await advance(3)
        assert fleet.states == {ACTIVE}
        assert {each.member.epoch for each in fleet.processes} == {fleet.circuit.epoch}


# -- news ------------------------------------------------------------------------------------------


async def test_the_beat_repairs_lost_news(fleet, make_pool):
    async with started(fleet, "a1 b1 c1 d1", make_pool):
        fleet["d1"].ledger.deaf = True
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.5)
        assert fleet["d1"].pool.state is ACTIVE
        await advance(2)
        assert fleet["d1"].pool.state is INACTIVE
        fleet.backend.down = False
        await advance(4)
        assert fleet["d1"].pool.state is ACTIVE


async def test_news_of_an_older_epoch_is_ignored(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.3)
        old = fleet["b1"].member.circuit
        fleet.backend.down = False
        await advance(2)
        fleet["b1"].member.heard(old)
        assert fleet["b1"].pool.state is ACTIVE
        assert fleet["b1"].member.epoch > old.epoch


async def test_late_answers_cannot_keep_it_open(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.3)
        assert fleet.states == {INACTIVE}
        fleet["b1"].ledger.delay = 1.6  # its verdicts come after the end of its lease
        await advance(5)
        fleet.backend.down = False
        await advance(15)
        assert fleet.states == {ACTIVE}


# -- the probe of all ------------------------------------------------------------------------------


async def test_a_slow_probe_closes_it_after_all(fleet, make_pool):
    async with started(fleet, "a1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(2.5)
        fleet.backend.down, fleet.backend.takes = False, 4.0
        await advance(12)
        assert fleet["a1"].pool.state is ACTIVE


async def test_a_prober_that_dies_is_replaced(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.5)
        fleet.backend.takes = 1.0
        await advance(0.9)
        prober = fleet[fleet.circuit.prober]
        prober.ledger.away = True  # the verdict is never heard
        fleet.backend.down = False
        await advance(8)
        assert fleet.circuit.state is FleetState.ACTIVE


async def test_who_has_no_room_leaves_the_probe_to_others(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool, max_size=1):
        held = await fleet["a1"].pool.acquire()
        fleet.backend.down = True
        for name in ("a1", "b1"):
            fleet[name].pool.strategy.report_failure(fleet[name].pool, OSError("down"))
        await fleet["b1"].use(2)
        fleet["a1"].pool.strategy.report_failure(fleet["a1"].pool, OSError("down"))
        fleet["a1"].pool.strategy.report_failure(fleet["a1"].pool, OSError("down"))
        await advance(0.3)
        assert fleet.states == {INACTIVE}
        await advance(10)
        assert {each for time, operation, each in fleet.store.calls if operation == "claim"} == {
            "b1"
        }
        fleet["a1"].pool.release(held)


# -- by hand, and leaving --------------------------------------------------------------------------


async def test_a_pool_switched_by_hand_is_left_alone(fleet, make_pool):
    async with started(fleet, "a1 b1 b2", make_pool):
        fleet["b2"].pool.deactivate()
        await advance(5)
        assert fleet.circuit.epoch == 0
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await fleet["b1"].use(3)
        await advance(1)
        fleet.backend.down = False
        await advance(3)
        assert fleet["a1"].pool.state is ACTIVE
        assert fleet["b2"].pool.state is INACTIVE


async def test_who_leaves_while_open_for_all_judges_alone(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["a1"].use(3)
        await advance(0.3)
        fleet["b1"].member.end()
        assert fleet["b1"].pool.state is RECOVERING
        fleet.backend.down = False
        assert await fleet["b1"].use() == 1
        assert fleet["b1"].pool.state is ACTIVE
        fleet["b1"].member.end()


async def test_a_closed_pool_takes_no_part(fleet, make_pool):
    async with started(fleet, "a1 b1", make_pool):
        fleet.backend.down = True
        await fleet["b1"].pool.close()
        await fleet["a1"].use(3)
        await advance(0.5)
        assert [each for each in fleet.connects() if each == "b1"] == []


async def test_a_local_strategy_without_recovery_is_served(fleet, make_pool):
    class OneFailure:
        def report_success(self, source): ...

        def report_failure(self, source, error):
            source.deactivate()

    async with started(fleet, "a1 b1", make_pool, local=OneFailure()):
        fleet.backend.down = True
        await fleet["a1"].use()
        await advance(0.3)
        assert fleet.states == {INACTIVE}
        assert fleet["b1"].pool.strategy.should_recover() is False
        fleet.backend.down = False
        await advance(2)
        assert fleet.states == {ACTIVE}
        assert fleet["b1"].pool.strategy.retry_after() is None


async def test_without_a_member_it_is_the_local_strategy(make_pool):
    strategy = FleetBreaker(cenote.ConsecutiveFailures(1, 5.0, 1))
    moody = [OSError("down")]

    def connect():
        if moody:
            raise moody.pop()
        return Thing()

    pool = make_pool(connect, strategy=strategy)
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    assert pool.state is INACTIVE
    assert 4 < strategy.retry_after() <= 5
    await advance(5)
    pool.release(await pool.acquire())
    assert pool.state is ACTIVE
    assert "ConsecutiveFailures" in repr(strategy)


# -- with a fleet ----------------------------------------------------------------------------------


async def test_pools_of_one_host_open_and_close_together(make_pool, tmp_path):
    fleet = cenote.Fleet(budget=20, path=tmp_path / "fleet")
    down = False

    def connect():
        if down:
            raise OSError("down")
        return Thing()

    first, second = (
        make_pool(
            connect, max_size=5, fleet=fleet,
            strategy=fleet.breaker(cenote.ConsecutiveFailures(1, 1.0, 1)),
        )
        for _ in range(2)
    )  # fmt: skip
    async with first, second:
        for pool in (first, second):
            await pool.release(await pool.acquire())
            await pool.evict(*pool.idle_resources())
        assert {each.breaker for each in await fleet.members()} == {"ACTIVE"}
        down = True
        with pytest.raises(OSError, match="down"):
            await first.acquire()
        await eventually(lambda: second.state is INACTIVE)
        down = False
        await eventually(lambda: {first.state, second.state} == {ACTIVE})
        await first.release(await first.acquire())


async def test_the_breaker_of_a_fleet_checks_its_strategy():
    fleet = cenote.Fleet(budget=20)
    with pytest.raises(TypeError, match="strategy must be an object, not the class"):
        fleet.breaker(cenote.ConsecutiveFailures)
    assert fleet.breaker().local.failure_threshold == 5
    assert isinstance(fleet.strategy(), FleetBreaker)
