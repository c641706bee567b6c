"""Placeholders: the rules one by one."""

import re
from collections import ChainMap, deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from cenote.sql.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect
from cenote.sql.parsing.placeholders import (
    Style,
    compile_template,
    describe_placeholders,
)
from tests.support.dialects import DIALECTS, DRIVERS, STYLES, by_list, by_name

pytestmark = [pytest.mark.once, pytest.mark.coreless]


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


def test_names_and_marks_do_not_convert_each_other() -> None:
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
def test_placeholders_are_described_in_words(
    dialect: Dialect, style: Style, text: str, expected: str
) -> None:
    assert describe_placeholders(text, dialect, style) == expected


def test_a_default_does_not_fill_in_for_a_missing_name() -> None:
    class Defaults(dict[str, int]):
        def __missing__(self, key: str) -> int:
            return 0

    with pytest.raises(ValueError, match="missing: 'a'"):
        by_name(":a").bind(Defaults())
