"""`examples/c_extension`, and the tutorial of the documentation."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zlib

import pytest

from cenote.testing import advance, settle
from tests.support.extensions import compile_extension, compiler, load
from tests.support.kit import Thing, forget
from tests.support.probe import (
    ROOT,
    SOURCE,
    native_only,
)

pytestmark = native_only

EXAMPLE = ROOT / "examples" / "c_extension"


@pytest.fixture(scope="session")
def buffers_path(tmp_path_factory):
    return compile_extension(EXAMPLE / "buffers.c", tmp_path_factory.mktemp("buffers"))


@pytest.fixture(scope="session")
def buffers(buffers_path):
    return load(buffers_path)


async def test_a_buffer_is_memory(buffers, keep):
    arena = buffers.Arena(100)
    pool = keep(arena.pool(max_size=2, name="memory"))
    assert repr(pool).startswith("<Pool 'memory' new")
    async with pool.acquire() as buffer:
        assert len(buffer) == 100
        with memoryview(buffer) as view:
            assert bytes(view) == bytes(100)
            view[:5] = b"hello"
            assert bytes(view[:6]) == b"hello\0"
    async with pool.acquire() as again:
        assert again is buffer
        assert bytes(again) == bytes(100)
    with pytest.raises(BufferError, match="given back"):
        memoryview(buffer)
    assert (arena.size, arena.made, arena.lent, arena.returned, arena.freed) == (100, 1, 1, 2, 0)
    await pool.close()
    assert arena.freed == 1


async def test_a_buffer_that_was_overrun_is_destroyed(buffers, keep):
    arena = buffers.Arena(64)
    pool = keep(arena.pool())
    async with pool.acquire() as buffer:
        buffers.overrun(buffer)
    assert (arena.overruns, arena.freed, pool.count) == (1, 1, 0)
    assert pool.stats().rejected == 1
    async with pool.acquire() as buffer:
        pass
    buffers.overrun(buffer)
    async with pool.acquire() as other:
        assert other is not buffer
    assert (arena.overruns, arena.freed) == (2, 2)
    with pytest.raises(TypeError):
        buffers.overrun(buffer)


@pytest.mark.virtual_time
async def test_the_healthcheck_looks_at_the_guard(buffers, keep):
    arena = buffers.Arena(64)
    pool = keep(arena.pool(healthcheck_interval=10.0))
    async with pool.acquire() as buffer:
        pass
    await advance(10.0)
    assert (arena.checked, arena.overruns) == (1, 0)
    buffers.overrun(buffer)
    await advance(10.0)
    assert (arena.checked, arena.overruns, arena.freed) == (2, 1, 1)
    assert pool.stats().destroyed == {"check_failed": 1}


async def test_a_view_keeps_its_memory(buffers, keep, caplog):
    arena = buffers.Arena(64)
    pool = keep(arena.pool())
    buffer = await pool.acquire()
    view = memoryview(buffer)
    pool.release(buffer)
    assert "with 1 memoryviews open" in caplog.text
    assert pool.stats().destroyed == {"rejected": 1}
    view[0] = 1  # nobody else has it
    assert arena.freed == 0
    view.release()
    assert arena.freed == 1


async def test_a_buffer_may_outlive_its_pool(buffers):
    arena = buffers.Arena(64)
    box = [arena.pool()]
    buffer = await box[0].acquire()
    forget(box)
    assert bytes(buffer) == bytes(64)
    assert arena.freed == 0
    del buffer
    assert arena.freed == 1


async def test_checksum_runs_and_may_be_cancelled(buffers, keep):
    pool = keep(buffers.Arena(64).pool(max_size=1))
    heard = []
    for data in (b"", b"hello", bytes(range(256)) * 3):
        buffers.checksum(pool, data, lambda crc, error: heard.append((crc, error)))
        await settle()
        assert heard.pop() == (zlib.crc32(data), None)
    async with pool.acquire():
        ticket = buffers.checksum(pool, b"", lambda crc, error: heard.append((crc, error)))
        await settle()
        assert buffers.cancel(ticket) is True
        await settle()
        assert buffers.cancel(ticket) is False
    [(crc, error)] = heard
    assert crc is None
    assert isinstance(error, asyncio.CancelledError)


async def test_checksum_with_the_wrong_pool(buffers, make_pool, monkeypatch):
    pool, heard, reported = make_pool(Thing), [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    with pytest.raises(TypeError, match=r"a cenote\.Pool is needed"):
        buffers.checksum(3, b"", print)
    buffers.checksum(pool, b"", heard.append)
    await settle()
    assert (heard, reported) == ([], [TypeError])
    assert pool.idle_count == 1


@pytest.mark.parametrize("size", [0, -1, sys.maxsize])
def test_an_arena_needs_a_size(buffers, size):
    with pytest.raises(ValueError, match="no size for a buffer"):
        buffers.Arena(size)


def test_the_demo_of_the_example_runs(buffers_path):
    demo = shutil.copy(EXAMPLE / "demo.py", buffers_path.parent)
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-W", "error", demo]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.stderr == ""
    assert done.returncode == 0
    assert "100 tasks used 8 buffers at once; 0 of them found" in done.stdout
    assert "20 of them were checksums in C" in done.stdout
    assert "because of a write too far: 4" in done.stdout
    assert "hears: CancelledError" in done.stdout
    assert "found by the healthcheck: 1" in done.stdout
    [made, freed] = re.findall(r"allocated: (\d+), freed: (\d+)", done.stdout)[0]
    assert made == freed


def test_setup_builds_the_example(tmp_path):
    pytest.importorskip("setuptools", reason="setuptools is not installed: setup.py cannot run")
    compiler()
    for name in ("buffers.c", "setup.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": SOURCE, "CFLAGS": "-Werror"}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"buffers{sysconfig.get_config_var('EXT_SUFFIX')}").exists()


def test_the_tutorial_can_be_followed(tmp_path):
    text = (ROOT / "docs" / "c-api.md").read_text()
    tutorial = text.partition("## From an empty folder")[2].partition("\n## ")[0]
    files = re.findall(r"`(\S+)`\.\*\*\n\n```\w+\n(.*?)```", tutorial, re.DOTALL)
    assert [name for name, _ in files] == ["scratch.c", "setup.py", "try.py"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    compile_extension(tmp_path / "scratch.c", tmp_path)
    command = [sys.executable, "-W", "error", "try.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [printed] = re.findall(r"It prints:\n\n```text\n(.*?)```", tutorial, re.DOTALL)
    assert done.stdout == printed
