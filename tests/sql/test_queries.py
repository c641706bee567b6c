"""The memory of analysed texts: what is kept, and what gives way."""

import sqlite3
import threading
import tracemalloc
from typing import Any

import pytest

import cenote
from cenote.sql.parsing import statements
from cenote.sql.parsing.statements import StatementCache

pytestmark = pytest.mark.once


@pytest.fixture
def kept() -> StatementCache:
    return cenote.Database("sqlite:///:memory:")._statement_cache


def test_a_text_is_analysed_once(kept: StatementCache) -> None:
    first = kept["select ?"]
    assert kept["select " + "?"] is first
    assert list(kept) == ["select ?"]


def test_what_is_no_text_is_refused(kept: StatementCache) -> None:
    for wrong in (5, None, b"select 1"):
        with pytest.raises(TypeError, match="must be a string"):
            kept[wrong]  # type: ignore[index]
    with pytest.raises(TypeError):
        kept[["select 1"]]  # type: ignore[index]
    assert not kept


def test_the_oldest_give_way(kept: StatementCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "REMEMBERED", 3)
    for number in range(10):
        assert kept[f"select {number}"].text == f"select {number}"
    assert list(kept) == ["select 7", "select 8", "select 9"]


def test_long_texts_are_bounded_by_their_bytes(kept: StatementCache) -> None:
    for number in range(100):
        kept[f"select {number} /* {'é€' * 50_000} */"]
    assert 5 < len(kept) < 40
    assert sum(map(size_of, kept)) <= statements.BUDGET


def size_of(text: str) -> int:
    return text.__sizeof__()


def test_a_text_that_is_too_long_is_not_kept(kept: StatementCache) -> None:
    text = f"select '{'x' * statements.LONGEST}'"
    assert kept[text].keyword == "SELECT"
    assert not kept


async def test_three_hundred_long_texts_cost_little() -> None:
    """Bulk inserts with the values in the text, each another one."""
    db = cenote.Database("sqlite:///:memory:")
    tracemalloc.start()
    try:
        for number in range(60):
            db._parse(f"insert into t values ('{number}{'x' * 1_000_000}')").bind(None)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 3 * statements.BUDGET
    await db.close()


def test_the_sum_stays_right_for_texts_that_grow(
    kept: StatementCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython keeps the UTF-8 of a text with it, once a driver has asked for that."""
    monkeypatch.setattr(statements, "REMEMBERED", 3)
    for number in range(20):
        text = f"select {number} /* {'é€' * 100} */"
        before = size_of(kept[text].text)
        sqlite3.complete_statement(text)
        assert size_of(text) > before
    assert kept._bytes == 3 * before


def test_the_sum_stays_right_in_several_threads(kept: StatementCache) -> None:
    def work(seed: int) -> None:
        for number in range(3000):
            kept[f"select {(number * seed) % 2500}"]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 7)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(kept) <= statements.REMEMBERED
    assert kept._bytes == sum(map(size_of, kept))


async def test_closing_lets_go_of_them() -> None:
    db: Any = cenote.Database("sqlite:///:memory:")
    await db.execute("select 1")
    assert "select 1" in db._statement_cache
    await db.close()
    assert not db._statement_cache
