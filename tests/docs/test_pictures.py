"""The pictures in docs/ are what the code is now: drawn again, and every name in them looked up."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cenote
from cenote import breaker, caller
from cenote._core import machine, records
from cenote._fast import fastpath
from cenote.pool import (
    circuit,
    claims,
    creations,
    destructions,
    engine,
    hooks,
    maintenance,
    operation,
    returns,
    steps,
    waiter,
)
from cenote.sql import (
    connection_hooks,
    driver,
    per_loop,
    prepared,
    session,
    streams,
    transaction,
    url,
)
from cenote.sql.parsing import statements

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import draw_pictures  # noqa: E402
from drawing import names_in  # noqa: E402

pytestmark = pytest.mark.once

MODULES = [  # the pure core first: what the native one keeps in C cannot be read
    fastpath, machine, records, breaker, caller, hooks, circuit, claims, creations,
    destructions, engine, maintenance, operation, returns, steps,
    waiter,
    session, per_loop, connection_hooks, driver, statements, prepared, streams, transaction, url,
    cenote,
]  # fmt: skip
OPTIONS = {
    *inspect.signature(cenote.Pool).parameters,
    *inspect.signature(cenote.Database).parameters,
}
CODE = "\n".join(path.read_text() for path in (ROOT / "src/cenote").rglob("*.py"))


def known(name: str) -> bool:
    """A class, a function, an attribute of a class, an option, or a word of the code."""
    first, *rest = name.split(".")
    for module in MODULES:
        found = getattr(module, first, None)
        if found is None or not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        return not rest or has(found, rest[0])
    if rest:
        return False
    return first in OPTIONS or f'"{first}"' in CODE or f"def {first}(" in CODE


def has(kind: Any, name: str) -> bool:
    if hasattr(kind, name):
        return True
    return any(
        re.search(rf"self\.{name}\b", inspect.getsource(each))
        for each in kind.__mro__
        if each.__module__.startswith("cenote") and "native" not in each.__module__
    )


def names() -> Iterator[tuple[str, str]]:
    for title, make in draw_pictures.PICTURES.items():
        for text in make().texts:
            for name in names_in(text):
                if name.isidentifier() or re.fullmatch(r"[A-Za-z_]+(\.[A-Za-z_]+)?", name):
                    yield title, name


@pytest.mark.parametrize(
    "file", draw_pictures.drawn(), ids=[file.name for file in draw_pictures.drawn()]
)
def test_a_picture_is_up_to_date(file: Path) -> None:
    drawn = draw_pictures.drawn()[file]
    assert file.exists(), f"{file} is missing: run python scripts/draw_pictures.py"
    assert file.read_text(encoding="utf-8") == drawn, "run python scripts/draw_pictures.py"


def test_no_picture_is_left_over() -> None:
    drawn = {file for file in draw_pictures.drawn() if file.suffix == ".svg"}
    assert set(draw_pictures.FOLDER.glob("*.svg")) == drawn


def test_every_picture_is_shown() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"images/architecture/([\w-]+)\.svg", page))
    assert shown == set(draw_pictures.PICTURES)


@pytest.mark.parametrize(("picture", "name"), sorted(set(names())))
def test_a_name_in_a_picture_exists(picture: str, name: str) -> None:
    assert known(name) or name in ("False", "None"), f"{picture} speaks of {name}"


def test_the_look_up_can_fail() -> None:
    assert known("Core.take")
    assert not known("Core.take_it_all")
    assert not known("take_it_all")
    assert not known("Nobody.take")


def test_every_transition_is_drawn() -> None:
    for name, law in draw_pictures.draw_states.TRANSITIONS.items():
        flow = draw_pictures.PICTURES[f"state-{name}"]()
        arrows = {
            (edge.source, word, edge.target)
            for edge in flow.edges
            for word in edge.text.split(", ")
        }
        expected = {(s.name, event, t.name) for (s, event), t in law.items() if s is not t}
        assert arrows == expected
