"""The state machines, drawn from TRANSITIONS: a picture of each and docs/states.md.

`draw_pictures.py` writes them. A state that is new in the law and has no place here is an error.
"""

from __future__ import annotations

import re
from enum import Enum

from drawing import Flow, Kind

from cenote import states
from cenote.sql import states as sql_states

TRANSITIONS = states.TRANSITIONS | sql_states.TRANSITIONS  # type: ignore[operator]

TITLES = {
    "connection": "A connection of a database",
    "session": "A session: what a task holds over several statements",
    "transaction": "A transaction: a block or a savepoint",
    "slot": "A slot: one place in the pool",
    "claim": "A claim: one acquire",
    "acquire": "An acquire: what drives a claim",
    "pool": "The pool",
    "circuit": "The circuit breaker",
    "closing": "Closing a pool",
}

PLACES: dict[str, dict[str, tuple[float, float, Kind]]] = {
    "connection": {
        "FRESH": (0, 0, "plain"),
        "READY": (0, 1, "good"),
        "INTERRUPTED": (1, 1, "bad"),
        "BROKEN": (1, 0, "bad"),
        "STUCK": (1, 2, "bad"),
        "CLOSED": (2, 1, "quiet"),
    },
    "session": {
        "FREE": (0, 0, "good"),
        "PINNED": (0, 2, "core"),
        "IN_TRANSACTION": (1, 1, "core"),
        "LOST": (2, 0, "bad"),
        "FORGOTTEN": (1, 3, "bad"),
        "ENDED": (3, 2, "quiet"),
    },
    "transaction": {
        "NEW": (0, 0, "plain"),
        "REFUSED": (0, 1, "bad"),
        "BEGINNING": (1, 0, "wait"),
        "OPEN": (2, 0, "core"),
        "ENDING": (3, 0, "wait"),
        "COMMITTED": (4, 0, "good"),
        "ROLLED_BACK": (4, 1, "quiet"),
        "FAILED": (1, 2, "bad"),
        "CUT_OFF": (2, 3, "bad"),
    },
    "slot": {
        "OPENING": (0, 1, "wait"),
        "RESERVED": (1, 1, "act"),
        "IDLE": (1, 0, "good"),
        "LEASED": (2, 1, "core"),
        "CLOSING": (1, 2, "bad"),
        "GONE": (0, 2, "quiet"),
    },
    "claim": {
        "ASKING": (0, 0, "plain"),
        "WAITING": (1, 1, "wait"),
        "GRANTED": (2, 0, "act"),
        "HOLDING": (3, 0, "core"),
        "ENDED": (4, 0, "quiet"),
        "FAILED": (1, 2, "bad"),
        "ABANDONED": (0, 2, "quiet"),
    },
    "acquire": {
        "FRESH": (0, 0, "plain"),
        "BEGUN": (1, 0, "act"),
        "READY": (3, 0, "good"),
        "PAUSED": (2, 1, "wait"),
        "SLOW": (1, 2, "wait"),
        "OVER": (3, 3, "quiet"),
    },
    "pool": {
        "NEW": (0, 0, "plain"),
        "OPEN": (1, 0, "good"),
        "DRAINING": (2, 0, "wait"),
        "CLOSED": (1, 1, "quiet"),
    },
    "circuit": {
        "ACTIVE": (0, 0, "good"),
        "INACTIVE": (2, 0, "bad"),
        "RECOVERING": (1, 1, "wait"),
    },
    "closing": {
        "OPEN": (0, 0, "good"),
        "DRAINING": (0, 1, "wait"),
        "SHUTTING": (1, 0, "act"),
        "CLOSED": (2, 0, "quiet"),
        "ANNOUNCED": (2, 1, "plain"),
    },
}

