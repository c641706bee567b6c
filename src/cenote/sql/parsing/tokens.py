"""Tokens: a text, divided as the database would do it.

What is inside strings, quoted names, comments and dollar quotes is never looked at. What is opened
and not closed reaches to the end of the text; the server will refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ..dialects.dialect import Dialect

Kind = Literal[
    "word",  # a keyword or a name without quotes
    "number",
    "string",
    "name",  # in quotes
    "comment",
    "mark",  # ?
    "escape",  # ??
    "named",  # :name
    "own",  # a placeholder that only this database knows: $1, ?1, @name, $name
    "symbol",  # one of SYMBOLS; other punctuation gives no token
]
Token = tuple[Kind, int, int]  # kind, start, end

QUOTED = ("string", "name", "comment")
SYMBOLS = (":=", "(", ")", ";", ".", "=", "@")


def readings(text: str, dialect: Dialect) -> tuple[Dialect, ...]:
    """How a text may be read, depending on the settings of the session; the usual one is first."""
    return (dialect, *dialect.others) if dialect.others and "\\" in text else (dialect,)


def tokens(text: str, dialect: Dialect) -> Iterator[Token]:
    """The tokens of a text, without white space and without punctuation that is not in SYMBOLS."""
    pattern = _pattern(dialect)
    matches = pattern.finditer(text)
    while True:
        for match in matches:
            kind: Any = match.lastgroup
            start, end = match.span()
            if kind == "dollar":
                kind, end = "string", _end_of_dollar_quote(text, start, end)
            elif kind == "nested":
                kind, end = "comment", _end_of_nested_comment(text, end)
            else:
                yield kind, start, end
                continue
            yield kind, start, end
            matches = pattern.finditer(text, end)
            break
        else:
            return


def landmarks(text: str, dialect: Dialect) -> Iterator[Token]:
    """The strings, quoted names, comments and placeholders of a text, without the rest of the
    tokens, which takes a fraction of the time. Strings between which there are only numbers, commas
    and parentheses, as in the rows of a long INSERT, are one token."""
    find, kinds, inner = _landmarks(dialect)
    matches = find(text)
    last = 0  # where the one before ends
    while True:
        for match in matches:
            start, end = match.span()
            kind = kinds[text[start]]
            if kind == "mark" and end > start + 1:
                kind = "escape" if text[end - 1] == "?" else "own"
            elif kind == "nested":
                kind, end = "comment", _end_of_nested_comment(text, end)
            elif text[start] in inner:
                if _is_in_word(text, start, last):
                    matches = find(text, _IN_WORD.match(text, start).end())  # type: ignore[union-attr]
                    break
                if kind == "dollar":
                    kind = "own"
                    if text[end - 1] == "$":
                        kind, end = "string", _end_of_dollar_quote(text, start, end)
            yield kind, start, end
            last = end
            if end != match.end():
                matches = find(text, end)
                break
        else:
            return


def _is_in_word(text: str, start: int, last: int) -> bool:
    """Whether a $ or E is a part of what stands before it, back to `last`."""
    first = start
    while first > last and _IN_WORD.match(text[first - 1]):
        first -= 1
    words = _WORD_OR_NUMBER.finditer(text, first, start + 1)
    return any(each.start() < start < each.end() for each in words)


def condensed(text: str, dialect: Dialect) -> str:
    """The text with `''` for strings, without comments and without rows of nothing but values:
    what is left does the same to the session, and is short if there was much data in the text."""
    parts: list[str] = []
    rest = 0
    for kind, start, end in landmarks(text, dialect):
        if kind == "string":
            parts += (text[rest:start], '""' if text[start] == '"' else "'' ")
            if dialect.string_names and _BEFORE_DOT.match(text, end):  # 'temp' may be a name
                last = text.rfind("'", start, end - 1)
                parts[-1:] = ("'' ", text[last:end]) if last > start else (text[start:end],)
        elif kind == "comment" and not text.startswith(("/*!", "/*M!"), start):
            parts += (text[rest:start], "/**/")  # or what is around it would become one
        else:
            continue
        rest = end
    parts.append(text[rest:])
    return _ROWS.sub(", ('')", "".join(parts))


# As the servers do it, everything that is not ASCII may be part of a name.
_NO_BOM = "(?!\ufeff)"
LETTER = r"A-Za-z_\x80-\U0010ffff"
_WORD_OR_NUMBER = re.compile(rf"[{LETTER}][{LETTER}0-9$]*|[0-9][{LETTER}0-9]*")
_IN_WORD = re.compile(rf"[{LETTER}0-9$]+")

# Rows of values after a first one; only what can be nothing else.
_BEFORE_DOT = re.compile(r"\s*[./-]")  # or before a comment
_VALUES = r"[\s0-9.,'?+-]*"
_ROWS = re.compile(rf"(?:,\s*\({_VALUES}(?:(?:%s|\$[0-9]|null|NULL){_VALUES})*\)){{1,100}}")

# Every piece below matches wherever its first characters do: nothing is tried twice.
_END = r"(?:'|\Z)"
_PLAIN = rf"'[^']*{_END}"
_ESCAPED = rf"'[^'\\]*(?:(?:\\.?|'')[^'\\]*)*{_END}"
# More strings in rows of values; the parentheses around them stay in balance.
_VALUE = r"[\s0-9,+NULnul]*(?:[.-][0-9][\s0-9,+NULnul]*)*"
_MORE = rf"(?:{_VALUE}(?:\)\s*,\s*\({_VALUE})?'[^'\\]*'){{0,100}}"
_NAMED = r":(?<![\w$\]\"):]:)[^\W\d]\w*(?![\w$])"  # no slice, a[1:n], and no cast, x::int
_NEXT_LINE = r"(?:[ \t\f\v]*(?:--[^\r\n]*)?[\r\n])+[ \t\f\v]*"


@cache
def _pattern(dialect: Dialect) -> re.Pattern[str]:
    """One group for each kind of token, and two that `tokens` has to end itself."""
    pieces = {
        "string": _joined(_strings(dialect), _further(dialect, "string")),
        # A file may begin with a byte order mark.
        "word": rf"{_NO_BOM if dialect.bom_is_space else ''}[{LETTER}][{LETTER}0-9$]*",
        "number": rf"[0-9][{LETTER}0-9]*",
        "name": _joined(_names(dialect), _further(dialect, "name")),
        "comment": _joined(_comments(dialect), _further(dialect, "comment")),
        "nested": r"/\*" if dialect.nested_comments else "",
        "dollar": rf"\$(?:[{LETTER}][{LETTER}0-9]*)?\$" if dialect.dollar_quotes else "",
        "escape": r"\?\?",
        "own": _joined(_own(dialect), _further(dialect, "own")),
        "mark": r"\?",
        "named": _NAMED,
        "symbol": "|".join(map(re.escape, SYMBOLS)),
    }
    return re.compile("|".join(f"(?P<{k}>{v})" for k, v in pieces.items() if v), re.DOTALL)


@cache
def _landmarks(
    dialect: Dialect,
) -> tuple[Callable[..., Iterator[re.Match[str]]], dict[str, Any], str]:
    """How to find them, what they are by their first character, and which of these characters may
    also be in a word. Every alternative begins with a fixed character: the places where none can
    begin are passed over at full speed."""
    strings, _, escaped = _strings(dialect).partition("|[eE]")
    pieces = [strings.replace(_END, f"{_END}{_MORE}", 1)]
    if escaped:
        pieces += (f"e{escaped}", f"E{escaped}")
    if dialect.dollar_quotes:
        pieces += (rf"\$(?:[{LETTER}][{LETTER}0-9]*)?\$", r"\$[0-9]+")
    if dialect.numbered_marks:
        rest = rf"[{LETTER}0-9$]+"
        pieces += (r"\?[0-9]+", f"@{rest}", f"#{rest}", rf"\${rest}")
    names = _names(dialect)
    pieces += (names, _comments(dialect), r"/\*" if dialect.nested_comments else "")
    pieces += (r"\?\?", r"\?", _NAMED)
    starts = {first: each for each in dialect.quotes for first in each.first}
    pieces[:0] = [f"{re.escape(first)}{each.rest}" for first, each in starts.items()]
    kinds = {
        "'": "string",
        '"': "name" if names.startswith('"') else "string",
        "e": "string",
        "E": "string",
        "`": "name",
        "[": "name",
        "-": "comment",
        "/": "nested" if dialect.nested_comments else "comment",
        "#": "comment" if dialect.hash_comments else "own",
        "$": "dollar" if dialect.dollar_quotes else "own",
        "@": "own",
        "?": "mark",
        ":": "named",
        **{first: each.kind for first, each in starts.items()},
    }
    inner = "".join(["$eE", *filter(str.isalpha, starts)])
    return re.compile("|".join(filter(None, pieces)), re.DOTALL).finditer, kinds, inner


def _further(dialect: Dialect, kind: str) -> str:
    """The quotations of a kind that the flags do not describe."""
    found = [each for each in dialect.quotes if each.kind == kind]
    return "|".join(f"[{re.escape(each.first)}]{each.rest}" for each in found)


def _joined(*alternatives: str) -> str:
    return "|".join(filter(None, alternatives))


def _strings(dialect: Dialect) -> str:
    if dialect.backslashes:
        double = "" if dialect.quoted_names else f"|{_ESCAPED.replace(chr(39), chr(34))}"
        return f"{_ESCAPED}{double}"
    if dialect.e_strings:
        # A string may go on in the next line, and its escapes with it: E'a'\n'b'.
        plain = _ESCAPED if dialect.backslash_strings else _PLAIN
        return f"{plain}|[eE]{_ESCAPED}(?:{_NEXT_LINE}{_ESCAPED})*"
    return _PLAIN


def _names(dialect: Dialect) -> str:
    pieces = []
    if not dialect.backslashes or dialect.quoted_names:
        pieces.append(r'"[^"]*(?:"|\Z)')
    if dialect.backticks:
        pieces.append(r"`[^`]*(?:`|\Z)")
    if dialect.brackets:
        pieces.append(r"\[[^\]]*(?:\]|\Z)")
    return "|".join(pieces)


def _comments(dialect: Dialect) -> str:
    line = r"[^\r\n]*" if dialect.return_ends_line else r"[^\n]*"
    space = r"(?=[\x00-\x20\x7f]|\Z)" if dialect.dash_needs_space else ""
    pieces = [f"--{space}{line}"]
    if dialect.hash_comments:
        pieces.append(f"#{line}")
    if not dialect.nested_comments:
        pieces.append(r"/\*.*?(?:\*/|\Z)")
    return "|".join(pieces)


def _own(dialect: Dialect) -> str:
    if dialect.numbered_marks:
        return rf"\?[0-9]+|[@$#][{LETTER}0-9$]+"
    return r"\$[0-9]+" if dialect.dollar_quotes else ""


def _end_of_dollar_quote(text: str, start: int, end: int) -> int:
    quote = text[start:end]
    found = text.find(quote, end)
    return len(text) if found < 0 else found + len(quote)


_COMMENT_EDGE = re.compile(r"/\*|\*/")


def _end_of_nested_comment(text: str, position: int) -> int:
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, position):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return len(text)
