"""The differences that were looked at and found right, in `expected.toml`, each with its reason."""

import fnmatch
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

LIST = Path(__file__).with_name("expected.toml")
FIELDS = {"corpus", "replay", "drivers", "methods", "files", "script", "text", "found", "reason"}


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as it should be."""

    replay: str  # "outcome", "once", "left" or "transaction"
    corpus: str
    driver: str
    method: str
    script: str
    place: str  # script, line and number
    text: str
    found: str  # what the difference is, in one line
    around: str = field(default="", repr=False, compare=False)  # all statements of the script

    def __str__(self) -> str:
        text = re.sub(r"\s+", " ", self.text).strip()
        short = text if len(text) < 300 else text[:300] + " ..."
        return (
            f"{self.replay}, {self.corpus}, {self.driver}, {self.method}: {self.place}\n"
            f"    {short}\n    {self.found}"
        )


@dataclass(frozen=True)
class Rule:
    """One entry of the list: what it says must all hold."""

    reason: str
    corpus: str = "*"
    replay: str = "*"
    drivers: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    files: str = "*"
    script: re.Pattern[str] = re.compile("")
    text: re.Pattern[str] = re.compile("")
    found: re.Pattern[str] = re.compile("")

    def covers(self, difference: Difference) -> bool:
        return (
            self.corpus in ("*", difference.corpus)
            and self.replay in ("*", difference.replay)
            and (not self.drivers or difference.driver in self.drivers)
            and (not self.methods or difference.method in self.methods)
            and fnmatch.fnmatch(difference.script, self.files)
            and self.script.search(difference.around) is not None
            and self.text.search(difference.text) is not None
            and self.found.search(difference.found) is not None
        )


@dataclass
class Expected:
    """The list, and how often each of its entries was used."""

    rules: list[Rule]
    used: Counter[str] = field(default_factory=Counter)  # by reason

    def reason(self, difference: Difference) -> str | None:
        """Why it is right; None: nobody has looked at it yet."""
        for rule in self.rules:
            if rule.covers(difference):
                self.used[rule.reason] += 1
                return rule.reason
        return None


def load(path: Path = LIST) -> Expected:
    """Read the list; an entry without a reason, or with an unknown word, is an error."""
    entries = tomllib.loads(path.read_text()).get("expected", [])
    return Expected([_rule(entry) for entry in entries])


def _rule(entry: dict[str, object]) -> Rule:
    unknown = {*entry} - FIELDS
    if unknown or not entry.get("reason"):
        raise ValueError(f"expected.toml: {entry!r} has no reason, or unknown words {unknown}")
    flags = re.IGNORECASE | re.DOTALL
    return Rule(
        reason=str(entry["reason"]),
        corpus=str(entry.get("corpus", "*")),
        replay=str(entry.get("replay", "*")),
        drivers=_words(entry.get("drivers", ())),
        methods=_words(entry.get("methods", ())),
        files=str(entry.get("files", "*")),
        script=re.compile(str(entry.get("script", "")), flags),
        text=re.compile(str(entry.get("text", "")), flags | re.VERBOSE),
        found=re.compile(str(entry.get("found", "")), flags),
    )


def _words(value: object) -> tuple[str, ...]:
    assert isinstance(value, list | tuple), value
    return tuple(str(word) for word in value)
