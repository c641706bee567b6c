"""Placeholders in texts whose conversion is known by construction."""

import contextlib
import sqlite3
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cenote.sql.dialects import MYSQL, SQLITE, Dialect
from cenote.sql.parsing.placeholders import Style, compile_template
from cenote.sql.parsing.tokens import condensed, landmarks, tokens
from tests.support.dialects import DIALECTS, DRIVERS, by_list, by_name

pytestmark = [pytest.mark.once, pytest.mark.coreless]


# Texts made of pieces, whose conversion is known.


@dataclass(frozen=True)
class Piece:
    kind: str  # "plain", "?", ":", "??"
    text: str


SNIPPETS = ["??", ":a", "%s", "$1", "$$", "$t$", "--", "-- ", "/*", "*/", *"?:%$'\"`\\[]#*/\n ;Eé"]
HOSTILE = st.lists(st.sampled_from(SNIPPETS), max_size=8).map("".join)


def quoted(text: str, quote: str) -> str:
    return f"{quote}{text.replace(quote, quote * 2)}{quote}"


def escaped(text: str, quote: str) -> str:
    return quoted(text.replace("\\", "\\\\"), quote)


def with_backslashes(text: str, quote: str) -> str:
    return f"{quote}{text.replace(chr(92), chr(92) * 2).replace(quote, chr(92) + quote)}{quote}"


def block_comment(text: str) -> str:
    return f"/*{text.replace('*', '+')} */"


def nested_comment(text: str) -> str:
    return f"/*{text.replace('*', '+')}/*{text.replace('*', '+')} */ ' ? */"


def line_comment(text: str, opening: str = "-- ") -> str:
    return f"{opening}{text.replace(chr(10), ' ')}\n"


def dollar_quoted(text: str) -> str:
    return f"$tag${text.replace('$tag', '')} $tag$"


PLAIN_CODE = ["a", "1", "x::int", "a[1:n]", "b$c", "E", "(x)", "- 1", "y % 2", "t.c", "1 : 2", "<@"]


def quoted_pieces(dialect: Dialect) -> st.SearchStrategy[str]:
    common = [HOSTILE.map(line_comment), HOSTILE.map(block_comment)]
    if dialect is MYSQL:
        return st.one_of(
            *common,
            HOSTILE.map(lambda text: escaped(text, "'")),
            HOSTILE.map(lambda text: with_backslashes(text, "'")),
            HOSTILE.map(lambda text: with_backslashes(text, '"')),
            HOSTILE.map(lambda text: quoted(text, "`")),
            HOSTILE.map(lambda text: line_comment(text, "#")),
        )
    common += [HOSTILE.map(lambda text: quoted(text, "'"))]
    common += [HOSTILE.map(lambda text: quoted(text, '"'))]
    if dialect is SQLITE:
        return st.one_of(
            *common,
            HOSTILE.map(lambda text: quoted(text, "`")),
            HOSTILE.map(lambda text: f"[{text.replace(']', '')}]"),
        )
    return st.one_of(
        *common,
        HOSTILE.map(lambda text: f"E{escaped(text, chr(39))}"),
        HOSTILE.map(lambda text: f"e{with_backslashes(text, chr(39))}"),
        HOSTILE.map(nested_comment),
        HOSTILE.map(dollar_quoted),
    )


def pieces(dialect: Dialect) -> st.SearchStrategy[list[Piece]]:
    return st.lists(
        quoted_pieces(dialect).map(lambda text: Piece("plain", text))
        | st.sampled_from([*(Piece("plain", text) for text in PLAIN_CODE), Piece("??", "??")])
        | st.just(Piece("?", "?"))
        | st.sampled_from(["a", "b", "ünï_1"]).map(lambda name: Piece(":", f":{name}")),
        max_size=12,
    )


@given(st.data())
@pytest.mark.parametrize("mapping", [False, True], ids=["list", "mapping"])
@pytest.mark.parametrize(("dialect", "style"), DRIVERS)
def test_pieces_are_converted_and_the_rest_is_not(
    dialect: Dialect, style: Style, mapping: bool, data: st.DataObject
) -> None:
    made = data.draw(pieces(dialect))
    separator = data.draw(st.sampled_from([", ", ",\n", " + "]))  # never E'a'\n'b'
    template = compile_template(
        separator.join(piece.text for piece in made), dialect, style, mapping=mapping
    )

    wanted = ":" if mapping else "?"
    names = [piece.text[1:] for piece in made if piece.kind == wanted]
    order = list(dict.fromkeys(names)) if mapping else []
    double = style == "format" and bool(names)
    expected = []
    number = 0
    for piece in made:
        if piece.kind == wanted:
            number = order.index(piece.text[1:]) + 1 if mapping else number + 1
            expected.append({"numeric": f"${number}", "format": "%s", "qmark": "?"}[style])
        elif piece.kind == "??":
            expected.append("?")
        else:
            expected.append(piece.text.replace("%", "%%") if double else piece.text)

    assert template.text == separator.join(expected)
    assert template.native == (not names)
    assert template.count == (0 if mapping else len(names))
    assert template.names == (() if not mapping else tuple(order if style == "numeric" else names))


