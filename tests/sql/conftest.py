"""What several files of this room need."""

from collections.abc import Iterator

import pytest

from tests.support.backends import Backend
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(backend: Backend) -> Iterator[Proxy]:
    """In front of the server of the backend."""
    with Proxy(backend.server.host, backend.server.port) as proxy:
        yield proxy
