"""The six verbs of SQL, once for everything that runs statements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .driver import Arguments
from .notes import bind_rows, note_rows
from .parsing.statements import ParsedStatement

if TYPE_CHECKING:
    from .streams import Stream

# Binds one row of parameters; gives the text for the driver and its arguments.
Bind = Callable[[Any], tuple[str, Arguments]]


class TextVerbs(ABC):
    """Statements by their text: of a `Database`, and of a `Transaction`.

    `?` takes a sequence of parameters, `:name` a mapping, on every driver.
    """

    __slots__ = ()

    async def execute(self, sql: str, parameters: Any = None) -> int:
        """Run a statement; return the number of rows that it matched."""
        return await self._run("execute", sql, parameters)  # type: ignore[no-any-return]

    async def execute_many(self, sql: str, parameters: Iterable[Any]) -> None:
        """Run a statement once for each element of `parameters`: all of it or nothing."""
        parsed = self._parse(sql)
        await run_many(
            parsed.bind, parameters, lambda text, rows: self._run_many(parsed, text, rows)
        )

    async def fetch_all(self, sql: str, parameters: Any = None) -> list[Any]:
        """Run a statement; return all rows."""
        return await self._run("fetch_all", sql, parameters)  # type: ignore[no-any-return]

    async def fetch_one(self, sql: str, parameters: Any = None) -> Any:
        """Run a statement; return the first row, or None."""
        return await self._run("fetch_one", sql, parameters)

    async def fetch_val(self, sql: str, parameters: Any = None) -> Any:
        """Run a statement; return the first value of the first row, or None."""
        return await self._run("fetch_val", sql, parameters)

    def iterate(self, sql: str, parameters: Any = None) -> Stream:
        """Return an async iterator that reads the rows piece by piece; it has `aclose()`."""
        parsed = self._parse(sql)
        return self._stream(parsed, *parsed.bind(parameters))

    @abstractmethod
    def _parse(self, sql: str) -> ParsedStatement:
        """Look up the analysis of a text."""

    @abstractmethod
    def _run(self, method: str, sql: str, parameters: Any) -> Awaitable[Any]:
        """Run one statement by this method of a connection."""

    @abstractmethod
    async def _run_many(self, parsed: ParsedStatement, text: str, rows: list[Any]) -> None:
        """Run one statement for all these rows; with none, only check that it could run."""

    @abstractmethod
    def _stream(self, parsed: ParsedStatement, text: str, arguments: Arguments) -> Stream:
        """Make a stream of its rows."""


class PreparedVerbs(ABC):
    """The same for a text that is prepared: of a `Statement`."""

    __slots__ = ()

    async def execute(self, parameters: Any = None) -> int:
        """Run it; return the number of rows that it matched."""
        return await self._run("execute", parameters)  # type: ignore[no-any-return]

    async def execute_many(self, parameters: Iterable[Any]) -> None:
        """Run it once for each element of `parameters`: all of it or nothing."""
        await run_many(self._bind, parameters, lambda text, rows: self._run_many(rows))

    async def fetch_all(self, parameters: Any = None) -> list[Any]:
        """Run it; return all rows."""
        return await self._run("fetch_all", parameters)  # type: ignore[no-any-return]

    async def fetch_one(self, parameters: Any = None) -> Any:
        """Run it; return the first row, or None."""
        return await self._run("fetch_one", parameters)

    async def fetch_val(self, parameters: Any = None) -> Any:
        """Run it; return the first value of the first row, or None."""
        return await self._run("fetch_val", parameters)

    def iterate(self, parameters: Any = None) -> Stream:
        """Return an async iterator that reads the rows piece by piece; it has `aclose()`."""
        return self._stream(*self._bind(parameters))

    @abstractmethod
    def _bind(self, parameters: Any) -> tuple[str, Arguments]:
        """Bind the parameters to the placeholders."""

    @abstractmethod
    def _run(self, method: str, parameters: Any) -> Awaitable[Any]:
        """Run it once by this method."""

    @abstractmethod
    async def _run_many(self, rows: list[Any]) -> None:
        """Run it for all these rows."""

    @abstractmethod
    def _stream(self, text: str, arguments: Arguments) -> Stream:
        """Make a stream of its rows."""


async def run_many(
    bind: Bind, parameters: Iterable[Any], run: Callable[[str, list[Any]], Awaitable[None]]
) -> None:
    """Bind every row, then run; an error gets a note that names the row, if that is known."""
    if isinstance(parameters, str | bytes | Mapping):
        raise TypeError(
            f"parameters of execute_many() must be an iterable of parameters, one for each "
            f"run, not {type(parameters).__name__}"
        )
    bound = bind_rows(bind, parameters)
    if len({text for text, _ in bound}) > 1:
        raise TypeError("parameters of execute_many() must be all sequences or all mappings")
    rows = [arguments or () for _, arguments in bound]
    try:
        await run(bound[0][0] if bound else "", rows)
    except Exception as error:
        if rows:
            note_rows(error, len(rows))
        raise
