"""Placeholders: `?` with a sequence, `:name` with a mapping, rewritten for the driver.

`tokens` cuts a text as the database would: what is inside strings, quoted names, comments and
dollar quotes is never looked at. What was opened and not closed reaches to the end of the text;
the server will complain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

Style = Literal["numeric", "format", "qmark"]  # $1 (asyncpg), %s (psycopg), ? (MySQL, SQLite)

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
SHOWN = 5  # names of placeholders in a message
SYMBOLS = (":=", "(", ")", ";", ".", "=", "@")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a database writes strings, names and comments."""

    name: str
    nested_comments: bool = False  # PostgreSQL
    hash_comments: bool = False  # MySQL: # to the end of the line
    dash_needs_space: bool = False  # MySQL: -- is a comment only before white space
    return_ends_line: bool = False  # PostgreSQL: so does \r alone, in a -- comment
    backslashes: bool = False  # MySQL: escapes in '...' and "...", both of which are strings
    e_strings: bool = False  # PostgreSQL: E'...' has backslash escapes
    backslash_strings: bool = False  # and so has '...', with standard_conforming_strings = off
    dollar_quotes: bool = False  # PostgreSQL: $tag$...$tag$, and $1 is a placeholder
    backticks: bool = False  # MySQL, SQLite
    brackets: bool = False  # SQLite: [name]
    numbered_marks: bool = False  # SQLite: ?1, @name and $name are placeholders
    quoted_names: bool = False  # MySQL with ANSI_QUOTES: "..." is a name, without escapes
    percent_marks: bool = False  # asyncmy: %s and %(name)s are placeholders
    others: tuple[
        Dialect, ...
    ] = ()  # how sessions with other settings read a text with a backslash


POSTGRESQL = Dialect(
    "postgresql",
    nested_comments=True,
    return_ends_line=True,
    e_strings=True,
    dollar_quotes=True,
)
_MYSQL = Dialect(
    "mysql",
    hash_comments=True,
    dash_needs_space=True,
    backslashes=True,
    backticks=True,
    percent_marks=True,
)
MYSQL_NO_BACKSLASH_ESCAPES = replace(_MYSQL, backslashes=False)
MYSQL_ANSI_QUOTES = replace(_MYSQL, quoted_names=True)
MYSQL = replace(_MYSQL, others=(MYSQL_NO_BACKSLASH_ESCAPES, MYSQL_ANSI_QUOTES))
SQLITE = Dialect("sqlite", backticks=True, brackets=True, numbered_marks=True)


class UsualText(str):
    """A converted text that would be another one if the session had other settings."""

    __slots__ = ()


class Template:
    """One text, rewritten for parameters of one kind."""

    __slots__ = ("_anything", "_counts", "_hint", "_keys", "count", "mapping", "names", "native",
                 "text")  # fmt: skip

    def __init__(
        self,
        text: str,
        *,
        mapping: bool,
        names: tuple[str, ...] = (),
        count: int = 0,
        native: bool,
        anything: bool,
        hint: str,
    ) -> None:
        self.text = text  # for the driver
        self.mapping = mapping  # :name was looked for, else ?
        self.names = names  # one for each parameter of the driver, in order; () with a sequence
        self.count = count  # of ?; 0 with a mapping
        self.native = native  # nothing was converted
        self._anything = anything  # the driver's own placeholders: the driver checks
        self._hint = hint  # ends the message of a mismatch
        self._keys = frozenset(names)
        self._counts: frozenset[int] = frozenset()  # of ? in other sessions

    def agree(self, others: Sequence[Template]) -> None:
        """With how sessions with other settings read the same text: what depends on that is left
        to the server if the text for it is the same, else to the link, which knows its session."""
        if all(each.text == self.text and each.names == self.names for each in others):
            self._counts = frozenset(each.count for each in others)
        else:
            self.text = UsualText(self.text)

    def __repr__(self) -> str:
        return f"<Template {self.text!r}>"

    def bind(
        self, parameters: Sequence[Any] | Mapping[str, Any]
    ) -> Sequence[Any] | Mapping[str, Any]:
        """What to pass to the driver; the same object if it can be passed as it is."""
        if self.mapping:
            return self._bind_mapping(parameters)
        if not isinstance(parameters, (list, tuple)):
            parameters = _as_tuple(parameters)
        if len(parameters) == self.count or self._anything or len(parameters) in self._counts:
            return parameters
        raise ValueError(self._miscounted(len(parameters)))

    def _bind_mapping(self, parameters: Any) -> Sequence[Any] | Mapping[str, Any]:
        if type(parameters) is not dict and not isinstance(parameters, Mapping):
            kind = type(parameters).__name__
            raise TypeError(f"parameters must be a mapping for :name, not {kind}: pass a dict")
        if self._anything:
            return parameters
        if parameters.keys() != self._keys:
            raise ValueError(self._mismatched(parameters))
        return [parameters[name] for name in self.names]

    def _miscounted(self, given: int) -> str:
        were = "was" if given == 1 else "were"
        return (
            f"the statement has {_plural(self.count, 'placeholder')} (?), "
            f"but {_plural(given, 'parameter')} {were} given{self._hint}"
        )

    def _mismatched(self, parameters: Mapping[str, Any]) -> str:
        missing = [name for name in dict.fromkeys(self.names) if name not in parameters]
        left_over = [name for name in parameters if name not in self._keys]
        parts = []
        if missing:
            parts.append(f"missing: {_listed(missing)}")
        if left_over:
            parts.append(f"left over, not in the statement: {_listed(left_over)}")
        return f"parameters do not match the statement: {'; '.join(parts)}{self._hint}"


