"""Placeholders: the rules one by one, then texts whose conversion is known by construction."""

import contextlib
import re
import sqlite3
import time
from collections import ChainMap, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cenote.sql.parsing.placeholders import (
    MYSQL,
    POSTGRESQL,
    SQLITE,
    Dialect,
    Style,
    Template,
    compile_template,
    describe_placeholders,
)
from cenote.sql.parsing.tokens import condensed, landmarks, tokens

pytestmark = [pytest.mark.once, pytest.mark.coreless]

DIALECTS = [POSTGRESQL, MYSQL, SQLITE]
DRIVERS: list[tuple[Dialect, Style]] = [
    (POSTGRESQL, "numeric"),
    (POSTGRESQL, "format"),
    (MYSQL, "qmark"),
    (SQLITE, "qmark"),
]
STYLES: dict[str, Style] = {"postgresql": "numeric", "mysql": "format", "sqlite": "qmark"}


def by_list(text: str, dialect: Dialect = POSTGRESQL, style: Style | None = None) -> Template:
    return compile_template(text, dialect, style or STYLES[dialect.name], mapping=False)


def by_name(text: str, dialect: Dialect = POSTGRESQL, style: Style | None = None) -> Template:
    return compile_template(text, dialect, style or STYLES[dialect.name], mapping=True)


