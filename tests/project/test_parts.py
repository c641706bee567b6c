"""Composition, read from the source: no class calls its subclasses, no object writes another's."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

SOURCE = Path(__file__).parents[2] / "src" / "cenote"
OWN = {"self", "cls"}
ALONE = r"^ +self\.(\w+): .*# .*\(\) alone$"
# Private attributes of other libraries are written in the file for them, `private.py`. Besides: two
# attributes of asyncio, and the guard of a connection, whose methods all lead to the connection.
FOREIGN = {
    "drivers/wire.py": {"transport._sock"},
    "sql/per_loop.py": {"task._log_destroy_pending"},
    "sql/guard.py": {"guard._cenote_joined", "guard._cenote_session", "guard._cenote_raw"},
}

Class = tuple[str, str]  # file, name


def test_no_class_calls_what_only_its_subclasses_define() -> None:
    trees = parsed()
    assert trees
    complaints = calls_of_subclasses(trees)
    assert not complaints, "\n".join(complaints)


def test_parts_of_a_pool_are_composed_without_abstract_methods() -> None:
    found = [
        f"{path}: {node.name}"
        for path, tree in parsed().items()
        if path.startswith(("_core/", "_fast/", "pool/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_abstract(node)
    ]
    assert not found, "\n".join(found)


def test_no_object_writes_private_attributes_of_another() -> None:
    found = {
        (path, text, line)
        for path, tree in parsed().items()
        if not path.endswith("/private.py")
        for line, text in foreign_writes(tree)
    }
    listed = {(path, text) for path, texts in FOREIGN.items() for text in texts}
    complaints = sorted(f"{path}:{line}: {text}" for path, text, line in found
                        if (path, text) not in listed)  # fmt: skip
    assert not complaints, "\n".join(complaints)
    assert listed == {(path, text) for path, text, _ in found}


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


def test_every_timer_of_a_loop_is_started_by_timer() -> None:
    """It runs in an empty context. The proxy for tests has a loop of its own."""
    found = {
        path
        for path, tree in parsed().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"call_later", "call_at"}
    }  # fmt: skip
    assert found == {"timer.py", "testing/fault_proxy.py"}


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
        ("class A:\n def f(self): return self.g\nclass B(A):\n def g(self): pass", ["A.g"]),
        ("class A:\n x = 'g'\n def f(self): self.g()\nclass B(A):\n def g(self): pass", ["A.g"]),
        ("class A:\n def f(self): self.g()\n def g(self): raise NotImplementedError\n"
         "class B(A):\n def g(self): pass", ["A.g"]),
        ("class A:\n def f(self): self.g()\n def g(self): 'Do it.'; ...\n"
         "class B(A):\n def g(self): pass", ["A.g"]),
        ("class A:\n def f(self): self.g()\n @abstractmethod\n def g(self): 'Do it.'\n"
         "class B(A):\n def g(self): pass", []),
        ("class A:\n def f(self): self.g = 1; self.g\nclass B(A):\n g = 2", []),
    ],
)  # fmt: skip
def test_reader_of_classes_finds_calls_of_subclasses(source: str, found: list[str]) -> None:
    assert calls_of_subclasses({"a.py": ast.parse(source)}) == found


def test_reader_of_classes_keeps_those_of_one_name_apart() -> None:
    one = ast.parse("class A:\n def f(self): self.g()\nclass B(A):\n def g(self): pass")
    other = ast.parse("class A:\n def g(self): pass")
    derived = ast.parse("class A(a.A):\n def h(self): pass")
    assert calls_of_subclasses({"a.py": one, "b.py": other}) == ["A.g"]
    assert calls_of_subclasses({"b.py": other, "c.py": derived, "a.py": one}) == ["A.g"]


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
        ("setattr(a, '_x', 1)\ndelattr(a, '_x')\nsetattr(a, 'x', 1)", ["a._x", "a._x"]),
        ("object.__setattr__(a.b, '_x', 1)\nobject.__setattr__(self, '_x', 1)", ["a.b._x"]),
        ("setattr(a, name, 1)\nsetattr(self, '_x', 1)", []),
    ],
)
def test_reader_of_writes_finds_private_targets(source: str, found: list[str]) -> None:
    assert [text for _, text in foreign_writes(ast.parse(source))] == found


@cache
def parsed() -> dict[str, ast.Module]:
    files = ((path.relative_to(SOURCE).as_posix(), path) for path in SOURCE.rglob("*.py"))
    return {name: ast.parse(path.read_text("utf-8")) for name, path in files}


def calls_of_subclasses(trees: dict[str, ast.Module]) -> list[str]:
    """`Class.name` for everything that a class uses of `self`, and that none of its bases defines,
    but a subclass. What only says that it is not implemented defines nothing, unless it is declared
    as abstract: then it is an interface, and a class without it cannot be made."""
    classes = {
        (path, node.name): node
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    bases = {each: [*known_bases(each, classes)] for each in classes}
    above = {each: lineage(each, bases) for each in classes}
    defined = {each: names_of(node) for each, node in classes.items()}
    found = []
    for one, node in classes.items():
        known = {name for base in above[one] for name in defined[base]}
        below = {
            name for other in classes if other != one and one in above[other]
            for name in defined[other]
        }  # fmt: skip
        found += [f"{node.name}.{name}" for name in sorted(used_of_self(node) & below - known)]
    return found


def known_bases(one: Class, classes: dict[Class, ast.ClassDef]) -> Iterator[Class]:
    """The bases that are in the source: a class of the same file first, else all of that name."""
    path, own = one
    for base in classes[one].bases:
        bare = base.value if isinstance(base, ast.Subscript) else base
        name = bare.attr if isinstance(bare, ast.Attribute) else getattr(bare, "id", "")
        if (path, name) in classes and name != own:
            yield path, name
        else:
            yield from (each for each in classes if each[1] == name and each != one)


def lineage(one: Class, bases: dict[Class, list[Class]]) -> set[Class]:
    """The class and all its bases."""
    found: set[Class] = set()
    todo = [one]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += bases[each]
    return found


def names_of(node: ast.ClassDef) -> set[str]:
    """Methods and attributes: defined in the body, declared in slots, or set on `self`."""
    names = set()
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if is_abstract(each) or not is_stub(each):
                    names.add(name)
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store())
            ):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                names |= {slot.value for slot in ast.walk(value) if isinstance(slot, ast.Constant)}
    return names


def is_abstract(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("abstractmethod" in ast.unparse(each) for each in node.decorator_list)


def is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it does nothing but say that it is not implemented."""
    text = ast.unparse(node.body[-1])
    return text == "..." or text.startswith("raise NotImplementedError")


def used_of_self(node: ast.ClassDef) -> set[str]:
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Load)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def foreign_writes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Assignments to, and deletions of, `other._private`, also by `setattr` and its like."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, value=owner) if not isinstance(node.ctx, ast.Load):
                pass
            case ast.Call(args=[owner, ast.Constant(value=str(name)), *_]) if is_setter(node):
                pass
            case _:
                continue
        private = name.startswith("_") and not name.startswith("__")
        if private and not (isinstance(owner, ast.Name) and owner.id in OWN):
            yield node.lineno, f"{ast.unparse(owner)}.{name}"


def is_setter(node: ast.Call) -> bool:
    name = ast.unparse(node.func).rpartition(".")[2].strip("_")
    return name in {"setattr", "delattr"}