def compile_template(text: str, dialect: Dialect, style: Style, *, mapping: bool) -> Template:
    """Rewrite the placeholders of `text` for parameters that are a mapping, or a sequence."""
    template = _compile(text, dialect, style, mapping)
    others = readings(text, dialect)[1:]
    if others:
        try:
            template.agree([_compile(text, each, style, mapping) for each in others])
        except ValueError:  # it would be refused there
            template.text = UsualText(template.text)
    return template


def readings(text: str, dialect: Dialect) -> tuple[Dialect, ...]:
    """How a text may be read, depending on the settings of the session; the usual one is first."""
    return (dialect, *dialect.others) if dialect.others and "\\" in text else (dialect,)


def marks(text: str, dialect: Dialect) -> list[int]:
    """Where the `?` are."""
    return [start for kind, start, _ in landmarks(text, dialect) if kind == "mark"]


def _compile(text: str, dialect: Dialect, style: Style, mapping: bool) -> Template:
    found = _Found()
    if _WORTH_A_LOOK.search(text):
        found.look(text, dialect, style, mapping=mapping)
    if found.converted and (style == "format" or dialect.percent_marks) and "%" in text:
        found.own = found.own or next(_percent_marks(text, dialect), "")
    elif dialect.percent_marks and style == "qmark" and "%" in text:
        text = found.look_for_percents(text, dialect, mapping=mapping)
    if found.converted and found.own:
        raise ValueError(
            f"the statement mixes {':name' if mapping else '?'} with {found.own}, the driver's own "
            "placeholder: use one style, and ?? for a literal question mark"
        )
    return Template(
        found.rewritten(text, double=style == "format"),
        mapping=mapping,
        names=found.names(style) if mapping else (),
        count=0 if mapping else len(found.converted),
        native=not found.converted,
        anything=not found.converted and found.leaves_to_driver(text, style, mapping=mapping),
        hint=found.hint(dialect, style, mapping=mapping),
    )


def describe_placeholders(text: str, dialect: Dialect, style: Style) -> str:
    """The placeholders of a text in words, such as "2 placeholders (:a, :b)"; "": it has none."""
    found: list[str] = []  # each by its number: every ? and every %s is one
    if _WORTH_A_LOOK.search(text):
        kinds = ("mark", "named", "own")
        seen = landmarks(text, dialect)
        found += (text[start:end] for kind, start, end in seen if kind in kinds)
    if "%" in text and style != "numeric" and not dialect.numbered_marks:
        found += _percent_marks(text, dialect)
    names = dict.fromkeys(found)
    number = len(names) + sum(found.count(each) - 1 for each in ("?", "%s") if each in names)
    shown = [*names][:SHOWN]
    more = ", ..." if len(names) > SHOWN else ""
    return f"{_plural(number, 'placeholder')} ({', '.join(shown)}{more})" if found else ""


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
    find, kinds = _landmarks(dialect)
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
            elif text[start] in "$eE":
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
            if dialect.brackets and _BEFORE_DOT.match(text, end):  # SQLite takes 'temp' for a name
                last = text.rfind("'", start, end - 1)
                parts[-1:] = ("'' ", text[last:end]) if last > start else (text[start:end],)
        elif kind == "comment" and not text.startswith(("/*!", "/*M!"), start):
            parts += (text[rest:start], "/**/")  # or what is around it would become one
        else:
            continue
        rest = end
    parts.append(text[rest:])
    return _ROWS.sub(", ('')", "".join(parts))


