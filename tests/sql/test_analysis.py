"""What touches the session, what controls a transaction, and where statements end."""

import pytest

from cenote.sql.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect
from cenote.sql.parsing.session_rules import Analysis, analyse
from tests.support.dialects import DIALECTS

pytestmark = [pytest.mark.once, pytest.mark.coreless]


TOUCHED = {
    POSTGRESQL: [
        ("set search_path to x", "SET"),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET"),
        ("set session time zone 'UTC'", "SET"),
        ("set role admin", "SET"),
        ("/* a */ set -- b\n x = 1", "SET"),
        ("select 1; set x = 1", "SET"),
        ("set local x = 1; set y = 1", "SET"),
        (";; ;set x = 1;", "SET"),
        ("reset all", "RESET"),
        ("create temp table t (a int)", "CREATE TEMPORARY"),
        ("create temporary view v as select 1", "CREATE TEMPORARY"),
        ("create or replace local temp view v as select 1", "CREATE TEMPORARY"),
        ("create global temporary table t (a int)", "CREATE TEMPORARY"),
        ("create temp sequence s", "CREATE TEMPORARY"),
        ("explain analyze create temp table t as select 1", "CREATE TEMPORARY"),
        ("select 1 as a into temp t", "SELECT INTO TEMPORARY"),
        ("select 1 as a into temporary table t", "SELECT INTO TEMPORARY"),
        ("with x as (select 1) select * into local temp t from x", "SELECT INTO TEMPORARY"),
        ("create table pg_temp.t (a int)", "pg_temp"),
        ("insert into pg_temp_3.t values (1)", "pg_temp_3"),
        ('select "pg_temp" . f()', "pg_temp"),
        ("listen a", "LISTEN"),
        ("unlisten *", "UNLISTEN"),
        ("prepare p as select 1", "PREPARE"),
        ("deallocate all", "DEALLOCATE"),
        ("execute p(1)", "EXECUTE"),
        ("explain (analyze, costs off) execute p", "EXECUTE"),
        ("declare c cursor with hold for select 1", "DECLARE WITH HOLD"),
        ("load 'auto_explain'", "LOAD"),
        ("update pg_settings set setting = '1' where name = 'x'", "UPDATE pg_settings"),
        ('UPDATE pg_catalog."pg_settings" SET setting = $1', "UPDATE pg_settings"),
        ('select U&"set\\005fconfig"(a, b, false)', "u&()"),
        # With standard_conforming_strings = off these have a second statement.
        (r"select '\''; set work_mem = '3MB'; select '\''", "SET"),
        (r"select '\'; select set_config(a, b, false); select '", "set_config()"),
        ("call p()", "CALL"),
        ("do $$ begin end $$", "DO"),
        ("discard all", "DISCARD"),
        ("select set_config('a.b', '1', true)", "set_config()"),
        ("select pg_catalog.set_config ('a.b', '1', false)", "set_config()"),
        ('select "set_config" /* ( */ (a) from t', "set_config()"),
        ("update t set a = Set_Config('a', 'b', false)", "set_config()"),
        ("with a as (insert into t select setseed(0.5) returning 1) select 1", "setseed()"),
        ("explain analyze select pg_advisory_lock(1)", "pg_advisory_lock()"),
        ("select pg_advisory_lock_shared(1)", "pg_advisory_lock_shared()"),
        ("select pg_try_advisory_lock(?)", "pg_try_advisory_lock()"),
        ("select pg_try_advisory_lock_shared($1)", "pg_try_advisory_lock_shared()"),
        ("select pg_advisory_unlock(1)", "pg_advisory_unlock()"),
        ("select pg_advisory_unlock_shared(1)", "pg_advisory_unlock_shared()"),
        ("select pg_advisory_unlock_all()", "pg_advisory_unlock_all()"),
        ("select dblink_connect('a')", "dblink_connect()"),
        (
            "select pg_replication_origin_session_setup('a')",
            "pg_replication_origin_session_setup()",
        ),
        ("create function f() returns int language sql as 'select 1'; set x = 1", "SET"),
        (
            "create function f() returns int begin atomic select case when a then b end; "
            "select 2; end; set x = 1",
            "SET",
        ),
    ],
    MYSQL: [
        ("set names utf8mb4", "SET"),
        ("set @a = 1", "SET"),
        ("set transaction read only", "SET"),
        ("set autocommit = 0", "SET"),
        ("# a\nset x = 1", "SET"),
        ("use shop", "USE"),
        ("create temporary table t (a int)", "CREATE TEMPORARY"),
        ("create or replace temporary table t (a int)", "CREATE TEMPORARY"),
        ("drop temporary table t", "DROP TEMPORARY"),
        ("select get_lock('a', 1)", "GET_LOCK()"),
        ("select Get_Lock ('a', 1)", "GET_LOCK()"),
        ("select release_lock('a')", "RELEASE_LOCK()"),
        ("select release_all_locks()", "RELEASE_ALL_LOCKS()"),
        ("select @a := 1", "user variable"),
        ("select @a:=@a + 1 from t", "user variable"),
        ("select 1 into @a", "user variable"),
        ("lock tables t read", "LOCK TABLES"),
        ("lock table t write", "LOCK TABLE"),
        ("unlock tables", "UNLOCK TABLES"),
        ("flush tables with read lock", "FLUSH TABLES"),
        ("flush status", "FLUSH"),
        ("prepare p from 'select 1'", "PREPARE"),
        ("execute p", "EXECUTE"),
        ("deallocate prepare p", "DEALLOCATE"),
        ("drop prepare p", "DROP PREPARE"),
        ("call p()", "CALL"),
        ("do sleep(1)", "DO"),
        ("handler t open", "HANDLER"),
        ("load data infile 'a' into table t", "LOAD"),
        ("install plugin p soname 'x'", "INSTALL"),
        ("begin not atomic select 1; end", "BEGIN NOT ATOMIC"),
        ("if 1 then select 1; end if", "IF"),
        ("update t set a = last_insert_id(a + 1)", "LAST_INSERT_ID()"),
        ("select last_insert_id(?)", "LAST_INSERT_ID()"),
        ("/*!40101 set names utf8 */", "version comment"),
        ("select /*! straight_join */ 1", "version comment"),
        ("select /*M!100100 1, */ 2", "version comment"),
        ("xa start 'a'", "XA"),
        ("binlog 'abc'", "BINLOG"),
        ("change master to master_host = 'x'", "CHANGE"),
        ("create procedure p() begin select 1; end; set @a = 1", "CREATE PROCEDURE"),
    ],
    SQLITE: [
        ("pragma foreign_keys = on", "PRAGMA foreign_keys"),
        ("pragma foreign_keys(1)", "PRAGMA foreign_keys"),
        ("PRAGMA main.Cache_Size = -2000", "PRAGMA cache_size"),
        ('pragma "foreign_keys" = 1', "PRAGMA foreign_keys"),
        ("pragma cell_size_check = 1", "PRAGMA cell_size_check"),
        ("explain pragma foreign_keys = 1", "PRAGMA foreign_keys"),
        ("attach 'a.db' as a", "ATTACH"),
        ("detach a", "DETACH"),
        ("create temp table t (a)", "CREATE TEMPORARY"),
        ("create temporary view v as select 1", "CREATE TEMPORARY"),
        ("create temp trigger t insert on x begin select 1; end", "CREATE TEMPORARY"),
        ("create table temp.t (a)", "temp"),
        ("insert into Temp.t values (1)", "temp"),
        ("create table 'temp'.t (a)", "temp"),
        ("create table [temp] . t (a)", "temp"),
        ("select load_extension('x')", "load_extension()"),
        ("create trigger t insert on x begin select 1; end; attach 'a' as b", "ATTACH"),
    ],
}

