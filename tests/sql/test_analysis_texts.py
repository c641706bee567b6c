"""The analysis of texts made of statements whose meaning is known, and of any text."""

import sqlite3
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cenote.sql.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect
from cenote.sql.parsing import session_rules
from cenote.sql.parsing.session_rules import Analysis, analyse
from tests.support.dialects import DIALECTS

pytestmark = [pytest.mark.once, pytest.mark.coreless]


# Texts made of statements whose meaning is known.

HIDING = {
    POSTGRESQL: [
        "'{}'",
        '"{}"',
        "$${}$$",
        "$a${}$a$",
        "/*{}*/",
        "/* /*{}*/ {} */",
        "--{}\n",
        "E'{}'",
    ],
    MYSQL: ["'{}'", '"{}"', "`{}`", "/* {}*/", "-- {}\n", "#{}\n"],
    SQLITE: ["'{}'", '"{}"', "`{}`", "[{}]", "/*{}*/", "--{}\n"],
}


@pytest.mark.parametrize(
    "text",
    [
        "select '\\'; set @x = 1; select '\\'",  # with NO_BACKSLASH_ESCAPES
        'select "\\"; set @x = 1; select "\\"',
        """select "a\\", '"; set @x = 1; select '""",  # with ANSI_QUOTES
        "select 'a\\'; set @x = 1'",  # what it hides here it would not hide there
    ],
)
def test_what_touches_in_any_sql_mode_touches(text: str) -> None:
    found = analyse(text, MYSQL)
    assert found.touches == "SET"
    assert found.opaque


def test_an_end_in_some_sql_mode_only_is_opaque() -> None:
    found = analyse("select '\\'; commit; select '\\'", MYSQL)
    assert found.ends is None
    assert found.opaque
    assert analyse("select 'a\\\\'; commit", MYSQL).ends == "commit"
    assert not analyse("select 'a\\\\', 'b\\nc'", MYSQL).opaque


OPAQUE = ["call p()", "execute s", "execute immediate 'commit'", "begin not atomic commit; end",
          "if 1 then commit; end if", "/*! begin */", "insert into t values (1) /*!50000 */",
          "set statement max_statement_time = 1 for call p()", "select 1; call p()",
          "set autocommit = 0; create table t (a int); select 1", "binlog 'a'", "p", "(call p())",
          "set autocommit = 1; set autocommit = 0; select 1"]  # fmt: skip
PLAIN = ["select 1", "(select 1) union (select 2)", "insert into t values (1)", "savepoint a",
         "with c as (select 1) select 1", "create table t (a int)", "set autocommit = 0",
         "create temporary table t (a int)", "set @x = 1", "rollback to a", "commit", "begin",
         "select 1; update t set a = 1", "create procedure p() commit", "create table t (a int);",
         "create table t comment 'a;b'", "create /* ; */ table t (a int); -- ;"]  # fmt: skip


@pytest.mark.parametrize(("texts", "opaque"), [(OPAQUE, True), (PLAIN, False)])
def test_what_may_end_a_transaction_and_begin_another(texts: list[str], opaque: bool) -> None:
    assert [text for text in texts if analyse(text, MYSQL).opaque != opaque] == []
    assert [text for text in texts if analyse(text, POSTGRESQL).opaque] == []


@pytest.mark.parametrize(
    "text", ["xa start 'a'", "set profiling = 1", "set @@session.profiling = 1; set @x = 1"]
)
def test_what_no_reset_of_mysql_undoes(text: str) -> None:
    found = analyse(text, MYSQL)
    assert found.lasting
    assert found.touches in ("XA", "SET PROFILING")


def test_a_name_in_double_quotes_is_one_with_ansi_quotes() -> None:
    assert analyse("""select "get_lock"('a', 0)""", MYSQL).touches == "GET_LOCK()"
    assert analyse("""select "get_lock" """, MYSQL).touches is None


HARMFUL = {
    POSTGRESQL: ["set x = 1", "listen a", "select set_config(1)", "commit", "create temp table t"],
    MYSQL: ["set x = 1", "use a", "select get_lock(1)", "commit", "create temporary table t"],
    SQLITE: [
        "attach a",
        "pragma a = 1",
        "select load_extension(a)",
        "commit",
        "create temp table t",
    ],
}


