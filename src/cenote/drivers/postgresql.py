"""What the drivers of PostgreSQL share."""

from __future__ import annotations

import re
from typing import Any

from ..sql.driver import Isolation
from ..sql.url import Target

CAPABILITIES = frozenset(
    {
        "ping",
        "reset",
        "prepare",
        "cancel",
        "looks_dead",
        "sqlstate",
        "statement_cache",
        "interleave",
    }
)

# One message. Not DISCARD ALL, which would also drop the statements that the driver keeps ready:
# of those only what was prepared by SQL goes.
RESET = """
SET SESSION AUTHORIZATION DEFAULT;
RESET ROLE;
RESET ALL;
CLOSE ALL;
UNLISTEN *;
SELECT pg_catalog.pg_advisory_unlock_all();
DISCARD PLANS;
DISCARD TEMP;
DISCARD SEQUENCES;
DO $cenote$
DECLARE statement record;
BEGIN
    FOR statement IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql LOOP
        EXECUTE 'DEALLOCATE ' || pg_catalog.quote_ident(statement.name);
    END LOOP;
END $cenote$;
"""


# Options of the URL with a fixed set of values; the drivers would find out at the first connection.
WORDS = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "read-write", "read-only",
                             "prefer-standby"),
}  # fmt: skip


def begin_statement(isolation: Isolation | None, read_only: bool) -> str:
    level = "" if isolation is None else f" ISOLATION LEVEL {isolation.upper()}"
    return f"BEGIN{level}{' READ ONLY' if read_only else ''}"


def is_demotion(sqlstate: object) -> bool:
    return sqlstate == "25006"  # read_only_sql_transaction


def server_options(target: Target, options: dict[str, str]) -> dict[str, Any]:
    """Whom to connect to, from the URL and from those options that say the same."""
    found: dict[str, Any] = {}
    if target.user is not None:
        found["user"] = target.user
    if target.database and "dbname" in options:
        raise ValueError("url has a database, and the option 'dbname' as well; keep one")
    database = target.database or options.pop("dbname", "")
    if database:
        found["database"] = database
    for name, known in WORDS.items():
        if name in options and options[name] not in known:
            raise ValueError(
                f"url option {name!r} must be one of {', '.join(known)}, not {options[name]!r}"
            )
    for name in ("host", "port"):
        if name in options and target.hosts:
            raise ValueError(f"url has a host, and the option {name!r} as well; keep one")
    if "port" in options:
        found["port"] = [_port(text) for text in options["port"].split(",")]
    if "host" in options:
        found["host"] = options["host"].split(",")
        if "port" in found and len(found["port"]) not in (1, len(found["host"])):
            raise ValueError("url has not as many ports as hosts; one port is for all")
    for name in ("host", "port"):
        if name in found and len(found[name]) == 1:
            found[name] = found[name][0]
    return found


def seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ValueError(f"url option {name!r} must be a number of seconds, not {text!r}")
    return value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 65536:
        raise ValueError(f"url option 'port' must be a number from 1 to 65535, not {text!r}")
    return int(text)


def affected(status: str | None) -> int:
    """Of a command tag such as UPDATE 3, INSERT 0 1; those that change nothing count none."""
    word, _, number = (status or "").rpartition(" ")
    if word.split(" ")[0] in CHANGING and number.isdigit():
        return int(number)
    return 0


def is_stale(sqlstate: object, message: str) -> bool:
    """Whether a statement that was prepared before is not there any more, returns other columns,
    or takes other types than it did; if it was not prepared before, trying again is harmless."""
    return sqlstate in STALE or (sqlstate == "0A000" and "cached plan" in message)


# invalid_sql_statement_name, datatype_mismatch, undefined_function (or operator)
STALE = frozenset({"26000", "42804", "42883"})


def has_cursor(keyword: str, text: str) -> bool:
    """Whether DECLARE can read it; the server itself collects what the others return."""
    return keyword in CURSORS and not (keyword == "WITH" and MODIFYING.search(text))


CURSORS = frozenset({"SELECT", "VALUES", "TABLE", "WITH"})
MODIFYING = re.compile(r"\b(insert|update|delete|merge)\b", re.IGNORECASE)
CHANGING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "MOVE"})

# The server has closed, or closes, the connection: admin shutdown, crash, cannot connect now,
# database dropped, idle timeouts.
GONE = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"})
