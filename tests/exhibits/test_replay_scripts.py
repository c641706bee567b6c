"""The splitters of `make replay`, and what they must not let through."""

import pytest

from tests.exhibits.replay import mysqltest, psql, tcl
from tests.exhibits.replay.safety import danger
from tests.exhibits.replay.scripts import Script

pytestmark = pytest.mark.once


def texts(script: Script) -> list[str]:
    return [statement.text for statement in script.statements]


@pytest.mark.parametrize(
    ("script", "statements"),
    [
        ("select 1;\n\nselect\n 2 ;", ["select 1", "select\n 2"]),
        ("select ';'; select E'\\';';", ["select ';'", "select E'\\';'"]),
        ('select "a;b"; select 1', ['select "a;b"', "select 1"]),
        ("select 'it''s;';select 1", ["select 'it''s;'", "select 1"]),
        ("select $$;$$; select $a$ $$;$$ $a$;", ["select $$;$$", "select $a$ $$;$$ $a$"]),
        ("select /* ; /* ; */ ; */ 1;", ["select /* ; /* ; */ ; */ 1"]),
        ("select 1; -- ; \nselect 2;", ["select 1", "select 2"]),
        ("/* kept */ select -- 1;\n1;", ["/* kept */ select -- 1;\n1"]),
        ("-- only this\n;\n/* and this */;", []),
        (
            "create rule r as on insert to t do (select 1; select 2);select 3",
            ["create rule r as on insert to t do (select 1; select 2)", "select 3"],
        ),
        (
            "create function f() begin atomic select case 1 when 1 then 2 end; end;select 4;",
            ["create function f() begin atomic select case 1 when 1 then 2 end; end", "select 4"],
        ),
        ("begin; select 1; end;", ["begin", "select 1", "end"]),
        ("select 1 \\; select 2;", ["select 1 ; select 2"]),
        ("\\d t\nselect 1;\n\\echo 'x;'\n", ["select 1"]),
        ("select 1 \\gset a_\nselect 2\n\\g\n", ["select 1", "select 2"]),
        ("\\set n 5\nselect :n, :'n', :\"n\", 1::int, :unset;",
         ["select 5, '5', \"5\", 1::int, :unset"]),
        ("\\set d /tmp\n\\set f :d '/x.data'\ncopy t from :'f';", ["copy t from '/tmp/x.data'"]),
        ("select a as b from t \\gset\nselect :b;select 1;", ["select a as b from t", "select 1"]),
        ("copy t from stdin;\n1\t2;\n\\.\nselect 1;", ["select 1"]),
        ("\\copy t from stdin\n1;\n\\.\nselect 1;", ["select 1"]),
        ("copy t to stdout; select 1;", ["select 1"]),
    ],
)  # fmt: skip
def test_statements_of_psql_scripts_are_found(script: str, statements: list[str]) -> None:
    assert texts(psql.split("x.sql", script)) == statements


def test_psql_reads_its_environment_and_counts_what_it_leaves_out() -> None:
    text = "\\getenv where HERE\nselect :'where';\ncopy t from stdin;\n\\.\n"
    script = psql.split("x.sql", text, {"HERE": "/here"})
    assert texts(script) == ["select '/here'"]
    assert script.left_out == {"psql command": 1, "client COPY": 1}
    assert str(script.statements[0]) == "x.sql:2 (statement 1)"


