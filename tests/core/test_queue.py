"""The queue of waiters: what is granted, and to which of them."""

import sys
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cenote._core import Claim
from cenote.states import ClaimState, SlotState
from tests.support.cores import (
    CORES,
    NAMES,
    granted_in,
    idle,
    leased,
    new_claim,
    new_core,
    queue,
    reserved,
    waiting,
)

pytestmark = pytest.mark.once  # both cores, side by side


def test_take_never_gives_what_waiters_are_owed(make: Any) -> None:
    core = make()
    waiting(core, 2)
    idle(core, 3)
    assert core.take() is not None
    assert core.take() is None
    assert core.idle_count == 2


@pytest.mark.parametrize("number", [0, 1, 2])
def test_permit_never_gives_room_that_waiters_are_owed(make: Any, number: int) -> None:
    core = make(max_size=4)
    leased(core)
    idle(core)
    waiting(core, 1 + number)  # one of them is owed the idle slot
    permits = [core.permit() for _ in range(3)]
    assert sum(permit is not None for permit in permits) == 2 - number


def test_permit_for_pool_cares_only_for_max_size(make: Any) -> None:
    core = make(max_size=2)
    waiting(core, 5)
    assert core.permit_for_pool() is not None
    assert core.permit_for_pool() is not None
    assert core.permit_for_pool() is None


def test_grants_go_to_the_oldest_waiter(make: Any) -> None:
    core = make(max_size=3)
    claims = waiting(core, 5)
    idle(core)
    assert [core.grant() for _ in range(3)] == claims[:3]
    assert core.grant() is None
    assert queue(core) == claims[3:]


def test_an_idle_slot_is_granted_before_the_right_to_create(make: Any) -> None:
    core = make(max_size=2)
    (slot,) = idle(core)
    first, second = waiting(core, 2)
    core.grant()
    core.grant()
    assert first.slot is slot
    assert second.slot is not None
    assert second.slot.state is SlotState.OPENING
    assert core.opening == 1


def test_an_async_factory_grants_nobody_the_right_to_create(make: Any) -> None:
    core = make(sync_factory=False)
    (claim,) = waiting(core)
    assert core.grant() is None
    assert queue(core) == [claim]


def test_nothing_is_granted_when_nobody_waits(make: Any) -> None:
    core = make()
    (slot,) = idle(core)
    assert core.grant() is None
    assert core.idle_slots() == [slot]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_leaving_waiter_closes_the_gap(make: Any, place: int) -> None:
    core = make()
    claims = waiting(core, 3)
    core.leave(claims.pop(place))
    assert queue(core) == claims


@pytest.mark.parametrize("end", ["fail", "leave"])
def test_what_was_granted_stays_with_a_claim_that_ends(make: Any, end: str) -> None:
    core = make()
    (slot,) = idle(core)
    (claim,) = waiting(core)
    core.grant()
    if end == "fail":
        core.fail(claim, error := ValueError())
        assert claim.error is error
    else:
        core.leave(claim)
    assert claim.slot is slot
    assert slot.state is SlotState.RESERVED
    assert core.pending() == []


def test_a_granted_claim_that_waits_again_has_its_old_place(make: Any) -> None:
    core = make()
    first, second, third = waiting(core, 3)
    idle(core, 2)
    core.grant()
    core.grant()
    (fourth,) = waiting(core)
    core.wait(second)
    assert queue(core) == [second, third, fourth]
    core.wait(first)
    assert queue(core) == [first, second, third, fourth]
    assert core.pending() == [first, second, third, fourth]


def test_a_newcomer_whose_slot_was_rejected_has_no_turn(make: Any) -> None:
    core = make()
    claim = new_claim(core)
    core.reserve(claim, reserved(core))
    (other,) = waiting(core)
    core.ask_again(claim)
    assert claim.slot is None
    core.wait(claim)
    assert queue(core) == [other, claim]


def test_pending_lists_the_granted_before_the_waiting(make: Any) -> None:
    core = make()
    claims = waiting(core, 4)
    idle(core, 2)
    core.grant()
    core.grant()
    assert core.pending() == claims


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["wait", "grant", "again", "leave"]), st.integers(0, 9))
    )
)
@pytest.mark.parametrize("kind", CORES, ids=NAMES)
def test_the_links_agree_with_a_plain_list(kind: Any, steps: list[tuple[str, int]]) -> None:
    core = new_core(kind, max_size=1000)
    expected: list[Claim] = []
    granted: list[Claim] = []
    for step, index in steps:
        if step == "wait":
            expected.append(new_claim(core))
            core.wait(expected[-1])
        elif step == "grant" and expected:
            granted.append(expected.pop(0))
            assert core.grant() is granted[-1]
        elif step == "again" and granted:
            expected.append(granted.pop(index % len(granted)))
            core.wait(expected[-1])
            expected.sort(key=lambda claim: claim.queue_seq)
        elif step == "leave" and expected:
            core.leave(expected.pop(index % len(expected)))
        assert queue(core) == expected
        assert granted_in(core) == granted


