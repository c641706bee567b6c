"""Long texts are analysed in a thread: the event loop goes on meanwhile."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cenote
from cenote.sql.parsing import statements

pytestmark = pytest.mark.once

FILLER = f"/* {'x' * statements.LONG} */"
LONG = f"select ? as number {FILLER}"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """With each text that is analysed, the thread in which that happens."""
    found: dict[str, str] = {}
    analyse, compile_template = statements.analyse, statements.compile_template

    def note(text: str, *rest: Any, **options: Any) -> Any:
        found[text] = threading.current_thread().name
        function = compile_template if options else analyse
        return function(text, *rest, **options)  # type: ignore[operator]

    monkeypatch.setattr(statements, "analyse", note)
    monkeypatch.setattr(statements, "compile_template", note)
    return found


async def rows_of(stream: Any) -> list[int]:
    return [row["number"] async for row in stream]


VERBS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "execute": lambda each: each.execute(LONG, [1]),
    "execute_many": lambda each: each.execute_many(f"delete from t where id = ? {FILLER}", [[1]]),
    "fetch_val": lambda each: each.fetch_val(LONG, [1], timeout=60),
    "fetch_all": lambda each: each.fetch_all(LONG, (1,)),
    "fetch_one": lambda each: each.fetch_one(LONG.replace("?", ":a"), {"a": 1}),
    "iterate": lambda each: rows_of(each.iterate(LONG, [1])),
    "prepare": lambda each: each.prepare(LONG),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_no_verb_analyses_a_long_text_itself(verb: str, threads: dict[str, str]) -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        await db.execute("create table t (id integer)")
        threads.clear()
        await VERBS[verb](db)
        assert {*threads.values()} == {"cenote analysis"}
        db._forget_statements()
        threads.clear()
        async with db.transaction() as tx:
            await VERBS[verb](tx)
        assert {*threads.values()} == {"cenote analysis"}


async def test_a_short_text_is_analysed_at_once(threads: dict[str, str]) -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        await db.execute("select 1")
        assert threads["select 1"] == threading.current_thread().name


async def test_a_long_text_is_answered_like_a_short_one() -> None:
    async with cenote.Database("sqlite:///:memory:") as db, db.transaction() as tx:
        for each in (db, tx):
            assert await each.fetch_val(LONG, [7]) == 7
            assert await each.fetch_val(LONG, [8]) == 8  # known by now
            assert await rows_of(each.iterate(LONG, [7])) == [7]
            with pytest.raises(ValueError, match="1 placeholder"):
                await each.execute(LONG, [1, 2])
            with pytest.raises(ValueError, match="1 placeholder"):
                await each.iterate(LONG, [1, 2]).start()
            with pytest.raises(ValueError, match="1 placeholder"):
                await each.execute_many(LONG, [[1], []])


async def test_a_stream_that_was_refused_is_over() -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        stream = db.iterate(LONG, [])
        with pytest.raises(ValueError, match="1 placeholder"):
            await stream.start()
        assert await rows_of(stream) == []
        assert db.bound_connection is None


class Gate:
    """An analysis that waits in its thread until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.begun, self.open = threading.Event(), threading.Event()
        self._analyse = statements.analyse
        monkeypatch.setattr(statements, "analyse", self.analyse)

    def analyse(self, *what: Any) -> Any:
        self.calls += 1
        self.begun.set()
        assert self.open.wait(60)
        return self._analyse(*what)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 60)


async def test_the_loop_goes_on_during_the_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cenote.Database("sqlite:///:memory:", max_size=1) as db:
        await db.execute("select 1")
        gate = Gate(monkeypatch)
        tasks = [asyncio.create_task(db.fetch_val(LONG, [number])) for number in range(5)]
        await gate.entered()
        assert await db.fetch_val("select 1") == 1  # no connection is held meanwhile
        gate.open.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]
        assert gate.calls == 1  # the others found it done


async def test_a_cancelled_wait_for_the_analysis_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cenote.Database("sqlite:///:memory:", max_size=1) as db:
        gate = Gate(monkeypatch)
        task = asyncio.create_task(db.fetch_val(LONG, [1]))
        await gate.entered()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        assert await db.fetch_val(LONG, [2]) == 2
        assert gate.calls == 1  # it went on to its end, and was kept


async def test_without_another_thread_it_is_analysed_here(
    monkeypatch: pytest.MonkeyPatch, threads: dict[str, str]
) -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        await db.execute("select 1")

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert await db.fetch_val(LONG, [1]) == 1
        assert threads[LONG] == threading.current_thread().name
