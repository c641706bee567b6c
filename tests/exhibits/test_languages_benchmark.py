"""The benchmark of other languages: who takes part, who is skipped, and what it writes."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.servers import PostgresServer

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import report, statements  # noqa: E402
from benchmarks.languages import __main__ as languages  # noqa: E402
from benchmarks.languages import contenders  # noqa: E402
from benchmarks.measure import Table  # noqa: E402

pytestmark = [pytest.mark.once, pytest.mark.real_time("measures, for moments")]


def test_what_is_not_installed_is_skipped_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(contenders, "debian_pgbench", lambda: iter(()))
    found, absent = contenders.contenders(tmp_path)
    assert [name.partition(" ")[0] for name in absent if "uvloop" not in name] == [
        *("pgbench", "pgxpool", "HikariCP", "postgres.js", "pg")
    ]
    assert all("apt-get install" in reason or "pip install" in reason for reason in absent.values())
    assert all("asyncpg on" in each.name for each in found)


def test_a_program_that_cannot_be_built_is_skipped() -> None:
    with pytest.raises(contenders.Missing, match=r"sh -c failed: no network"):
        contenders.build("sh", "-c", "echo trying; echo no network; exit 3")


def test_every_language_that_is_there_does_both_jobs(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.tcp_url()
    asyncio.run(statements.fill(url, 20))
    found, absent = contenders.contenders(tmp_path)
    assert found
    every = {
        kind: languages.run(found, kind, url, rounds=1, seconds=0.1)
        for kind in ("statements", "transactions")
    }
    assert min(rate for samples in every.values() for [rate] in samples.values()) > 0
    table = languages.table(every, [f"Skipped: {name}." for name in absent])
    assert {row[0] for row in table.rows} == {each.name for each in found}


def test_the_table_of_languages_goes_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("a\n<!-- bench: languages -->old<!-- /bench: languages -->\nb\n")
    table = Table("Title", ["", "a second"], [["Go", "5"]])
    written = report.write_languages(tmp_path / "benchmarks", table)
    assert written == [str(tmp_path / "benchmarks/languages.md"), str(page)]
    text = page.read_text()
    assert "| Go | " in text
    assert "old" not in text
    assert text.startswith("a\n")
    assert text.endswith("\nb\n")
