"""The ledger of one host: who may use its file, who is alive, and what a death leaves behind."""

import asyncio
import contextlib
import gc
import os
import signal
import struct
import subprocess
import sys
from dataclasses import fields

import pytest

from cenote.fleet import ledger_file, local_state
from cenote.fleet.ledger import LedgerConfig, LedgerConfigError, LedgerError, News, Sync
from cenote.fleet.ledger_file import LedgerFile, default_path
from cenote.fleet.local import LocalLedger
from cenote.fleet.local_state import LocalState
from tests.support.ledger_process import LedgerProcess
from tests.support.ledgers import opened_ledger
from tests.support.waiting import eventually

pytestmark = pytest.mark.coreless


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fleet"


def opened(path, news=None, name="shop"):
    return opened_ledger(LocalLedger(LedgerConfig("", name, 10.0, str(path))), news)


def request(member, seq=1, *, keep=0, need=1, budget=30, **more):
    return Sync(member, seq, keep, need, 1, 20, budget, "here", os.getpid(), "pool", **more)


async def refusal(path, **options):
    with pytest.raises(LedgerConfigError) as caught:
        async with opened(path, **options):
            pass
    return str(caught.value)


# -- life and death --------------------------------------------------------------------------------


async def test_the_capacity_of_a_killed_process_is_free(path):
    news = []
    async with opened(path, news) as ledger, LedgerProcess(path) as process:
        assert (await process.ask("sync", 20))["held"] == 20
        assert (await ledger.sync(request("a", need=20))).held == 10
        news.clear()
        await process.kill()
        await eventually(lambda: News("a") in news)
        grant = await ledger.sync(request("a", 2, keep=10, need=20))
        assert (grant.held, grant.used, grant.processes) == (20, 20, 1)


async def test_several_that_die_at_once_are_cleared(path):
    news = []
    async with opened(path, news) as ledger, contextlib.AsyncExitStack() as stack:
        await ledger.sync(request("a", need=1))
        processes = [await stack.enter_async_context(LedgerProcess(path)) for _ in range(4)]
        for each in processes:
            await each.ask("sync", 10)
        await ledger.sync(request("a", 2, keep=1, need=20))
        for each in processes:
            each.signal(signal.SIGSTOP)  # none of them sees the end of another
        for each in processes:
            each.signal(signal.SIGKILL)
        grants = []

        async def grow():
            held, seq = 1, 3
            while not grants or grants[-1].processes > 1:
                news.clear()
                grants.append(await ledger.sync(request("a", seq, keep=held, need=20)))
                held, seq = grants[-1].held, seq + 1
                await asyncio.sleep(0.01)

        async with asyncio.timeout(30):
            await grow()
        assert grants[-1].held == 20


async def test_a_paused_process_keeps_what_it_has(path):
    async with opened(path) as ledger, LedgerProcess(path) as process:
        await process.ask("sync", 20)
        process.signal(signal.SIGSTOP)
        for seq in range(1, 10):
            grant = await ledger.sync(request("a", seq, keep=min(10, 10 * (seq - 1)), need=20))
        assert (grant.held, grant.used) == (10, 30)
        process.signal(signal.SIGCONT)
        assert (await process.ask("sync", 20))["held"] == 20


async def test_a_fork_does_not_keep_its_parent_alive(path):
    news = []
    async with opened(path, news) as ledger, LedgerProcess(path) as process:
        await process.ask("sync", 20)
        await ledger.sync(request("a", need=20))
        news.clear()
        child = await process.ask("fork")
        try:
            await process.kill()
            os.kill(child, 0)  # lives
            await eventually(lambda: News("a") in news)
            assert [each.member for each in await ledger.rows()] == ["a"]
        finally:
            os.kill(child, signal.SIGKILL)