# How an arrow goes, where the shortest way is not the clearest.
ROUTES: dict[str, dict[tuple[str, str], dict[str, object]]] = {
    "connection": {
        ("FRESH", "CLOSED"): {"sides": "NN", "lane": 26, "segment": 1},
        ("READY", "BROKEN"): {"sides": "EW", "shift": (-8, 0), "segment": 2},
        ("READY", "STUCK"): {"sides": "SW"},
        ("READY", "CLOSED"): {"sides": "SS", "lane": 120, "segment": 1},
        ("BROKEN", "INTERRUPTED"): {},
        ("BROKEN", "CLOSED"): {"sides": "EN"},
        ("STUCK", "CLOSED"): {"sides": "ES"},
    },
    "session": {
        ("FREE", "IN_TRANSACTION"): {"sides": "EN", "shift": (-6, 10), "segment": 0},
        ("IN_TRANSACTION", "FREE"): {"sides": "WS", "shift": (-8, 16), "segment": 0},
        ("PINNED", "IN_TRANSACTION"): {"sides": "ES", "shift": (8, 10), "segment": 0},
        ("IN_TRANSACTION", "PINNED"): {"sides": "WN", "shift": (8, 26), "segment": 0},
        ("FREE", "PINNED"): {"shift": (-16, -16)},
        ("FREE", "FORGOTTEN"): {"sides": "WW", "lane": 30, "segment": 1, "shift": (0, 8)},
        ("FREE", "ENDED"): {"sides": "NN", "lane": 22, "segment": 1},
        ("PINNED", "FORGOTTEN"): {"sides": "SW", "shift": (0, -8)},
        ("PINNED", "ENDED"): {"shift": (12, 12), "at": 0.75},
        ("IN_TRANSACTION", "LOST"): {"sides": "NS", "segment": 1},
        ("IN_TRANSACTION", "FORGOTTEN"): {"sides": "SN", "shift": (24, 24), "at": 0.75},
        ("IN_TRANSACTION", "ENDED"): {"sides": "EN", "shift": (-8, -20), "segment": 0, "at": 0.8},
        ("LOST", "FREE"): {"sides": "WE", "shift": (-10, -10), "at": 0.3},
        ("LOST", "ENDED"): {"sides": "EN", "shift": (0, 12)},
        ("FORGOTTEN", "ENDED"): {"sides": "ES"},
    },
    "transaction": {
        ("NEW", "REFUSED"): {},
        ("BEGINNING", "REFUSED"): {"sides": "SE", "shift": (-16, -8), "segment": 1},
        ("REFUSED", "BEGINNING"): {"sides": "ES", "shift": (8, 10), "segment": 0, "below": True},
        ("BEGINNING", "FAILED"): {"shift": (30, 30)},
        ("OPEN", "ROLLED_BACK"): {
            "sides": "SW",
            "shift": (12, 8),
            "segment": 1,
            "below": True,
            "at": 0.3,
        },
        ("OPEN", "CUT_OFF"): {"shift": (-12, -12)},
        ("ENDING", "FAILED"): {"sides": "SE", "shift": (-30, 0), "segment": 1, "at": 0.6},
        ("ENDING", "ROLLED_BACK"): {"sides": "SW", "shift": (20, -8), "segment": 1},
        ("ENDING", "CUT_OFF"): {"sides": "SE", "shift": (0, -8), "segment": 1},
        ("ROLLED_BACK", "CUT_OFF"): {"sides": "SE", "shift": (0, 8), "segment": 1, "below": True},
        ("FAILED", "CUT_OFF"): {"sides": "SW"},
    },
    "slot": {
        ("RESERVED", "IDLE"): {"shift": (-14, -14), "below": True},
        ("IDLE", "RESERVED"): {"shift": (14, 14)},
        ("RESERVED", "LEASED"): {"shift": (-8, -8)},
        ("LEASED", "RESERVED"): {"shift": (8, 8), "below": True},
    },
    "claim": {
        ("ASKING", "GRANTED"): {"shift": (-8, -8)},
        ("GRANTED", "ASKING"): {"shift": (8, 8), "below": True},
        ("ASKING", "HOLDING"): {"sides": "NN", "lane": 22},
        ("ASKING", "WAITING"): {"sides": "SW", "shift": (8, -8), "segment": 1},
        ("WAITING", "ABANDONED"): {"sides": "WN", "shift": (8, -8), "segment": 1, "below": True},
        ("WAITING", "GRANTED"): {"sides": "ES", "shift": (-8, -26), "segment": 0},
        ("GRANTED", "WAITING"): {"sides": "SE", "shift": (-8, 8), "segment": 1, "below": True},
        ("GRANTED", "FAILED"): {"sides": "SE", "shift": (12, 0), "segment": 1},
        ("GRANTED", "ABANDONED"): {"sides": "SS", "shift": (30, 0), "lane": 26, "segment": 1},
    },
    "acquire": {
        ("FRESH", "OVER"): {"sides": "SW", "shift": (0, 8), "segment": 1, "below": True},
        ("BEGUN", "PAUSED"): {"sides": "SW", "shift": (20, 0), "segment": 1},
        ("BEGUN", "SLOW"): {"shift": (-8, -8), "below": True},
        ("BEGUN", "OVER"): {"sides": "WW", "lane": 46, "shift": (8, -8), "segment": 2},
        ("PAUSED", "READY"): {"sides": "ES", "shift": (0, -14), "segment": 0},
        ("PAUSED", "SLOW"): {"sides": "SE", "shift": (0, -8), "segment": 1},
        ("PAUSED", "OVER"): {"sides": "EN", "shift": (8, 10), "segment": 0, "below": True},
        ("SLOW", "OVER"): {"sides": "EN", "shift": (8, -16), "segment": 0, "below": True},
        ("READY", "OVER"): {"sides": "EE", "lane": 26},
    },
    "pool": {
        ("NEW", "OPEN"): {"shift": (-8, -8)},
        ("OPEN", "NEW"): {"shift": (8, 8), "below": True},
        ("NEW", "CLOSED"): {"sides": "SW"},
        ("DRAINING", "CLOSED"): {"sides": "SE"},
    },
    "circuit": {
        ("ACTIVE", "INACTIVE"): {"shift": (-8, -8)},
        ("INACTIVE", "ACTIVE"): {"shift": (8, 8), "below": True},
        ("ACTIVE", "RECOVERING"): {"sides": "SW", "shift": (-12, 8), "segment": 1, "below": True},
        ("RECOVERING", "ACTIVE"): {"sides": "WS", "shift": (-8, 12), "segment": 0},
        ("INACTIVE", "RECOVERING"): {"sides": "SE", "shift": (12, 8), "segment": 1, "below": True},
        ("RECOVERING", "INACTIVE"): {"sides": "ES", "shift": (-8, -12), "segment": 0},
    },
    "closing": {
        ("OPEN", "ANNOUNCED"): {"sides": "NE", "lane": 26},
        ("DRAINING", "SHUTTING"): {"sides": "ES"},
    },
}


