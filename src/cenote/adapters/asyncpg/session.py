"""What the statements of a program have changed in a session, and how that is undone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

from ...drivers.postgresql import RESET
from ...sql.dialects import POSTGRESQL
from ...sql.parsing.statements import StatementCache
from . import private

# Of every pool in this process: what a text does to a session does not depend on the connection.
# Of a driver, the cache needs what is given here.
TEXTS: StatementCache = StatementCache(
    cast(Any, SimpleNamespace(dialect=POSTGRESQL, style="numeric"))
)


class SessionState:
    """What was changed in the session of one connection since it was clean."""

    __slots__ = ("codecs", "ending", "lasting", "probe", "replans", "touched", "unended")

    def __init__(self) -> None:
        self.touched: str | None = None  # why the session must be reset
        self.lasting: bool = False  # no reset undoes the change
        self.replans: bool = False  # what was prepared is not there any more
        self.codecs: dict[tuple[str, str], None] = {}  # types and schemas, in order
        # Perhaps a statement was prepared, and nothing was sent after that.
        self.unended: bool = False
        self.ending: bool = False  # closed by this program, and not by the server
        self.probe: Any = None

    @property
    def clean(self) -> bool:
        """Whether there is nothing to undo."""
        return self.touched is None and not self.codecs

    def note_codec(self, typename: str, options: Mapping[str, Any]) -> None:
        """Note that a codec of the type was set or removed."""
        self.codecs[typename, options.get("schema", "public")] = None

    def forget(self) -> None:
        """Count what was changed so far as the state of a clean session."""
        self.touched = None
        self.lasting = self.replans = self.unended = False
        self.codecs.clear()


def note(session: SessionState, text: str) -> None:
    """Note what a text is about to do."""
    parsed = TEXTS[text]
    if parsed.touches is not None:
        session.touched = parsed.touches
        session.lasting = session.lasting or parsed.lasting
        session.replans = session.replans or parsed.replans


@lru_cache(maxsize=64)
def watched(connection_class: Any) -> Any:
    """Return the subclass of a class of connections whose sessions are watched."""
    return private.watched(connection_class, note, SessionState)


def session_of(raw: Any) -> SessionState | None:
    """Return the session of a connection; None if it is not watched."""
    session: SessionState | None = getattr(raw, "cenote_session", None)
    if session is not None and session.probe is None:
        session.probe = private.make_probe(raw)
    return session


def is_clean(raw: Any, session: SessionState | None) -> bool:
    """Return whether the next task may have an open connection as it is, without a round trip."""
    return (
        session is not None
        and session.touched is None
        and not (session.codecs or session.unended)
        and not private.is_cancelling(raw)
        and not private.in_transaction(raw)
        and not private.has_listeners(raw)
        and not private.is_busy(raw, session.probe)
    )


async def reset(raw: Any, session: SessionState | None) -> bool:
    """Undo what was touched, and no more; return whether the session was reset, so that it has to
    be initialized again. Raises what asyncpg raises, as while another operation is in progress."""
    codecs = list(session.codecs) if session is not None else []
    everything = (
        session is None or session.touched is not None or private.is_busy(raw, session.probe)
    )
    await private.leave_transaction(raw)
    if everything:
        text = private.reset_text(raw, RESET)
        answer: str = (await raw.execute(text) if text else "") or ""
        lost = text is RESET and int(answer.removeprefix("SELECT ")) < private.kept_statements(raw)
        if lost or session is None or session.replans:
            private.drop_statements(raw)
    elif session is not None and session.unended:
        await private.end_preparation(raw)
    for typename, schema in codecs:
        await raw.reset_type_codec(typename, schema=schema)
    if session is not None:
        session.forget()
    return everything or bool(codecs)
