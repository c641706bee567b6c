"""The state machines, drawn from TRANSITIONS: five pictures and docs/states.md.

`draw_pictures.py` writes them. A state that is new in the law and has no place here is an error.
"""

from __future__ import annotations

import re
from enum import Enum

from drawing import Flow, Kind

from cenote import states
from cenote.states import TRANSITIONS

TITLES = {
    "slot": "A slot: one place in the pool",
    "claim": "A claim: one acquire",
    "pool": "The pool",
    "circuit": "The circuit breaker",
    "closing": "Closing a pool",
}

PLACES: dict[str, dict[str, tuple[float, float, Kind]]] = {
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
    meaning = re.findall(
        r"^- (?:A |The )?\*(\w+)\*(.*?)(?=^- |^$)", states.__doc__ or "", re.M | re.S
    )
    about = {word.lower(): " ".join(rest.split()) for word, rest in meaning}
    parts = [
        "# The state machines\n",
        "Drawn from `cenote.states.TRANSITIONS` by `scripts/draw_pictures.py`; do not edit. An "
        "event that a state does not list raises `IllegalTransition` and changes nothing.\n",
    ]
    for machine, law in TRANSITIONS.items():
        title = TITLES[machine]
        which = "A" if machine in ("slot", "claim") else "The"
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
