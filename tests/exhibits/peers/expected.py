"""The differences that were looked at and found right, in `expected.toml`, each with its reason."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .peer import Outcomes

LIST = Path(__file__).with_name("expected.toml")
FIELDS = {"peer", "test", "reason"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list."""

    peer: str
    test: re.Pattern[str]  # the whole name of a test
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the tests that the original passes, with the adapter."""

    reviewed: dict[str, str]  # fails or is skipped: the reason
    new: tuple[str, ...]  # the same, and nobody has looked at it
    only_original: tuple[str, ...]  # fails with the original alone


def load(path: Path = LIST) -> list[Entry]:
    """Read the list. Raises `ValueError` for an entry without a reason, or with an unknown word."""
    return [_entry(each) for each in tomllib.loads(path.read_text()).get("expected", [])]


def _entry(given: dict[str, str]) -> Entry:
    if {*given} != FIELDS or not all(given.values()):
        raise ValueError(f"expected.toml: {given!r} must have peer, test and reason")
    return Entry(given["peer"], re.compile(given["test"]), given["reason"])


def compare(peer: str, original: Outcomes, adapted: Outcomes, entries: list[Entry]) -> Verdict:
    """Compare the sets of tests that passed."""
    reviewed: dict[str, str] = {}
    new: list[str] = []
    worse = {test for test, ended in original.items() if ended == "passed"} - {
        test for test, ended in adapted.items() if ended == "passed"
    }
    worse |= {
        test for test, ended in adapted.items() if ended == "failed"
    } - {test for test, ended in original.items() if ended == "failed"}  # fmt: skip
    for test in sorted(worse):
        fitting = [each for each in entries if each.peer == peer and each.test.fullmatch(test)]
        if fitting:
            reviewed[test] = fitting[0].reason
        else:
            new.append(test)
    only_original = sorted(
        test
        for test, ended in original.items()
        if ended == "failed" and adapted.get(test) == "passed"
    )
    return Verdict(reviewed, tuple(new), tuple(only_original))