class _Found:
    """What a scan for placeholders saw."""

    __slots__ = ("converted", "marks", "named", "own", "own_name", "parts", "rest")

    def __init__(self) -> None:
        self.converted: list[str] = []  # ? or the name, for each placeholder of the wanted kind
        self.parts: list[str] = []  # text as it is, replacement, text as it is, replacement...
        self.rest = 0  # where the text begins that is not in parts
        self.marks = False  # there is a ?
        self.named = False  # there is a :name
        self.own = ""  # the first placeholder of the driver's own
        self.own_name = False  # one of them has a name

    def look(self, text: str, dialect: Dialect, style: Style, *, mapping: bool) -> None:
        numbers: dict[str, int] = {}
        for kind, start, end in landmarks(text, dialect):
            if kind == "mark":
                self.marks = True
                if not mapping:
                    self.converted.append("?")
                    self._replace(text, start, end, style, len(self.converted))
            elif kind == "named":
                self.named = True
                if mapping:
                    name = text[start + 1 : end]
                    self.converted.append(name)
                    number = numbers.setdefault(name, len(numbers) + 1)
                    self._replace(text, start, end, style, number)
            elif kind == "escape":
                self.parts += (text[self.rest : start + 1], "")
                self.rest = end
            elif kind == "own":
                self.own = self.own or text[start:end]
                self.own_name = self.own_name or text[start] in "@$#"

    def look_for_percents(self, text: str, dialect: Dialect, *, mapping: bool) -> str:
        """The text with `?` for %s, or for %(name)s, if those are its placeholders."""
        found = [*_OWN_PERCENT.finditer(text)]
        inside = {
            at
            for kind, start, end in landmarks(text, dialect)
            if kind in QUOTED
            for at in range(start, end)
            if text[at] == "%"
        }
        own = [each for each in found if each["kind"] == "s" and each.start() not in inside]
        if not any((each["key"] is not None) == mapping for each in own):
            return text

        def replaced(percent: re.Match[str]) -> str:
            if percent["kind"] == "%" and percent["key"] is None:
                return "%"
            wanted = percent["kind"] == "s" and (percent["key"] is not None) == mapping
            if not wanted or percent.start() in inside:
                raise ValueError(
                    f"the statement has the driver's own placeholders, and {percent[0]!r} as well: "
                    f"write %% for a literal percent sign, and no placeholder inside quotes"
                )
            self.converted.append("?" if percent["key"] is None else percent["key"])
            return "?"

        self.parts.clear()  # ?? is two of them here
        return _OWN_PERCENT.sub(replaced, text)

    def rewritten(self, text: str, *, double: bool) -> str:
        if not self.parts:
            return text
        parts = [*self.parts, text[self.rest :]]
        if double and self.converted:
            parts[::2] = [part.replace("%", "%%") for part in parts[::2]]
        return "".join(parts)

    def names(self, style: Style) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.converted) if style == "numeric" else self.converted)

    def leaves_to_driver(self, text: str, style: Style, *, mapping: bool) -> bool:
        """Whether the driver, not we, checks the parameters of a text that was not converted."""
        if style == "format":
            return bool((_BY_NAME if mapping else _BY_PLACE).search(text))
        return style == "qmark" and self.own_name if mapping else bool(self.own)

    def hint(self, dialect: Dialect, style: Style, *, mapping: bool) -> str:
        if mapping:
            listed = self.marks and not self.named
            return "; the placeholder ? takes a list: pass a list" if listed else ""
        if self.named:
            return "; the placeholder :name takes a mapping: pass a mapping"
        if self.marks:
            return " (?? is a literal question mark)"
        own = "?1" if dialect.numbered_marks else "$1" if style == "numeric" else "%s"
        return f"; known are ? with a list, :name with a mapping, and the driver's own {own}"

    def _replace(self, text: str, start: int, end: int, style: Style, number: int) -> None:
        self.parts += (text[self.rest : start], _replacement(text, start, end, style, number))
        self.rest = end