# The rules, with a list.


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("numeric", "a = $1 and b in ($2,$3)"),
        ("format", "a = %s and b in (%s,%s)"),
        ("qmark", "a = ? and b in (?,?)"),
    ],
)
def test_a_question_mark_becomes_the_placeholder_of_the_driver(style: Style, expected: str) -> None:
    template = by_list("a = ? and b in (?,?)", POSTGRESQL, style)
    assert template.text == expected
    assert template.count == 3
    assert template.names == ()
    assert not template.native


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (dialect, text)
        for dialect in DIALECTS
        for text in [
            *["'?'", "'it''s ?'", "'' '?' ''", '"?"', '"a""?"', "-- ?\n", "--\t?"],
            *["/* ? */", "/* ' ? */", "/*/ ? */", "/** ? **/"],
            "-- it's\n'?'",
            "'/*' /* ' */ '? */'",
            *["N'?' X'?'", "'?", '"?', "/* ?", "-- ?"],
        ]
    ]
    + [
        (POSTGRESQL, r"E'\'?'"),
        (POSTGRESQL, r"e'\\' '?'"),
        (POSTGRESQL, r"E'a''\'?'"),
        (POSTGRESQL, "E'a'\n'b\\'?'"),
        (POSTGRESQL, "E'a' -- it's\n  'b\\'?'"),
        (POSTGRESQL, "E'\\"),
        (POSTGRESQL, r"U&'\' '?'"),
        (POSTGRESQL, r"'\' '?'"),
        (POSTGRESQL, r"namE'\' '?'"),
        (POSTGRESQL, 'U&"?"'),
        (POSTGRESQL, "/* /* ? */ ? */"),
        (POSTGRESQL, "/* /*/ */ ? */"),
        (POSTGRESQL, "$$ ? $$"),
        (POSTGRESQL, "$a$ $$ ? $b$ ? $a$"),
        (POSTGRESQL, "$é1$ ? $é1$"),
        (POSTGRESQL, "$$ ' $$ '?'"),
        (POSTGRESQL, "$a$ ? $$"),
        (MYSQL, r"'\'?'"),
        (MYSQL, r'"\"?"'),
        (MYSQL, r"'\\' '?'"),
        (MYSQL, "'\\"),
        (MYSQL, "`?`"),
        (MYSQL, "`a``?`"),
        (MYSQL, r"`\` '?'"),
        (MYSQL, "# it's ?\n'?'"),
        (MYSQL, "/*! ? */"),
        (MYSQL, "/*+ ? */"),
        (SQLITE, "`?`"),
        (SQLITE, "[?]"),
        (SQLITE, "['] '?'"),
        (SQLITE, "[?"),
        (SQLITE, r"'\' '?'"),
        (SQLITE, "-- \r ?"),
    ],
)
def test_what_is_quoted_is_not_a_placeholder(dialect: Dialect, text: str) -> None:
    for mapping in (False, True):
        quoted = text.replace("?", ":n") if mapping else text
        template = compile_template(quoted, dialect, STYLES[dialect.name], mapping=mapping)
        assert template.text == quoted
        assert template.native


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        (POSTGRESQL, "'a' ? 'b'", "'a' $1 'b'"),
        (POSTGRESQL, r"'\' ? '\'", r"'\' $1 '\'"),
        (POSTGRESQL, r"E'\\' ?", r"E'\\' $1"),
        (POSTGRESQL, "E'a' 'b\\' ?", "E'a' 'b\\' $1"),
        (POSTGRESQL, "/* /* */ */ ?", "/* /* */ */ $1"),
        (POSTGRESQL, "$$ $$ ? $a$ $a$ ?", "$$ $$ $1 $a$ $a$ $2"),
        (POSTGRESQL, "a$b$ = ? and b$b$", "a$b$ = $1 and b$b$"),
        (POSTGRESQL, "-- it's\r?", "-- it's\r$1"),
        (POSTGRESQL, "a[?:?]", "a[$1:$2]"),
        (POSTGRESQL, "`?`", "`$1`"),
        (POSTGRESQL, "# ?", "# $1"),
        (POSTGRESQL, "?::int", "$1::int"),
        (MYSQL, "1--?", "1--%s"),
        (MYSQL, "'a'--'b' ?", "'a'--'b' %s"),
        (MYSQL, "$$ ? $$", "$$ %s $$"),
        (MYSQL, "/* /* */ ?", "/* /* */ %s"),
        (MYSQL, "a # b\n?", "a # b\n%s"),
        (SQLITE, "'\\' ? /* /* */ ?", "'\\' ? /* /* */ ?"),
    ],
)
def test_what_is_not_quoted_is_one(dialect: Dialect, text: str, expected: str) -> None:
    template = by_list(text, dialect)
    assert template.text == expected
    assert not template.native


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        (POSTGRESQL, "limit?", "limit $1"),
        (POSTGRESQL, "?and?", "$1 and $2"),
        (POSTGRESQL, "?1", "$1 1"),
        (POSTGRESQL, "é?é", "é $1 é"),
        (POSTGRESQL, "a$?", "a$ $1"),
        (MYSQL, "limit?offset", "limit %s offset"),
        (SQLITE, "limit?", "limit?"),
    ],
)
def test_a_placeholder_does_not_run_together_with_a_word(
    dialect: Dialect, text: str, expected: str
) -> None:
    assert by_list(text, dialect).text == expected


@pytest.mark.parametrize(
    ("text", "sequence", "mapping"),
    [
        ("a ?? b", "a ? b", "a ? b"),
        ("a ??| b ??& c @?? d", "a ?| b ?& c @? d", "a ?| b ?& c @? d"),
        ("???", "?$1", "??"),
        ("????", "??", "??"),
        ("'??' -- ??", "'??' -- ??", "'??' -- ??"),
        ("a ?? '?' = ?", "a ? '?' = $1", "a ? '?' = ?"),
    ],
)
def test_two_question_marks_are_a_literal_one(text: str, sequence: str, mapping: str) -> None:
    assert by_list(text).text == sequence
    assert by_name(text).text == mapping


# The rules, with a mapping.