def picture(machine: str) -> Flow:
    law, places = TRANSITIONS[machine], PLACES[machine]
    flow = Flow(TITLES[machine], gap=(110, 50))
    for state in type(next(iter(law))[0]):
        col, row, kind = places[state.name]
        flow.node(state.name, col, row, state.name, kind, "pill")
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), target in law.items():
        if state is not target:
            arrows.setdefault((state.name, target.name), []).append(event)
    for (source, end), events in arrows.items():
        route = ROUTES[machine].get((source, end), {})
        flow.edge(source, end, ", ".join(events), **route)  # type: ignore[arg-type]
    return flow


def page() -> str:
    """docs/states.md."""
    rules = f"{states.__doc__}\n{sql_states.__doc__}"
    meaning = re.findall(r"^- (?:A |An |The )?\*(\w+)\*(.*?)(?=^- |^$)", rules, re.M | re.S)
    about = {word.lower(): " ".join(rest.split()) for word, rest in meaning}
    parts = [
        "# The state machines\n",
        "Drawn from `cenote.states.TRANSITIONS` and `cenote.sql.states.TRANSITIONS` by "
        "`scripts/draw_pictures.py`; do not edit. An event that a state does not "
        "list raises `IllegalTransition` and changes nothing.\n",
    ]
    for machine, law in TRANSITIONS.items():
        title = TITLES[machine]
        which = {"pool": "The", "circuit": "The", "acquire": "An"}.get(machine, "A")
        subject = "*Closing*" if machine == "closing" else f"{which} *{machine}*"
        parts += [
            f"## {title}\n",
            f"{subject} {about[machine]}\n",
            f"![{title}](images/architecture/state-{machine}.svg)\n",
            "| from | event | to |\n|---|---|---|",
            *(
                f"| {name(state)} | `{event}` | {name(target)} |"
                for (state, event), target in law.items()
            ),
            "",
        ]
    return "\n".join(parts)


def name(state: Enum) -> str:
    return state.name
