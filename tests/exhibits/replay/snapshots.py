"""What a task can leave behind on a connection, asked for by another task."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

Snapshot = dict[str, str]


class Looker(ABC):
    """Knows the questions for one database. What has a name that only the statements know is
    asked for by the names in the statement."""

    @abstractmethod
    async def look(self, db: Any, text: str) -> Snapshot:
        """The state of the session on which `db` runs its next statement."""


class PostgresLooker(Looker):
    QUERY = """
        select 'setting ' || name, setting from pg_catalog.pg_settings where source = 'session'
            and setting is distinct from reset_val
            and name not in ('transaction_read_only', 'transaction_isolation',
                             'transaction_deferrable', 'is_superuser')
        union all select 'role', current_user || ' as ' || session_user
        union all select 'schema', pg_catalog.current_schemas(false)::text
        union all select 'prepared ' || name, statement from pg_catalog.pg_prepared_statements
            where from_sql
        union all select 'cursor ' || name, statement from pg_catalog.pg_cursors where name !~ '^$'
            and statement !~ 'pg_catalog.pg_cursors'
        union all select 'channel', channel from pg_catalog.pg_listening_channels() channel
        union all select 'advisory lock', classid || ' ' || objid from pg_catalog.pg_locks
            where locktype = 'advisory' and pid = pg_catalog.pg_backend_pid()
        union all select 'temporary ' || relname, 'table' from pg_catalog.pg_class
            where relnamespace = pg_catalog.pg_my_temp_schema() and relkind <> 't'
        union all select 'temporary ' || proname, 'function' from pg_catalog.pg_proc
            where pronamespace = pg_catalog.pg_my_temp_schema()
        union all select 'lastval', public.exhibit_lastval()
        union all select 'origin', pg_catalog.pg_replication_origin_session_is_setup()::text
        union all select 'setting ' || name, pg_catalog.current_setting(name, true)
            from pg_catalog.unnest('{names}'::text[]) name
            where pg_catalog.current_setting(name, true) <> ''
                and name <> all (select s.name from pg_catalog.pg_settings s)
    """
    OWN_SETTING = re.compile(r"\b([a-z_]\w*\.[a-z_]\w*)\b", re.IGNORECASE)
    DBLINK = "select 'dblink', pg_catalog.array_to_string(dblink_get_connections(), ',')"

    async def look(self, db: Any, text: str) -> Snapshot:
        names: set[str] = set()
        if "set" in text.lower():
            names = {name.lower() for name in self.OWN_SETTING.findall(text)[:10]}
        rows = await db.fetch_all(
            self.QUERY.replace("{names}", "{" + ",".join(sorted(names)) + "}")
        )
        found = _collected(rows)
        if "dblink_connect" in text.lower():
            found |= await _optional(db, self.DBLINK)
        return found


class MariaLooker(Looker):
    VARIABLES = """
        select concat('variable ', lower(variable_name)), coalesce(variable_value, '')
            from information_schema.session_variables where variable_name not in (
            'timestamp', 'rand_seed1', 'rand_seed2', 'error_count', 'warning_count', 'identity',
            'insert_id', 'pseudo_thread_id', 'last_gtid', 'in_transaction', 'skip_replication',
            'profiling_history_size', 'last_insert_id')
        union all select concat('user variable ', variable_name), coalesce(variable_value, '')
            from information_schema.user_variables
        union all select 'database', coalesce(database(), '')
        union all select 'role', concat(current_user(), ' ', coalesce(current_role(), ''))
        union all select 'last_insert_id', last_insert_id()
        union all select 'transaction', @@in_transaction
    """
    TEMPORARY = re.compile(
        r"\btemporary\s+(?:table|sequence)\s+(?:if\s+not\s+exists\s+)?([\w`.$]+)", re.IGNORECASE
    )
    PREPARED = re.compile(r"\bprepare\s+(\w+)\s+from\b", re.IGNORECASE)
    LOCK = re.compile(r"\bget_lock\s*\(\s*('[^']*'|\"[^\"]*\")", re.IGNORECASE)

    async def look(self, db: Any, text: str) -> Snapshot:
        found = _collected(await db.fetch_all(self.VARIABLES))
        for name in self.TEMPORARY.findall(text):
            for shown in (await _optional(db, f"show create table {name}")).values():
                if "TEMPORARY" in shown:
                    found[f"temporary {name}"] = shown
        for name in self.PREPARED.findall(text):
            if await _works(db, f"deallocate prepare {name}"):
                found[f"prepared {name}"] = ""
        for name in self.LOCK.findall(text):
            rows = await db.fetch_all(f"select is_used_lock({name}) = connection_id()")
            if rows[0][0]:
                found[f"lock {name}"] = ""
        if re.search(r"\block\b", text, re.IGNORECASE) and not await _works(
            db, "select count(*) from test.exhibit_probe"
        ):
            found["tables"] = "locked"
        if re.search(r"\bprofiling\b", text, re.IGNORECASE) and await db.fetch_all("show profiles"):
            found["profiles"] = "shown"
        return found


class SqliteLooker(Looker):
    PRAGMAS = (
        "analysis_limit", "automatic_index", "busy_timeout", "cache_size", "cache_spill",
        "cell_size_check", "checkpoint_fullfsync", "defer_foreign_keys",
        "empty_result_callbacks", "foreign_keys", "full_column_names", "fullfsync",
        "ignore_check_constraints", "journal_size_limit", "legacy_alter_table", "locking_mode",
        "query_only", "read_uncommitted", "recursive_triggers", "reverse_unordered_selects",
        "secure_delete", "short_column_names", "synchronous", "temp_store", "threads",
        "trusted_schema", "wal_autocheckpoint", "writable_schema",
    )  # fmt: skip

    async def look(self, db: Any, text: str) -> Snapshot:
        rows: list[Any] = []
        if not text or "pragma" in text.lower():
            for name in self.PRAGMAS:
                answer = await db.fetch_all(f"pragma {name}")
                rows += [(f"pragma {name}", row[0]) for row in answer]
        rows += await db.fetch_all(
            "select 'temporary ' || name, type from sqlite_temp_master"
            " union all select 'database ' || name, '' from pragma_database_list"
            " where name not in ('main', 'temp') union all select 'like', 'a' like 'A'"
        )
        return _collected(rows)


LOOKERS: dict[str, Callable[[], Looker]] = {
    "postgresql": PostgresLooker,
    "mariadb": MariaLooker,
    "sqlite": SqliteLooker,
}


def changes(before: Snapshot, after: Snapshot, clean: Snapshot) -> list[str]:
    """What is there now and was not before; what is as on a new connection is no leftover, and what
    was not asked for is not gone."""
    found = []
    for name in sorted(after):
        if after[name] not in (before.get(name), clean.get(name)):
            found.append(f"{name}: {before.get(name)!r} -> {after.get(name)!r}"[:300])
    return found


async def _optional(db: Any, text: str) -> Snapshot:
    """The answer, or nothing if the server refuses the question."""
    try:
        return _collected(await db.fetch_all(text))
    except Exception as error:
        if not _is_of_server(error):
            raise
        return {}


async def _works(db: Any, text: str) -> bool:
    try:
        await db.execute(text)
    except Exception as error:
        if not _is_of_server(error):
            raise
        return False
    return True


def _is_of_server(error: Exception) -> bool:
    import cenote

    return not isinstance(error, cenote.PoolError | TimeoutError)


def _collected(rows: Iterable[Any]) -> Snapshot:
    found: Snapshot = {}
    for name, value, *_ in (tuple(row) for row in rows):
        found[str(name)] = f"{found[str(name)]}, {value}" if str(name) in found else str(value)
    return found