@pytest.mark.parametrize(
    ("style", "expected", "names"),
    [
        ("numeric", "$1 $2 $1", ("a", "b")),
        ("format", "%s %s %s", ("a", "b", "a")),
        ("qmark", "? ? ?", ("a", "b", "a")),
    ],
)
def test_a_name_becomes_the_placeholder_of_the_driver(
    style: Style, expected: str, names: tuple[str, ...]
) -> None:
    template = by_name(":a :b :a", POSTGRESQL, style)
    assert template.text == expected
    assert template.names == names
    assert template.count == 0
    assert not template.native


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":a::int", "$1::int"),
        ("(:a)::int", "($1)::int"),
        ("(:größe_2)", "($1)"),
        ("-:a*:b", "-$1*$2"),
        ("a[:a]", "a[$1]"),
        ("a[:a : :b]", "a[$1 : $2]"),
        ("x ? 'y' and x ?| :a", "x ? 'y' and x ?| $1"),
        ("/**/:a", "/**/$1"),
        ("$$:x$$ :a", "$$:x$$ $1"),
    ],
)
def test_a_name_after_a_colon_is_a_placeholder(text: str, expected: str) -> None:
    assert by_name(text).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "x::int",
        "'x' ::int",
        "x:::int",
        "@x := 1",
        "@x :=y",
        "a[1:n]",
        "a[m:n]",
        "a[b[1]:n]",
        "a[f(1):n]",
        'a["m":n]',
        *["a[1: n]", "12:30", "label:loop", ":1", "? ?| ?&"],
    ],
)
@pytest.mark.parametrize("dialect", [POSTGRESQL, MYSQL], ids=lambda dialect: dialect.name)
def test_casts_assignments_and_slices_are_no_placeholders(dialect: Dialect, text: str) -> None:
    template = by_name(text, dialect)
    assert template.text == text
    assert template.native


def test_with_a_list_names_are_left_alone_and_the_other_way_round() -> None:
    assert by_list("a[:x] = ?").text == "a[:x] = $1"
    assert by_name("a ? :x").text == "a ? $1"


# The driver's own style.


@pytest.mark.parametrize(
    ("dialect", "style", "text", "parameters"),
    [
        (POSTGRESQL, "numeric", "select $1, $2, '50%'", [1, 2]),
        (POSTGRESQL, "format", "select %s, '100%%', '?'", [1]),
        (POSTGRESQL, "format", "select %(a)s", {"a": 1}),
        (MYSQL, "format", "select %s, date_format(x, '%%H:%%i')", [1]),
        (MYSQL, "format", "select %(a)s", {"a": 1}),
        (SQLITE, "qmark", "select ?1, ?2, ?1", [1, 2]),
        (SQLITE, "qmark", "select @a, $b", {"a": 1, "b": 2}),
        (POSTGRESQL, "numeric", "select 1", []),
        (POSTGRESQL, "numeric", "select '100%'", ()),
    ],
)
def test_the_own_style_of_the_driver_passes(
    dialect: Dialect, style: Style, text: str, parameters: Any
) -> None:
    mapping = isinstance(parameters, dict)
    template = compile_template(text, dialect, style, mapping=mapping)
    assert template.native
    assert template.text == text
    assert template.bind(parameters) is parameters


@pytest.mark.parametrize("text", ["'100%' -- %d\n || ? || \"%\"", "? % 10 /* 5% */"])
def test_literal_percent_signs_are_doubled_where_a_placeholder_was_converted(text: str) -> None:
    expected = text.replace("%", "%%").replace("?", "%s")
    assert by_list(text, POSTGRESQL, "format").text == expected
    assert by_name(text.replace("?", ":a"), POSTGRESQL, "format").text == expected
    assert by_list(text, POSTGRESQL, "numeric").text == text.replace("?", "$1")


def test_percent_signs_stay_where_nothing_was_converted() -> None:
    assert by_list("'100%' ?? %s", POSTGRESQL, "format").text == "'100%' ? %s"


@pytest.mark.parametrize(
    ("dialect", "style", "text", "own"),
    [
        (POSTGRESQL, "numeric", "select {}, $1", "$1"),
        (POSTGRESQL, "format", "select {}, $1", "$1"),
        (SQLITE, "qmark", "select ?2, {}, ?1", "?2"),
        (SQLITE, "qmark", "select {}, @x", "@x"),
        (SQLITE, "qmark", "select {}, $x", "$x"),
    ],
)
def test_styles_do_not_mix(dialect: Dialect, style: Style, text: str, own: str) -> None:
    for mapping, mine in ((False, "?"), (True, ":name")):
        with pytest.raises(ValueError) as caught:
            compile_template(text.format(mine), dialect, style, mapping=mapping)
        assert str(caught.value) == (
            f"the statement mixes {mine} with {own}, the driver's own placeholder: "
            "use one style, and ?? for a literal question mark"
        )


