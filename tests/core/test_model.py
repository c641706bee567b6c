"""A real pool against the naive one of `model.py`, on both cores: the same things happen to all."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import cenote
from tests.support.faults import FACTOR
from tests.support.lockstep import pure_package
from tests.support.model_records import Options
from tests.support.pool_machine import Machine, steps_taken

# Both cores in one process: the suite need not repeat it on the pure one.
pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.own_loop,
    pytest.mark.thorough,
    pytest.mark.once,
]

EXAMPLES, STEPS = 200 * FACTOR, 60  # for each machine
PACKAGES = [cenote] if cenote.core == "pure" else [cenote, pure_package()]


class SyncFactory(Machine):
    async_factory = False


class AsyncFactory(Machine):
    async_factory = True


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("cenote"), "disabled", True)


@pytest.fixture(params=PACKAGES, ids=lambda package: package.core, autouse=True)
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each core in turn."""
    monkeypatch.setattr(Machine, "package", request.param)
    return request.param


@pytest.mark.timeout(600 * FACTOR)  # of which a failure spends the most on becoming short
@pytest.mark.parametrize("machine", [SyncFactory, AsyncFactory])
def test_the_pool_does_what_the_naive_model_does(machine: type[Machine]) -> None:
    steps_taken.clear()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert steps_taken[machine.__name__] >= 25 * EXAMPLES


# -- what the machine has found, step by step ------------------------------------------------------


def replay(machine: type[Machine], *steps: Callable[[Any], object], **options: Any) -> None:
    run = machine()
    try:
        chosen = vars(Options(**options))
        run.build(0, **{name: value for name, value in chosen.items() if name != "async_factory"})
        for step in steps:
            step(run)
            run.agree()
    finally:
        run.teardown()


def test_a_resource_made_for_a_waiter_skips_before_acquire() -> None:
    replay(
        AsyncFactory,
        lambda run: run.acquire(timeout=None, in_block=False),
        lambda run: run.factory_ends(index=0, succeeds=True),
        before_acquire="async",
    )


def test_a_waiter_whose_resource_is_rejected_keeps_its_turn() -> None:
    replay(
        SyncFactory,
        lambda run: run.crowd(number=3, in_block=False),
        lambda run: run.spoil(index=0),
        lambda run: run.release(index=0, accept=True, inside=False),
        before_acquire="sync",
    )


def test_a_waiter_rejected_by_an_async_hook_keeps_its_turn() -> None:
    replay(
        SyncFactory,
        lambda run: run.crowd(number=3, in_block=False),
        lambda run: run.release(index=0, accept=True, inside=False),
        lambda run: run.before_acquire_ends(index=0, accepts=False),
        before_acquire="async",
    )


def test_deactivating_starts_no_factory_for_waiters_that_it_fails() -> None:
    replay(
        AsyncFactory,
        lambda run: run.crowd(number=2, in_block=False),
        lambda run: run.factory_ends(index=0, succeeds=True),
        lambda run: run.crowd(number=2, in_block=False),
        lambda run: run.switch("RECOVERING"),
        lambda run: run.resize(max_size=4),
        lambda run: run.switch("INACTIVE"),
    )


def test_an_unused_idle_resource_is_shown_to_before_acquire() -> None:
    replay(
        SyncFactory,
        lambda run: run.crowd(number=4, in_block=False),
        lambda run: run.switch("RECOVERING"),
        lambda run: run.discard(index=0),
        lambda run: run.discard(index=0),  # min_size is restored; the last waiter has no place
        lambda run: run.switch("ACTIVE"),
        before_acquire="async",
        min_size=2,
        max_size=2,
    )


def test_a_newcomer_cancelled_while_rejected_counts_as_cancelled() -> None:
    replay(
        SyncFactory,
        lambda run: run.crowd(number=1, in_block=False),
        lambda run: run.release(index=0, accept=True, inside=False),
        lambda run: run.acquire(timeout=None, in_block=False),
        lambda run: run.at_once([("approve", 0, False, False), ("cancel", 0, False, False)]),
        before_acquire="async",
    )


def test_a_rejected_waiter_gets_an_idle_resource_during_the_destructor() -> None:
    replay(
        SyncFactory,
        lambda run: run.crowd(number=3, in_block=False),
        lambda run: run.release(index=0, accept=True, inside=False),
        lambda run: run.release(index=0, accept=True, inside=False),
        lambda run: run.before_acquire_ends(index=0, accepts=False),
        before_acquire="async",
        destructor="async",
        max_size=2,
    )


def test_a_newcomer_without_room_waits_for_what_comes_back() -> None:
    replay(
        SyncFactory,
        lambda run: run.crowd(number=2, in_block=False),
        lambda run: run.release(index=0, accept=True, inside=False),
        lambda run: run.acquire(timeout=None, in_block=False),
        lambda run: run.release(index=0, accept=True, inside=False),
        lambda run: run.before_acquire_ends(index=0, accepts=False),
        before_acquire="async",
        destructor="async",
        max_size=2,
    )


def test_a_place_of_a_recovery_is_free_during_the_destructor() -> None:
    both = [("acquire", 0, False, False)] * 2 + [("release", 0, True, False)] * 2
    replay(
        SyncFactory,
        lambda run: run.crowd(number=2, in_block=False),
        lambda run: run.retire(),
        lambda run: run.at_once(both),
        lambda run: run.switch("RECOVERING"),
        lambda run: run.destructor_ends(index=0, succeeds=False),
        lambda run: run.destructor_ends(index=0, succeeds=False),
        lambda run: run.discard(index=0),  # there is room for the second waiter, and now a place
        lambda run: run.acquire(timeout=None, in_block=False),
        destructor="async",
        max_size=2,
    )


def test_a_creation_in_vain_is_replaced_during_the_destructor() -> None:
    replay(
        AsyncFactory,
        lambda run: run.acquire(timeout=None, in_block=False),
        lambda run: run.retire(),  # what the factory makes is of the generation before
        lambda run: run.resize(max_size=2),
        lambda run: run.factory_ends(index=0, succeeds=True),
        lambda run: run.acquire(timeout=None, in_block=False),
        destructor="async",
    )


@pytest.mark.parametrize("young", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("lanes", [(), ((1, -1), (2, 1))])
@pytest.mark.parametrize("machine", [SyncFactory, AsyncFactory])
def test_an_overload_sheds_who_waited_longer_than_twice_the_target(
    machine: type[Machine], lanes: tuple[tuple[int, int], ...], young: float
) -> None:
    replay(
        machine,
        lambda run: run.acquire(timeout=None, in_block=False),
        lambda run: run.factory_ends(index=0, succeeds=True) if run.world.creations else None,
        lambda run: run.overload(index=0, young=young),
        lambda run: run.release(index=0, accept=True, inside=False) if run.holders() else None,
        lambda run: run.overload(index=0, young=young),
        lanes=lanes,
        queue_target=0.75,
    )
