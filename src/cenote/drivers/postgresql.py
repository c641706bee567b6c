"""What the drivers of PostgreSQL share."""

from __future__ import annotations

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
    database = target.database or options.pop("dbname", "")
    if database:
        found["database"] = database
    for name in ("host", "port"):
        if name in options and target.hosts:
            raise ValueError(f"url has a host, and the option {name!r} as well; keep one")
    if "port" in options:
        found["port"] = [_port(text) for text in options["port"].split(",")]
    if "host" in options:
        found["host"] = options["host"].split(",")
    for name in ("host", "port"):
        if name in found and len(found[name]) == 1:
            found[name] = found[name][0]
    return found


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"url option 'port' must be a number from 1 to 65535, not {text!r}")
    return int(text)


def affected(status: str | None) -> int:
    """Of a command tag such as UPDATE 3, INSERT 0 1; those that change nothing count none."""
    word, _, number = (status or "").rpartition(" ")
    if word.split(" ")[0] in CHANGING and number.isdigit():
        return int(number)
    return 0


CHANGING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "MOVE"})

# The server has closed, or closes, the connection: admin shutdown, crash, cannot connect now,
# database dropped, idle timeouts.
GONE = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"})
