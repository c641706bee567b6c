"""No word that the style guide forbids is left in docstrings, comments and pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / room for room in ("src", "benchmarks", "tools", "scripts", "examples")]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]

# What is not said, and what to say in its place.
FORBIDDEN = {
    r"for ever": "without a limit, for good",
    r"hears?|heard|hearing": "is notified, is informed, learns",
    r"tells?|told|telling": "notifies, informs, says",
    r"speaks?|spoken": "uses, mentions",
    r"mends?|mended|mending": "repairs, fixes",
    r"beware": "a name for what is done",
    r"dearest": "most expensive",
    r"those who|whoever|whomever": "the tasks that, the caller that, everything that",
    r"what is no": "what is not a",
    r"to the letter": "exactly",
    r"none of its business": "a sentence that says what happens",
    r"wounds?": "failures",
    r"the news of": "the notice of",
}
PATTERN = re.compile(rf"\b({'|'.join(FORBIDDEN)})\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`|^\s*\w+:")  # also the name of an argument
# "Told to stop", "told apart": these are the usual words.
USUAL = re.compile(
    r"\b(tell|tells|told|telling)\b( \w+){0,3} to\b|\btold apart\b|\bcannot tell\b", re.IGNORECASE
)


def prose_of_page(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a page, without its blocks of code."""
    inside = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


def prose_of(source: str, *, python: bool) -> Iterator[tuple[int, str]]:
    """The lines of comments and docstrings, without what is code in them."""
    if not python:
        for found in re.finditer(r"/\*.*?\*/", source, re.DOTALL):
            first = source.count("\n", 0, found.start()) + 1
            yield from enumerate(found.group().splitlines(), first)
        return
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from enumerate(node.value.value.splitlines(), node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def forbidden_in(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Line and word of everything that is not said."""
    for number, line in lines:
        for found in PATTERN.finditer(USUAL.sub("", CODE.sub("", line))):
            yield f"{number}: {found.group()}: {line.strip()}"


def test_comments_and_docstrings_are_plain_english() -> None:
    files = [
        path for room in ROOMS for suffix in ("py", "c", "h") for path in room.rglob(f"*.{suffix}")
    ]
    assert len(files) > 200
    complaints = [
        f"{path.relative_to(ROOT)}:{text}"
        for path in sorted(files)
        for text in forbidden_in(prose_of(path.read_text("utf-8"), python=path.suffix == ".py"))
    ]
    assert not complaints, "\n".join(complaints)


def test_pages_are_plain_english() -> None:
    assert len(PAGES) > 50
    complaints = [
        f"{path.relative_to(ROOT)}:{text}"
        for path in sorted(PAGES)
        for text in forbidden_in(prose_of_page(path.read_text("utf-8")))
    ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""It waits for ever."""', ["for ever"]),
        ("x = 'for ever'  # nobody hears it", ["hears"]),
        ('def f():\n    """Tell\n    whoever asks."""', ["Tell", "whoever"]),
        ('"""`tell()` is the name of a method."""', []),
        ("told = 1", []),
    ],
)
def test_reader_finds_forbidden_words_in_python(source: str, words: list[str]) -> None:
    assert [text.split(": ")[1] for text in forbidden_in(prose_of(source, python=True))] == words


def test_reader_finds_forbidden_words_in_c() -> None:
    source = "int told; /* what\n * is heard */ int heard;"
    assert [*forbidden_in(prose_of(source, python=False))] == ["2: heard: * is heard */"]


def test_reader_leaves_out_the_code_of_a_page() -> None:
    source = "It `tells`.\n\n```python\n# told\n```\n\nIt tells you.\n"
    found = [*forbidden_in(prose_of_page(source))]
    assert found == ["7: tells: It tells you."]
