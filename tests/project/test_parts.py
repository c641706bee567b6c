"""Composition, read from the source: no class calls its subclasses, no object writes another's."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

SOURCE = Path(__file__).parents[2] / "src" / "cenote"
OWN = {"self", "cls"}
ALONE = r"^ +self\.(\w+): .*# .*\(\) alone$"
# Drivers write attributes of the libraries below them. One switch is asyncio's, and by the other
# one asyncpg finds the holder of a connection.
FOREIGN = {"task._log_destroy_pending", "raw._pool_holder"}


def test_no_class_calls_what_only_its_subclasses_define() -> None:
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert trees
    complaints = calls_of_subclasses([*trees.values()])
    assert not complaints, "\n".join(complaints)


def test_no_object_writes_private_attributes_of_another() -> None:
    complaints = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "drivers"
        for line, text in foreign_writes(ast.parse(path.read_text()))
        if text not in FOREIGN
    ]
    assert not complaints, "\n".join(complaints)


def test_what_one_method_sets_is_written_nowhere_else() -> None:
    """An attribute whose comment says that a method sets it `alone`: the states of sessions and
    transactions, and what claims are pinned by."""
    sources = {path: path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    names = {
        name for source in sources.values() for name in re.findall(ALONE, source, re.MULTILINE)
    }
    assert {"reason", "state"} <= names
    complaints = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"
        for path, source in sources.items()
        if path.relative_to(SOURCE).parts[0] in {"_fast", "drivers", "pool", "sql"}
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        and node.attr in names and ast.unparse(node.value) not in OWN
    ]  # fmt: skip
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n def f(self): self.g()\nclass B(A):\n def g(self): pass", ["A.g"]),
        ("class A:\n def f(self): self.g()\nclass C(A): pass\nclass B(C):\n def g(self): pass",
         ["A.g"]),
        ("class A:\n def f(self): self.g()\n def g(self): pass\nclass B(A):\n def g(self): pass",
         []),
        ("class A:\n __slots__ = ('g',)\n def f(self): self.g()\nclass B(A):\n def g(self): pass",
         []),
        ("class Z:\n def g(self): pass\nclass A(Z):\n def f(self): self.g()\n"
         "class B(A):\n def g(self): pass", []),
        ("class A:\n def f(self): self.g()\nclass B:\n def g(self): pass", []),
    ],
)  # fmt: skip
def test_reader_of_classes_finds_calls_of_subclasses(source: str, found: list[str]) -> None:
    assert calls_of_subclasses([ast.parse(source)]) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("self._x = 1\ncls._x = 1\na.x = 1\na.__class__ = b", []),
        ("a._x = 1", ["a._x"]),
        ("a.b._x += 1", ["a.b._x"]),
        ("self.a._x: int = 1", ["self.a._x"]),
        ("x, a._y = 1, 2", ["a._y"]),
        ("del a._x", ["a._x"]),
        ("for a._x in b: pass", ["a._x"]),
    ],
)
def test_reader_of_writes_finds_private_targets(source: str, found: list[str]) -> None:
    assert [text for _, text in foreign_writes(ast.parse(source))] == found


def calls_of_subclasses(trees: list[ast.Module]) -> list[str]:
    """`Class.method` for every method that is called on `self` in a class, and is defined in none
    of its bases that are known, but in a subclass."""
    classes = {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    bases = {name: [*known_bases(node, classes)] for name, node in classes.items()}
    defined = {name: names_of(node) for name, node in classes.items()}
    found = []
    for name, node in classes.items():
        above = {each for base in lineage(name, bases) for each in defined[base]}
        below = {
            each for other in classes if other != name and name in lineage(other, bases)
            for each in defined[other]
        }  # fmt: skip
        found += [f"{name}.{each}" for each in sorted(called_on_self(node) & below - above)]
    return found


def known_bases(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    for base in node.bases:
        bare = base.value if isinstance(base, ast.Subscript) else base
        name = bare.attr if isinstance(bare, ast.Attribute) else getattr(bare, "id", "")
        if name in classes and name != node.name:
            yield name


def lineage(name: str, bases: dict[str, list[str]]) -> set[str]:
    """The class and all its bases."""
    found, todo = set(), [name]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += bases[each]
    return found


def names_of(node: ast.ClassDef) -> set[str]:
    """Methods and attributes: defined in the body, declared in slots, or set on `self`."""
    names = {each.value for each in ast.walk(node) if is_slot_name(each)}
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(each.name)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            names.add(each.attr)
    return names


def is_slot_name(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
    )


def called_on_self(node: ast.ClassDef) -> set[str]:
    return {
        each.func.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id == "self"
    }


def foreign_writes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Assignments to, and deletions of, `other._private`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
            continue
        private = node.attr.startswith("_") and not node.attr.startswith("__")
        if private and not (isinstance(node.value, ast.Name) and node.value.id in OWN):
            yield node.lineno, ast.unparse(node)