ORDINARY = [
    "",
    " ; ; ",
    "-- set x = 1",
    "select 1",
    "(select 1) union (select 2)",
    "select 'set x = 1; set_config(1, 2)', \"listen\" from t -- call p()",
    "select reset, listen, load, execute, temp, hold from t /* do it(); */",
    "select a.set from a where a.discard = ?",
    "update t set x = 1",
    "update t set prepare = :prepare where call = 1",
    "insert into t (set_config, get_lock, load_extension) values (1, 2, 3)",
    "insert into temp values (1)",
    "insert into temporary (a) select 1",
    "delete from t where use = 1",
    "merge into temp using s on a = b when matched then update set a = 1",
    "with a as (select 1) update t set x = 1",
    "create table t (temp int, listen int)",
    "create table temp (a int)",
    "create index listen on t (a)",
    "create view temporary as select 1",
    "alter table t rename to temp",
    "drop table temp",
    "explain select 1",
    "values (1), (2)",
    "show tables",
    "savepoint a",
    "release a",
    "select 1; select 2; update t set x = 1",
    "begin; update t set x = 1; commit",
]

UNTOUCHED = {
    POSTGRESQL: [
        *ORDINARY,
        "set local x = 1",
        "set transaction isolation level serializable",
        "set constraints all deferred",
        "prepare transaction 'a'",
        "commit prepared 'a'",
        "declare c cursor without hold for select 1",
        "declare c cursor for select 1",
        "select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(2)",
        "select current_setting('x'), my_set_config(1)",
        "select $$ set_config(1) $$, $a$ ; set x = 1 $a$",
        "select E'\\'; set x = 1'",
        "select 'a' as \"; set x = 1\"",
        "/* /* */ ; set x = 1 */ select 1",
        "create function f() returns int language plpgsql as $$ begin set x = 1; end $$",
        "create function f() returns int begin atomic select 1; end",
        "create or replace procedure p() begin atomic insert into t values (1); end",
        "create rule r as on insert to t do also (delete from a; delete from b)",
        "explain (analyze, buffers) select 1",
        "notify a, 'set'",
        "copy t from stdin",
        "lock table t",
        "truncate t",
        "refresh materialized view v",
    ],
    MYSQL: [
        *ORDINARY,
        "select last_insert_id()",
        "select last_insert_id ( )",
        "select @a, @@version",
        "select `; set x = 1`",
        "select 1 # ; set x = 1",
        "select /*+ set_var(x = 1) */ 1",
        "select if(a, b, c) from t",
        "replace into t set a = 1",
        "insert into t set a = 1 on duplicate key update a = 2",
        "explain for connection 5",
        "create procedure p() select 1",
        "create definer = 'a'@'%' view event as select 1",
        "start slave",
        "truncate table t",
    ],
    SQLITE: [
        *ORDINARY,
        "pragma foreign_keys",
        "pragma main.table_info(t)",
        "pragma table_info = t",
        "pragma table_xinfo('t')",
        "pragma index_list(t)",
        "pragma foreign_key_check(t)",
        "pragma integrity_check(1)",
        "pragma wal_checkpoint(truncate)",
        "pragma optimize(0x10002)",
        "select * from pragma_table_info('t')",
        "select 'sqlite_temp_master', 'temp', temp, main.temp.a from temp",
        "select count(*) from sqlite_temp_master",
        'select name from "sqlite_temp_schema"',
        "select [; attach 'a' as b]",
        "create trigger t insert on x begin select 1; update x set a = 1; end",
        "explain query plan select 1",
        "vacuum",
    ],
}


