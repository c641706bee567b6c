"""Circles of tasks that wait for one another."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cores import NOW, STRANGER, A, B, holder, idle, leased, reserved, waiter

pytestmark = pytest.mark.once  # both cores, side by side


def ring(make: Any, *tasks: str, **options: Any) -> Any:
    """A core with one resource for each task, all of them out in their blocks."""
    core = make(max_size=len(tasks), **options)
    for task in tasks:
        leased(core, holder(core, task))
    return core


def test_the_only_holder_that_asks_again_is_a_circle(make: Any) -> None:
    core = ring(make, A)
    assert [lease.task for lease in core.deadlock(waiter(core, A), False)] == [A]


def test_a_circle_is_closed_by_the_last_holder_that_waits(make: Any) -> None:
    core = ring(make, A, B)
    assert core.deadlock(waiter(core, A), False) == []
    core.wait(waiter(core, A))
    assert {lease.task for lease in core.deadlock(waiter(core, B), False)} == {A, B}


def test_one_task_may_hold_everything(make: Any) -> None:
    core = ring(make, A, A)
    assert len(core.deadlock(waiter(core, A), False)) == 2


def test_a_stranger_closes_no_circle_while_a_holder_is_free(make: Any) -> None:
    core = ring(make, A, B)
    core.wait(waiter(core, A))
    assert core.deadlock(waiter(core, STRANGER), False) == []


def test_a_waiter_with_a_deadline_breaks_the_circle(make: Any) -> None:
    core = ring(make, A, B)
    core.wait(waiter(core, A, deadline=NOW))
    assert core.deadlock(waiter(core, B), False) == []
    assert len(core.deadlock(waiter(core, B), True)) == 2


def test_a_waiter_that_left_breaks_the_circle(make: Any) -> None:
    core = ring(make, A, B)
    claim = waiter(core, A)
    core.wait(claim)
    core.leave(claim)
    assert core.deadlock(waiter(core, B), False) == []


CIRCLE_BREAKS: dict[str, Callable[[Any], object]] = {
    "idle": lambda core: idle(core),
    "in a hook": lambda core: reserved(core),
    "being created": lambda core: core.permit_for_pool(),
    "being destroyed": lambda core: core.retire(reserved(core)),
    "not in a block": lambda core: leased(core, holder(core, A, in_block=False)),
    "without a task": lambda core: leased(core, holder(core, None)),
    "room": lambda core: None,
}


@pytest.mark.parametrize("breaks", CIRCLE_BREAKS)
def test_whatever_may_still_come_back_breaks_the_circle(make: Any, breaks: str) -> None:
    core = ring(make, A)
    core.max_size = 2
    CIRCLE_BREAKS[breaks](core)
    assert core.deadlock(waiter(core, A), True) == []


def test_a_pool_without_leases_has_no_circle(make: Any) -> None:
    core = make(max_size=1)
    assert core.deadlock(waiter(core, A), True) == []
