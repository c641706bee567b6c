"""What the splitters have in common: a script is a list of statements, and of what was left out."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a script."""

    script: str  # the name of the file, such as "regress/union.sql"
    number: int  # in its script, from 1
    line: int  # where it begins
    text: str

    def __str__(self) -> str:
        return f"{self.script}:{self.line} (statement {self.number})"


@dataclass
class Script:
    """A file, split."""

    name: str
    statements: list[Statement] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # why -> how many

    def add(self, text: str, line: int) -> None:
        """Append a statement, unless nothing is left of it."""
        if text := text.strip():
            self.statements.append(Statement(self.name, len(self.statements) + 1, line, text))


def read(path: Path) -> str:
    """The text of a script: UTF-8 if it is, otherwise byte by byte."""
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def line_of(text: str, position: int) -> int:
    """The number of the line, from 1."""
    return text.count("\n", 0, position) + 1