@pytest.mark.parametrize(
    ("script", "statements"),
    [
        ("select 1;\nselect\n2;", ["select 1", "select\n2"]),
        ("--error 1146\nselect * from nosuch;\n-- source x.inc\n", ["select * from nosuch"]),
        ("select ';', \";\", `;`;\nselect '\\';';", ["select ';', \";\", `;`", "select '\\';'"]),
        (
            "delimiter |;\ncreate procedure p() begin select 1; end|\ndelimiter ;|\ncall p();",
            ["create procedure p() begin select 1; end", "call p()"],
        ),
        ("--delimiter //\nselect 1; do 2//\n--delimiter ;\ndo 3;", ["select 1; do 2", "do 3"]),
        ("# a comment; really\nselect 1; # another;\nselect 2;", ["select 1", "select 2"]),
        ("let $x = 1;\neval select $x;\necho done;\nselect 1;", ["select 1"]),
        ("if ($x)\n{\n  select 1;\n}\nwhile (f(1))\n{\ndo 2;\n}\n", ["select 1", "do 2"]),
        ("perl;\nprint 'select 1;';\nEOF\nselect 2;", ["select 2"]),
        ("connect (a,localhost,root,,);\nselect 1;\ndisconnect a;", ["select 1"]),
        ("select 1 /* ; */ + /*! 2 */ 3;", ["select 1 /* ; */ + /*! 2 */ 3"]),
    ],
)
def test_statements_of_mysqltest_scripts_are_found(script: str, statements: list[str]) -> None:
    assert texts(mysqltest.split("x.test", script)) == statements


@pytest.mark.parametrize(
    ("script", "statements"),
    [
        (
            "do_execsql_test 1.0 {\n  create table t(a); insert into t values(1);\n} {}\n",
            ["create table t(a)", "insert into t values(1)"],
        ),
        (
            "do_test a-1 {\n execsql { select ';'; }\n catchsql {select 2}\n} {x}",
            ["select ';'", "select 2"],
        ),
        (
            "execsql {create trigger r after insert on t begin select 1; select 2; end; select 3}",
            ["create trigger r after insert on t begin select 1; select 2; end", "select 3"],
        ),
        (
            "db eval {select '{'; select '}'}; execsql { -- nothing\n }",
            ["select '{'", "select '}'"],
        ),
        ('execsql "select $x"; do_catchsql_test 2 {select 1}', ["select 1"]),
    ],
)
def test_statements_of_tcl_scripts_are_found(script: str, statements: list[str]) -> None:
    assert texts(tcl.split("x.test", script)) == statements


@pytest.mark.parametrize(
    ("corpus", "text"),
    [
        ("postgresql", "copy t to program 'rm -rf /'"),
        ("postgresql", "COPY (select 1)\n TO '/tmp/x'"),
        ("postgresql", "copy t from '/etc/passwd'"),
        ("postgresql", "select pg_read_file('x')"),
        ("postgresql", "select lo_export(1, '/tmp/x')"),
        ("postgresql", "alter system set work_mem = 1"),
        ("postgresql", "select pg_terminate_backend(1)"),
        ("postgresql", "create function f() returns int language plpython3u as 'x'"),
        ("postgresql", "load 'plpgsql'"),
        ("mariadb", "load data infile 'x' into table t"),
        ("mariadb", "select 1 into outfile 'x'"),
        ("mariadb", "shutdown"),
        ("mariadb", "set global sql_mode = ''"),
        ("mariadb", "set @@global.sql_mode = ''"),
        ("mariadb", "kill 3"),
        ("mariadb", "/**/ while 1 do select 1; end while"),
        ("mariadb", "install soname 'x'"),
        ("sqlite", "attach '/tmp/x.db' as y"),
        ("sqlite", "vacuum into 'x'"),
        ("sqlite", "select load_extension('x')"),
        ("sqlite", "select 1 " + " " * 200_000),
    ],
)
def test_what_leaves_the_database_is_not_run(corpus: str, text: str) -> None:
    assert danger(corpus, text) is not None


@pytest.mark.parametrize(
    ("corpus", "text"),
    [
        ("postgresql", "copy t from '/data/onek.data'"),
        ("postgresql", "set role postgres"),
        ("postgresql", "call p()"),
        ("mariadb", "set session sql_mode = ''"),
        ("mariadb", "create temporary table t (a int)"),
        ("sqlite", "attach 'test2.db' as y"),
        ("sqlite", "pragma foreign_keys = on"),
    ],
)
def test_what_stays_in_it_is(corpus: str, text: str) -> None:
    assert danger(corpus, text) is None
