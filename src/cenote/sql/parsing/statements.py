"""What is known of a statement's text: worked out once, then looked up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import methodcaller
from sys import getsizeof
from threading import Lock
from typing import Any

from ..driver import Arguments, Driver, DriverConnection
from ..notes import note_missing
from .placeholders import Template, compile_template
from .session_rules import analyse
from .thread import in_thread

# What is kept for each database. Each has its text once more for each kind of parameters.
REMEMBERED = 2048  # texts
BUDGET = 4_000_000  # bytes of all these texts
LONGEST = 500_000  # bytes of a text; a longer one is analysed each time

LONG = 16_000  # characters; a longer text is analysed in a thread, as that takes milliseconds


class ParsedStatement:
    """One text, analysed for one driver."""

    __slots__ = ("_driver", "_named", "_positional", "commits", "control", "ends", "keyword",
                 "lasting", "only_data", "opaque", "read_only", "replans", "size", "text",
                 "touches", "undone")  # fmt: skip

    def __init__(self, driver: Driver, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"the statement must be a string, not {type(text).__name__}")
        facts = analyse(text, driver.dialect)
        self.text: str = text
        self.size: int = getsizeof(text)  # it grows if an extension asks for its UTF-8
        self.touches: str | None = facts.touches
        # Whether a ROLLBACK of its transaction undoes what it sets.
        self.undone: bool = facts.statements == 1 and facts.touches in driver.dialect.rules.undone
        self.lasting: bool = facts.lasting
        self.replans: bool = facts.replans
        self.control = facts.control
        self.ends = facts.ends
        self.opaque: bool = facts.opaque
        self.commits: bool = facts.statements == 1 and facts.ends in ("commit", "prepare")
        self.read_only: bool = facts.read_only
        # Whether it can change neither the session nor the transaction that it runs in.
        self.only_data: bool = not (
            facts.touches or facts.control or facts.ends or facts.opaque
            or facts.read_only or facts.lasting or facts.replans
        )  # fmt: skip
        self.keyword: str = facts.keyword
        self._driver = driver
        self._positional: Template | None = None
        self._named: Template | None = None

    def bind(self, parameters: Any) -> tuple[str, Arguments]:
        """The text and the arguments for the driver."""
        if parameters is None:
            return self.text, None
        template = self._positional
        if template is None or not isinstance(parameters, (list, tuple)):
            template = self.template(parameters)
        elif len(parameters) == template.count:
            return template.text, parameters or None
        arguments = template.bind(parameters)
        return template.text, arguments or None

    def template(self, parameters: Any) -> Template:
        if isinstance(parameters, Mapping):
            if self._named is None:
                self._named = self._compile(mapping=True)
            return self._named
        if self._positional is None:
            self._positional = self._compile(mapping=False)
        return self._positional

    def _compile(self, *, mapping: bool) -> Template:
        driver = self._driver
        return compile_template(self.text, driver.dialect, driver.style, mapping=mapping)

    def note_missing(self, error: BaseException) -> None:
        """Note on an error that the text was sent without parameters, if it has placeholders. Not
        for the error of a connection that was lost."""
        note_missing(error, self.text, self._driver.dialect, self._driver.style)

    def nothing(self) -> Any:
        """No parameters, of the kind that the placeholders of the text take."""
        return {} if self.template({}).names else ()

    def call(self, method: str, text: str, arguments: Arguments) -> Any:
        """A function that runs the statement by this method of the connection it is given."""
        if self.commits:
            return self.commit_by(method, text, arguments)
        return methodcaller(method, text, arguments)

    def commit_by(self, name: str, text: str, arguments: Arguments) -> Any:
        """The call of a connection's method for a statement that commits. Only execute() returns
        what the server answered, which is ROLLBACK after an error."""
        return partial(_commit, name, text, arguments)

    def __repr__(self) -> str:
        text = " ".join(self.text.split())
        return text if len(text) <= 60 else f"{text[:59]}…"


async def _commit(name: str, text: str, arguments: Arguments, connection: DriverConnection) -> Any:
    affected = await connection.execute(text, arguments)
    return affected if name == "execute" else without_rows(name)


def without_rows(name: str) -> Any:
    """What this method gives for a statement that has none."""
    return {"execute": 0, "fetch_all": []}.get(name)


def is_long(text: object) -> bool:
    """Whether the analysis of a text may take so long that the event loop should not wait."""
    return isinstance(text, str) and len(text) > LONG


class StatementCache(dict[str, ParsedStatement]):
    """The texts of one database that were analysed; the oldest give way to new ones. Looking up a
    text that is kept runs no Python code."""

    __slots__ = ("_bytes", "_driver", "_lock", "_turn")

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver
        self._bytes = 0  # of all texts
        self._lock = Lock()  # a database may be used in several threads
        self._turn = Lock()  # of the threads that analyse long texts

    def __missing__(self, text: str) -> ParsedStatement:
        parsed = ParsedStatement(self._driver, text)
        if parsed.size <= LONGEST:
            with self._lock:
                self._keep(text, parsed)
        return parsed

    async def analyse(self, text: str, parameters: Any) -> ParsedStatement:
        """The analysis of a text for parameters of this kind; that of a long one is made in a
        thread, so that the event loop goes on."""
        if not is_long(text) or text in self:
            return self[text]
        return await in_thread(self._analyse_long, text, parameters)

    def _analyse_long(self, text: str, parameters: Any) -> ParsedStatement:
        with self._turn:  # another thread may have been at the same text
            parsed = self[text]
            if parameters is not None and not parsed.template(parameters).names:
                parsed.template(())  # of a statement that is prepared, which may have either
            return parsed

    def _keep(self, text: str, parsed: ParsedStatement) -> None:
        if text in self:
            return
        while len(self) >= REMEMBERED or self._bytes + parsed.size > BUDGET:
            oldest = next(iter(self))
            self._bytes -= self.pop(oldest).size
        self[text] = parsed
        self._bytes += parsed.size

    def forget(self) -> None:
        """Let go of everything."""
        with self._lock:
            self.clear()
            self._bytes = 0
