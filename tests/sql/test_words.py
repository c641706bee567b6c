"""A user of a database reads of connections, and never of the hooks of a pool."""

import pytest

import cenote
from cenote.testing import settle
from tests.support.waiting import eventually


@pytest.mark.parametrize("hook", ["healthcheck", "before_acquire", "before_release", "destructor"])
async def test_no_message_of_a_database_names_a_hook(tmp_path, hook, caplog):
    async with cenote.Database(f"sqlite:///{tmp_path}/words.db") as db:
        await db.execute("select 1")
        words = db.pool._engine.words
        assert hook not in words.of(hook)
        assert "connection" in words.of(hook)
        assert words.of("factory") == f"connecting to '{tmp_path}/words.db'"


async def test_a_connection_and_no_resource_is_held_too_long(tmp_path, caplog):
    async with (
        cenote.Database(f"sqlite:///{tmp_path}/words.db", hold_warning=0.001) as db,
        db.connection(),
    ):
        await eventually(lambda: caplog.records)
    assert ": a connection is held for " in caplog.records[0].getMessage()


async def test_a_failed_on_connect_of_a_refill_names_the_place(tmp_path, caplog):
    broken = False

    def on_connect(connection):
        if broken:
            raise OSError("no codecs")

    path = tmp_path / "words.db"
    async with cenote.Database(f"sqlite:///{path}", on_connect=on_connect, min_size=1) as db:
        broken = True
        await db.pool.retire()
        while not caplog.records:
            await settle()
        line = caplog.records[0].getMessage()
        assert f"connecting to '{path}' failed: " in line
        assert "no codecs" in line
        assert "min_size is tried again in" in line
        assert "factory" not in caplog.text
