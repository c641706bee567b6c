"""How many slots a core wants to create or destroy: demand, shortage, surplus, expiry."""

from math import inf
from typing import Any

import pytest

from cenote._core import expired, next_expiry
from cenote.states import (
    CircuitState,
    Phase,
)
from tests.support.cores import NOW, PHASES, idle, leased, new_claim, new_core, reserved, waiting

pytestmark = pytest.mark.once  # both cores, side by side


def test_demand_counts_waiters_for_whom_nothing_is_coming(make: Any) -> None:
    core = make(sync_factory=False, max_size=9)
    assert core.demand() == 0
    waiting(core, 4)
    assert core.demand() == 4
    core.permit_for_pool()
    assert core.demand() == 3
    idle(core)
    assert core.demand() == 2


def test_demand_ends_at_max_size(make: Any) -> None:
    core = make(sync_factory=False, max_size=3)
    waiting(core, 4)
    leased(core)
    core.retire(reserved(core))
    assert core.demand() == 1


def test_demand_is_zero_with_a_sync_factory(make: Any) -> None:
    core = make()
    waiting(core)
    assert core.demand() == 0


def test_shortage_is_what_is_missing_to_min_size(make: Any) -> None:
    core = make(min_size=4, max_size=5)
    assert core.shortage() == 4
    core.permit_for_pool()
    idle(core)
    leased(core)
    assert core.shortage() == 1
    core.retire(reserved(core))
    assert core.shortage() == 1
    reserved(core)
    assert core.shortage() == 0


def test_shortage_ends_at_max_size(make: Any) -> None:
    core = make(min_size=2, max_size=2)
    core.retire(reserved(core))
    assert core.shortage() == 1


@pytest.mark.parametrize("phase", [Phase.NEW, Phase.DRAINING, Phase.CLOSED])
def test_shortage_is_zero_unless_the_pool_is_open(core_class: Any, phase: Phase) -> None:
    core = new_core(core_class, min_size=2)
    core.move("unopen")
    for step in PHASES[phase]:
        core.move(step)
    assert core.shortage() == 0


def test_shortage_is_zero_while_inactive(make: Any) -> None:
    core = make(min_size=2)
    core.set_circuit(CircuitState.INACTIVE)
    assert core.shortage() == 0
    core.set_circuit(CircuitState.RECOVERING)
    assert core.shortage() == 2


def test_surplus_is_what_is_idle_and_too_many(make: Any) -> None:
    core = make(max_size=6)
    idle(core, 3)
    leased(core)
    core.permit_for_pool()
    core.retire(reserved(core))
    assert core.surplus() == 0
    core.max_size = 4
    assert core.surplus() == 1
    core.max_size = 1
    assert core.surplus() == 3


def test_due_names_what_is_past_its_lifetime(make: Any) -> None:
    core = make(min_size=9)
    late, early = reserved(core, expires_at=NOW + 9), reserved(core, expires_at=NOW + 5)
    core.put(late, NOW)
    core.put(early, NOW)
    core.hold(new_claim(core), reserved(core, expires_at=NOW + 1), NOW)
    assert next_expiry(core) == NOW + 5
    assert expired(core, NOW + 4.9) == []
    assert expired(core, NOW + 5) == [(early, "max_lifetime")]
    assert expired(core, NOW + 9) == [(late, "max_lifetime"), (early, "max_lifetime")]


@pytest.mark.parametrize("lifo", [False, True])
def test_expiry_names_what_is_idle_too_long_above_min_size(make: Any, lifo: bool) -> None:
    core = make(min_size=1, max_idle=10.0, lifo=lifo)
    first, second, third = (idle(core, now=NOW + second)[0] for second in range(3))
    assert next_expiry(core) == NOW + 10
    assert expired(core, NOW + 9.9) == []
    assert expired(core, NOW + 10) == [(first, "max_idle")]
    assert expired(core, NOW + 20) == [(first, "max_idle"), (second, "max_idle")]
    core.min_size = 0
    assert expired(core, NOW + 20)[2:] == [(third, "max_idle")]


def test_lifetime_comes_before_idle_time_in_expiry(make: Any) -> None:
    core = make(min_size=1, max_idle=10.0)
    slot, expiring = reserved(core), reserved(core, expires_at=NOW + 10)
    core.put(slot, NOW)
    core.put(expiring, NOW + 1)
    assert expired(core, NOW + 10) == [(expiring, "max_lifetime")]


def test_busy_slots_and_creations_count_for_min_size(make: Any) -> None:
    core = make(min_size=2, max_idle=10.0)
    (slot,) = idle(core)
    leased(core)
    assert (expired(core, NOW + 10), next_expiry(core)) == ([], inf)
    core.permit_for_pool()
    assert (expired(core, NOW + 10), next_expiry(core)) == ([(slot, "max_idle")], NOW + 10)


def test_nothing_is_due_without_limits(make: Any) -> None:
    core = make()
    idle(core, 3)
    assert (expired(core, NOW + 1e9), next_expiry(core)) == ([], inf)


def test_room_ends_where_max_creating_permits_are_out(make: Any) -> None:
    core = make(sync_factory=False, max_size=9, min_size=9, max_creating=2)
    waiting(core, 4)
    assert (core.room(), core.demand(), core.shortage()) == (2, 2, 2)
    first = core.permit_for_pool()
    assert (core.room(), core.demand(), core.shortage()) == (1, 1, 1)
    core.permit_for_pool()
    assert (core.room(), core.demand(), core.shortage()) == (0, 0, 0)
    assert core.permit_for_pool() is None
    core.fail_slot(first)
    assert core.room() == 1


def test_max_creating_makes_nothing_surplus(make: Any) -> None:
    core = make(max_size=3, max_creating=1)
    idle(core, 2)
    permit = core.permit_for_pool()
    assert core.surplus() == 0
    core.open_slot(permit, object())
    assert core.put(permit, NOW) is None


def test_grant_hands_out_max_creating_permits_at_most(make: Any) -> None:
    core = make(max_creating=1)
    waiting(core, 2)
    first = core.grant()
    assert core.grant() is None
    core.open_slot(first.slot, object())
    assert core.grant() is not None