def lines_of(function: Callable[..., object], *args: object) -> int:
    """How many lines of Python this call runs."""
    lines = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return lines


def test_the_length_of_the_queue_costs_nothing(core_class: Any) -> None:
    costs = []
    for length in (3, 3000):
        core = new_core(core_class, max_size=1)
        claims = waiting(core, length)
        costs.append(
            (
                lines_of(core.leave, claims[length // 2]),
                lines_of(core.wait, new_claim(core)),
                lines_of(core.grant),
            )
        )
    assert costs[0] == costs[1]


def test_a_long_queue_costs_nothing_where_a_lane_is_left(core_class: Any) -> None:
    """The one that gets the place has an old turn, in the midst of claims without a lane."""
    costs = []
    for length in (3, 3000):
        core = new_core(core_class, max_size=1)
        lane = core.add_lane("lane", 1, 0)
        waiting(core, length)
        first, second = (in_lane(core, lane) for _ in range(2))
        waiting(core, length)
        costs.append(lines_of(core.leave, first))
        assert line(core).index(second) == length
    assert costs[0] == costs[1]


def line(core: Any) -> list[Claim]:
    """The claims in the queue, without those that wait for a place."""
    claims = [claim for claim in core.pending() if claim.state is ClaimState.WAITING]
    found = claims[: core.queued]
    assert core.first is (found[0] if found else None)
    assert core.last is (found[-1] if found else None)
    assert [claim.previous for claim in found[1:]] == found[:-1]
    return found


def in_lane(core: Any, lane: Any) -> Claim:
    """A claim that goes through it, and waits."""
    claim = new_claim(core)
    claim.lane = lane
    core.wait(claim)
    return claim


@given(
    lanes=st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.integers(-1, 1)), max_size=3),
    steps=st.lists(
        st.tuples(st.sampled_from(["wait", "wait", "leave", "grant", "again"]), st.integers(0, 11))
    ),
)
@pytest.mark.parametrize("kind", CORES, ids=NAMES)
def test_lanes_agree_with_a_sorted_list(
    kind: Any, lanes: list[tuple[int | None, int]], steps: list[tuple[str, int]]
) -> None:
    """Of each lane the oldest stand in the queue, as many as it has places."""
    core = new_core(kind, max_size=1000)
    records = [None, *(core.add_lane(str(n), *each) for n, each in enumerate(lanes))]
    places = {None: inf, **{r: inf if r.max_size is None else r.max_size for r in records[1:]}}
    waits: list[Claim] = []
    granted: list[Claim] = []

    def stands() -> list[Claim]:
        """Who has a place keeps it; the others get those that are left, the oldest first."""
        left = {record: places[record] for record in records}
        for claim in (*granted, *(claim for claim in waits if claim.placed)):
            left[claim.lane] -= 1
        taken = [claim for claim in waits if claim.placed or claim.lane is None]
        assert all(left[claim.lane] <= 0 for claim in waits if claim not in taken)
        return sorted(taken, key=lambda claim: (-rank(claim), claim.queue_seq))

    def rank(claim: Claim) -> int:
        return 0 if claim.lane is None else claim.lane.priority

    for step, index in steps:
        if step == "wait":
            waits.append(claim := new_claim(core))
            claim.lane = records[index % len(records)]
            core.wait(claim)
        elif step == "leave" and waits:
            core.leave(waits.pop(index % len(waits)))
        elif step == "grant" and core.queued:
            granted.append(core.grant())
            waits.remove(granted[-1])
        elif step == "again" and granted:
            waits.append(granted.pop(index % len(granted)))
            core.wait(waits[-1])
        standing = stands()
        assert line(core) == standing
        assert core.queued == len(standing)
        for record in records[1:]:
            parked = [c for c in waits if c.lane is record and not c.placed]
            assert record.parked == len(parked)
            oldest = [c for c in waits if c.lane is record and c.placed]
            assert all(c.queue_seq < p.queue_seq for c in oldest for p in parked)
