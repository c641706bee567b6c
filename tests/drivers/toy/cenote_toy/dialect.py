"""The dialect of the toy: `{ comments }`, q'[strings]', &1, ALTER SESSION SET, START WORK."""

import re

from cenote.sql.dialects import Dialect, Isolation, Quote
from cenote.sql.parsing.items import Items, first_two
from cenote.sql.parsing.session_rules import Control, SessionRules


class ToyRules(SessionRules):
    touching = re.compile("CALL")
    doubtful = frozenset({"CALL"})

    def by_statement(self, items: Items) -> str | None:
        if items[:3] == ["ALTER", "SESSION", "SET"]:
            return "ALTER SESSION"
        return super().by_statement(items)

    def control(self, items: Items) -> Control | None:
        return "begin" if first_two(items) == ("START", "WORK") else super().control(items)


class ToyDialect(Dialect):
    def begin(self, isolation: Isolation | None, read_only: bool) -> tuple[str, ...]:
        if read_only:
            return ("ALTER WORK READ ONLY", "START WORK")
        return ("START WORK",)

    def commit(self) -> str:
        return "COMMIT WORK"

    def rollback(self) -> str:
        return "ROLLBACK WORK"

    def release_savepoint(self, name: str) -> None:
        return None

    def rollback_to_savepoint(self, name: str) -> str:
        return f"ROLLBACK WORK TO {name}"


TOY = ToyDialect(
    "toy",
    quotes=(
        Quote("comment", "{", r"[^}]*(?:\}|\Z)"),
        Quote("string", "qQ", r"'\[.*?(?:\]'|\Z)"),
        Quote("own", "&", "[0-9]+"),
    ),
    rules=ToyRules(),
)
