"""The states of connections, sessions and transactions, and the law of their transitions.

- A *connection* is usable until something breaks it. What broke it decides how it is closed: after
  an interruption the server has to be told to stop.
- A *session* is what a task holds over several statements. It is decided again after each
  statement why it is held; when nothing pins it, the connection goes back to the pool.
- A *transaction* is one block or savepoint. Whether it was lost is a state of its session, since
  all blocks of a session are lost together.

`TRANSITIONS` is the whole law, as in `cenote.states`: an event that a state does not list raises
`IllegalTransition` and changes nothing. The diagrams in `docs/` are drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ..states import Law, State


class ConnectionState(State):
    FRESH = "fresh"  # connected; on_connect has not run
    READY = "ready"
    INTERRUPTED = "interrupted"  # in mid-statement: the server has to be told to stop
    STUCK = "stuck"  # its driver is in mid-operation, though nothing says that the server is gone
    BROKEN = "broken"  # lost, or not to be used again for another reason
    CLOSED = "closed"


class SessionState(State):
    FREE = "free"  # nothing pins it: its connection is on its way to or from the pool
    PINNED = "pinned"  # by an open statement, stream or block, or by changed session state
    IN_TRANSACTION = "in_transaction"
    LOST = "lost"  # its transaction ended without its block knowing
    FORGOTTEN = "forgotten"  # its connection is gone, with session state that the task relied on
    ENDED = "ended"  # its task is over, the database is closed, or its connection was given back


class TransactionState(State):
    NEW = "new"
    REFUSED = "refused"  # it was used without success before it began; it may still be entered
    BEGINNING = "beginning"
    OPEN = "open"
    ENDING = "ending"  # nothing but its end runs in it any more
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"  # it could not begin or end, and an error said so
    CUT_OFF = "cut_off"  # ended by something else than its own task


def _law(machine: str, table: Mapping[Enum, Mapping[str, Enum]]) -> Law:
    steps = {(state, event): end for state, row in table.items() for event, end in row.items()}
    return Law(machine, steps)


_C, _S, _T = ConnectionState, SessionState, TransactionState

_DOWN = {"mark_broken": _C.BROKEN, "interrupt": _C.INTERRUPTED, "jam": _C.STUCK, "close": _C.CLOSED}

CONNECTION = _law(
    "connection",
    {
        _C.FRESH: {"greet": _C.READY, "interrupt": _C.INTERRUPTED, "close": _C.CLOSED},
        _C.READY: {"greet": _C.READY, **_DOWN},
        _C.INTERRUPTED: dict.fromkeys(_DOWN, _C.INTERRUPTED) | {"close": _C.CLOSED},
        _C.STUCK: dict.fromkeys(_DOWN, _C.STUCK) | {"close": _C.CLOSED},
        _C.BROKEN: _DOWN | {"jam": _C.BROKEN},
        # The loop may go down while on_connect runs.
        _C.CLOSED: dict.fromkeys(("greet", *_DOWN), _C.CLOSED),
    },
)

_HELD = {"pin": _S.PINNED, "begin": _S.IN_TRANSACTION, "forget": _S.FORGOTTEN, "end": _S.ENDED}

SESSION = _law(
    "session",
    {
        _S.FREE: _HELD,
        _S.PINNED: _HELD,
        _S.IN_TRANSACTION: {"free": _S.FREE, **_HELD, "lose": _S.LOST},
        _S.LOST: {"free": _S.FREE, "end": _S.ENDED},
        _S.FORGOTTEN: {"forget": _S.FORGOTTEN, "end": _S.ENDED},
        _S.ENDED: {"end": _S.ENDED},
    },
)

TRANSACTION = _law(
    "transaction",
    {
        _T.NEW: {"enter": _T.BEGINNING, "refuse": _T.REFUSED},
        _T.REFUSED: {"enter": _T.BEGINNING, "refuse": _T.REFUSED},
        _T.BEGINNING: {"open": _T.OPEN, "refuse": _T.REFUSED, "fail": _T.FAILED},
        _T.OPEN: {"end": _T.ENDING, "roll_back": _T.ROLLED_BACK, "cut_off": _T.CUT_OFF},
        _T.ENDING: {
            "end": _T.ENDING,
            "commit": _T.COMMITTED,
            "roll_back": _T.ROLLED_BACK,
            "fail": _T.FAILED,
            "cut_off": _T.CUT_OFF,
        },
        _T.COMMITTED: {},
        _T.ROLLED_BACK: {"roll_back": _T.ROLLED_BACK, "cut_off": _T.CUT_OFF},
        _T.FAILED: {"roll_back": _T.FAILED, "cut_off": _T.CUT_OFF},
        _T.CUT_OFF: dict.fromkeys(("end", "commit", "roll_back", "fail", "cut_off"), _T.CUT_OFF),
    },
)

TRANSITIONS: Mapping[str, Law] = {
    "connection": CONNECTION,
    "session": SESSION,
    "transaction": TRANSACTION,
}