@pytest.mark.parametrize(
    ("dialect", "text", "reason"),
    [(dialect, text, reason) for dialect, rows in TOUCHED.items() for text, reason in rows],
)
def test_what_touches_the_session(dialect: Dialect, text: str, reason: str) -> None:
    assert analyse(text, dialect).touches == reason
    assert analyse(f"{text};", dialect).touches == reason
    assert analyse(f"select 1;\n{text}", dialect).touches == reason
    assert analyse(f"{text}; select 1", dialect).touches == reason


@pytest.mark.parametrize(
    ("dialect", "text"),
    [(dialect, text) for dialect, texts in UNTOUCHED.items() for text in texts],
)
def test_ordinary_statements_do_not_touch_the_session(dialect: Dialect, text: str) -> None:
    assert analyse(text, dialect).touches is None
    assert analyse(f"{text};\n", dialect).touches is None
    assert analyse(text.upper(), dialect).touches is None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("text", "control"),
    [
        ("begin", "begin"),
        ("BEGIN;", "begin"),
        ("-- a\nbegin", "begin"),
        ("start transaction", "begin"),
        ("commit", "commit"),
        ("commit work", "commit"),
        ("rollback", "rollback"),
        ("rollback work", "rollback"),
        ("rollback transaction", "rollback"),
        ("rollback to a", None),
        ("rollback to savepoint a", None),
        ("rollback transaction to savepoint a", None),
        ("savepoint a", None),
        ("release savepoint a", None),
        ("select 1", None),
        ("select 'begin'; -- commit", None),
        ("", None),
        ("begin; select 1", "begin"),
        ("begin; select 1; commit", "commit"),
        ("commit; begin", "begin"),
        ("begin; rollback to a", "begin"),
        ("rollback; select 1;", "rollback"),
        ("create table begin (a int)", None),
    ],
)
def test_the_last_control_of_a_transaction_counts(
    dialect: Dialect, text: str, control: str | None
) -> None:
    assert analyse(text, dialect).control == control


