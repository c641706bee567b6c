"""Draws docs/states.md from TRANSITIONS. With --check: fails if the file is not up to date."""

import sys
from pathlib import Path

from cenote.states import TRANSITIONS

PAGE = Path(__file__).parent.parent / "docs" / "states.md"

TITLES = {
    "slot": "A slot: one place in the pool",
    "claim": "A claim: one acquire",
    "pool": "The pool",
    "circuit": "The circuit breaker",
}


def page() -> str:
    parts = [
        "# The state machines\n",
        "Drawn from `cenote.states.TRANSITIONS` by `scripts/draw_states.py`; do not edit.\n",
    ]
    for machine, law in TRANSITIONS.items():
        first = next(iter(law))[0].name
        lines = [f"## {TITLES[machine]}\n", "```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
        lines += [
            f"    {state.name} --> {target.name}: {event}"
            for (state, event), target in law.items()
            if state is not target
        ]
        ends = set(law.values()) - {state for state, _ in law}
        lines += [f"    {state.name} --> [*]" for state in sorted(ends, key=lambda s: s.name)]
        parts.append("\n".join([*lines, "```\n"]))
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/states.md is not up to date: run python scripts/draw_states.py")
