"""Splits SQLite's tests, which are written in Tcl, into single statements.

What stands in braces after `execsql`, `do_execsql_test` and their like is SQL as it is. Text in
double quotes is made by Tcl, and left out.
"""

import re
import sqlite3
from pathlib import Path

from .scripts import Script, line_of, read

CALL = re.compile(
    r"""\b(?:execsql2?|catchsql2?|db\s+(?:eval|one|exists)|do_(?:execsql|catchsql|eqp)_test
        (?:[ \t]+-\w+)*[ \t]+[^\s{}]+)[ \t]*(?P<open>[{"])""",
    re.VERBOSE,
)


def split(name: str, text: str) -> Script:
    """The statements of a script."""
    script = Script(name)
    at = 0
    while (call := CALL.search(text, at)) is not None:
        at = call.end()
        if call["open"] == '"':
            script.left_out["text made by Tcl"] += 1
            continue
        at = _brace_end(text, call.end())
        for offset, statement in statements(text[call.end() : at]):
            script.add(statement, line_of(text, call.end() + offset))
        at += 1
    return script


def load(path: Path, name: str) -> Script:
    """The same, of a file."""
    return split(name, read(path))


def statements(text: str) -> list[tuple[int, str]]:
    """The statements of a piece of SQL, as SQLite itself finds their ends, each with its place."""
    found: list[tuple[int, str]] = []
    start = 0
    for mark in re.finditer(";", text):
        piece = text[start : mark.end()]
        if sqlite3.complete_statement(piece):
            _keep(found, start, piece[:-1])
            start = mark.end()
    _keep(found, start, text[start:])
    return found


def _keep(found: list[tuple[int, str]], start: int, piece: str) -> None:
    if not _is_empty(piece):
        found.append((start + len(piece) - len(piece.lstrip()), piece.strip()))


def _is_empty(piece: str) -> bool:
    return not re.sub(r"--[^\n]*|/\*.*?(\*/|\Z)", "", piece, flags=re.DOTALL).strip(" \t\r\n;")


def _brace_end(text: str, at: int) -> int:
    """Where the brace closes that was opened before."""
    depth = 1
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return at
