"""Rows have one interface on every driver."""

import pickle

import pytest

import cenote
from tests.support.backends import Backend

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_rows_are_the_same_on_every_driver(backend: Backend) -> None:
    async with backend.database() as db:
        row = await db.fetch_one("select 7 as id, 'Ada' as name")
    assert isinstance(row, cenote.Row)
    assert (row[0], row["id"], row[-1], row[0:1]) == (7, 7, "Ada", (7,))
    assert ("id" in row, "Ada" in row, 7 in row) == (True, False, False)
    assert (list(row), len(row), dict(row)) == ([7, "Ada"], 2, {"id": 7, "name": "Ada"})
    assert (list(row.keys()), list(row.values())) == (["id", "name"], [7, "Ada"])
    assert list(row.items()) == [("id", 7), ("name", "Ada")]
    assert row.columns == ("id", "name")
    assert (row.get("name"), row.get("x"), row.get("x", 1)) == ("Ada", None, 1)
    assert row == (7, "Ada")
    assert hash(row) == hash((7, "Ada"))
    assert repr(row) == "<Row id=7 name='Ada'>"
    again = pickle.loads(pickle.dumps(row))
    assert isinstance(again, cenote.Row)
    assert (again, again["name"]) == (row, "Ada")
    assert not hasattr(row, "id")
    with pytest.raises(KeyError, match="nme"):
        row["nme"]
    with pytest.raises(IndexError):
        row[2]


async def test_rows_of_streams_are_rows(backend: Backend) -> None:
    async with backend.database() as db:
        async for row in db.iterate("select 7 as id, 'Ada' as name"):
            assert isinstance(row, cenote.Row)
            assert ("id" in row, row == (7, "Ada")) == (True, True)
