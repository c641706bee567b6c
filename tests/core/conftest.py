"""Each core in turn."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cores import CORES, NAMES, new_core


@pytest.fixture(params=CORES, ids=NAMES)
def core_class(request: pytest.FixtureRequest) -> Any:
    """Each core in turn. Tests that use it run once: they see both cores."""
    return request.param


@pytest.fixture
def make(core_class: Any) -> Callable[..., Any]:
    """Builds a core, open, with room for ten."""

    def build(**options: Any) -> Any:
        return new_core(core_class, **options)

    return build
