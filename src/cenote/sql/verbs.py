"""The six verbs of SQL, once for everything that runs statements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from .batches import Batches, first_of, run_many
from .driver import Arguments
from .into import check_into, convert, convert_all
from .parsing.statements import ParsedStatement, is_long
from .rows import Row

if TYPE_CHECKING:
    from .streams import Stream

T = TypeVar("T")

# What a statement takes: a sequence for `?`, a mapping for `:name`.
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any] | None


class TextVerbs(ABC):
    """Statements by their text: of a `Database`, and of a `Transaction`.

    `?` takes a sequence of parameters, `:name` a mapping, on every driver.
    """

    __slots__ = ()

    async def execute(
        self, sql: str, parameters: Parameters = None, *, timeout: float | None = None
    ) -> int:
        """Run a statement; return the number of rows that it matched.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            timeout: How long it may take, in seconds, with the wait for a connection or for its
                turn. Past it the server is asked to stop. None for no limit.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            AcquireTimeoutError: No connection was free in time.
            ConnectError: There is no connection, and none can be made.
            TransactionLostError: The connection broke inside a transaction.
            ValueError: The parameters do not fit the placeholders.
            Exception: The driver's own error, if the database refused the statement.
        """
        return await self._run("execute", sql, parameters, timeout)  # type: ignore[no-any-return]

    async def execute_many(
        self, sql: str, parameters: Iterable[Any], *, timeout: float | None = None
    ) -> None:
        """Run a statement once for each element of `parameters`: all of it, or nothing.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            parameters: An iterable of sequences or mappings, one for each run. Of a generator, or
                another iterable without a length, a piece at a time is taken and sent, so that all
                of it need not fit in memory.
            timeout: How long all of it may take, in seconds; None for no limit.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            AcquireTimeoutError: No connection was free in time.
            ConnectError: There is no connection, and none can be made.
            TransactionLostError: The connection broke inside a transaction.
            ValueError: The parameters do not fit the placeholders.
            Exception: The driver's own error, if the database refused the statement.
        """
        parsed = await self._analyse(sql, first_of(parameters))
        await run_many(
            parsed.bind, parameters, lambda text, rows: self._run_many(parsed, text, rows, timeout)
        )

    @overload
    async def fetch_all(
        self, sql: str, parameters: Parameters = None, *, timeout: float | None = None
    ) -> list[Row]: ...

    @overload
    async def fetch_all(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        into: Callable[..., T],
        timeout: float | None = None,
    ) -> list[T]: ...

    async def fetch_all(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        into: Callable[..., T] | None = None,
        timeout: float | None = None,
    ) -> list[Row] | list[T]:
        """Run a statement; return all rows.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            into: What each row becomes: a dataclass, a NamedTuple, a TypedDict, a class of attrs,
                pydantic or msgspec, or any callable that takes the columns by name. None: a `Row`.
            timeout: How long it may take, in seconds, with the wait for a connection or for its
                turn. Past it the server is asked to stop. None for no limit.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            AcquireTimeoutError: No connection was free in time.
            ConnectError: There is no connection, and none can be made.
            TransactionLostError: The connection broke inside a transaction.
            ValueError: The parameters do not fit the placeholders.
            Exception: The driver's own error, if the database refused the statement.
        """
        if into is not None:
            check_into(into)
        rows: list[Row] = await self._run("fetch_all", sql, parameters, timeout)
        return rows if into is None else convert_all(rows, into)

    @overload
    async def fetch_one(
        self, sql: str, parameters: Parameters = None, *, timeout: float | None = None
    ) -> Row | None: ...

    @overload
    async def fetch_one(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        into: Callable[..., T],
        timeout: float | None = None,
    ) -> T | None: ...

    async def fetch_one(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        into: Callable[..., T] | None = None,
        timeout: float | None = None,
    ) -> Row | T | None:
        """Run a statement; return the first row, or None.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            into: What each row becomes: a dataclass, a NamedTuple, a TypedDict, a class of attrs,
                pydantic or msgspec, or any callable that takes the columns by name. None: a `Row`.
            timeout: How long it may take, in seconds, with the wait for a connection or for its
                turn. Past it the server is asked to stop. None for no limit.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            AcquireTimeoutError: No connection was free in time.
            ConnectError: There is no connection, and none can be made.
            TransactionLostError: The connection broke inside a transaction.
            ValueError: The parameters do not fit the placeholders.
            Exception: The driver's own error, if the database refused the statement.
        """
        if into is not None:
            check_into(into)
        row: Row | None = await self._run("fetch_one", sql, parameters, timeout)
        return row if into is None or row is None else convert(row, into)

    async def fetch_val(
        self, sql: str, parameters: Parameters = None, *, timeout: float | None = None
    ) -> Any:
        """Run a statement; return the first value of the first row, or None if there is no row.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            timeout: How long it may take, in seconds, with the wait for a connection or for its
                turn. Past it the server is asked to stop. None for no limit.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            AcquireTimeoutError: No connection was free in time.
            ConnectError: There is no connection, and none can be made.
            TransactionLostError: The connection broke inside a transaction.
            ValueError: The parameters do not fit the placeholders.
            Exception: The driver's own error, if the database refused the statement.
        """
        return await self._run("fetch_val", sql, parameters, timeout)

    @overload
    def iterate(
        self, sql: str, parameters: Parameters = None, *, timeout: float | None = None
    ) -> Stream[Row]: ...

    @overload
    def iterate(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        into: Callable[..., T],
        timeout: float | None = None,
    ) -> Stream[T]: ...

    def iterate(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        into: Callable[..., T] | None = None,
        timeout: float | None = None,
    ) -> Stream[Row] | Stream[T]:
        """Return an async iterator over the rows, which are read piece by piece.

        It has `start()` and `aclose()`.
        A text with more than 16,000 characters is read when the iterator starts: what is wrong with
        its parameters is raised then, and otherwise here.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            into: What each row becomes: a dataclass, a NamedTuple, a TypedDict, a class of attrs,
                pydantic or msgspec, or any callable that takes the columns by name. None: a `Row`.
            timeout: How long each wait for rows may take, in seconds: from the start of the
                statement to its first rows, then each time that more are fetched. The time that
                your program spends on the rows does not count.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            AcquireTimeoutError: No connection was free in time.
            ConnectError: There is no connection, and none can be made.
            TransactionLostError: The connection broke inside a transaction.
            ValueError: The parameters do not fit the placeholders.
            Exception: The driver's own error, if the database refused the statement.
        """
        if is_long(sql):
            return self._stream(None, sql, parameters, into, timeout)
        parsed = self._parse(sql)
        return self._stream(parsed, *parsed.bind(parameters), into, timeout)

    @abstractmethod
    def _parse(self, sql: str) -> ParsedStatement:
        """Look up the analysis of a text, or make it at once."""

    @abstractmethod
    def _analyse(self, sql: str, parameters: Any) -> Awaitable[ParsedStatement]:
        """The same for parameters of this kind, in a thread if the text is long."""

    @abstractmethod
    def _run(self, method: str, sql: str, parameters: Any, timeout: float | None) -> Awaitable[Any]:
        """Run one statement by this method of a connection."""

    @abstractmethod
    async def _run_many(
        self, parsed: ParsedStatement, text: str, rows: list[Any] | Batches, timeout: float | None
    ) -> None:
        """Run one statement for all these rows; with none, only check that it could run."""

    @abstractmethod
    def _stream(
        self,
        parsed: ParsedStatement | None,
        text: str,
        arguments: Any,
        into: Any,
        timeout: float | None,
    ) -> Stream[Any]:
        """Make a stream of its rows. Without `parsed` it analyses the text and binds the arguments
        when it starts."""


class PreparedVerbs(ABC):
    """The same for a text that is prepared: of a `Statement`."""

    __slots__ = ()

    async def execute(self, parameters: Parameters = None, *, timeout: float | None = None) -> int:
        """Run it; return the number of rows that it matched.

        Args:
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            timeout: How long it may take, in seconds. Past it the server is asked to stop.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            TransactionLostError: The connection broke inside a transaction.
            Exception: The driver's own error, if the database refused the statement.
        """
        return await self._run("execute", parameters, timeout)  # type: ignore[no-any-return]

    async def execute_many(
        self, parameters: Iterable[Any], *, timeout: float | None = None
    ) -> None:
        """Run it once for each element of `parameters`: all of it, or nothing.

        Args:
            parameters: An iterable of sequences or mappings, one for each run. Of a generator, or
                another iterable without a length, a piece at a time is taken and sent, so that all
                of it need not fit in memory.
            timeout: How long all of it may take, in seconds; None for no limit.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            TransactionLostError: The connection broke inside a transaction.
            Exception: The driver's own error, if the database refused the statement.
        """
        await run_many(self._bind, parameters, lambda text, rows: self._run_many(rows, timeout))

    @overload
    async def fetch_all(
        self, parameters: Parameters = None, *, timeout: float | None = None
    ) -> list[Row]: ...

    @overload
    async def fetch_all(
        self,
        parameters: Parameters = None,
        *,
        into: Callable[..., T],
        timeout: float | None = None,
    ) -> list[T]: ...

    async def fetch_all(
        self,
        parameters: Parameters = None,
        *,
        into: Callable[..., T] | None = None,
        timeout: float | None = None,
    ) -> list[Row] | list[T]:
        """Run it; return all rows.

        Args:
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            into: What each row becomes: a dataclass, a NamedTuple, a TypedDict, a class of attrs,
                pydantic or msgspec, or any callable that takes the columns by name. None: a `Row`.
            timeout: How long it may take, in seconds. Past it the server is asked to stop.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            TransactionLostError: The connection broke inside a transaction.
            Exception: The driver's own error, if the database refused the statement.
        """
        if into is not None:
            check_into(into)
        rows: list[Row] = await self._run("fetch_all", parameters, timeout)
        return rows if into is None else convert_all(rows, into)

    @overload
    async def fetch_one(
        self, parameters: Parameters = None, *, timeout: float | None = None
    ) -> Row | None: ...

    @overload
    async def fetch_one(
        self,
        parameters: Parameters = None,
        *,
        into: Callable[..., T],
        timeout: float | None = None,
    ) -> T | None: ...

    async def fetch_one(
        self,
        parameters: Parameters = None,
        *,
        into: Callable[..., T] | None = None,
        timeout: float | None = None,
    ) -> Row | T | None:
        """Run it; return the first row, or None.

        Args:
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            into: What each row becomes: a dataclass, a NamedTuple, a TypedDict, a class of attrs,
                pydantic or msgspec, or any callable that takes the columns by name. None: a `Row`.
            timeout: How long it may take, in seconds. Past it the server is asked to stop.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            TransactionLostError: The connection broke inside a transaction.
            Exception: The driver's own error, if the database refused the statement.
        """
        if into is not None:
            check_into(into)
        row: Row | None = await self._run("fetch_one", parameters, timeout)
        return row if into is None or row is None else convert(row, into)

    async def fetch_val(
        self, parameters: Parameters = None, *, timeout: float | None = None
    ) -> Any:
        """Run it; return the first value of the first row, or None if there is no row.

        Args:
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            timeout: How long it may take, in seconds. Past it the server is asked to stop.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            TransactionLostError: The connection broke inside a transaction.
            Exception: The driver's own error, if the database refused the statement.
        """
        return await self._run("fetch_val", parameters, timeout)

    @overload
    def iterate(
        self, parameters: Parameters = None, *, timeout: float | None = None
    ) -> Stream[Row]: ...

    @overload
    def iterate(
        self, parameters: Parameters = None, *, into: Callable[..., T], timeout: float | None = None
    ) -> Stream[T]: ...

    def iterate(
        self,
        parameters: Parameters = None,
        *,
        into: Callable[..., T] | None = None,
        timeout: float | None = None,
    ) -> Stream[Row] | Stream[T]:
        """Return an async iterator over the rows, which are read piece by piece.

        It has `start()` and `aclose()`.

        Args:
            parameters: A sequence for `?`, or a mapping for `:name`; None for no parameters.
            into: What each row becomes: a dataclass, a NamedTuple, a TypedDict, a class of attrs,
                pydantic or msgspec, or any callable that takes the columns by name. None: a `Row`.
            timeout: How long each wait for rows may take, in seconds: from the start of the
                statement to its first rows, then each time that more are fetched. The time that
                your program spends on the rows does not count.

        Raises:
            StatementTimeoutError: It took longer than `timeout`.
            TransactionLostError: The connection broke inside a transaction.
            Exception: The driver's own error, if the database refused the statement.
        """
        return self._stream(*self._bind(parameters), into, timeout)

    @abstractmethod
    def _bind(self, parameters: Any) -> tuple[str, Arguments]:
        """Bind the parameters to the placeholders."""

    @abstractmethod
    def _run(self, method: str, parameters: Any, timeout: float | None) -> Awaitable[Any]:
        """Run it once by this method."""

    @abstractmethod
    async def _run_many(self, rows: list[Any] | Batches, timeout: float | None) -> None:
        """Run it for all these rows."""

    @abstractmethod
    def _stream(
        self, text: str, arguments: Arguments, into: Any, timeout: float | None
    ) -> Stream[Any]:
        """Make a stream of its rows."""
