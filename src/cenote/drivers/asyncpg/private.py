"""What cenote needs of asyncpg and asyncpg does not offer."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import Any

from ...sql.driver import (
    missing,
)
from ..postgresql import (
    RESET,
    is_refusal,
    is_schema_change,
    keeps,
)

try:
    import asyncpg
except ImportError:
    raise missing("asyncpg", "postgresql") from None

# Read by asyncpg from a URL only.

# An argument that does not fit the type of its parameter, found before anything is sent: of a
# series only in its first element.
UNFIT = re.compile(
    r"invalid input for query argument \$\d+(?: in element #0 of executemany\(\) sequence)?:"
)


class Connection(asyncpg.Connection):  # type: ignore[misc]
    """An asyncpg connection that knows what a thorough reset is, what may be kept prepared, and
    what may be run again."""

    __slots__ = ("alters", "codecs", "plans")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.alters = False  # a transaction has changed the schema, if that is not rolled back
        self.codecs = False  # set by its user: they outlast every reset
        self.plans = 0  # counted up when they are forgotten

    def get_reset_query(self) -> str:
        return RESET

    async def set_type_codec(self, *arguments: Any, **options: Any) -> Any:
        self.codecs = True
        return await super().set_type_codec(*arguments, **options)

    async def set_builtin_type_codec(self, *arguments: Any, **options: Any) -> Any:
        self.codecs = True
        return await super().set_builtin_type_codec(*arguments, **options)

    async def _do_execute(
        self,
        query: str,
        executor: Callable[[Any, float | None], Any],
        timeout: float | None,
        retry: bool = True,
        *,
        ignore_custom_codec: bool = False,
        record_class: Any = None,
    ) -> tuple[Any, Any]:
        """Everything but explicit statements and cursors comes along here. asyncpg itself would
        run a statement again that was not kept, and one whose function has failed."""
        key = (query, record_class or self._protocol.get_record_class(), ignore_custom_codec)
        statement = self._stmt_cache.get(key)
        kept = statement is not None
        changes = False
        if not kept:
            begun = monotonic()
            keep = keeps(query)
            changes = not keep and is_schema_change(query)
            statement = await self._get_statement(
                query, timeout, use_cache=keep,
                ignore_custom_codec=ignore_custom_codec, record_class=record_class,
            )  # fmt: skip
            if timeout is not None:
                timeout -= monotonic() - begun
        try:
            result = await executor(statement, timeout)
            if changes:
                self.alters = self._protocol.is_in_transaction()
                self.forget_plans()
            return result, statement
        except asyncpg.OutdatedSchemaCacheError:
            await self.reload_schema_state()
            raise
        except Exception as error:
            if not kept or not self.refused(error, key) or self._protocol.is_in_transaction():
                raise
        statement = await self._get_statement(
            query, timeout, ignore_custom_codec=ignore_custom_codec, record_class=record_class
        )
        return await executor(statement, timeout), statement

    def refused(self, error: Exception, key: Any = None) -> bool:
        """Of a statement that was kept: whether its plan was refused, and nothing of it executed.
        Then all plans are forgotten; but only the one of this `key` if a parameter did not fit it,
        which is the mistake of a caller as a rule."""
        if type(error) is asyncpg.DataError:
            refused = UNFIT.match(str(error)) is not None
        else:
            refused = isinstance(error, asyncpg.PostgresError) and is_refusal(
                error.sqlstate, error.server_source_function, error.context, error.position
            )
            key = None
        if refused and key is not None:
            entry = self._stmt_cache._entries.pop(key, None)
            if entry is not None:
                self._maybe_gc_stmt(entry._statement)
        elif refused:
            self.forget_plans()
        return refused

    def forget_plans(self) -> None:
        self.plans += 1
        self._drop_local_statement_cache()
