"""Nothing is written twice: no block of six lines or more stands in two places."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
ROOMS = [
    ROOT / room for room in ("src", "tests", "benchmarks", "tools", "scripts", "examples")
]  # fmt: skip
LEAST = 6  # lines that are the same make a block

# What stands twice, by its first line and its files, and why. What does so no longer has to leave
# the list.
REASONS = {
    (
        "token=token,",
        ("src/cenote/extras/dashboard/asgi.py", "src/cenote/extras/dashboard/server.py"),
    ): "app() and serve_dashboard() hand their options on by name",
    (
        "def __aenter__",
        ("src/cenote/pool/pool.py", "src/cenote/sql/database.py"),
    ): "a block opens at its beginning and closes at its end",
    (
        "return self._current",
        ("src/cenote/adapters/redis.py", "src/cenote/adapters/sqlalchemy.py"),
    ): "an adapter makes its pool, and its lanes, when they are first used",
    (
        "return 0;",
        ("examples/c_extension/buffers.c", "src/cenote/_native/module.c"),
    ): "the slots of a C module, of the core and of the example",
    (
        'if {place == "inside"}:',
        ("tests/pool/lifetime/test_fork.py", "tests/sql/test_fork.py"),
    ): "two programs that fork at the same two places",
}

Line = tuple[int, str]
Block = tuple[str, ...]


def lines_of(source: str, *, python: bool) -> list[Line]:
    """The lines that count, with their numbers, and white space folded.

    Docstrings, imports, and all of a signature but its name do not: they are written out where they
    belong, for readers and type checkers. Nor do comments and lines of brackets alone.
    """
    tree = ast.parse(source if python else "")
    passed_over, functions = set(plain_lines(tree)), names_of_functions(tree)
    folded = (
        (number, functions.get(number) or " ".join(line.split()))
        for number, line in enumerate(source.splitlines(), 1)
    )
    return [
        (number, line)
        for number, line in folded
        if (number in functions or number not in passed_over)
        and re.search(r"\w", line)
        and not line.startswith(("#", "//", "/*", "*"))
    ]


def names_of_functions(tree: ast.Module) -> dict[int, str]:
    """By the line in which it begins, a signature made short."""
    return {
        node.lineno: f"def {node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno != node.lineno
        and ast.unparse(node.body[0]) != "..."
    }


def plain_lines(tree: ast.Module) -> Iterator[int]:
    """The lines of signatures, docstrings and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            body = node.body[0]
            yield from range(first, body.lineno)
            if ast.unparse(body) == "...":
                yield body.lineno
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def repeated(texts: dict[str, list[Line]]) -> Iterator[tuple[Block, list[str]]]:
    """Every block that stands in several places; of a longer one only its beginning."""
    places: dict[Block, list[tuple[str, int]]] = defaultdict(list)
    for name, lines in texts.items():
        for at in range(len(lines) - LEAST + 1):
            places[tuple(text for _, text in lines[at : at + LEAST])].append((name, at))
    several = {tuple(where): block for block, where in places.items() if len(where) > 1}
    for where, block in several.items():
        if tuple((name, at - 1) for name, at in where) not in several:
            yield block, [f"{name}:{texts[name][at][0]}" for name, at in where]


def test_no_block_of_six_lines_stands_twice() -> None:
    files = [
        path for room in ROOMS for suffix in ("py", "c", "h") for path in room.rglob(f"*.{suffix}")
    ]
    assert len(files) > 300
    texts = {
        path.relative_to(ROOT).as_posix(): lines_of(
            path.read_text("utf-8"), python=path.suffix == ".py"
        )
        for path in sorted(files)
    }
    found = {
        (block[0], tuple(place.partition(":")[0] for place in where)): where
        for block, where in repeated(texts)
    }
    unknown = [
        f"{' ~ '.join(where)}: {block[0]}" for block, where in found.items() if block not in REASONS
    ]
    assert not unknown, "\n".join(unknown)
    assert REASONS.keys() <= found.keys()


@pytest.mark.parametrize(
    ("first", "second", "starts"),
    [
        ("a\nb\nc # yes\nd\ne\nf", "x\na\nb\n\nc  # yes\nd\n# no\ne\nf", ["a"]),
        ("a\nb\nc\nd\ne\nf\ng\nh", "a\nb\nc\nd\ne\nf\ng\nx", ["a"]),  # one block, not two
        ("a\nb\nc\nd\ne", "a\nb\nc\nd\ne", []),
        ("import a\nb\nc\nd\ne\nf", "import a\nb\nc\nd\ne\nf", []),
        (
            "def f(\n a,\n b,\n c,\n d,\n e,\n g,\n): pass",
            "def f(\n a,\n b,\n c,\n d,\n e,\n g,\n): pass",
            [],
        ),
        ("'''a\nb\nc\nd\ne\nf\ng'''", "'''a\nb\nc\nd\ne\nf\ng'''", []),
    ],
)
def test_reader_finds_blocks_that_stand_twice(first: str, second: str, starts: list[str]) -> None:
    texts = {"first": lines_of(first, python=True), "second": lines_of(second, python=True)}
    assert [block[0] for block, _ in repeated(texts)] == starts
