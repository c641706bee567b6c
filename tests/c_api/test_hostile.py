"""Hostile use of the C API: the short version of `make fuzz`. Its finds are in the files beside."""

import gc

import pytest

from tests.exhibits import fuzz
from tests.support import hostile
from tests.support.probe import native_only

pytestmark = [pytest.mark.once, native_only]

SEED, PROGRAMS = 1, 300


@pytest.fixture(autouse=True)
def quick():
    """Each program is followed by a collection: what other tests left is not looked at."""
    gc.collect()
    gc.freeze()


def test_promises_are_kept_whatever_an_extension_does(probe):
    done, found = fuzz.search(probe, SEED, range(PROGRAMS))
    assert found is None, found
    tried = {f"in {name}" for name in hostile.CALLBACKS} | fuzz.WEIGHTS.keys()
    assert tried <= done.keys(), f"never tried: {tried - done.keys()}"


@pytest.mark.untraced  # the garbage of a tracer moves the finalizers
@pytest.mark.parametrize("threshold", [1, 7])
def test_promises_are_kept_whatever_finalizers_do(probe, threshold):
    """The collector runs in the middle of everything, and each step has left it something."""
    done, found = fuzz.search(probe, SEED, range(PROGRAMS // 2), threshold=threshold)
    assert found is None, found
    assert done["in finalizer"] > 100


class Liar:
    """A probe that says of every ticket that it is cancelled, and does nothing."""

    def __init__(self, probe):
        self._probe = probe

    def __getattr__(self, name):
        return getattr(self._probe, name)

    def ticket_cancel(self, ticket):
        return 1


def test_a_broken_promise_is_found_and_shortened(probe):
    _, found = fuzz.search(Liar(probe), SEED, range(PROGRAMS))
    assert found is not None
    assert "ticket_cancel gave 1" in found or "cancelled, and told" in found
    steps = [line for line in found.splitlines() if line.startswith("    (")]
    assert len(steps) < 6, found
    assert any("'cancel'" in step for step in steps)


def test_programs_of_a_seed_are_repeatable():
    assert fuzz.generate("1 7") == fuzz.generate("1 7")
    assert fuzz.generate("1 7") != fuzz.generate("1 8")