async def test_members_of_a_closed_ledger_lose_all(path):
    news = []
    async with opened(path, news) as ledger:
        async with opened(path) as other:
            await other.sync(request("b", need=20))
            assert (await ledger.sync(request("a", need=20))).held == 10
            assert [each.member for each in await ledger.rows()] == ["b", "a"]
            news.clear()
        await eventually(lambda: News("a") in news)
        assert [each.member for each in await ledger.rows()] == ["a"]
        with pytest.raises(LedgerError, match=r"fleet 'shop' in .* is closed"):
            await other.rows()


async def test_a_loop_that_ended_gives_its_seat_back(path):
    def forget():
        async def main():
            ledger = LocalLedger(LedgerConfig("", "shop", 10.0, str(path)))
            await ledger.open(print)
            await ledger.sync(request("b", need=20))

        asyncio.run(main())

    async with opened(path) as ledger:
        await asyncio.to_thread(forget)
        gc.collect()
        assert await ledger.rows() == []


async def test_what_dead_processes_left_is_forgotten(path):
    async with opened(path) as ledger, LedgerProcess(path) as process:
        await process.ask("sync", 5)
        await process.ask("vote", 0)
        circuit = await ledger.judge()
        assert circuit.state == "INACTIVE"
        ledger.forsake()  # as if it had died
        await process.kill()
    async with opened(path) as ledger:
        assert await ledger.rows() == []
        later = await ledger.judge()
        assert (later.state, later.epoch, later.next_in) == ("ACTIVE", circuit.epoch, 0.0)


async def test_news_of_the_breaker_reaches_other_processes(path):
    async with opened(path) as ledger, LedgerProcess(path) as process:
        await process.ask("sync", 1)
        await ledger.sync(request("a", breaker="ACTIVE"))
        circuit = await ledger.vote("a", 0, down=True)
        assert circuit.state == "SUSPECT"
        said = await process.ask("close")
        assert [each for each in said if "SUSPECT" in each and "epoch=1" in each]


async def test_processes_that_are_killed_break_nothing(path):
    async with opened(path) as ledger:
        for _ in range(3):
            async with contextlib.AsyncExitStack() as stack:
                processes = [await stack.enter_async_context(LedgerProcess(path)) for _ in range(3)]
                await asyncio.gather(*(each.ask("hammer") for each in processes))
                for each in processes:
                    await each.kill()
            assert await ledger.rows() == []


# -- the mutex -------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_paused_holder_of_the_mutex_blocks_nobody(path):
    async with opened(path) as ledger:
        held = (await ledger.sync(request("a"))).held
        other = LedgerFile(str(path), "shop")
        assert other.try_lock()
        waiting = asyncio.ensure_future(ledger.sync(request("a", 2, keep=held)))
        with pytest.raises(LedgerError, match=r"was locked for 2 s: .* paused"):
            await waiting
        waiting = asyncio.ensure_future(ledger.sync(request("a", 2, keep=held)))
        await asyncio.sleep(0.1)
        other.unlock()
        assert (await waiting).held == held
        other.close()


