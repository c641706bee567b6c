"""The short version of `make soak`: nothing grows over thousands of mixed cycles."""

import subprocess
import sys

import pytest

from tests.exhibits import soak, soak_world

pytestmark = pytest.mark.own_loop


def test_mixed_cycles_leave_nothing_behind() -> None:
    # In a process of its own, so that what other tests do in theirs is not measured.
    done = subprocess.run(
        [sys.executable, "-m", "tests.exhibits.soak", "--cycles", "20000", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("PASS")
    for _, act in soak_world.SCENARIOS:
        assert f" {act.__name__} " in done.stdout


def test_a_leak_is_seen() -> None:
    """Of a reference, of objects and of memory: a measure that sees nothing proves nothing."""
    kept = []

    class Leaky(soak_world.Soak):
        async def run(self, cycles: int) -> None:
            await super().run(cycles)
            kept.append([self.factory.things[0]] * 3)
            kept.extend([[object()] for _ in range(1_000)])

    complaints = " ".join(soak.run(100, seed=3, warm_up=100, trace=False, kind=Leaky).complaints)
    assert "references to thing 0:" in complaints
    assert "objects:" in complaints
    # Only the allocator of the interpreter counts its blocks.
    assert ("allocated blocks:" in complaints) == bool(sys.getallocatedblocks())
