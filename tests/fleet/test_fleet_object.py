"""The `Fleet` object: its arguments, and where it may be used: without a loop, in several loops
and threads, in forked children, and with pools that nobody closes."""

import asyncio
import copy
import os
import pickle
import threading
from dataclasses import FrozenInstanceError

import pytest

import cenote
from cenote import Fleet, Member
from cenote.fleet.fleet import members_of
from cenote.fleet.ledger import LedgerError, MemberRow
from tests.support.kit import Thing
from tests.support.kit.resources import forget
from tests.support.waiting import WAIT

pytestmark = pytest.mark.real_time("uses the ledger of this host, a file")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "fleet")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"budget": 0}, ValueError, r"budget must be 1 or more, not 0"),
        ({"budget": 2.5}, TypeError, r"budget must be a whole number, not float"),
        ({"budget": True}, TypeError, r"budget must be a whole number, not bool"),
        ({"url": 5}, TypeError, r"url must be a string or None, not int"),
        (
            {"url": "cache:6379"},
            ValueError,
            r"the URL of a fleet has no scheme; known are redis://",
        ),
        ({"url": "http://secret@x"}, ValueError, r"the URL of a fleet has 'http'://; known are"),
        ({"name": ""}, ValueError, r"name must be 1 to 64 letters, digits"),
        ({"name": "a/b"}, ValueError, r"name must be .* not 'a/b'"),
        ({"name": None}, TypeError, r"name must be a string, not NoneType"),
        ({"ttl": 0}, ValueError, r"ttl must be 0.1 or more seconds, not 0"),
        ({"ttl": float("inf")}, ValueError, r"ttl must be a finite number of seconds"),
        ({"strict": 1}, TypeError, r"strict must be True or False, not int"),
        ({"audit": None}, TypeError, r"audit must be True or False"),
        ({"url": "redis://x", "path": "y"}, ValueError, r"path is for a fleet of one host"),
        ({"path": 5}, TypeError, r"path must be a path or None, not int"),
        ({"url": "redis://:secret@h:x"}, ValueError, r"is no URL of Redis: ValueError: Port could"),
        ({"url": "redis://:secret@h?x=1"}, ValueError, r"is no URL of Redis: TypeError: .*'x'"),
        ({"url": "postgresql://u:secret@h/d?x=1"}, ValueError, r"has the unknown option 'x'"),
    ],
)
def test_a_bad_argument_is_named(options, error, text):
    with pytest.raises(error, match=text) as caught:
        Fleet(**{"budget": 5, **options})
    assert "secret" not in str(caught.value)


async def test_an_open_pool_can_be_tried_at_once(path):
    for budget in (2, 1):  # each has one; one has it all, and the other returns
        fleet = Fleet(budget=budget, path=f"{path}{budget}", ttl=1)
        async with cenote.Pool(Thing, max_size=2, fleet=fleet) as first:
            resource = first.try_acquire()
            assert resource is not None
            async with cenote.Pool(Thing, max_size=2, fleet=fleet) as second:
                other = second.try_acquire()
                assert (other is not None) == (budget == 2)
                if other is not None:
                    await second.release(other)
            await first.release(resource)


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_fleet_is_neither_copied_nor_pickled(do):
    with pytest.raises(TypeError, match=r"a Fleet cannot be copied or pickled: .* make one in eac"):
        do(Fleet(budget=5))


@pytest.mark.parametrize(
    ("url", "audits"),
    [
        (None, False),
        ("redis://cache:6379", True),
        ("postgresql+asyncpg://app@db/shop", False),
        ("postgresql+psycopg://app@db/shop", False),
    ],
)
def test_only_a_ledger_that_cannot_notice_deaths_needs_an_audit(url, audits):
    try:
        fleet = Fleet(url, budget=5)
    except ImportError as error:
        pytest.skip(str(error))
    assert fleet._config.audits is audits


def test_budget_must_be_given():
    with pytest.raises(TypeError, match="budget"):
        Fleet()


def test_a_pool_that_needs_more_than_the_budget_is_refused(path):
    fleet = Fleet(budget=3, path=path)
    assert repr(fleet) == "<Fleet 'default', budget 3>"
    text = r"min_size \(4\) must not be more than the budget of fleet 'default' \(3\): lower min"
    with pytest.raises(ValueError, match=text):
        cenote.Pool(Thing, min_size=4, fleet=fleet)
    with pytest.raises(ValueError, match=text):
        cenote.Database("sqlite:///:memory:", min_size=4, fleet=fleet)