async def test_a_cancelled_request_leaves_the_ledger_usable(path):
    async with opened(path) as ledger:
        other = LedgerFile(str(path), "shop")
        assert other.try_lock()
        waiting = asyncio.ensure_future(ledger.sync(request("a")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        other.close()
        assert await ledger.rows() == []


# -- the file --------------------------------------------------------------------------------------


async def test_a_foreign_file_is_left_as_it_is(path):
    for content in (b"my diary", b"cenote", bytes(5000)):
        path.write_bytes(content)
        said = await refusal(path)
        assert "is not the file of a fleet, and was left as it is: choose another path" in said
        assert path.read_bytes() == content


async def test_an_empty_file_may_be_given(path):
    path.write_bytes(b"")
    async with opened(path) as ledger:
        assert (await ledger.sync(request("a"))).held == 20


async def test_the_file_of_another_fleet_is_refused(path):
    async with opened(path):
        before = path.read_bytes()
        said = await refusal(path, name="other")
        assert "belongs to the fleet 'shop', not to 'other': give each fleet a path of its" in said
        assert path.read_bytes() == before


async def test_another_version_is_refused_while_in_use(path):
    async with opened(path) as ledger:
        with path.open("r+b") as file:
            file.seek(len(ledger_file.MAGIC))
            file.write(struct.pack("<I", 77))
        assert "another version of cenote (format 77; this one has 1)" in await refusal(path)
        assert await ledger.rows() == []
    async with opened(path) as ledger:  # nobody has it any more
        assert (await ledger.sync(request("a"))).held == 20


async def test_a_file_that_everybody_may_write_is_refused(path):
    path.touch()
    path.chmod(0o666)
    assert "is writable by everybody: change that (chmod o-w)" in await refusal(path)


async def test_a_path_that_cannot_be_is_refused(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    for path in (tmp_path / "none" / "fleet", tmp_path, link):
        assert f"{path} cannot be the file of a fleet: " in await refusal(path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    assert "is not a regular file" in await refusal(fifo)
    assert not (tmp_path / "target").exists()


async def test_mailboxes_of_somebody_else_are_refused(path):
    mailboxes = path.with_name("fleet.news")
    mailboxes.mkdir()
    mailboxes.chmod(0o777)
    assert "must be a directory where only the users of fleet may" in await refusal(path)


async def test_the_default_directory_must_be_private(tmp_path, monkeypatch):
    directory = tmp_path / "cenote"
    monkeypatch.setattr(ledger_file, "default_path", lambda name: directory / f"{name}.fleet")
    ledger = LocalLedger(LedgerConfig("", "shop", 10.0))
    await ledger.open(print)
    await ledger.close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "shop.fleet").stat().st_mode & 0o777 == 0o600
    directory.chmod(0o755)
    with pytest.raises(LedgerConfigError, match="belongs to this user and that no other user can"):
        await ledger.open(print)


def test_each_name_has_a_file_of_its_own():
    paths = [default_path(name) for name in ("a", "A", "a/b", "..", "a" * 500, "a" * 501, "ü b")]
    assert len(set(paths)) == len(paths)
    assert {each.parent for each in paths} == {default_path("a").parent}
    assert max(len(each.name) for each in paths) < 120


async def test_a_file_that_was_removed_is_made_again(path):
    async with opened(path) as ledger, opened(path) as other:
        await ledger.sync(request("a", need=20))
        path.unlink()
        grant = await other.sync(request("b", keep=5, need=5))
        assert grant.used == grant.held
        grant = await ledger.sync(request("a", 2, keep=20, need=20))
        assert (grant.held, grant.used > 20) == (20, True)
        assert path.exists()
        assert [each.member for each in await other.rows()] == ["b", "a"]


async def test_a_torn_state_gives_way_to_the_one_before(path):
    async with opened(path) as ledger:
        await ledger.sync(request("a"))
        await ledger.sync(request("b"))
        file = LedgerFile(str(path), "shop")
        generation, _ = file.read()
        with path.open("r+b") as raw:
            raw.seek(ledger_file.PLACES[generation % 2] + ledger_file.PLACE.size + 5)
            raw.write(b"torn")
        before, earlier = file.read()
        file.close()
        assert before == generation - 1
        assert [*LocalState.decode(earlier, 2.0).ledger.rows] == ["a"]
        async with opened(path) as other:
            assert [each.member for each in await other.rows()] == ["a"]
            assert (await other.sync(request("b", 2, keep=10))).used == 30


async def test_a_full_disk_is_an_error_of_the_ledger(path, monkeypatch):
    async with opened(path) as ledger:
        await ledger.sync(request("a"))

        def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(LedgerError, match=r"cannot be used: .* No space left"):
                await ledger.sync(request("b"))
        assert [each.member for each in await ledger.rows()] == ["a"]


def test_the_format_has_every_field_of_a_sync():
    assert tuple(each.name for each in fields(Sync)) == local_state._SYNC
    assert ledger_file.VERSION == 1  # count it up when what is in the file changes


def test_a_system_without_locks_gets_an_error():
    program = "import sys; sys.modules['fcntl'] = None; import cenote.fleet.local"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: a fleet without a URL needs locks on files" in done.stderr
    assert "give the fleet a URL" in done.stderr
