"""Fixtures for pytest, of `cenote.testing`: see `docs/testing.md`.

pytest imports this module in every run of every project in whose environment cenote is installed.
So it stands beside the package, and imports that in the fixtures alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import asyncio

    import cenote
    from cenote.testing import FaultProxy, VirtualLoop

    RollBack = Callable[[cenote.Database], "Rollback"]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a test: what is closed then, and in which event loop."""

    stack: AsyncExitStack
    loop: asyncio.AbstractEventLoop


class Rollback:
    """What `cenote_rolled_back(db)` gives: awaited, it lasts until the end of the test; with
    `async with`, until the end of the block. Both give the database."""

    def __init__(
        self,
        block: AbstractAsyncContextManager[cenote.Database],
        end: End | None,
    ) -> None:
        self._block = block
        self._end = end

    def __await__(self) -> Generator[Any, None, cenote.Database]:
        if self._end is None:
            raise RuntimeError(
                "`await cenote_rolled_back(db)` needs a test that is marked `asyncio` or `anyio`; "
                "elsewhere write `async with cenote_rolled_back(db):`"
            )
        from asyncio import get_running_loop

        if get_running_loop() is not self._end.loop:
            raise RuntimeError(
                "`await cenote_rolled_back(db)` runs in another event loop than the fixtures of "
                "this test, in which it would end; write `async with cenote_rolled_back(db):`"
            )
        return self._end.stack.enter_async_context(self._block).__await__()

    async def __aenter__(self) -> cenote.Database:
        return await self._block.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        return await self._block.__aexit__(*exc_info)


@pytest.fixture
def cenote_rolled_back(request: pytest.FixtureRequest) -> RollBack:
    """Undo whatever the test does in a database: `await cenote_rolled_back(db)`."""
    from cenote.testing import rolled_back

    end: End | None = None
    if "anyio_backend" in request.fixturenames:
        end = request.getfixturevalue("_cenote_end_of_anyio")
    elif is_of_asyncio(request):
        end = request.getfixturevalue("_cenote_end_of_asyncio")
    return lambda database: Rollback(rolled_back(database), end)


async def end_of_the_test() -> AsyncIterator[End]:
    """Close at the end of the test what was entered, in the plugin that runs the test."""
    from asyncio import get_running_loop

    async with AsyncExitStack() as stack:
        yield End(stack, get_running_loop())


_cenote_end_of_anyio = pytest.fixture(name="_cenote_end_of_anyio")(end_of_the_test)


def is_of_asyncio(request: pytest.FixtureRequest) -> bool:
    """Whether pytest-asyncio runs this test."""
    if not request.config.pluginmanager.hasplugin("cenote_asyncio"):
        return False
    auto = request.config.getoption("asyncio_mode", None) or request.config.getini("asyncio_mode")
    return request.node.get_closest_marker("asyncio") is not None or auto == "auto"


def pytest_configure(config: pytest.Config) -> None:
    """Declare a fixture to pytest-asyncio, if that is there, in the way that it wants."""
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        fixture = pytest_asyncio.fixture(name="_cenote_end_of_asyncio")(end_of_the_test)
        module = ModuleType("cenote_asyncio")
        module.__dict__["_cenote_end_of_asyncio"] = fixture
        config.pluginmanager.register(module, "cenote_asyncio")


@pytest.fixture
def cenote_fault_proxy() -> Iterator[Callable[[str, int], FaultProxy]]:
    """Put a proxy that breaks connections in front of a server: `cenote_fault_proxy(host, port)`.

    It is closed at the end of the test.
    """
    from cenote.testing import FaultProxy

    with ExitStack() as stack:
        yield lambda host, port: stack.enter_context(FaultProxy(host, port))


@pytest.fixture
def cenote_ledger() -> Iterator[Callable[[cenote.Pool[Any]], cenote.Pool[Any]]]:
    """Check a pool when the test is over: `pool = cenote_ledger(cenote.Pool(...))`.

    The test fails if the pool was not closed by then, or has not destroyed all that it created.
    """
    from cenote.testing import check_ledger

    pools: list[cenote.Pool[Any]] = []

    def watch(pool: cenote.Pool[Any]) -> cenote.Pool[Any]:
        pools.append(pool)
        return pool

    yield watch
    for pool in pools:
        check_ledger(pool)


@pytest.fixture
def cenote_virtual_loop() -> Iterator[VirtualLoop]:
    """Give an event loop in virtual time: `cenote_virtual_loop.run_until_complete(main())`.

    It is closed at the end of the test.
    """
    import asyncio

    from cenote.testing import VirtualLoop

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        yield loop
