"""Timeouts at random moments: every statement gets its own answer or its own timeout."""

import pytest

from tests.exhibits.timeouts import torment
from tests.support.backends import Backend
from tests.support.faults import FACTOR, across_connections

pytestmark = across_connections

TIMEOUTS = 60 * FACTOR
SEED = 4711


@pytest.mark.timeout(300 + 3 * TIMEOUTS)
async def test_no_order_to_stop_hits_another_statement(backend: Backend) -> None:
    counts = await torment(backend, timeouts=TIMEOUTS, tasks=4, seed=SEED)
    assert counts["WRONG"] == 0
    assert counts["timeouts"] >= TIMEOUTS
    assert counts["right"] > 0
    assert counts["connections replaced"] < TIMEOUTS / 10
