"""The states of connections, sessions and transactions: every state and event of their laws."""

from enum import Enum
from typing import Any

import pytest

from cenote import Transaction
from cenote.errors import IllegalTransition
from cenote.sql.driver import DriverConnection
from cenote.sql.session import Session
from cenote.sql.states import (
    TRANSITIONS,
    ConnectionState,
    SessionState,
    TransactionState,
)

STATES: dict[str, type[Enum]] = {
    "connection": ConnectionState,
    "session": SessionState,
    "transaction": TransactionState,
}
OWNERS: dict[str, type] = {
    "connection": DriverConnection,
    "session": Session,
    "transaction": Transaction,
}
CELLS = [
    pytest.param(machine, state, event, id=f"{machine}-{state.name}-{event}")
    for machine, law in TRANSITIONS.items()
    for state in STATES[machine]
    for event in dict.fromkeys(event for _, event in law)
]


def owner_in(machine: str, state: Enum) -> Any:
    """An object that has this machine, in this state, and nothing else."""
    kind = OWNERS[machine]
    concrete = type(kind.__name__, (kind,), {"__slots__": (), "__del__": lambda self: None})
    concrete.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    made = concrete.__new__(concrete)
    made.state = state
    return made


@pytest.mark.parametrize(("machine", "state", "event"), CELLS)
def test_event_follows_the_law_or_changes_nothing(machine: str, state: Enum, event: str) -> None:
    owner = owner_in(machine, state)
    target = TRANSITIONS[machine].get((state, event))
    if target is not None:
        owner._move(event)
        assert owner.state is target
        return
    with pytest.raises(IllegalTransition) as caught:
        owner._move(event)
    assert owner.state is state
    assert (caught.value.machine, caught.value.event) == (machine, event)
    assert event in str(caught.value)
    assert state.name in str(caught.value)


def test_law_names_known_states_and_reaches_each() -> None:
    assert list(TRANSITIONS) == list(STATES)
    first = {ConnectionState.FRESH, SessionState.FREE, TransactionState.NEW}
    for machine, law in TRANSITIONS.items():
        assert {state for state, _ in law} | set(law.values()) == set(STATES[machine])
        reached = {target for (state, _), target in law.items() if target is not state}
        assert set(STATES[machine]) - reached <= first


@pytest.mark.parametrize(
    ("verb", "target"),
    [
        ("mark_greeted", ConnectionState.READY),
        ("mark_broken", ConnectionState.BROKEN),
        ("interrupt", ConnectionState.INTERRUPTED),
        ("jam", ConnectionState.STUCK),
        ("mark_closed", ConnectionState.CLOSED),
    ],
)
def test_verb_of_a_connection_moves_its_state(verb: str, target: ConnectionState) -> None:
    connection = owner_in("connection", ConnectionState.READY)
    getattr(connection, verb)()
    assert connection.state is target
    assert connection.broken == (target is not ConnectionState.READY)
    down = (ConnectionState.INTERRUPTED, ConnectionState.STUCK)
    assert connection.interrupted == (target in down)


def test_unknown_event_is_illegal_in_every_state() -> None:
    for machine, states in STATES.items():
        for state in states:
            with pytest.raises(IllegalTransition):
                TRANSITIONS[machine][state, "no such event"]
