"""What several files of this room need."""

from collections.abc import Iterator

import pytest

from cenote.sql import transact as module
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.running import running
from tests.support.servers import MariaDBServer, PostgresServer


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server of the module that may be stopped."""
    yield from running(PostgresServer)


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[MariaDBServer]:
    """A server of the module that may be stopped."""
    yield from running(MariaDBServer)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After which attempts of `transact()` there would have been a pause."""
    seen: list[int] = []

    def pause_after(attempt: int) -> float:
        seen.append(attempt)
        return 0.0

    monkeypatch.setattr(module, "pause_after", pause_after)
    return seen


@pytest.fixture
def proxy(backend: Backend) -> Iterator[FaultProxy]:
    """In front of the server of the backend."""
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        yield proxy