@given(st.text(st.characters(codec="utf-8")) | HOSTILE | st.lists(HOSTILE).map("".join))
@example("?:A$$")  # a name with dollars, not a string that begins
@example("%s#%%")  # a percent sign is written twice in comments as well
@pytest.mark.parametrize(("dialect", "style"), DRIVERS)
def test_quoted_text_stays_as_it_was_in_any_text(dialect: Dialect, style: Style, text: str) -> None:
    for mapping in (False, True):
        try:
            template = compile_template(text, dialect, style, mapping=mapping)
        except ValueError:
            continue
        kept = protected(text, dialect)
        if style == "format" and not template.native:
            kept = [part.replace("%", "%%") for part in kept]
        elif not template.native and has_percent_marks_alone(text, dialect, style, mapping=mapping):
            kept = [part.replace("%%", "%") for part in kept]  # as the driver itself would do
        assert protected(template.text, dialect) == kept


def has_percent_marks_alone(text: str, dialect: Dialect, style: Style, *, mapping: bool) -> bool:
    """Whether a text that has placeholders has none but `%s` and the like."""
    if not dialect.percent_marks or "%" not in text:
        return False
    return compile_template(text.replace("%", "_"), dialect, style, mapping=mapping).native


def protected(text: str, dialect: Dialect) -> list[str]:
    kinds = ("string", "name", "comment")
    return [text[start:end] for kind, start, end in tokens(text, dialect) if kind in kinds]


@given(st.lists(HOSTILE).map("".join))
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_tokens_go_forward_and_do_not_overlap(dialect: Dialect, text: str) -> None:
    reached = 0
    for _kind, start, end in tokens(text, dialect):
        assert reached <= start < end <= len(text)
        reached = end


@pytest.mark.parametrize("opening", ["", "E'' ", "$$"])
def test_long_texts_take_no_long_time(opening: str) -> None:
    for piece in [*SNIPPETS, "?,", ":a,", "''", "E''\n", "\\'", "$a ", "1", "a?", "a = ? and "]:
        text = opening + piece * (100_000 // len(piece))
        for dialect in DIALECTS:
            with contextlib.suppress(ValueError):
                by_list(text, dialect)  # in milliseconds; what is quadratic reaches the timeout


# What SQLite makes of it.

SAFE = HOSTILE | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | SAFE | st.binary(max_size=5)


NOISE = st.just("") | HOSTILE.map(line_comment) | HOSTILE.map(block_comment)
# A literal, or None for a placeholder; the value that must arrive; what is written around it.
COLUMNS = st.lists(
    st.tuples(st.none(), VALUES, NOISE, NOISE)
    | SAFE.flatmap(lambda text: st.tuples(st.just(quoted(text, "'")), st.just(text), NOISE, NOISE)),
    min_size=1,
    max_size=6,
)
Columns = list[tuple[str | None, Any, str, str]]


@given(COLUMNS)
def test_sqlite_gets_the_values_of_a_list(columns: Columns) -> None:
    text = ", ".join(f"{before} {sql or '?'} {after}" for sql, _value, before, after in columns)
    template = by_list(f"select {text}", SQLITE)
    given_values = [value for sql, value, _before, _after in columns if sql is None]
    row = sqlite_row(template.text, template.bind(given_values))
    assert row == tuple(value for _sql, value, _before, _after in columns)


@given(COLUMNS, st.booleans())
def test_sqlite_gets_the_values_of_a_mapping(columns: Columns, twice: bool) -> None:
    columns = columns * 2 if twice else columns
    names = [f"p{at % (len(columns) // (1 + twice))}" for at in range(len(columns))]
    text = ", ".join(
        f"{before} {sql or ':' + name} {after}"
        for name, (sql, _value, before, after) in zip(names, columns, strict=True)
    )
    template = by_name(f"select {text}", SQLITE)
    given_values = {
        name: column[1] for name, column in zip(names, columns, strict=True) if column[0] is None
    }
    row = sqlite_row(template.text, template.bind(given_values))
    assert row == tuple(value for _sql, value, _before, _after in columns)


# Landmarks: the same in a fraction of the time.

PIECES = [*SNIPPETS, *"0123(),.=@e+-", "e'", "N'", "null", "'a', 'b'", "), ('c', 1.5), (-2, 'd'"]
MARKS = ("mark", "escape", "named", "own", "name", "comment")


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_landmarks_are_the_tokens_that_matter(dialect: Dialect, text: str) -> None:
    every, seen = [*tokens(text, dialect)], [*landmarks(text, dialect)]
    assert [each for each in seen if each[0] in MARKS] == [e for e in every if e[0] in MARKS]
    covered = {at for kind, start, end in seen if kind == "string" for at in range(start, end)}
    strings = {at for kind, start, end in every if kind == "string" for at in range(start, end)}
    assert strings <= covered
    assert not {text[at] for at in covered - strings} - set("NULnul0123456789 \n,()+-.")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_rows_of_a_long_insert_are_condensed(dialect: Dialect) -> None:
    strings = ", ".join(f"({at}, 'it''s; temp {at}', -{at}.5, NULL, 'x')" for at in range(1000))
    marks = ", ".join(f"({at}, ?, -{at}.5, NULL, ?)" for at in range(1000))
    short = condensed(f"insert into t values {strings}, {marks}; set a = 'b' + 1 -- ;", dialect)
    assert len(short) < 500
    assert short.startswith("insert into t values (0, '' ")
    assert "; set a = '' " in short
    assert "temp" not in short


def sqlite_row(text: str, parameters: Any) -> Any:
    connection = sqlite3.connect(":memory:")
    try:
        return connection.execute(text, parameters).fetchone()
    finally:
        connection.close()
