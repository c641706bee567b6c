"""Metrics and the dashboard show the pools of other libraries as they show all others."""

from pathlib import Path
from typing import Any

import pytest

import cenote
from tests.support.viewer import ACTIVE, watching
from tests.support.waiting import eventually

pytestmark = pytest.mark.real_time("talks to real servers")


async def test_the_dashboard_names_the_line_of_the_holder(open_subject: Any) -> None:
    async with open_subject() as subject:
        dashboard = cenote.dashboard.app()
        try:
            async with subject.take():
                name = subject.pool.pool.name
                (holder,) = subject.pool.pool.holders()
                assert Path(holder.file).parent == Path(__file__).parent
                async with watching(dashboard) as viewer:
                    await eventually(lambda: viewer.pools)
                    assert viewer.pool(name)["active"] == 1
                    (row,) = [row for row in viewer.tiles.values() if row[1] == ACTIVE]
                    assert row[4].endswith(f"{Path(holder.file).name}:{holder.line}")
        finally:
            dashboard.stop()


TRACER = """
async def traced(function):
    return await function()
"""


async def test_a_holder_is_never_the_package_that_traces_the_library(open_subject: Any) -> None:
    package = {"__name__": "sentry_sdk.integrations.something"}
    exec(compile(TRACER, "sentry_sdk/integrations/something.py", "exec"), package)
    traced: Any = package["traced"]
    async with open_subject() as subject:
        connection = await traced(subject.acquire)
        (holder,) = subject.pool.pool.holders()
        await subject.release(connection)
        assert holder.file == __file__


async def test_prometheus_counts_its_acquires(open_subject: Any) -> None:
    client = pytest.importorskip("prometheus_client")
    from cenote.extras.prometheus import Collector

    registry = client.CollectorRegistry()
    async with open_subject() as subject:
        collector = Collector(subject.pool.pool, registry=registry)
        try:
            for _ in range(3):
                async with subject.take():
                    pass
            labels = {"pool": subject.pool.pool.name}
            assert registry.get_sample_value("cenote_pool_acquired_total", labels) == 3
        finally:
            collector.close()
