"""The deadlines in the core: who has waited too long, and when to look again."""

import gc
import random
import sys
import weakref
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cenote.states import ClaimState
from tests.support.cores import CORES, NOW, idle, new_claim, new_core, reserved

pytestmark = pytest.mark.once  # both cores, side by side


class Side:
    """One of the two cores, and claims of its kind."""

    def __init__(self, core_class: Any, **options: Any) -> None:
        self.core = new_core(core_class, **options)

    def timed(self, deadline: float | None, state: ClaimState = ClaimState.WAITING) -> Any:
        """A claim in that state whose deadline the core knows."""
        claim = new_claim(self.core)
        claim.deadline = deadline
        if state is ClaimState.WAITING:
            self.core.wait(claim)
        elif state is ClaimState.GRANTED:
            self.core.reserve(claim, reserved(self.core))
        self.core.add_deadline(claim)
        return claim


@pytest.fixture
def side(core_class: Any) -> Side:
    return Side(core_class)


def test_expired_names_claims_by_deadline_then_by_addition(side: Side) -> None:
    late, second, first, third = (side.timed(each) for each in (9.0, 5.0, 3.0, 5.0))
    core = side.core
    assert core.next_deadline() == 3.0
    assert core.expired(2.9) is None
    assert [core.expired(5.0) for _ in range(4)] == [first, second, third, None]
    assert (core.next_deadline(), core.deadline_count) == (9.0, 1)
    assert core.expired(9) is late
    assert (core.next_deadline(), core.deadline_count) == (inf, 0)


def test_a_claim_is_known_once_and_named_once(side: Side) -> None:
    core, claim = side.core, side.timed(3.0)
    core.add_deadline(claim)
    assert core.deadline_count == 1
    assert core.expired(3.0) is claim
    assert core.expired(3.0) is None
    core.add_deadline(claim)  # it waits on: its time is over for the second time
    assert core.expired(3.0) is claim


def test_a_claim_without_deadline_never_expires(side: Side) -> None:
    side.timed(None)
    assert side.core.deadline_count == 0
    assert side.core.next_deadline() == inf


@pytest.mark.parametrize("how", ["hold", "fail", "leave", "dismiss", "remove_deadline"])
@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_a_claim_that_ends_takes_its_deadline_along(side: Side, how: str, place: int) -> None:
    core = side.core
    states = {"hold": ClaimState.GRANTED, "dismiss": ClaimState.ASKING}
    state = states.get(how, ClaimState.WAITING)
    claims = [side.timed(each, state) for each in (1.0, 2.0, 3.0, 4.0, 5.0)]
    ending = claims.pop(place)
    if how == "hold":
        core.hold(ending, ending.slot, NOW)
    elif how == "fail":
        core.fail(ending, ValueError())
    else:
        getattr(core, how)(ending)
    assert core.deadline_count == 4
    core.remove_deadline(ending)  # a second time: nothing happens
    assert [core.expired(NOW) for _ in range(5)] == [*claims, None]


@pytest.mark.parametrize("event", ["hold", "fail", "leave"])
def test_a_claim_that_has_ended_has_no_deadline(side: Side, event: str) -> None:
    core, claim = side.core, side.timed(3.0, ClaimState.GRANTED)
    if event == "hold":
        core.hold(claim, claim.slot, NOW)
    elif event == "fail":
        core.fail(claim, ValueError())
    else:
        core.leave(claim)
    core.add_deadline(claim)
    assert core.deadline_count == 0


def test_a_deadline_stays_while_the_claim_asks_and_waits_again(side: Side) -> None:
    core = side.core
    claim = side.timed(3.0)
    idle(core)
    assert core.grant() is claim
    core.wait(claim)
    newcomer = side.timed(4.0, ClaimState.GRANTED)
    core.ask_again(newcomer)
    assert core.deadline_count == 2
    assert [core.expired(5.0), core.expired(5.0)] == [claim, newcomer]


def test_timer_of_a_new_core_is_not_set(side: Side) -> None:
    assert side.core.alarm_at == inf
    side.core.alarm_at = 3.5
    assert side.core.alarm_at == 3.5


def test_deadlines_that_are_gone_keep_nothing(side: Side) -> None:
    """However many come and go beside one that stays. What is left goes with the core."""
    core = side.core
    stays = side.timed(1.0)
    for number in range(1000):
        core.leave(side.timed(2.0 + number))
    assert core.deadline_count == 1
    size = sys.getsizeof(core._deadlines) if hasattr(core, "_deadlines") else 0
    assert size < 4000
    watched = [weakref.ref(Watched(side, claim)) for claim in (stays, side.timed(7.0))]
    del side.core, core, stays
    gc.collect()
    assert [each() for each in watched] == [None, None]


class Watched:
    """Lives as long as the claim, which itself has no weak references."""

    def __init__(self, side: Side, claim: Any) -> None:
        claim.error = self


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "leave", "expired"]), st.integers(0, 20)), max_size=80
)


@given(STEPS)
def test_both_cores_agree_with_a_plain_list(steps: list[tuple[str, int]]) -> None:
    sides = [Side(each) for each in CORES]
    model: list[tuple[int, int]] = []
    claims: list[list[Any]] = [[] for _ in sides]
    for event, number in steps:
        if event == "add":
            model.append((number, len(claims[0])))
            for side, mine in zip(sides, claims, strict=True):
                mine.append(side.timed(float(number)))
        elif event == "leave" and model:
            _, which = model.pop(number % len(model))
            for side, mine in zip(sides, claims, strict=True):
                side.core.leave(mine[which])
        elif event == "expired":
            due = min(model, default=(inf, -1))
            named = due[1] if due[0] <= number else None
            if named is not None:
                model.remove(due)
            for side, mine in zip(sides, claims, strict=True):
                claim = side.core.expired(number)
                assert claim is (None if named is None else mine[named])
        for side in sides:
            assert side.core.deadline_count == len(model)
            assert side.core.next_deadline() == min(model, default=(inf, -1))[0]


@pytest.mark.parametrize("number", [100, 10_000])
def test_many_deadlines_come_out_in_order(side: Side, number: int) -> None:
    draw = random.Random(number)
    wanted = [side.timed(each) for each in range(number)]
    order = draw.sample(range(number), number)
    for each in order:  # all of them once more, in another order
        side.core.remove_deadline(wanted[each])
    for each in order:
        side.core.add_deadline(wanted[each])
    gone = {*draw.sample(range(number), number // 2)}
    for each in gone:
        side.core.leave(wanted[each])
    left = [claim for each, claim in enumerate(wanted) if each not in gone]
    assert [side.core.expired(inf) for _ in left] == left
    assert side.core.expired(inf) is None