async def test_members_are_frozen_and_say_who_has_what(path):
    fleet = Fleet(budget=6, path=path, name="shop")
    assert await fleet.members() == []
    async with (
        cenote.Pool(Thing, max_size=4, fleet=fleet, name="main") as pool,
        cenote.Pool(Thing, max_size=4, fleet=fleet, name="other"),
    ):
        async with pool.acquire():
            [member] = await fleet.members()
        assert (member.process, member.pools) == (os.getpid(), ("main", "other"))
        assert 1 <= member.held <= 6
        assert (member.breaker, member.silent) == (None, False)
        with pytest.raises(FrozenInstanceError):
            member.held = 7
    assert await fleet.members() == []


def test_rows_of_one_process_are_one_member():
    rows = [
        MemberRow("a", "h", 1, "main", 3, 2, 50.0, "ACTIVE"),
        MemberRow("b", "h", 2, "main", 1, 1, 60.0, None),
        MemberRow("c", "h", 1, "other", 4, 5, 40.0, "INACTIVE", silent=True),
    ]
    assert members_of(rows) == [
        Member("h", 1, ("main", "other"), 7, 7, "INACTIVE", 40.0),
        Member("h", 2, ("main",), 1, 1, None, 60.0),
    ]


async def test_members_without_a_ledger_raise(tmp_path):
    (tmp_path / "file").write_text("this is something else")
    with pytest.raises(LedgerError):
        await Fleet(budget=3, path=str(tmp_path / "file")).members()


def test_one_fleet_serves_one_loop_after_the_other(path):
    fleet = Fleet(budget=6, path=path)
    db = cenote.Database("sqlite:///:memory:", max_size=4, fleet=fleet)

    async def use():
        async with db:
            assert await db.fetch_val("select 7") == 7
            assert len(await fleet.members()) == 1
        assert await fleet.members() == []

    for _ in range(3):
        asyncio.run(use())


def test_one_fleet_serves_loops_in_several_threads(path):
    fleet = Fleet(budget=6, path=path)
    db = cenote.Database("sqlite:///:memory:", max_size=6, fleet=fleet)
    both, errors = threading.Barrier(2), []

    async def use():
        assert await db.fetch_val("select 7") == 7
        await asyncio.to_thread(both.wait, WAIT)
        [member] = await fleet.members()
        assert len(member.pools) == 2
        assert member.held <= 6
        await asyncio.to_thread(both.wait, WAIT)
        await db.pool.close()

    def run():
        try:
            asyncio.run(use())
        except BaseException as error:
            both.abort()
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_what_a_loop_leaves_unclosed_does_not_count_later(path):
    fleet = Fleet(budget=4, path=path)
    db = cenote.Database("sqlite:///:memory:", max_size=4, fleet=fleet)

    async def use():
        assert await db.fetch_val("select 7") == 7

    asyncio.run(use())

    async def have_all():
        async with cenote.Pool(Thing, max_size=4, fleet=fleet) as pool:
            things = [await pool.acquire(timeout=WAIT) for _ in range(4)]
            for thing in things:
                pool.release(thing)

    asyncio.run(have_all())


async def test_a_pool_that_is_dropped_leaves_the_fleet(path):
    fleet = Fleet(budget=4, path=path)
    box = [cenote.Pool(Thing, fleet=fleet)]
    await box[0].release(await box[0].acquire())
    assert len(await fleet.members()) == 1
    forget(box)
    async with asyncio.timeout(WAIT):
        while await fleet.members():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_foreign_file_is_named_and_the_pool_works(tmp_path, caplog):
    (tmp_path / "file").write_text("this is something else")
    fleet = Fleet(budget=3, path=str(tmp_path / "file"))
    async with cenote.Pool(Thing, max_size=8, fleet=fleet) as pool:
        things = [await pool.acquire(timeout=WAIT) for _ in range(3)]
        for thing in things:
            pool.release(thing)
    [record] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert str(tmp_path / "file") in record.getMessage()
    assert "this process has 3, as much as one alone" in record.getMessage()
