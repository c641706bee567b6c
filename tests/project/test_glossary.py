"""Classes are named by the words of the glossary, and the old names do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/cenote"
GLOSSARY = (ROOT / "docs/glossary.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|`]+) \| ([^|]+) \| `([^`]+)` \|$", GLOSSARY, re.MULTILINE)

# Words with their usual meaning, in Python or in databases.
USUAL = {
    "acquired", "asyncpg", "closed", "connection", "error", "future", "mysql", "not", "of",
    "overloaded", "postgresql", "prepared", "psycopg", "result", "sqlite", "task", "loop",
    "timeout", "view", "warning",
}  # fmt: skip

# Structure, not concept: a file of `demo`, or what only the file around it knows.
PLAIN_ROOMS = {"demo"}

# The old names of the table of renames, by what must not be called so again.
BANNED_CLASSES = {
    "Front", "Bound", "Runtime", "Lifecycle", "Work", "Crew", "Waiting", "Branch", "Link", "Source",
    "Turn", "Query", "Queries", "Plan", "Following",
}  # fmt: skip
OTHER_CLASSES = {"HostPlan"}  # another concept, which the glossary explains
BANNED_FUNCTIONS = {
    "poisons", "depth", "run_alone", "circle", "find_circle", "handed", "unplaced", "give_place",
    "owed_again", "has_twins", "next_due", "beware", "ride", "hurry", "stirs", "hung_up", "doubt",
    "shut_part", "shut_over", "finish_close",
}  # fmt: skip
BANNED_MODULES = {
    "front", "bound", "runtime", "lifecycle", "work", "waiting", "parts", "due", "branch",
    "binding", "link", "turn", "query", "following", "circle", "circles",
}  # fmt: skip


def singular(word: str) -> str:
    word = word.lower()
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word.removesuffix("s") if not word.endswith("ss") else word


def parts_of(name: str) -> list[str]:
    """The parts of a CamelCase name."""
    return re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)


def words(text: str) -> set[str]:
    """The words of a text or of a CamelCase name, singular and in lower case."""
    for product in ("MySQL", "PostgreSQL", "SQLite"):
        text = text.replace(product, product.capitalize())
    return {singular(part) for part in parts_of(text)}


def old_names(path: Path) -> Iterator[str]:
    """The banned names that a file has or defines."""
    if path.stem in BANNED_MODULES:
        yield path.stem
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.ClassDef(name=name) if parts_of(name)[-1] in BANNED_CLASSES:
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.lstrip("_") in BANNED_FUNCTIONS:
                    yield name


def classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_every_concept_is_explained_once_in_a_sentence() -> None:
    terms = [term for term, _, _ in ROWS]
    assert len(terms) > 60
    assert sorted(terms) == sorted(set(terms))
    for term, meaning, _ in ROWS:
        assert re.fullmatch(r"[A-Z`].*\.", meaning), f"{term}: {meaning}"


def test_every_concept_lives_where_the_glossary_says() -> None:
    for term, _, place in ROWS:
        assert (SOURCE / place).exists(), f"{term}: there is no {place}"


def test_every_class_is_named_by_words_of_the_glossary() -> None:
    known = {singular(word) for word in USUAL}
    for term, meaning, _ in ROWS:
        known |= words(term) | words(meaning)
    unknown = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in PLAIN_ROOMS
        for name in classes(path)
        if not words(name) <= known
    }
    assert not unknown, "add the word to docs/glossary.md:\n" + "\n".join(sorted(unknown))


def test_no_old_name_of_the_renames_is_left() -> None:
    found = {
        f"{place}: {name}"
        for path in SOURCE.rglob("*.py")
        for place in [path.relative_to(SOURCE).as_posix()]
        for name in set(old_names(path)) - OTHER_CLASSES
    }
    assert not found, "\n".join(sorted(found))


def test_the_reader_finds_old_names(tmp_path: Path) -> None:
    path = tmp_path / "due.py"
    path.write_text(
        "class ToyLink:\n    async def _ride(self): ...\n    def turn(self): ...\n", "utf-8"
    )
    assert set(old_names(path)) == {"due", "ToyLink", "_ride"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LoopDatabase", {"loop", "database"}),
        ("Deadlines", {"deadline"}),
        ("HTTPRetries", {"http", "retry"}),
    ],
)
def test_a_name_falls_into_its_words(name: str, expected: set[str]) -> None:
    assert words(name) == expected
