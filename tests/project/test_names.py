"""The names of the tests read as a specification: the subject first, four to ten words."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rooms import TESTS

SHORTEST, LONGEST = 4, 10  # words after `test_`


def names_in(path: Path) -> Iterator[str]:
    """The names of the tests in a file, those in classes too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name.startswith("test_"):
            yield node.name


def words(name: str) -> int:
    return len(name.removeprefix("test_").split("_"))


@pytest.mark.parametrize(
    ("name", "count"), [("test_close", 1), ("test_a_closed_pool_stays_closed", 5)]
)
def test_words_of_a_name_are_counted(name: str, count: int) -> None:
    assert words(name) == count


def test_every_test_name_has_four_to_ten_words() -> None:
    wrong = [
        f"{path.relative_to(TESTS).as_posix()}: {name} has {words(name)} words"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in names_in(path)
        if not SHORTEST <= words(name) <= LONGEST
    ]
    assert not wrong, "\n".join(wrong)