@pytest.mark.parametrize(
    ("dialect", "text", "control"),
    [
        (POSTGRESQL, "begin isolation level serializable", "begin"),
        (POSTGRESQL, "end", "commit"),
        (POSTGRESQL, "abort", "rollback"),
        (POSTGRESQL, "commit and chain", "commit"),
        (POSTGRESQL, "prepare transaction 'a'", "prepare"),
        (POSTGRESQL, "commit prepared 'a'", None),
        (POSTGRESQL, "rollback prepared 'a'", None),
        (POSTGRESQL, "prepare p as select 1", None),
        (POSTGRESQL, "create function f() returns int begin atomic select 1; end", None),
        (
            POSTGRESQL,
            "create function f() returns int begin atomic select 1; end; commit",
            "commit",
        ),
        (POSTGRESQL, "do $$ begin commit; end $$", None),
        (MYSQL, "begin work", "begin"),
        (MYSQL, "start transaction with consistent snapshot", "begin"),
        (MYSQL, "start slave", None),
        (MYSQL, "begin not atomic select 1; commit; end", None),
        (MYSQL, "create procedure p() begin commit; begin end; rollback; end", None),
        (MYSQL, "create definer=a@localhost procedure p() begin commit; end", None),
        (MYSQL, "create or replace definer = current_user() trigger t begin x; commit; end", None),
        (MYSQL, "create event e on schedule every 1 day do begin commit; end", None),
        (MYSQL, "alter event e do begin select 1; commit; end", None),
        (MYSQL, "create /*!50017 definer=a@b */ trigger t begin select 1; commit; end", None),
        (MYSQL, "create definer=a@b view v as select event from t; commit", "commit"),
        (MYSQL, "xa commit 'a'", None),
        (SQLITE, "begin immediate", "begin"),
        (SQLITE, "end transaction", "commit"),
        (SQLITE, "create trigger t insert on x begin select 1; end", None),
        (SQLITE, "create trigger t insert on x begin select 1; end; end", "commit"),
        (SQLITE, "create temp trigger if not exists t insert on x begin select 1; end;", None),
    ],
)
def test_control_in_one_database(dialect: Dialect, text: str, control: str | None) -> None:
    assert analyse(text, dialect).control == control


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("commit; begin", "commit"),
        ("commit and chain", "commit"),
        ("rollback; begin", "rollback"),
        ("rollback; commit", "rollback"),
        ("rollback to a", None),
        ("select 1", None),
    ],
)
def test_the_first_end_of_a_transaction_counts(
    dialect: Dialect, text: str, ends: str | None
) -> None:
    assert analyse(text, dialect).ends == ends


