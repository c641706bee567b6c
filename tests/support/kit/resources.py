"""Resources, and what makes and drops them."""

import gc
from collections.abc import Collection
from typing import Any

import pytest

from cenote.testing import now


class Thing:
    """A resource that is nothing but itself."""


class Things:
    """A factory that remembers what it made; the calls in `failing` (from 1) raise OSError."""

    def __init__(self, failing: Collection[int] = ()) -> None:
        self.made: list[Thing] = []
        self.calls = 0
        self.failing = failing

    def __call__(self) -> Thing:
        self.calls += 1
        if self.calls in self.failing:
            raise OSError(f"call {self.calls} failed")
        self.made.append(Thing())
        return self.made[-1]


class Moody:
    """A factory that fails while it is `down`; `asked` has the time of each call."""

    def __init__(self, down: bool = False) -> None:
        self.down = down
        self.asked: list[float] = []

    def __call__(self) -> Thing:
        self.asked.append(now())
        if self.down:
            raise OSError("backend down")
        return Thing()


def drop(box: list[Any]) -> None:
    """Let go of what only this box refers to."""
    box.clear()
    gc.collect()


def forget(box: list[Any], *, match: str = "unclosed") -> None:
    """Let go of an unclosed pool that only this box refers to; it must warn in these words."""
    with pytest.warns(ResourceWarning, match=match):
        drop(box)
    gc.collect()  # the warning referred to it
