"""The same programs on both cores, in one process: see lockstep.py."""

import os

import pytest

import cenote

PROGRAMS = int(os.environ.get("CENOTE_LOCKSTEP", "200"))  # more by hand: tests/support/lockstep.py

pytestmark = [
    pytest.mark.once,
    pytest.mark.thorough,
    pytest.mark.skipif(
        cenote.core != "native", reason="both cores are compared where the native one is in use"
    ),
]


@pytest.mark.parametrize("part", range(10))
def test_the_cores_are_the_same(part):
    from tests.support import lockstep

    for number in range(part * PROGRAMS // 10, (part + 1) * PROGRAMS // 10):
        found = lockstep.difference(f"0 {number}")
        assert found is None, found