@pytest.mark.parametrize("text", ["begin", "start transaction read only", "begin; select 1"])
def test_begin_ends_a_transaction_on_mysql_only(text: str) -> None:
    assert analyse(text, MYSQL).ends == "commit"
    assert analyse(text, POSTGRESQL).ends is None
    assert analyse(text, SQLITE).ends is None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("text", "read_only"),
    [
        ("start transaction read  only", True),
        ("SET TRANSACTION READ ONLY", True),
        ("set default_transaction_read_only = on", True),
        ("begin", False),
        ("set transaction read write", False),
        ("select 'read only'", False),
        ("insert into read_only values (1)", False),
    ],
)
def test_what_asks_for_read_only(dialect: Dialect, text: str, read_only: bool) -> None:
    assert analyse(text, dialect).read_only == read_only


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("text", "keyword", "statements"),
    [
        ("", "", 0),
        (" ;; -- select\n;", "", 0),
        ("select 1", "SELECT", 1),
        ("select 1;", "SELECT", 1),
        ("((select 1))", "SELECT", 1),
        (";Insert into t values (';'); select ';' /* ; */;;", "INSERT", 2),
        ("/* a */ " * 30 + "with a as (select 1) select 1", "WITH", 1),
        ("? 1", "", 1),
        ("'select'; select 1", "", 2),
    ],
)
def test_the_first_keyword_and_the_number_of_statements(
    dialect: Dialect, text: str, keyword: str, statements: int
) -> None:
    found = analyse(text, dialect)
    assert (found.keyword, found.statements) == (keyword, statements)


@pytest.mark.parametrize(
    ("dialect", "text", "statements"),
    [
        (POSTGRESQL, "select $$;$$; select 1", 2),
        (POSTGRESQL, "create function f() begin atomic select 1; select 2; end; select 1", 2),
        (POSTGRESQL, "create function f() begin atomic select case a when b then c end; end", 1),
        (POSTGRESQL, "create rule r as on insert to t do (select 1; select 2); select 1", 2),
        (MYSQL, "select 'a\\';'; select 1", 2),
        (MYSQL, "create procedure p() begin select 1; select 2; end", 1),
        (MYSQL, "/*! set x = 1 */", 1),
        (SQLITE, "create trigger t insert on x begin select 1; select 2; end; select 1", 2),
        (SQLITE, "create trigger t insert on x begin select case 1 when 1 then 2 end; end", 1),
    ],
)
def test_semicolons_that_end_no_statement(dialect: Dialect, text: str, statements: int) -> None:
    assert analyse(text, dialect).statements == statements


@pytest.mark.parametrize(
    "text",
    [
        "select pg_replication_origin_session_is_setup()",
        "select pg_replication_origin_session_progress(true)",
        "select * from pg_settings",
        'select U&"d\\0061t\\+000061" from t',
        r"select 'C:\\temp\\'",
        r"select E'\'; set x = 1; select \''",
    ],
)
def test_what_only_looks_like_it_on_postgresql(text: str) -> None:
    assert analyse(text, POSTGRESQL).touches is None


@pytest.mark.parametrize(
    "text",
    [
        "select dblink_connect('a', 'dbname=x')",
        "select set_config('a', 'b', false), dblink_connect_u($1)",
        "set x = 1; load 'auto_explain'",
        "select pg_replication_origin_session_setup('a')",
    ],
)
def test_what_no_reset_undoes(text: str) -> None:
    found = analyse(text, POSTGRESQL)
    assert found.lasting
    assert found.touches not in (None, "SET", "set_config()")
    assert not analyse(text.replace("connect", "get_result"), MYSQL).lasting


def test_what_throws_plans_away() -> None:
    for text in ("discard all", "DEALLOCATE all", "set x = 1; discard plans"):
        assert analyse(text, POSTGRESQL).replans
    for text in ("set x = 1", "select 1", "prepare p as select 1"):
        assert not analyse(text, POSTGRESQL).replans


def test_a_byte_order_mark_is_white_space_for_sqlite() -> None:
    assert analyse("\ufeffpragma query_only = 1", SQLITE).touches == "PRAGMA query_only"
    assert analyse("\ufeff create temp table t (a)", SQLITE).touches == "CREATE TEMPORARY"
    assert analyse("\ufeffcommit", SQLITE).control == "commit"
    assert analyse("select 1 as a\ufeff", SQLITE).keyword == "SELECT"


def test_reading_the_schema_of_temporary_tables() -> None:
    assert analyse("select * from temp.sqlite_master", SQLITE).touches is None
    assert analyse("select * from temp.sqlite_schema, temp.t", SQLITE).touches == "temp"
    assert analyse("delete from temp.sqlite_master", SQLITE).touches == "temp"


def test_a_dialect_without_rules_takes_the_general_ones() -> None:
    assert analyse("set x = 1", Dialect("other")) == Analysis(
        touches="SET", control=None, ends=None, read_only=False, keyword="SET", statements=1
    )
