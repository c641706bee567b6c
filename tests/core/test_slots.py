"""Idle slots and their order, slots that are unfit, and the room for more."""

from typing import Any

import pytest

from cenote._core import Slot
from tests.support.cores import NOW, idle, leased, new_claim, reserved, snapshot, waiting

pytestmark = pytest.mark.once  # both cores, side by side


@pytest.mark.parametrize(("lifo", "order"), [(False, [0, 1, 2]), (True, [2, 1, 0])])
def test_take_gives_the_oldest_slot_or_the_newest(make: Any, lifo: bool, order: list[int]) -> None:
    core = make(lifo=lifo)
    slots = idle(core, 3)
    assert [core.take() for _ in order] == [slots[place] for place in order]
    assert core.take() is None


@pytest.mark.parametrize(("lifo", "order"), [(False, [1, 2, 0]), (True, [0, 2, 1])])
def test_a_returned_slot_is_the_newest(make: Any, lifo: bool, order: list[int]) -> None:
    core = make(lifo=lifo)
    slots = idle(core, 3)
    core.take_this(slots[0])
    core.put(slots[0], NOW)
    assert [core.take() for _ in order] == [slots[place] for place in order]


@pytest.mark.parametrize("lifo", [False, True])
def test_waiters_are_granted_idle_slots_like_newcomers(make: Any, lifo: bool) -> None:
    core = make(lifo=lifo)
    slots = idle(core, 3)
    granted = []
    for claim in waiting(core, 3):
        assert core.grant() is claim
        granted.append(claim.slot)
    assert granted == (slots[::-1] if lifo else slots)


@pytest.mark.parametrize("lifo", [False, True])
def test_untake_undoes_take_to_the_letter(make: Any, lifo: bool) -> None:
    core = make(lifo=lifo)
    slots = idle(core, 3)
    before = snapshot(core, *slots)
    core.untake(core.take())
    assert snapshot(core, *slots) == before


def test_take_this_takes_out_of_order(make: Any) -> None:
    core = make()
    first, second, third = idle(core, 3)
    core.take_this(second)
    assert core.idle_slots() == [first, third]
    assert core.active == 1


def test_put_back_lets_the_idle_time_go_on(make: Any) -> None:
    core = make()
    (slot,) = idle(core, now=NOW)
    core.take_this(slot)
    assert core.put_back(slot, NOW + 5) is None
    assert slot.idle_since == NOW


def test_put_starts_the_idle_time_anew(make: Any) -> None:
    core = make()
    (slot,) = idle(core, now=NOW)
    core.take_this(slot)
    core.put(slot, NOW + 5)
    assert slot.idle_since == NOW + 5


def test_take_leaves_what_became_idle_after_that_order(make: Any) -> None:
    core = make()
    (old,) = idle(core)
    order = core.idle_seqs
    idle(core)
    assert core.take(order) is old
    assert core.take(order) is None
    assert core.take() is not None


def test_put_accepts_a_fit_slot(make: Any) -> None:
    core = make(max_uses=2)
    slot = leased(core)
    core.reclaim(slot)
    assert core.put(slot, NOW) is None
    assert core.idle_slots() == [slot]


def unfit(core: Any, reason: str) -> Slot:
    slot = reserved(core, expires_at=NOW + 1)
    core.hold(new_claim(core), slot, NOW)
    core.reclaim(slot)
    if reason == "closed":
        core.move("close")
    elif reason == "retired":
        core.generation += 1
    elif reason == "resized":
        reserved(core)
        core.max_size = 1
    return slot


@pytest.mark.parametrize("reason", ["closed", "retired", "resized", "max_lifetime", "max_uses"])
def test_put_refuses_an_unfit_slot_and_changes_nothing(make: Any, reason: str) -> None:
    core = make(max_uses=1 if reason == "max_uses" else None)
    slot = unfit(core, reason)
    now = NOW + 1 if reason == "max_lifetime" else NOW
    before = snapshot(core, slot)
    assert core.put(slot, now) == reason
    assert core.put_back(slot, now) == reason
    assert snapshot(core, slot) == before


def test_a_permit_keeps_the_generation_of_its_beginning(make: Any) -> None:
    core = make()
    slot = core.permit()
    core.generation += 1
    core.open_slot(slot, object())
    assert core.put(slot, NOW) == "retired"


def test_what_is_being_destroyed_makes_no_slot_a_surplus(make: Any) -> None:
    core = make(max_size=2)
    slot = reserved(core)
    core.retire(reserved(core))
    core.max_size = 1
    assert core.put(slot, NOW) is None


def test_a_slot_is_free_only_when_its_destructor_is_done(make: Any) -> None:
    core = make(max_size=1)
    slot = reserved(core)
    core.retire(slot)
    assert core.permit_for_pool() is None
    core.finish(slot)
    assert core.permit_for_pool() is not None


def test_room_counts_what_is_made_kept_and_destroyed(make: Any) -> None:
    core = make(max_size=3)
    assert core.room() == 3
    first, second = core.permit(), core.permit()
    assert core.room() == 1
    core.open_slot(first, object())
    core.retire(first)
    assert core.room() == 1
    core.finish(first)
    core.fail_slot(second)
    assert core.room() == 3


def test_room_is_negative_after_a_resize(make: Any) -> None:
    core = make(max_size=3)
    slots = [core.permit() for _ in range(3)]
    core.max_size = 1
    assert core.room() == -2
    assert core.permit_for_pool() is None
    for slot in slots:
        core.fail_slot(slot)
    assert core.room() == 1
