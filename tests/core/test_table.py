"""The core by itself: the table of its states and events, and what it decides."""

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cenote import _core
from cenote._core import Claim, Slot, expired, machine, next_expiry, records
from cenote.errors import IllegalTransition
from cenote.pool import Pool
from cenote.pool.closing import Closing
from cenote.states import (
    TRANSITIONS,
    AcquireState,
    CircuitState,
    ClaimState,
    ClosingState,
    Phase,
    SlotState,
)

NOW = 100.0
A, B, C, STRANGER = "task A", "task B", "task C", "a stranger"  # a core only compares tasks

CORES = [(machine.Core, records.Claim)]
if _core.kind == "native":
    CORES.insert(0, (_core.Core, _core.Claim))
NAMES = ["native", "pure"][-len(CORES) :]

pytestmark = pytest.mark.once  # both cores, side by side


@pytest.fixture(params=CORES, ids=NAMES)
def core_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each core in turn, with claims of its own kind."""
    core_class, claim_class = request.param
    monkeypatch.setattr(sys.modules[__name__], "Claim", claim_class)
    return core_class


@pytest.fixture
def make(core_class: Any) -> Callable[..., Any]:
    """Builds a core, open, with room for ten."""

    def build(**options: Any) -> Any:
        return new_core(core_class, **options)

    return build


def new_core(core_class: Any, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "min_size": 0,
        "max_size": 10,
        "max_uses": None,
        "max_idle": None,
        "lifo": False,
        "recovering_limit": 1,
        "sync_factory": True,
    }
    core = core_class(**defaults | options)
    core.move("open")
    return core


# -- building blocks -------------------------------------------------------------------------------


def reserved(core: Any, resource: object = None, expires_at: float = inf) -> Slot:
    slot = core.permit_for_pool()
    core.open_slot(slot, resource or object(), expires_at)
    return slot


def idle(core: Any, number: int = 1, now: float = NOW) -> list[Slot]:
    slots = [reserved(core) for _ in range(number)]
    for slot in slots:
        assert core.put(slot, now) is None
    return slots


def leased(core: Any, claim: Claim | None = None, resource: object = None) -> Slot:
    slot = reserved(core, resource)
    core.hold(claim or Claim(), slot, NOW)
    return slot


def waiting(core: Any, number: int = 1) -> list[Claim]:
    claims = [Claim() for _ in range(number)]
    for claim in claims:
        core.wait(claim)
    return claims


def holder(task: object, *, in_block: bool = True) -> Claim:
    claim = Claim()
    claim.task, claim.in_block = task, in_block
    return claim


def waiter(task: object, deadline: float | None = None) -> Claim:
    claim = Claim()
    claim.task, claim.deadline = task, deadline
    return claim


def granted_in(core: Any) -> list[Claim]:
    return [claim for claim in core.pending() if claim.state is ClaimState.GRANTED]


def queue(core: Any) -> list[Claim]:
    """Whoever waits, oldest first; the links are seen to agree with one another."""
    forward, claim = [], core.first
    while claim is not None:
        forward.append(claim)
        claim = claim.next
    backward, claim = [], core.last
    while claim is not None:
        backward.append(claim)
        claim = claim.previous
    assert forward == backward[::-1]
    assert len(forward) == core.waiting
    turns = [claim.queue_seq for claim in forward]
    assert turns == sorted(set(turns))
    assert all(claim.state is ClaimState.WAITING for claim in forward)
    return forward


def snapshot(*things: Any) -> list[dict[str, Any]]:
    """Every attribute of a core, of slots, of claims; other objects by their identity."""
    return [
        {
            name: frozen(value)
            for name in dir(thing)
            if not name.startswith("_") and not callable(value := getattr(thing, name))
        }
        for thing in things
    ]


def frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return [(frozen(key), frozen(item)) for key, item in value.items()]
    if isinstance(value, deque | list | tuple):
        return [frozen(item) for item in value]
    return value if isinstance(value, int | float | str | Enum | None) else id(value)


# -- the table -------------------------------------------------------------------------------------


def cells(machine: str, states: type[Enum]) -> list[Any]:
    """Every state with every event of that machine."""
    events = dict.fromkeys(event for _, event in TRANSITIONS[machine])
    return [
        pytest.param(state, event, id=f"{state.name}-{event}")
        for state in states
        for event in events
    ]


def slot_in(core: Any, state: SlotState) -> Slot:
    slot: Slot = core.permit_for_pool()
    if state is SlotState.OPENING:
        return slot
    core.open_slot(slot, object())
    if state is SlotState.IDLE:
        core.put(slot, NOW)
    elif state is SlotState.LEASED:
        core.hold(Claim(), slot, NOW)
    elif state is not SlotState.RESERVED:
        core.retire(slot)
        if state is SlotState.GONE:
            core.finish(slot)
    return slot


SLOT_EVENTS: dict[str, list[Callable[[Any, Slot], object]]] = {
    "open": [lambda core, slot: core.open_slot(slot, object())],
    "fail": [lambda core, slot: core.fail_slot(slot)],
    "take": [lambda core, slot: core.take_this(slot)],
    "put": [
        lambda core, slot: core.put(slot, NOW),
        lambda core, slot: core.put_back(slot, NOW),
        lambda core, slot: core.untake(slot),
    ],
    "lease": [lambda core, slot: core.hold(Claim(), slot, NOW)],
    "retire": [lambda core, slot: core.retire(slot)],
    "reclaim": [lambda core, slot: core.reclaim(slot)],
    "finish": [lambda core, slot: core.finish(slot)],
}


@pytest.mark.parametrize(("state", "event"), cells("slot", SlotState))
def test_every_state_and_event_of_a_slot(make: Any, state: SlotState, event: str) -> None:
    for perform in SLOT_EVENTS[event]:
        core = make()
        others = [slot_in(core, state), *idle(core), leased(core)]
        slot = slot_in(core, state)
        assert slot.state is state
        target = TRANSITIONS["slot"].get((state, event))
        watched = (
            (core, slot, *others) if slot.holder is None else (core, slot, slot.holder, *others)
        )
        before = snapshot(*watched)
        if target is None:
            with pytest.raises(IllegalTransition) as caught:
                perform(core, slot)
            check_words(caught.value, "slot", state, event)
            assert snapshot(*watched) == before
        else:
            perform(core, slot)
            assert slot.state is target
            assert snapshot(*others) == before[-len(others) :]
            check_counts(core, [slot, *others])


def check_counts(core: Any, slots: list[Slot]) -> None:
    """The numbers of the core are those of its slots."""

    def number(*states: SlotState) -> int:
        return sum(slot.state in states for slot in slots)

    assert core.busy == 0
    assert core.opening == number(SlotState.OPENING)
    assert core.closing == number(SlotState.CLOSING)
    assert core.out == len(core.holders()) == number(SlotState.LEASED)
    assert core.idle_count == number(SlotState.IDLE)
    assert core.active == number(SlotState.RESERVED, SlotState.LEASED)
    assert core.count == core.active + core.idle_count
    assert core.total == len(slots) - number(SlotState.GONE)


def check_words(error: IllegalTransition, machine: str, state: Enum, event: str) -> None:
    assert (error.machine, error.state, error.event) == (machine, state, event)
    for word in (machine, str(state), repr(event)):
        assert word in str(error)


def claim_in(core: Any, state: ClaimState) -> Claim:
    claim = Claim()
    if state is ClaimState.WAITING:
        core.wait(claim)
    elif state is ClaimState.GRANTED:
        core.reserve(claim, reserved(core))
    elif state in (ClaimState.HOLDING, ClaimState.ENDED):
        slot = leased(core, claim)
        if state is ClaimState.ENDED:
            core.reclaim(slot)
    elif state is ClaimState.FAILED:
        core.wait(claim)
        core.fail(claim, ValueError())
    elif state is ClaimState.ABANDONED:
        core.wait(claim)
        core.leave(claim)
    return claim


def grant(core: Any, claim: Claim, slot: Slot) -> None:
    if claim.state is ClaimState.WAITING:
        core.put(slot, NOW)
        assert core.grant() is claim
    else:
        core.reserve(claim, slot)


CLAIM_EVENTS: dict[str, Callable[[Any, Claim, Slot], object]] = {
    "wait": lambda core, claim, slot: core.wait(claim),
    "grant": grant,
    "hold": lambda core, claim, slot: core.hold(claim, slot, NOW),
    "fail": lambda core, claim, slot: core.fail(claim, ValueError()),
    "leave": lambda core, claim, slot: core.leave(claim),
    "ask": lambda core, claim, slot: core.ask_again(claim),
}


@pytest.mark.parametrize(
    ("state", "event"), [cell for cell in cells("claim", ClaimState) if cell.values[1] != "end"]
)
def test_every_state_and_event_of_a_claim(make: Any, state: ClaimState, event: str) -> None:
    core = make()
    claim = claim_in(core, state)
    other = claim_in(core, ClaimState.WAITING)
    spare = reserved(core)
    assert claim.state is state
    target = TRANSITIONS["claim"].get((state, event))
    before = snapshot(core, claim, other, spare)
    if target is None:
        with pytest.raises(IllegalTransition) as caught:
            CLAIM_EVENTS[event](core, claim, spare)
        check_words(caught.value, "claim", state, event)
        assert snapshot(core, claim, other, spare) == before
    else:
        CLAIM_EVENTS[event](core, claim, spare)
        assert claim.state is target
        assert (claim in granted_in(core)) is (target is ClaimState.GRANTED)
        assert (claim in queue(core)) is (target is ClaimState.WAITING)
        assert (claim in core.holders()) is (target is ClaimState.HOLDING)
        assert other in queue(core)
        assert core.busy == 0


def test_reserve_refuses_a_claim_that_waits(make: Any) -> None:
    """It is granted something by grant(), which takes it out of the queue."""
    core = make()
    claim, slot = claim_in(core, ClaimState.WAITING), reserved(core)
    before = snapshot(core, claim, slot)
    with pytest.raises(IllegalTransition) as caught:
        core.reserve(claim, slot)
    check_words(caught.value, "claim", ClaimState.WAITING, "grant")
    assert snapshot(core, claim, slot) == before
    assert queue(core) == [claim]


def test_a_disowned_claim_cannot_end_again(make: Any) -> None:
    """The claim of a leased slot is HOLDING, unless it was disowned: no other state can meet it."""
    core = make()
    claim = Claim()
    slot = leased(core, claim)
    core.disown()
    assert claim.state is ClaimState.ENDED
    before = snapshot(core, claim, slot)
    with pytest.raises(IllegalTransition) as caught:
        core.reclaim(slot)
    check_words(caught.value, "claim", ClaimState.ENDED, "end")
    assert snapshot(core, claim, slot) == before


PHASES = {
    Phase.NEW: [],
    Phase.OPEN: ["open"],
    Phase.DRAINING: ["open", "drain"],
    Phase.CLOSED: ["open", "close"],
}


@pytest.mark.parametrize(("state", "event"), cells("pool", Phase))
def test_every_state_and_event_of_a_pool(core_class: Any, state: Phase, event: str) -> None:
    core = new_core(core_class)
    idle(core)
    core.move("unopen")
    for step in PHASES[state]:
        core.move(step)
    assert core.phase is state
    target = TRANSITIONS["pool"].get((state, event))
    before = snapshot(core)
    if target is None:
        with pytest.raises(IllegalTransition) as caught:
            core.move(event)
        check_words(caught.value, "pool", state, event)
        assert snapshot(core) == before
    else:
        core.move(event)
        assert core.phase is target


def test_an_unknown_event_is_illegal(make: Any) -> None:
    with pytest.raises(IllegalTransition, match="pool: 'explode' is not possible in state"):
        make().move("explode")


CIRCUIT_EVENTS = {
    "activate": CircuitState.ACTIVE,
    "deactivate": CircuitState.INACTIVE,
    "recover": CircuitState.RECOVERING,
}


@pytest.mark.parametrize(("state", "event"), cells("circuit", CircuitState))
def test_every_state_and_event_of_a_circuit(make: Any, state: CircuitState, event: str) -> None:
    core = make()
    core.set_circuit(state)
    assert core.circuit is state
    core.set_circuit(CIRCUIT_EVENTS[event])
    assert core.circuit is TRANSITIONS["circuit"][state, event]


CLOSING_STEPS = {
    ClosingState.OPEN: [],
    ClosingState.DRAINING: ["drain"],
    ClosingState.SHUTTING: ["shut"],
    ClosingState.CLOSED: ["shut", "empty"],
    ClosingState.ANNOUNCED: ["forsake"],
}


@pytest.mark.parametrize(("state", "event"), cells("closing", ClosingState))
def test_every_state_and_event_of_closing(state: ClosingState, event: str) -> None:
    pool = Pool(object)
    closing = Closing(pool._engine)
    for step in CLOSING_STEPS[state]:
        closing.move(step)
    assert closing.state is state
    target = TRANSITIONS["closing"].get((state, event))
    if target is not None:
        closing.move(event)
        assert closing.state is target
        return
    with pytest.raises(IllegalTransition) as caught:
        closing.move(event)
    check_words(caught.value, "closing", state, event)
    assert closing.state is state


def test_the_table_has_every_machine_and_no_other() -> None:
    assert list(TRANSITIONS) == ["slot", "claim", "acquire", "pool", "circuit", "closing"]
    assert {event for _, event in TRANSITIONS["slot"]} == set(SLOT_EVENTS)
    assert {event for _, event in TRANSITIONS["claim"]} == {*CLAIM_EVENTS, "end"}
    assert {event for _, event in TRANSITIONS["circuit"]} == set(CIRCUIT_EVENTS)
    assert {event for _, event in TRANSITIONS["pool"]} == {"open", "unopen", "drain", "close"}


@pytest.mark.parametrize(
    ("machine", "end"),
    [
        ("slot", SlotState.GONE),
        ("claim", ClaimState.ENDED),
        ("pool", Phase.CLOSED),
        ("acquire", AcquireState.OVER),
        ("closing", ClosingState.ANNOUNCED),
    ],
)
def test_nothing_leads_out_of_an_end(machine: str, end: Enum) -> None:
    assert all(state is not end for state, _ in TRANSITIONS[machine])


# -- idle slots ------------------------------------------------------------------------------------


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


# -- what a slot is unfit for ----------------------------------------------------------------------


def test_put_accepts_a_fit_slot(make: Any) -> None:
    core = make(max_uses=2)
    slot = leased(core)
    core.reclaim(slot)
    assert core.put(slot, NOW) is None
    assert core.idle_slots() == [slot]


def unfit(core: Any, reason: str) -> Slot:
    slot = reserved(core, expires_at=NOW + 1)
    core.hold(Claim(), slot, NOW)
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


# -- what waiters are owed -------------------------------------------------------------------------


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


# -- the queue -------------------------------------------------------------------------------------


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
    claim = Claim()
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
@pytest.mark.parametrize("number", range(len(CORES)), ids=NAMES)
def test_the_links_agree_with_a_plain_list(number: int, steps: list[tuple[str, int]]) -> None:
    core_class, claim_class = CORES[number]
    core = new_core(core_class, max_size=1000)
    expected: list[Claim] = []
    granted: list[Claim] = []
    for step, index in steps:
        if step == "wait":
            expected.append(claim_class())
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
                lines_of(core.wait, Claim()),
                lines_of(core.grant),
            )
        )
    assert costs[0] == costs[1]


# -- who holds what --------------------------------------------------------------------------------


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
    slots = [leased(core, holder(task), resource) for task in (A, B, C)]
    assert core.find(resource, B) is slots[1]
    assert core.find(resource, C) is slots[2]
    assert core.find(resource, STRANGER) is slots[0]
    assert core.find(resource, None) is slots[0]


def test_find_gives_the_newest_of_several_own_leases(make: Any) -> None:
    core = make()
    resource = object()
    slots = [leased(core, holder(task), resource) for task in (A, B, A, B)]
    assert core.find(resource, B) is slots[3]
    core.reclaim(slots[3])
    assert core.find(resource, B) is slots[1]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
def test_identical_resources_come_back_in_any_order(make: Any, order: list[int]) -> None:
    core = make()
    resource = object()
    slots = [leased(core, holder(task), resource) for task in (A, B, C)]
    left = list(slots)
    for place in order:
        assert core.reclaim(slots[place]).task == (A, B, C)[place]
        left.remove(slots[place])
        assert {lease.slot for lease in core.holders()} == set(left)
        assert core.find(resource, None) is (left[0] if left else None)
    assert core.holders() == []


def test_hold_counts_the_use_and_remembers_since_when(make: Any) -> None:
    core = make()
    claim = Claim()
    slot = reserved(core)
    core.hold(claim, slot, NOW)
    assert (slot.uses, slot.holder, claim.slot, claim.since) == (1, claim, slot, NOW)
    assert core.reclaim(slot) is claim
    assert (slot.holder, claim.slot) == (None, None)


# -- demand, shortage, surplus, expired ------------------------------------------------------------


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
    core.hold(Claim(), reserved(core, expires_at=NOW + 1), NOW)
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


# -- recovery --------------------------------------------------------------------------------------


def admitted(core: Any) -> Claim | None:
    claim = Claim()
    return claim if core.admit(claim) else None


def test_active_admits_everybody_and_inactive_nobody(make: Any) -> None:
    core = make()
    assert all(admitted(core) for _ in range(5))
    core.set_circuit(CircuitState.INACTIVE)
    assert admitted(core) is None
    assert core.probes_in_use == 0


def test_recovering_admits_as_many_as_its_limit(make: Any) -> None:
    core = make(recovering_limit=2)
    core.set_circuit(CircuitState.RECOVERING)
    assert [bool(admitted(core)) for _ in range(4)] == [True, True, False, False]


def hold_and_return(core: Any, claim: Claim) -> Slot:
    slot = reserved(core)
    core.hold(claim, slot, NOW)
    core.reclaim(slot)
    assert admitted(core) is None  # as long as its hook looks at it
    return slot


PLACE_ENDS: dict[str, Callable[[Any, Claim], object]] = {
    "dismissed": lambda core, claim: core.dismiss(claim),
    "left the queue": lambda core, claim: (core.wait(claim), core.leave(claim)),
    "failed": lambda core, claim: (core.wait(claim), core.fail(claim, ValueError())),
    "returned": lambda core, claim: core.put(hold_and_return(core, claim), NOW),
    "destroyed": lambda core, claim: core.retire(hold_and_return(core, claim)),
}


@pytest.mark.parametrize("end", PLACE_ENDS)
def test_a_place_is_free_again_however_the_probe_ends(make: Any, end: str) -> None:
    core = make()
    core.set_circuit(CircuitState.RECOVERING)
    claim = admitted(core)
    assert claim is not None
    assert admitted(core) is None
    PLACE_ENDS[end](core, claim)
    assert admitted(core) is not None
    assert admitted(core) is None


def test_a_place_is_given_back_once(make: Any) -> None:
    core = make()
    core.set_circuit(CircuitState.RECOVERING)
    claim = admitted(core)
    core.dismiss(claim)
    core.dismiss(claim)
    assert core.probes_in_use == 0


def test_a_place_is_of_one_recovery_only(make: Any) -> None:
    core = make()
    core.set_circuit(CircuitState.RECOVERING)
    old = admitted(core)
    core.set_circuit(CircuitState.INACTIVE)
    core.set_circuit(CircuitState.RECOVERING)
    assert admitted(core) is not None
    assert old is not None
    core.dismiss(old)
    assert core.probes_in_use == 1


def test_what_was_out_before_the_recovery_takes_no_place(make: Any) -> None:
    core = make()
    slot = leased(core)
    core.set_circuit(CircuitState.RECOVERING)
    core.reclaim(slot)
    core.put(slot, NOW)
    assert core.probes_in_use == 0
    assert admitted(core) is not None
    assert admitted(core) is None


def test_waiters_from_before_are_served_within_the_limit(make: Any) -> None:
    core = make(recovering_limit=2)
    claims = waiting(core, 3)
    idle(core, 5)
    core.set_circuit(CircuitState.RECOVERING)
    assert core.waiters_without_probe == 3
    assert [core.grant(), core.grant(), core.grant()] == [*claims[:2], None]
    assert (core.probes_in_use, core.waiters_without_probe) == (2, 1)
    core.leave(claims[0])
    assert core.grant() is claims[2]
    assert (core.probes_in_use, core.waiters_without_probe) == (2, 0)


def test_places_are_kept_for_waiters_from_before(make: Any) -> None:
    core = make(recovering_limit=2)
    claims = waiting(core, 2)
    core.set_circuit(CircuitState.RECOVERING)
    assert admitted(core) is None
    core.leave(claims[0])
    assert admitted(core) is not None
    assert admitted(core) is None


def test_demand_keeps_to_the_limit(make: Any) -> None:
    core = make(recovering_limit=2, sync_factory=False)
    waiting(core, 5)
    core.set_circuit(CircuitState.RECOVERING)
    assert core.demand() == 2
    idle(core)
    core.grant()
    assert core.demand() == 1
    core.set_circuit(CircuitState.ACTIVE)
    assert core.demand() == 4


def test_a_probe_that_waits_has_its_place_already(make: Any) -> None:
    core = make(sync_factory=False)
    core.set_circuit(CircuitState.RECOVERING)
    probe = admitted(core)
    core.wait(probe)
    assert (core.probes_in_use, core.waiters_without_probe, core.demand()) == (1, 0, 1)
    idle(core)
    assert core.grant() is probe
    assert core.probes_in_use == 1


def test_an_earlier_waiter_that_waits_again_comes_first(make: Any) -> None:
    core = make(max_size=1)
    (old,) = waiting(core)
    slot = idle(core)[0]
    assert core.grant() is old
    core.set_circuit(CircuitState.RECOVERING)
    assert not core.admit(Claim())  # or it would wait behind the old one, with the only place
    core.retire(slot)  # before_acquire has rejected it
    core.wait(old)
    core.finish(slot)
    assert core.grant() is old


def test_the_end_of_a_recovery_lets_everybody_pass(make: Any) -> None:
    core = make()
    claims = waiting(core, 2)
    idle(core, 2)
    core.set_circuit(CircuitState.RECOVERING)
    assert [core.grant(), core.grant()] == [claims[0], None]
    core.set_circuit(CircuitState.ACTIVE)
    assert (core.probes_in_use, core.waiters_without_probe) == (0, 0)
    assert core.grant() is claims[1]


def test_only_probes_report_while_recovering(make: Any) -> None:
    core = make()
    assert core.reports(0)
    core.set_circuit(CircuitState.RECOVERING)
    probe = admitted(core)
    assert probe is not None
    assert not core.reports(0)
    assert core.reports(probe.probe)
    core.set_circuit(CircuitState.INACTIVE)
    core.set_circuit(CircuitState.RECOVERING)
    assert not core.reports(probe.probe)


# -- circles ---------------------------------------------------------------------------------------


def ring(make: Any, *tasks: str, **options: Any) -> Any:
    """A core with one resource for each task, all of them out in their blocks."""
    core = make(max_size=len(tasks), **options)
    for task in tasks:
        leased(core, holder(task))
    return core


def test_the_only_holder_that_asks_again_is_a_circle(make: Any) -> None:
    core = ring(make, A)
    assert [lease.task for lease in core.deadlock(waiter(A), False)] == [A]


def test_a_circle_is_closed_by_the_last_holder_that_waits(make: Any) -> None:
    core = ring(make, A, B)
    assert core.deadlock(waiter(A), False) == []
    core.wait(waiter(A))
    assert {lease.task for lease in core.deadlock(waiter(B), False)} == {A, B}


def test_one_task_may_hold_everything(make: Any) -> None:
    core = ring(make, A, A)
    assert len(core.deadlock(waiter(A), False)) == 2


def test_a_stranger_closes_no_circle_while_a_holder_is_free(make: Any) -> None:
    core = ring(make, A, B)
    core.wait(waiter(A))
    assert core.deadlock(waiter(STRANGER), False) == []


def test_a_waiter_with_a_deadline_breaks_the_circle(make: Any) -> None:
    core = ring(make, A, B)
    core.wait(waiter(A, deadline=NOW))
    assert core.deadlock(waiter(B), False) == []
    assert len(core.deadlock(waiter(B), True)) == 2


def test_a_waiter_that_left_breaks_the_circle(make: Any) -> None:
    core = ring(make, A, B)
    claim = waiter(A)
    core.wait(claim)
    core.leave(claim)
    assert core.deadlock(waiter(B), False) == []


CIRCLE_BREAKS: dict[str, Callable[[Any], object]] = {
    "idle": lambda core: idle(core),
    "in a hook": lambda core: reserved(core),
    "being created": lambda core: core.permit_for_pool(),
    "being destroyed": lambda core: core.retire(reserved(core)),
    "not in a block": lambda core: leased(core, holder(A, in_block=False)),
    "without a task": lambda core: leased(core, holder(None)),
    "room": lambda core: None,
}


@pytest.mark.parametrize("breaks", CIRCLE_BREAKS)
def test_whatever_may_still_come_back_breaks_the_circle(make: Any, breaks: str) -> None:
    core = ring(make, A)
    core.max_size = 2
    CIRCLE_BREAKS[breaks](core)
    assert core.deadlock(waiter(A), True) == []


def test_a_pool_without_leases_has_no_circle(make: Any) -> None:
    assert make(max_size=1).deadlock(waiter(A), True) == []


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


@pytest.mark.once
def test_law_of_the_c_core_is_generated_from_states() -> None:
    script = Path(__file__).parents[2] / "scripts" / "generate_law.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=60)
