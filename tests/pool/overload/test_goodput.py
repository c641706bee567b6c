"""Answers in time under overload, with a simulated backend in virtual time."""

import pytest
from benchmarks.overload import TARGET, simulate

pytestmark = [pytest.mark.own_loop, pytest.mark.thorough]


@pytest.fixture(scope="module")
def at_capacity():
    return simulate(1.0, TARGET).goodput


@pytest.mark.parametrize("load", [2.0, 10.0])
def test_shedding_keeps_the_goodput_of_full_capacity(at_capacity, load):
    assert simulate(load, TARGET).goodput >= 0.9 * at_capacity


@pytest.mark.parametrize("load", [2.0, 10.0])
def test_a_plain_queue_answers_hardly_anybody_in_time(at_capacity, load):
    assert simulate(load, None).goodput < 0.3 * at_capacity