def test_own_placeholders_in_quotes_are_not_mixed() -> None:
    assert by_list("'$1' a$1 $$ $1 $$ ?").text == "'$1' a$1 $$ $1 $$ $1"
    assert by_list("'?1' [@x] ?", SQLITE).text == "'?1' [@x] ?"


# Binding.


def test_a_list_or_a_tuple_is_passed_as_it_is() -> None:
    template = by_list("?, ?")
    for parameters in ([1, 2], (1, 2)):
        assert template.bind(parameters) is parameters


@pytest.mark.parametrize("parameters", [range(1, 3), deque([1, 2])])
def test_another_sequence_is_passed_as_a_tuple(parameters: Sequence[int]) -> None:
    assert by_list("?, ?").bind(parameters) == (1, 2)


@pytest.mark.parametrize(
    "parameters",
    ["ab", b"ab", bytearray(b"ab"), memoryview(b"ab"), {1, 2}, iter([1, 2]), 12, None, {"a": 1}],
)
def test_what_is_not_a_sequence_is_refused(parameters: Any) -> None:
    with pytest.raises(TypeError) as caught:
        by_list("?, ?").bind(parameters)
    kind = type(parameters).__name__
    assert str(caught.value) == f"parameters must be a sequence for ?, not {kind}: pass a list"


def test_what_is_not_a_mapping_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a mapping for :name, not list: pass a dict"):
        by_name(":a").bind([1])


@pytest.mark.parametrize("wrap", [dict, MappingProxyType, ChainMap])
def test_a_mapping_is_put_in_the_order_of_the_driver(wrap: Any) -> None:
    parameters: Mapping[str, int] = wrap({"b": 2, "a": 1})
    assert by_name(":a :b :a").bind(parameters) == [1, 2]
    assert by_name(":a :b :a", MYSQL).bind(parameters) == [1, 2, 1]


MISMATCH = "parameters do not match the statement: "
LEFT_OVER = "left over, not in the statement: "
PASS_A_LIST = "; the placeholder ? takes a list: pass a list"
PASS_A_MAPPING = "; the placeholder :name takes a mapping: pass a mapping"
LITERAL = " (?? is a literal question mark)"


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("?, ?, ?", [1, 2], f"has 3 placeholders (?), but 2 parameters were given{LITERAL}"),
        ("?, ?", [1], f"has 2 placeholders (?), but 1 parameter was given{LITERAL}"),
        ("?, :a", [1, 2], f"has 1 placeholder (?), but 2 parameters were given{PASS_A_MAPPING}"),
        (":a", [1], f"has 0 placeholders (?), but 1 parameter was given{PASS_A_MAPPING}"),
        (":a :b :c", {"b": 1}, f"{MISMATCH}missing: 'a', 'c'"),
        (":a", {"a": 1, "b": 2, "c": 3}, f"{MISMATCH}{LEFT_OVER}'b', 'c'"),
        (":a", {"A": 1}, f"{MISMATCH}missing: 'a'; {LEFT_OVER}'A'"),
        ("?", {"a": 1}, f"{MISMATCH}{LEFT_OVER}'a'{PASS_A_LIST}"),
        ("select 1", {"a": 1}, f"{MISMATCH}{LEFT_OVER}'a'"),
    ],
)
@pytest.mark.parametrize(("dialect", "style"), DRIVERS)
def test_a_mismatch_names_what_is_missing_or_left_over(
    dialect: Dialect, style: Style, text: str, parameters: Any, message: str
) -> None:
    template = compile_template(text, dialect, style, mapping=isinstance(parameters, dict))
    with pytest.raises(ValueError) as caught:
        template.bind(parameters)
    assert str(caught.value).removeprefix("the statement ") == message


