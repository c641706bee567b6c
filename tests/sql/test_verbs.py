"""The six verbs: written once, and with nothing internal in their signatures."""

import inspect

import pytest

import cenote
from cenote.sql.streams import Stream
from cenote.sql.verbs import PreparedVerbs, TextVerbs

VERBS = ("execute", "execute_many", "fetch_all", "fetch_one", "fetch_val", "iterate")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", [cenote.Database, cenote.Transaction, cenote.Statement])
def test_verb_is_inherited_from_one_place(kind: type, verb: str) -> None:
    base = PreparedVerbs if kind is cenote.Statement else TextVerbs
    assert getattr(kind, verb) is getattr(base, verb)
    assert getattr(kind, verb).__doc__
    assert inspect.iscoroutinefunction(getattr(kind, verb)) == (verb != "iterate")


@pytest.mark.parametrize("flag", ["watched", "last", "observed"])
async def test_internal_flags_are_not_part_of_a_call(flag: str) -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        for verb in ("execute", "fetch_all", "fetch_one", "fetch_val", "iterate"):
            with pytest.raises(TypeError, match=flag):
                getattr(db, verb)("SELECT 1", **{flag: True})


async def test_verbs_answer_alike_in_all_three_places() -> None:
    async with cenote.Database("sqlite:///:memory:") as db, db.transaction() as tx:
        statement = await db.prepare("SELECT ? AS number")
        for sql, runs in ((["SELECT ? AS number"], (db, tx)), ([], (statement,))):
            for each in runs:
                assert await each.fetch_val(*sql, [3]) == 3
                assert tuple(await each.fetch_one(*sql, [3])) == (3,)
                assert [tuple(row) for row in await each.fetch_all(*sql, [3])] == [(3,)]
                stream = each.iterate(*sql, [3])
                assert isinstance(stream, Stream)
                assert [tuple(row) async for row in stream] == [(3,)]


async def test_execute_many_refuses_a_string_of_parameters() -> None:
    async with cenote.Database("sqlite:///:memory:") as db, db.transaction() as tx:
        statement = await db.prepare("SELECT ?")
        with pytest.raises(TypeError, match="iterable of parameters"):
            await db.execute_many("SELECT ?", "ab")
        with pytest.raises(TypeError, match="iterable of parameters"):
            await tx.execute_many("SELECT ?", "ab")
        with pytest.raises(TypeError, match="iterable of parameters"):
            await statement.execute_many("ab")
