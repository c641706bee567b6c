"""The plugin for pytest, in a pytest of its own, beside pytest-asyncio and anyio's plugin."""

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CONFTEST = """
import cenote, pytest

@pytest.fixture(scope="session")
def place(tmp_path_factory):
    import sqlite3
    path = tmp_path_factory.mktemp("data") / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table stock (item text primary key)")
    connection.close()
    return path

@pytest.fixture(scope="session")
def db(place):
    return cenote.Database(f"sqlite:///{place}")

async def count(db):
    return await db.fetch_val("select count(*) from stock")
"""


SHOP = """\
async def shop(db, cenote_rolled_back):
    await cenote_rolled_back(db)
    await db.execute("insert into stock values ('lamp')")
    yield db
    await db.execute("insert into stock values ('end')")  # the block lasts longer than this

@pytest.mark.parametrize("number", [1, 2, 3])
async def test_shop(shop, number):
    async with shop.transaction():
        await shop.execute("insert into stock values ('sofa')")
    assert await count(shop) == 2
"""

WITH_ANYIO = (
    """
import pytest
from conftest import count

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
"""
    + SHOP
)

WITH_ASYNCIO = (
    """
import pytest, pytest_asyncio
from conftest import count

pytestmark = pytest.mark.asyncio

@pytest_asyncio.fixture
"""
    + SHOP
    + """
@pytest.mark.asyncio(loop_scope="module")
async def test_block(db, cenote_rolled_back):
    async with cenote_rolled_back(db) as same:
        await same.execute("insert into stock values ('lamp')")
    assert await count(db) == 0

@pytest.mark.asyncio(loop_scope="module")
async def test_await_in_another_loop(db, cenote_rolled_back):
    with pytest.raises(RuntimeError, match="in another event loop than the fixtures"):
        await cenote_rolled_back(db)
    assert await count(db) == 0
"""
)

WITHOUT_ASYNC_PLUGIN = """
import asyncio, socket, pytest, cenote
from conftest import count

def test_block(db, cenote_rolled_back):
    async def main():
        async with cenote_rolled_back(db):
            await db.execute("insert into stock values ('lamp')")
            assert await count(db) == 1
        assert await count(db) == 0
        with pytest.raises(RuntimeError, match="async with"):
            await cenote_rolled_back(db)
    asyncio.run(main())

def test_time(cenote_virtual_loop):
    async def main():
        started = cenote_virtual_loop.time()
        await asyncio.sleep(3600)
        return cenote_virtual_loop.time() - started
    assert cenote_virtual_loop.run_until_complete(main()) == 3600

def test_proxy(cenote_fault_proxy):
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = cenote_fault_proxy(*server.getsockname())
        with socket.create_connection((proxy.host, proxy.port)) as client:
            with server.accept()[0] as peer:
                peer.sendall(b"hello")
                assert client.recv(5) == b"hello"
                proxy.reset()
                with pytest.raises(ConnectionResetError):
                    client.recv(5)

def test_ledger(cenote_ledger):
    async def main():
        async with cenote_ledger(cenote.Pool(object)) as pool, pool.acquire():
            pass
    asyncio.run(main())

def test_open_ledger(cenote_ledger):
    async def main():
        pool = cenote_ledger(cenote.Pool(object))
        await pool.acquire()
        await pool.close()
    asyncio.run(main())
"""


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a file, in a process and a folder of its own."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_shop.py").write_text(textwrap.dedent(source))
    ini = "[pytest]\nfilterwarnings = error\n"
    if "no:asyncio" not in options:
        ini += "asyncio_default_fixture_loop_scope = function\n"
    (folder / "pytest.ini").write_text(ini)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""},
    )  # fmt: skip


def check(done: subprocess.CompletedProcess[str], summary: str) -> None:
    assert summary in done.stdout, done.stdout + done.stderr


def test_anyio_tests_and_fixtures_are_rolled_back(tmp_path: Path) -> None:
    pytest.importorskip("anyio")
    check(run(tmp_path, WITH_ANYIO), "3 passed")
    check(run(tmp_path, WITH_ANYIO, "-p", "no:asyncio"), "3 passed")


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_asyncio_tests_and_fixtures_are_rolled_back(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("pytest_asyncio")
    check(run(tmp_path, WITH_ASYNCIO, f"--asyncio-mode={mode}"), "5 passed")
    check(run(tmp_path, WITH_ASYNCIO, "-p", "no:anyio"), "5 passed")


def test_the_fixtures_need_no_other_plugin(tmp_path: Path) -> None:
    done = run(tmp_path, WITHOUT_ASYNC_PLUGIN, "-p", "no:asyncio", "-p", "no:anyio")
    check(done, "5 passed, 1 error")
    check(done, "1 created, 0 destroyed")


def test_a_project_without_cenote_pays_nothing(tmp_path: Path) -> None:
    source = "import sys\ndef test_nothing():\n    assert 'cenote' not in sys.modules\n"
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "test_it.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""},
    )  # fmt: skip
    check(done, "1 passed")


def test_pytest_finds_the_plugin_by_itself() -> None:
    points = importlib.metadata.entry_points(group="pytest11")
    assert points["cenote"].value == "_cenote_pytestplugin"
