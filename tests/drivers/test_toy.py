"""A driver of another package, with a dialect of its own: `tests/drivers/toy`."""

import asyncio
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import cenote

pytestmark = pytest.mark.once

PACKAGE = Path(__file__).parent / "toy"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package can be imported, and its metadata has the entry point, as after pip install."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    site = tmp_path / "site"
    info = site / "cenote_toy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n"
    )
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n{name} = {path}\n" for group, points in groups
             for name, path in points.items()]  # fmt: skip
    (info / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(PACKAGE))


@asynccontextmanager
async def toy(path: Path) -> AsyncIterator[cenote.Database]:
    async with cenote.Database(f"toy:///{path}/toy.db", max_size=2) as db:
        await db.execute("create table notes (id integer, text text)")
        sent(db).clear()
        yield db


def sent(db: cenote.Database) -> list[str]:
    """Every statement as the driver got it."""
    return db._driver.sent  # type: ignore[attr-defined]


async def test_the_dialect_decides_what_is_quoted(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        text = "select :a || q'[ ? :b 'c']' || :a { ? :b &1 } as joined"
        assert await db.fetch_val(text, {"a": "x"}) == "x ? :b 'c'x"
        assert sent(db) == ["select &1 || q'[ ? :b 'c']' || &1 { ? :b &1 } as joined"]


async def test_the_letter_of_a_quote_may_end_a_word(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        assert await db.fetch_val("select ? as seq{'}", [1]) == 1


async def test_the_style_of_the_driver_writes_placeholders(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        await db.execute("insert into notes values (?, ?)", [1, "one"])
        await db.execute_many("insert into notes values (:id, :text)", [{"id": 2, "text": "two"}])
        assert await db.fetch_all("select * from notes order by id") == [(1, "one"), (2, "two")]
        assert "insert into notes values (&1, &2)" in sent(db)


async def test_placeholders_of_the_database_itself_may_be_used(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        assert await db.fetch_val("select &2 || &1", ["a", "b"]) == "ba"
        with pytest.raises(ValueError, match="mixes"):
            await db.fetch_val("select ? || &1", ["a"])
        with pytest.raises(ValueError, match="driver's own &1"):
            await db.fetch_val("select 1", ["a"])


async def test_savepoints_do_without_a_statement_to_release_them(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        async with db.transaction():
            await db.execute("insert into notes values (1, 'kept')")
            async with db.transaction():
                await db.execute("insert into notes values (2, 'kept')")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with db.transaction():
                    await db.execute("insert into notes values (3, 'undone')")
                    raise ZeroDivisionError
            await db.execute_many("insert into notes values (?, 'kept')", [[4]])
        assert [row[0] for row in await db.fetch_all("select id from notes order by id")] == [
            1,
            2,
            4,
        ]
        words = [text for text in sent(db) if "insert" not in text and "select" not in text]
        assert words == [
            "START WORK",
            "SAVEPOINT cenote_2",
            "SAVEPOINT cenote_2",
            "ROLLBACK WORK TO cenote_2",
            "SAVEPOINT cenote_many",
            "COMMIT WORK",
        ]


async def test_a_failed_row_undoes_all_rows_before_it(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        async with db.transaction():
            with pytest.raises(Exception, match=r"[Bb]inding parameter"):
                await db.execute_many("insert into notes values (?, ?)", [[1, "a"], [2, object()]])
            assert await db.fetch_val("select count(*) from notes") == 0
        assert "ROLLBACK WORK TO cenote_many" in sent(db)


async def test_a_transaction_rolls_back_in_the_words_of_the_dialect(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with db.transaction():
                await db.execute("insert into notes values (1, 'undone')")
                raise ZeroDivisionError
        assert sent(db)[-1] == "ROLLBACK WORK"
        assert await db.fetch_val("select count(*) from notes") == 0


async def test_a_begin_in_text_is_known_by_the_rules(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        await db.execute("START WORK")
        await db.execute("insert into notes values (1, 'undone')")
        await db.rollback()
        assert await db.fetch_val("select count(*) from notes") == 0


async def test_a_changed_session_stays_with_its_task_and_is_reset(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        changed, go_on = asyncio.Event(), asyncio.Event()

        async def change() -> Any:
            await db.execute("ALTER SESSION SET language = german")
            changed.set()
            await go_on.wait()
            return await db.fetch_val("SHOW language")

        task = asyncio.create_task(change())
        await changed.wait()
        assert await db.fetch_val("SHOW language") is None
        assert "(reset)" not in sent(db)
        go_on.set()
        assert await task == "german"
        async with db.connection(), asyncio.TaskGroup() as group:
            other = group.create_task(db.fetch_val("SHOW language"))
        assert other.result() is None
        assert sent(db)[3] == "(reset)"  # before another task got the connection


async def test_what_is_in_a_comment_touches_nothing(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        await asyncio.create_task(db.execute("select 1 { ; ALTER SESSION SET language = german }"))
        await db.fetch_val("SHOW language")
        assert "(reset)" not in sent(db)


async def test_a_stream_reads_piece_by_piece(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        await db.execute_many(
            "insert into notes values (?, 'x')", [[number] for number in range(500)]
        )
        seen = [row["id"] async for row in db.iterate("select id from notes where id >= ?", [100])]
        assert seen == list(range(100, 500))


async def test_a_statement_is_prepared_without_the_capability(tmp_path: Path) -> None:
    async with toy(tmp_path) as db, db.connection():
        statement = await db.prepare("select ? + 1")
        assert [await statement.fetch_val([number]) for number in (1, 2)] == [2, 3]
        await statement.close()


async def test_capabilities_are_what_the_class_defines(tmp_path: Path) -> None:
    async with toy(tmp_path) as db:
        assert db.capabilities == {"ping", "reset", "interleave"}
