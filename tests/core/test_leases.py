"""Leases: which slot a resource and a task belong to."""

from typing import Any

import pytest

from tests.support.cores import NOW, STRANGER, A, B, C, holder, leased, new_claim, reserved

pytestmark = pytest.mark.once  # both cores, side by side


def test_find_gives_the_slot_with_this_very_resource(make: Any) -> None:
    core = make()
    one, two = [1], [1]
    first, second = leased(core, resource=one), leased(core, resource=two)
    assert core.find(one, None) is first
    assert core.find(two, None) is second
    assert core.find([1], None) is None


def test_find_gives_nothing_that_is_not_out(make: Any) -> None:
    core = make()
    resource = object()
    slot = leased(core, resource=resource)
    core.reclaim(slot)
    assert core.find(resource, None) is None


def test_find_prefers_the_own_lease_of_identical_resources(make: Any) -> None:
    core = make()
    resource = object()
    slots = [leased(core, holder(core, task), resource) for task in (A, B, C)]
    assert core.find(resource, B) is slots[1]
    assert core.find(resource, C) is slots[2]
    assert core.find(resource, STRANGER) is slots[0]
    assert core.find(resource, None) is slots[0]


def test_find_gives_the_newest_of_several_own_leases(make: Any) -> None:
    core = make()
    resource = object()
    slots = [leased(core, holder(core, task), resource) for task in (A, B, A, B)]
    assert core.find(resource, B) is slots[3]
    core.reclaim(slots[3])
    assert core.find(resource, B) is slots[1]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
def test_identical_resources_come_back_in_any_order(make: Any, order: list[int]) -> None:
    core = make()
    resource = object()
    slots = [leased(core, holder(core, task), resource) for task in (A, B, C)]
    left = list(slots)
    for place in order:
        assert core.reclaim(slots[place]).task == (A, B, C)[place]
        left.remove(slots[place])
        assert {lease.slot for lease in core.holders()} == set(left)
        assert core.find(resource, None) is (left[0] if left else None)
    assert core.holders() == []


def test_hold_counts_the_use_and_remembers_since_when(make: Any) -> None:
    core = make()
    claim = new_claim(core)
    slot = reserved(core)
    core.hold(claim, slot, NOW)
    assert (slot.uses, slot.holder, claim.slot, claim.since) == (1, claim, slot, NOW)
    assert core.reclaim(slot) is claim
    assert (slot.holder, claim.slot) == (None, None)