def _replacement(text: str, start: int, end: int, style: Style, number: int) -> str:
    """The driver's placeholder; where it would run together with a word, with a space between."""
    if style == "qmark":
        return "?"
    mark = f"${number}" if style == "numeric" else "%s"
    if start and text[start - 1] not in _APART:
        mark = f" {mark}"
    if end < len(text) and text[end] not in _APART:
        mark = f"{mark} "
    return mark


def _percent_marks(text: str, dialect: Dialect) -> Iterator[str]:
    """Every %s and %(name)s that is not quoted."""
    rest = 0
    for kind, start, end in landmarks(text, dialect):
        if kind in QUOTED:
            yield from (found[0] for found in _PERCENT.finditer(text, rest, start))
            rest = end
    yield from (found[0] for found in _PERCENT.finditer(text, rest))


def _as_tuple(parameters: Any) -> tuple[Any, ...]:
    refused = (str, bytes, bytearray, memoryview)
    if isinstance(parameters, refused) or not isinstance(parameters, Sequence):
        kind = type(parameters).__name__
        raise TypeError(f"parameters must be a sequence for ?, not {kind}: pass a list")
    return tuple(parameters)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names))


# As the servers do it, everything that is not ASCII may be part of a name.
_NO_BOM = "(?!\ufeff)"
_LETTER = r"A-Za-z_\x80-\U0010ffff"
_APART = frozenset(re.findall(rf"[^{_LETTER}0-9$]", "".join(map(chr, range(128)))))
_WORD_OR_NUMBER = re.compile(rf"[{_LETTER}][{_LETTER}0-9$]*|[0-9][{_LETTER}0-9]*")
_IN_WORD = re.compile(rf"[{_LETTER}0-9$]+")
_WORTH_A_LOOK = re.compile(r"[?:@$#]")
_OWN_PERCENT = re.compile(r"%(?:\((?P<key>[^)]*)\))?(?P<kind>.?)", re.DOTALL)

# psycopg also knows %b and %t, and looks for all of them in quotes, too.
_BY_PLACE = re.compile(r"%[sbt]")
_BY_NAME = re.compile(r"%\([^)]*\)[sbt]")
_PERCENT = re.compile(r"%(?:\(\w+\))?s(?!\w)")

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
        "string": _strings(dialect),
        # For SQLite a byte order mark is white space: a file may begin with one.
        "word": rf"{_NO_BOM if dialect.brackets else ''}[{_LETTER}][{_LETTER}0-9$]*",
        "number": rf"[0-9][{_LETTER}0-9]*",
        "name": _names(dialect),
        "comment": _comments(dialect),
        "nested": r"/\*" if dialect.nested_comments else "",
        "dollar": rf"\$(?:[{_LETTER}][{_LETTER}0-9]*)?\$" if dialect.dollar_quotes else "",
        "escape": r"\?\?",
        "own": _own(dialect),
        "mark": r"\?",
        "named": _NAMED,
        "symbol": "|".join(map(re.escape, SYMBOLS)),
    }
    return re.compile("|".join(f"(?P<{k}>{v})" for k, v in pieces.items() if v), re.DOTALL)


@cache
def _landmarks(dialect: Dialect) -> tuple[Callable[..., Iterator[re.Match[str]]], dict[str, Any]]:
    """How to find them, and what they are by their first character. Every alternative begins with a
    fixed character: the places where none can begin are passed over at full speed."""
    strings, _, escaped = _strings(dialect).partition("|[eE]")
    pieces = [strings.replace(_END, f"{_END}{_MORE}", 1)]
    if escaped:
        pieces += (f"e{escaped}", f"E{escaped}")
    if dialect.dollar_quotes:
        pieces += (rf"\$(?:[{_LETTER}][{_LETTER}0-9]*)?\$", r"\$[0-9]+")
    if dialect.numbered_marks:
        rest = rf"[{_LETTER}0-9$]+"
        pieces += (r"\?[0-9]+", f"@{rest}", f"#{rest}", rf"\${rest}")
    names = _names(dialect)
    pieces += (names, _comments(dialect), r"/\*" if dialect.nested_comments else "")
    pieces += (r"\?\?", r"\?", _NAMED)
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
    }
    return re.compile("|".join(filter(None, pieces)), re.DOTALL).finditer, kinds


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
        return rf"\?[0-9]+|[@$#][{_LETTER}0-9$]+"
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
