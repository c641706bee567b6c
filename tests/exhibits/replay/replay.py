"""The replays, each on a new database for every script.

- *outcome*: the same statements on the bare driver and through cenote, in the same order; rows,
  counts and codes of errors must be the same.
- *once*: what the server's log says it ran for cenote must be what it ran for the bare driver.
- *left*: each statement in a task of its own; what another task then sees of it on the same
  connection, other than in the database, is a leftover.
- *transaction*: statements with words of transactions inside a block; cenote must notice the end of
  the transaction, and only that.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import cenote

from . import sides
from .expected import Difference, Expected
from .places import Place, PostgresPlace
from .scripts import Script, Statement
from .sides import LIMIT, Outcome, Through, code
from .snapshots import Looker, changes

# What may begin or end a transaction, on any of the databases.
TRANSACTION = re.compile(
    r"\b(begin|start\s+transaction|commit|rollback|abort|end|savepoint|release|chain|prepare"
    r"|execute|call|do|set\s+autocommit|xa|or\s+rollback|set\s+(session\s+)?transaction)\b",
    re.IGNORECASE,
)
PROBE = "exhibit_savepoint"


@dataclass
class Tally:
    """What one replay of one driver found; a line of the table."""

    corpus: str
    driver: str
    method: str
    statements: int = 0
    different: int = 0  # all differences
    expected: int = 0  # of them, those in the list
    skipped: int = 0  # after a session that was lost on both sides
    new: list[Difference] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)

    def add(self, differences: Iterable[Difference], expected: Expected) -> None:
        for difference in differences:
            self.different += 1
            reason = expected.reason(difference)
            if reason is None:
                self.new.append(difference)
                self.causes[f"NEW {difference.found[:100]}"] += 1
            else:
                self.expected += 1
                self.causes[reason] += 1


def described(
    replay: str, place: tuple[str, str, str], statement: Statement, found: str
) -> Difference:
    """A difference at a statement; `place`: corpus, driver and method."""
    corpus, driver, method = place
    return Difference(
        replay, corpus, driver, method, statement.script, str(statement), statement.text, found
    )


# -- outcome, once ---------------------------------------------------------------------------------


async def compare(
    script: Script, places: list[Place], driver: str, method: str, corpus: str
) -> tuple[list[Difference], int]:
    """Replay a script on both sides; returns the differences, and how many statements were
    compared."""
    texts = [statement.text for statement in script.statements]
    outcomes: list[list[Outcome]]
    if places[0].folder is None:
        outcomes = [*await asyncio.gather(
            _one_side(places[0], driver, method, texts, through=False),
            _one_side(places[1], driver, method, texts, through=True),
        )]  # fmt: skip
    else:  # relative names of files: one after the other
        outcomes = []
        for place, through in zip(places, (False, True), strict=True):
            with contextlib.chdir(place.folder or "."):
                outcomes.append(await _one_side(place, driver, method, texts, through=through))
    where = (corpus, driver, method)
    differences = [
        described("outcome", where, statement, f"bare: {bare} | cenote: {through}")
        for statement, bare, through in zip(script.statements, *outcomes, strict=False)
        if not bare.matches(through)
    ]
    compared = min(map(len, outcomes))
    differences += await _compare_logs(script.statements[:compared], places, where)
    around = "\n".join(texts) if differences else ""
    return [replace(each, around=around) for each in differences], compared


async def _one_side(
    place: Place, driver: str, method: str, texts: list[str], *, through: bool
) -> list[Outcome]:
    await place.fresh()
    if isinstance(place, PostgresPlace):
        await place.mark()
        place.executions()  # what was before
    side = Through(place.database(driver), method) if through else await place.bare(driver, method)
    try:
        # In a task of its own, from the first statement to the last.
        outcomes = await asyncio.create_task(sides.replay(side, texts))
    finally:
        await side.close()
    if isinstance(place, PostgresPlace):
        await place.mark()
    return outcomes


async def _compare_logs(
    statements: list[Statement], places: list[Place], where: tuple[str, str, str]
) -> list[Difference]:
    """Each text must have been run as often through cenote as by the bare driver."""
    logs = [place.executions() for place in places]
    if logs[0] is None or logs[1] is None:
        return []
    texts = {_trimmed(statement.text): statement for statement in reversed(statements)}
    bare, through = ({(kind, _trimmed(text)): count for (kind, text), count in log.items()}
                     for log in logs if log is not None)  # fmt: skip
    found = []
    for (kind, text), count in through.items():
        if text in texts and count > bare.get((kind, text), 0):
            times = (
                f"{kind} {bare.get((kind, text), 0)} times by the bare driver, {count} by cenote"
            )
            found.append(described("once", where, texts[text], times))
    return found


def _trimmed(text: str) -> str:
    return text.strip().rstrip(";").strip()


# -- left ------------------------------------------------------------------------------------------


async def look_for_leftovers(
    script: Script, db: Any, looker: Looker, where: tuple[str, str, str]
) -> list[Difference]:
    """Run each statement in a task of its own, and look at the session from another one."""
    found: list[Difference] = []
    clean = before = await _task(looker.look(db, ""))
    for statement in script.statements:
        text = statement.text
        raised = await _task(_ended(db, text))
        if raised == "hung":
            found.append(described("left", where, statement, f"no answer for {LIMIT:g} s"))
        try:
            after = await _task(looker.look(db, text))
        except Exception as error:  # an innocent statement of the next task failed
            found.append(described("left", where, statement, f"next task: {error!r}"[:300]))
            continue
        found += [
            described("left", where, statement, change) for change in changes(before, after, clean)
        ]
        if "seed" in text.lower() and await _foretold(db, text, where[0]):
            found.append(described("left", where, statement, "seed: random() is foretold"))
        before = before | after if len(after) < len(clean) else after
    return found


async def _ended(db: Any, text: str) -> str:
    """Run one statement; what it raises is its own affair here."""
    try:
        async with asyncio.timeout(LIMIT):
            await db.fetch_all(text)
    except TimeoutError:
        return "hung"
    except Exception as error:
        return code(error)
    return ""


async def _foretold(db: Any, text: str, corpus: str) -> bool:
    """Whether the numbers of the next task follow from the statement."""
    question = "select rand()" if corpus == "mariadb" else "select random()"
    seen = []
    for _ in range(2):
        await _task(_ended(db, text))
        seen.append(await _task(db.fetch_val(question)))
    return bool(seen[0] == seen[1])


async def _task(work: Any) -> Any:
    return await asyncio.create_task(work)


# -- transaction -----------------------------------------------------------------------------------


class _Undo(Exception):
    """Leaves the block."""


async def check_transaction(
    statement: Statement, db: Any, other: Any, where: tuple[str, str, str], number: int
) -> list[Difference]:
    """Run the statement inside a block. `other` is a second connection, which sees what was
    committed."""
    outcome: str | None = None  # of the transaction, as cenote says; None: it goes on
    alive = True  # as the server says

    async def block() -> None:
        nonlocal outcome, alive
        try:
            async with db.transaction():
                await db.execute(f"insert into exhibit_mark values ({number})")
                await db.execute(f"savepoint {PROBE}")
                await _ended(db, statement.text)
                raw = db.bound_connection
                try:
                    await db.fetch_all("select 1")
                except cenote.TransactionLostError as error:
                    outcome = error.outcome
                except Exception:
                    pass  # of a transaction that failed and goes on
                if raw is None:
                    alive = False
                else:
                    alive = await _still_open(raw)
                raise _Undo
        except (_Undo, cenote.TransactionLostError):
            pass

    async with asyncio.timeout(3 * LIMIT):
        await _task(block())
    query = f"select count(*) from exhibit_mark where a = {number}"
    visible = bool(await _task(other.fetch_val(query)))
    found = []
    if alive and outcome is not None:
        found.append(f"TransactionLostError ({outcome}), and the transaction goes on")
    elif not alive and outcome is None:
        found.append("the transaction has ended, and nobody says so")
    if outcome is None and visible:
        found.append("half of the block is committed")
    elif (outcome == "committed" and not visible) or (outcome == "rolled_back" and visible):
        found.append(f"outcome {outcome!r}, and the row is {'there' if visible else 'not there'}")
    return [described("transaction", where, statement, each) for each in found]


async def _still_open(raw: Any) -> bool:
    """Whether the savepoint is there, asked for on the driver's own connection."""
    text = f"rollback to savepoint {PROBE}"
    try:
        if hasattr(raw, "query"):  # asyncmy
            await raw.query(text)
        else:
            done = raw.execute(text)
            if hasattr(done, "__await__"):
                await done
    except Exception:
        return False
    return True


async def check_transactions(
    script: Script, db: Any, other: Any, where: tuple[str, str, str], most: int
) -> tuple[list[Difference], int]:
    """Go through a script; statements with words of transactions run inside a block first."""
    found: list[Difference] = []
    checked = 0
    await _task(db.execute("create table exhibit_mark (a integer)"))
    for statement in script.statements:
        if checked < most and TRANSACTION.search(statement.text):
            checked += 1
            try:
                found += await check_transaction(statement, db, other, where, checked)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"[:300]
                found.append(described("transaction", where, statement, text))
        await _task(_ended(db, statement.text))
    return found, checked
