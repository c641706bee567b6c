"""The benchmarks of the adapters run; how quick anything is, is not asked."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import adapters
from benchmarks.measure import QUICK

from tests.support.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.once

TINY = replace(QUICK, rounds=1, operations=100, turns=2)


async def test_the_benchmark_of_the_adapters_compares_each_with_its_original(
    postgres_server: PostgresServer,
) -> None:
    for package in ("asyncpg", "sqlalchemy", "redis"):
        pytest.importorskip(package)
    interfaces = [adapters.ASYNCPG, adapters.SQLALCHEMY]
    if RedisServer.missing() is None:
        interfaces.append(adapters.REDIS)
    part = await adapters.run(TINY, postgres_server.url)
    assert all(each.ratio > 0 for each in part.versus)
    for interface, (speed, fair) in zip(
        interfaces, zip(part.tables[::2], part.tables[1::2], strict=True), strict=True
    ):
        assert [row[1] for row in speed.rows] == [*interface.pools] * 4
        assert [row[0] for row in fair.rows] == [*interface.pools]
    goals = {goal.limit for goal in part.goals if 'reset="auto"' in goal.what}
    assert goals == {2.0}
    assert len(part.goals) == sum(4 * len(each.goals) for each in interfaces)
