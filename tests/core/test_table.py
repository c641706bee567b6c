"""The table of the core: every state and every event of every machine."""

import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from cenote._core import Claim, Slot
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
from tests.support.cores import (
    NOW,
    PHASES,
    granted_in,
    idle,
    leased,
    new_claim,
    new_core,
    queue,
    reserved,
    snapshot,
)

pytestmark = pytest.mark.once  # both cores, side by side


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
        core.hold(new_claim(core), slot, NOW)
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
    "lease": [lambda core, slot: core.hold(new_claim(core), slot, NOW)],
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
    claim = new_claim(core)
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
    claim = new_claim(core)
    slot = leased(core, claim)
    core.disown()
    assert claim.state is ClaimState.ENDED
    before = snapshot(core, claim, slot)
    with pytest.raises(IllegalTransition) as caught:
        core.reclaim(slot)
    check_words(caught.value, "claim", ClaimState.ENDED, "end")
    assert snapshot(core, claim, slot) == before


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


@pytest.mark.once
def test_law_of_the_c_core_is_generated_from_states() -> None:
    script = Path(__file__).parents[2] / "scripts" / "generate_law.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=250)