@given(st.data())
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_is_quoted_does_nothing_and_what_is_not_counts(
    dialect: Dialect, data: st.DataObject
) -> None:
    harmful = st.sampled_from(HARMFUL[dialect])
    hidden = st.builds(
        lambda form, text: form.replace("{}", f"; {text};"),
        st.sampled_from(HIDING[dialect]),
        harmful,
    )
    statements = data.draw(
        st.lists(st.lists(hidden, max_size=3).map(lambda parts: " ".join(["select 1", *parts])))
    )
    text = ";".join(statements)
    assert analyse(text, dialect) == Analysis(
        touches=None,
        control=None,
        ends=None,
        read_only=False,
        keyword="SELECT" if statements else "",
        statements=len(statements),
    )

    at = data.draw(st.integers(0, len(statements)))
    shown = data.draw(harmful)
    statements.insert(at, shown)
    found = analyse(" ;".join(statements), dialect)
    assert (found.touches is None) == (shown == "commit")
    assert (found.control == "commit") == (shown == "commit")
    assert found.statements == len(statements)


WORDS = [
    *["select", "create", "or", "replace", "temp", "temporary", "function", "trigger", "definer"],
    *["explain", "analyze"],
    *["set", "begin", "atomic", "end", "case", "pragma", "into", "with", "hold", "declare", "to"],
    *["set_config", "last_insert_id", "pg_temp", "a", "1", "?", ":a", "'", '"', "`", "$$", "/*"],
    *["*/", "/*!", "--", "\n", " ", "(", ")", ";", ".", "=", ":=", "@", "[", "]", "\\", "é", "\0"],
]


PIECES = [
    *["select ", "insert into t values ", "set ", "temp", "'temp'.x", "set_config(", "setseed("],
    *["create ", "table ", "temporary ", "begin ", "commit;", "end;", "pg_temp."],
    *["function ", "atomic ", "get_lock(", "into ", "@x", ":=", "/*! set x */", "pragma x = 1;"],
    *["(", ")", ";", ",", "'", '"', "--", "/* ; */", "-- temp;\n", "'a', 'b'", ", (1, 'a')"],
    *["E'", "\\", "null", "1.5", " ", "'it''s'", "[a]", "`b`", "#", "$$"],
]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example("create /* ; */")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_long_text_is_read_as_a_short_one(dialect: Dialect, text: str) -> None:
    """By its condensed form. Whether it asks for read only may differ."""
    short = analyse(text, dialect)
    with mock.patch.object(session_rules, "LONG", -1):
        long = analyse(text, dialect)
    assert replace(long, read_only=False) == replace(short, read_only=False)


@given(
    st.text() | st.lists(st.sampled_from(WORDS)).map(" ".join) | st.lists(st.text()).map(";".join)
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_any_text_has_an_analysis(dialect: Dialect, text: str) -> None:
    found = analyse(text, dialect)
    assert found.statements >= (1 if found.keyword or found.touches or found.control else 0)


@pytest.mark.parametrize("opening", ["", "create function f() begin atomic ", "explain "])
def test_long_texts_take_no_long_time(opening: str) -> None:
    for piece in [*WORDS, "begin;", "(;", "; end", "create function;", "a.", "create trigger t;"]:
        text = opening + f"{piece} " * (50_000 // len(piece))
        for dialect in DIALECTS:
            analyse(text, dialect)  # in milliseconds; what is quadratic reaches pytest's timeout


# What SQLite makes of it.


CONTROLS = [
    *["begin", "begin immediate", "commit", "end", "rollback", "savepoint s", "select 1"],
    *["rollback to s", "rollback transaction to savepoint s", "insert into t values (1)"],
]


@given(st.lists(st.sampled_from(CONTROLS)))
def test_sqlite_agrees_on_whether_a_transaction_is_open(statements: list[str]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute("create table t (a)")
        for statement in statements:
            before = connection.in_transaction
            try:
                connection.execute(statement)
            except sqlite3.OperationalError:
                continue
            control = analyse(statement, SQLITE).control
            expected = {"begin": True, "commit": False, "rollback": False}.get(
                control or "", before or statement == "savepoint s"
            )
            assert connection.in_transaction == expected
    finally:
        connection.close()