@pytest.mark.parametrize(
    ("dialect", "style", "text", "own"),
    [
        (POSTGRESQL, "numeric", "select 1", "$1"),
        (POSTGRESQL, "numeric", "select %s", "$1"),
        (POSTGRESQL, "numeric", "select '?', '$1'", "$1"),
        (POSTGRESQL, "format", "select 1", "%s"),
        (POSTGRESQL, "format", "select $1", "%s"),
        (MYSQL, "format", "select 1", "%s"),
        (SQLITE, "qmark", "select 1", "?1"),
        (SQLITE, "qmark", "select '%s'", "?1"),
    ],
)
def test_parameters_without_placeholders_are_refused(
    dialect: Dialect, style: Style, text: str, own: str
) -> None:
    template = by_list(text, dialect, style)
    assert template.bind([]) == []
    for parameters, number in (([1], "1 parameter was"), ((1, 2), "2 parameters were")):
        with pytest.raises(ValueError) as caught:
            template.bind(parameters)
        assert str(caught.value) == (
            f"the statement has 0 placeholders (?), but {number} given; known are ? with a list, "
            f":name with a mapping, and the driver's own {own}"
        )


@pytest.mark.parametrize(
    ("text", "own"),
    [("? %s", "%s"), ("%s, ?", "%s"), (":a %(b)s", "%(b)s"), ("'%s' -- %s\n, %s, ?", "%s")],
)
def test_percent_signs_do_not_mix_with_others(text: str, own: str) -> None:
    mapping = ":" in text
    mixed = f"mixes {':name' if mapping else '?'} with {own}"
    with pytest.raises(ValueError, match=re.escape(mixed)):
        compile_template(text, POSTGRESQL, "format", mapping=mapping)


@pytest.mark.parametrize(
    "text", ["'%s' ?", "? -- %s", '"%s" ?', "a % s + ?", "a %self + ?", "$$%s$$ ?"]
)
def test_what_only_looks_like_a_percent_sign_is_no_mixture(text: str) -> None:
    expected = text.replace("%", "%%").replace("?", "%s")
    assert by_list(text, POSTGRESQL, "format").text == expected


@pytest.mark.parametrize(
    ("dialect", "style", "text", "expected"),
    [
        (POSTGRESQL, "numeric", "select 1, '?', x::int", ""),
        (POSTGRESQL, "numeric", "? + ?", "2 placeholders (?)"),
        (POSTGRESQL, "numeric", ":a + :b + :a", "2 placeholders (:a, :b)"),
        (POSTGRESQL, "numeric", "$1 + $2 + $1 || '%s'", "2 placeholders ($1, $2)"),
        (POSTGRESQL, "format", "%s + %s || '%s'", "2 placeholders (%s)"),
        (POSTGRESQL, "format", "%(a)s", "1 placeholder (%(a)s)"),
        (SQLITE, "qmark", "?1 + @b + x %s", "2 placeholders (?1, @b)"),
        (SQLITE, "qmark", ":a :b :c :d :e :f", "6 placeholders (:a, :b, :c, :d, :e, ...)"),
    ],
)
def test_placeholders_in_words(dialect: Dialect, style: Style, text: str, expected: str) -> None:
    assert describe_placeholders(text, dialect, style) == expected


def test_a_default_does_not_fill_in_for_a_missing_name() -> None:
    class Defaults(dict[str, int]):
        def __missing__(self, key: str) -> int:
            return 0

    with pytest.raises(ValueError, match="missing: 'a'"):
        by_name(":a").bind(Defaults())


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
        assert protected(template.text, dialect) == kept


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
            start = time.process_time()
            with contextlib.suppress(ValueError):
                by_list(text, dialect)
            assert time.process_time() - start < 1.5  # usual: 0.03; quadratic: minutes


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
