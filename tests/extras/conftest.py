"""What the tests of the extras share."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest

from cenote.extras.dashboard.asgi import Dashboard


@pytest.fixture(autouse=True)
def stop_dashboards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop every dashboard that the test has started: `cenote.dashboard` lives as long as the
    process, and would observe the databases of the tests after it."""
    started: weakref.WeakSet[Dashboard] = weakref.WeakSet()
    start = Dashboard.start

    def remembered(self: Dashboard) -> None:
        started.add(self)
        start(self)

    monkeypatch.setattr(Dashboard, "start", remembered)
    yield
    for each in [*started]:
        each.stop()
