"""The parts of `make replay`: its list, its cache, and replays that must be able to fail.

All texts here are our own; the corpora are fetched only by `make replay` itself.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cenote
from tests.exhibits.replay import expected, fetch, run, sides
from tests.exhibits.replay.expected import Difference
from tests.exhibits.replay.places import Place, SqlitePlace, Stand
from tests.exhibits.replay.replay import Tally, check_transactions, compare, look_for_leftovers
from tests.exhibits.replay.scripts import Script
from tests.exhibits.replay.snapshots import LOOKERS, changes
from tests.support.servers import MariaDBServer, PostgresServer

pytestmark = pytest.mark.once

# -- the list of expected differences --------------------------------------------------------------


def difference(**words: str) -> Difference:
    of = {
        "replay": "outcome", "corpus": "sqlite", "driver": "sqlite", "method": "execute",
        "script": "x.test", "place": "x.test:1", "text": "select 1", "found": "a | b",
    }  # fmt: skip
    return Difference(**{**of, **words})


def test_the_list_is_readable_and_every_entry_has_a_reason() -> None:
    listed = expected.load()
    assert listed.rules
    assert all(len(rule.reason) > 20 for rule in listed.rules)


def test_an_entry_covers_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text("""
        [[expected]]
        corpus = "sqlite"
        replay = "outcome"
        text = '\\brandom\\s*\\('
        reason = "random numbers"
    """)
    listed = expected.load(path)
    assert listed.reason(difference(text="select random()")) == "random numbers"
    assert listed.reason(difference(text="select 1")) is None
    assert listed.reason(difference(text="select random()", replay="left")) is None
    assert listed.reason(difference(text="select random()", corpus="mariadb")) is None
    assert listed.used == {"random numbers": 1}


@pytest.mark.parametrize("entry", ["text = 'x'", "reason = ''", "reason = 'x'\nfile = 'y'"])
def test_an_entry_without_reason_or_known_word_is_refused(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(f"[[expected]]\n{entry}\n")
    with pytest.raises(ValueError, match=r"expected\.toml"):
        expected.load(path)


# -- fetching --------------------------------------------------------------------------------------


def test_without_apt_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        fetch.Unavailable, match=r"'sqlite' comes from Debian's package sqlite3.*apt"
    ):
        fetch.fetch(fetch.CORPORA["sqlite"], tmp_path)


def test_what_is_in_the_cache_is_taken_from_it(tmp_path: Path) -> None:
    corpus = fetch.CORPORA["sqlite"]
    script = corpus.folder(tmp_path) / "sqlite3-1.0" / "test" / "a.test"
    script.parent.mkdir(parents=True)
    script.write_text("execsql {select 1}")
    (tmp_path / "sqlite.version").write_text("sqlite3_1.0\n")
    assert fetch.fetch(corpus, tmp_path) == "sqlite3_1.0"
    assert corpus.scripts(tmp_path) == [script]


# -- outcomes and snapshots ------------------------------------------------------------------------


def test_outcomes_are_compared_by_all_of_their_rows() -> None:
    long = [(number, "x" * 50) for number in range(100)]
    assert sides.of_rows(long).matches(sides.of_rows(long))
    assert not sides.of_rows(long).matches(sides.of_rows([*long[:-1], (99, "y")]))
    assert sides.of_rows(long).matches(sides.of_rows(long[::-1]))  # SQL promises no order
    assert not sides.of_rows([(1,)]).matches(sides.of_rows([(1,), (1,)]))
    assert not sides.of_rows([]).matches(sides.of_count(0))
    assert sides.of_error(cenote.PoolError("x")).shown == "PoolError"


def test_only_what_is_new_counts_as_a_change() -> None:
    assert changes({}, {"a": "1"}, {}) == ["a: None -> '1'"]
    assert changes({"a": "1"}, {"a": "1"}, {}) == []
    assert changes({"a": "2"}, {"a": "1"}, {"a": "1"}) == []  # as on a new connection


# -- the replays can fail --------------------------------------------------------------------------


class Twice:
    """A database that runs everything a second time."""

    def __init__(self, db: Any) -> None:
        self.db = db

    async def execute(self, text: str) -> Any:
        await self.db.execute(text)
        return await self.db.execute(text)

    async def fetch_all(self, text: str) -> Any:
        await self.db.fetch_all(text)
        return await self.db.fetch_all(text)

    async def close(self) -> None:
        await self.db.close()


class Blind:
    """A database that does not notice the end of a transaction."""

    def __init__(self, db: Any) -> None:
        self.db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)

    async def fetch_all(self, text: str) -> Any:
        try:
            return await self.db.fetch_all(text)
        except cenote.TransactionLostError:
            return []


class Alarmed(Blind):
    """One that says so of a transaction that goes on."""

    async def fetch_all(self, text: str) -> Any:
        if text == "select 1":
            raise cenote.TransactionLostError("it is gone", outcome="rolled_back")
        return await self.db.fetch_all(text)


COMMON = [
    "create table t (a int)", "insert into t values (1), (2)", "select * from t",
    "select nosuch(1)", "select * from nosuch", "begin", "insert into t values (3)", "rollback",
    "select count(*) from t",
]  # fmt: skip
INNOCENT = {
    "postgresql": [
        *COMMON, "set work_mem = '3MB'", "show work_mem", "select 1/0",
        "do $$ begin insert into t values (4); end $$", "select count(*) from t",
    ],
    "mariadb": [*COMMON, "set @a = 1", "select @a"],
    "sqlite": [*COMMON, "pragma foreign_keys = on", "pragma foreign_keys"],
}  # fmt: skip
LEAKS = {
    "postgresql": ["set work_mem = '3MB'", "create temp table x (a int)", "set role pg_monitor",
                   "select pg_advisory_lock(7)", "listen x", "prepare p as select 1",
                   "set my.own = 'x'", "select setseed(0.5)"],
    "mariadb": ["set @a = 1", "set session sort_buffer_size = 65536", "select get_lock('a', 1)",
                "create temporary table x (a int)", "lock tables exhibit_probe_2 read"],
    "sqlite": ["pragma foreign_keys = on", "create temp table x (a int)", "attach ':memory:' as y"],
}  # fmt: skip
DRIVERS = {"postgresql": "asyncpg", "mariadb": "mysql", "sqlite": "sqlite"}


class Theatre:
    """A stand with its loop, for our own statements."""

    def __init__(self, corpus: str, stand: Stand, runner: asyncio.Runner) -> None:
        self.corpus = corpus
        self.driver = DRIVERS[corpus]
        self.stand = stand
        self.runner = runner

    def script(self, *statements: str) -> Script:
        script = Script("own")
        for line, statement in enumerate(statements, 1):
            script.add(statement, line)
        return script

    def database(self, **options: Any) -> Any:
        return self.stand.places[0].database(self.driver, **options)

    def where(self, method: str) -> tuple[str, str, str]:
        return self.corpus, self.driver, method

    def compare(self, script: Script, method: str) -> list[Difference]:
        work = compare(script, self.stand.places, self.driver, method, self.corpus)
        found, compared = self.runner.run(work)
        assert compared == len(script.statements)
        return found

    def leftovers(self, *statements: str, reset: str) -> list[Difference]:
        async def look() -> list[Difference]:
            await self.stand.places[0].fresh()
            db = self.database(reset=reset)
            if self.corpus == "mariadb":
                await asyncio.create_task(db.execute("create table exhibit_probe_2 (a int)"))
            looker = LOOKERS[self.corpus]()
            try:
                return await look_for_leftovers(
                    self.script(*statements), db, looker, self.where("left")
                )
            finally:
                await db.close()

        return self.runner.run(look())

    def transactions(self, *statements: str, kind: Any = None) -> list[str]:
        async def check() -> list[Difference]:
            await self.stand.places[0].fresh()
            db, other = self.database(), self.database()
            try:
                found, checked = await check_transactions(
                    self.script(*statements), kind(db) if kind else db, other,
                    self.where("transaction"), 100,
                )  # fmt: skip
            finally:
                await db.close()
                await other.close()
            assert checked
            return found

        return [each.found for each in self.runner.run(check())]


@pytest.fixture(scope="module", params=[*DRIVERS])
def theatre(request: pytest.FixtureRequest) -> Iterator[Theatre]:
    corpus = request.param
    kind: Any = {"postgresql": PostgresServer, "mariadb": MariaDBServer}.get(corpus)
    if kind is not None:
        if reason := kind.missing():
            pytest.skip(reason)
        pytest.importorskip("asyncpg" if corpus == "postgresql" else "asyncmy")
    with Stand(fetch.CORPORA[corpus], bare=True) as stand, asyncio.Runner() as runner:
        for place in stand.places:
            runner.run(place.open())
        yield Theatre(corpus, stand, runner)
        for place in stand.places:
            runner.run(place.close())


@pytest.mark.parametrize("method", ["execute", "fetch_all"])
def test_innocent_statements_are_the_same_on_both_sides(theatre: Theatre, method: str) -> None:
    assert theatre.compare(theatre.script(*INNOCENT[theatre.corpus]), method) == []


def test_a_double_execution_is_seen(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    place = theatre.stand.places[1]
    database = place.database
    monkeypatch.setattr(place, "database", lambda *a, **options: Twice(database(*a, **options)))
    script = theatre.script("create table t (a int)", "insert into t values (1)",
                            "select count(*) from t")  # fmt: skip
    found = theatre.compare(script, "fetch_all")
    outcomes = [each for each in found if each.replay == "outcome"]
    assert [each.place for each in outcomes] == ["own:1 (statement 1)", "own:3 (statement 3)"]
    assert "(2,)" in outcomes[1].found
    once = [each.found for each in found if each.replay == "once"]
    if theatre.corpus == "postgresql":
        assert "run 1 times by the bare driver, 2 by cenote" in once
    tally = Tally(*theatre.where("fetch_all"))
    tally.add(found, expected.Expected([]))
    assert len(tally.new) == tally.different == len(found)
    assert run.Findings([tally]).new > 0
    assert run.Findings([tally]).table().splitlines()[1].split()[-1] == str(len(found))


def test_nothing_is_left_and_what_would_be_is_seen(theatre: Theatre) -> None:
    for leak in LEAKS[theatre.corpus]:
        found = theatre.leftovers(leak, reset="never")
        assert found, f"not seen: {leak}"


def test_state_that_is_reset_is_no_leftover(theatre: Theatre) -> None:
    leaks = [leak for leak in LEAKS[theatre.corpus] if "seed" not in leak]
    assert theatre.leftovers(*leaks, reset="auto") == []


def test_the_end_of_a_transaction_is_noticed_and_only_that(theatre: Theatre) -> None:
    statements = ["commit", "rollback", "savepoint x", "select 'commit'"]
    if theatre.corpus == "postgresql":
        statements += [
            "commit and chain",
            "end",
            "do $$ begin perform 1; end $$",
            "select 1/0 -- end",
        ]
    assert theatre.transactions(*statements) == []


def test_an_end_that_nobody_notices_is_seen(theatre: Theatre) -> None:
    found = theatre.transactions("commit", kind=Blind)
    assert "the transaction has ended, and nobody says so" in found
    assert "half of the block is committed" in found


def test_a_false_alarm_is_seen(theatre: Theatre) -> None:
    found = theatre.transactions("savepoint x", kind=Alarmed)
    assert found == ["TransactionLostError (rolled_back), and the transaction goes on"]


def test_a_sample_is_decided_by_its_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.test").write_text("execsql {select 1; select 2; select 3}")
    corpus = fetch.Corpus("sqlite", "sqlite3", True, "", ("*.test",))
    monkeypatch.setattr(fetch.Corpus, "folder", lambda self, cache=None: tmp_path)

    def sample(seed: int) -> list[str]:
        options = run.Options(statements=10, seed=seed)
        with Stand(corpus) as stand:
            scripts = run.load(stand, options)
        assert sum(len(script.statements) for script in scripts) == 10
        return [script.name for script in scripts]

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_a_place_of_sqlite_is_empty_again(tmp_path: Path) -> None:
    place: Place = SqlitePlace(tmp_path)
    (tmp_path / "test2.db").touch()
    asyncio.run(place.fresh())
    assert [*tmp_path.iterdir()] == []
