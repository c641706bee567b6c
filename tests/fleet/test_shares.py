"""Who should have what: examples of each case, and what holds for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cenote.fleet.shares import Demand, divide, equal_parts

FIELDS = st.integers(0, 5), st.integers(0, 40), st.integers(1, 30)
demands = st.builds(Demand.of, *FIELDS)
sums = st.builds(Demand.of, *FIELDS, st.integers(0, 4), st.integers(0, 4))
fleets = st.lists(demands, max_size=12)
any_fleets = fleets | st.lists(demands | sums, max_size=8)


@pytest.mark.parametrize(
    ("needs", "case", "parts"),
    [
        ([(1, 0, 20)], "ample", (20,)),
        ([(1, 0, 20), (1, 0, 20)], "ample", (15, 15)),
        ([(1, 25, 30), (1, 2, 30)], "ample", (25, 5)),
        ([(1, 2, 3), (1, 2, 40)], "ample", (3, 27)),
        ([(1, 40, 40), (1, 40, 40)], "scarce", (15, 15)),
        ([(1, 40, 40), (1, 3, 40)], "scarce", (27, 3)),
        ([(20, 40, 40), (1, 40, 40)], "scarce", (20, 10)),
        ([(16, 0, 20), (16, 0, 20)], "crowded", (15, 15)),
        ([], "ample", ()),
    ],
)
def test_thirty_resources_are_divided_by_need(needs, case, parts):
    division = divide([Demand.of(*each) for each in needs], 30)
    assert (division.case, division.parts) == (case, parts)


def test_more_members_than_resources_take_turns():
    crowd = [Demand.of(1, 1, 5)] * 5
    seen = [divide(crowd, 2, turn).parts for turn in range(5)]
    assert seen[0] == (1, 1, 0, 0, 0)
    assert [sum(each) for each in seen] == [2] * 5
    assert [sum(column) for column in zip(*seen, strict=True)] == [2] * 5


def test_the_rest_of_scarce_resources_goes_round():
    busy = [Demand.of(1, 9, 9)] * 3
    assert [divide(busy, 10, turn).parts for turn in range(3)] == [
        (4, 3, 3), (3, 4, 3), (3, 3, 4),
    ]  # fmt: skip


def test_the_rest_of_ample_resources_stays_with_the_oldest():
    quiet = [Demand.of(1, 0, 9)] * 3
    assert {divide(quiet, 10, turn).parts for turn in range(9)} == {(4, 3, 3)}


def test_equal_parts_do_not_ask_for_needs():
    assert equal_parts([Demand.of(1, 0, 20), Demand.of(1, 20, 20)], 10) == (5, 5)
    assert equal_parts([Demand.of(1, 0, 2), Demand.of(1, 0, 20)], 10) == (2, 8)


@given(any_fleets, st.integers(0, 100), st.integers(0, 50))
def test_parts_fit_and_stay_within_their_bounds(fleet, budget, turn):
    division = divide(fleet, budget, turn)
    assert sum(division.parts) <= budget
    for each, part in zip(fleet, division.parts, strict=True):
        assert 0 <= part <= each.ceiling
        if division.case != "crowded":
            assert part >= each.floor
        if division.case == "ample":
            assert part >= each.need
        else:
            assert part <= each.need


@given(any_fleets, st.integers(0, 100), st.integers(0, 50))
def test_nothing_stays_over_that_somebody_could_use(fleet, budget, turn):
    division = divide(fleet, budget, turn)
    most = {"crowded": "floor", "scarce": "need", "ample": "ceiling"}[division.case]
    wanted = sum(getattr(each, most) for each in fleet)
    assert sum(division.parts) == min(budget, wanted)


@given(fleets, st.integers(0, 100), st.integers(0, 50))
def test_nobody_has_more_while_another_wants_it(fleet, budget, turn):
    division = divide(fleet, budget, turn)
    if division.case != "scarce":
        return
    for poor, part in zip(fleet, division.parts, strict=True):
        if part < poor.need:  # whoever has more than one more has it as a floor
            for rich, more in zip(fleet, division.parts, strict=True):
                assert more <= max(part + 1, rich.floor)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(1, 3), st.integers(0, 20), st.integers(0, 100), st.integers(0, 50),
)  # fmt: skip
def test_sums_of_members_have_what_the_members_would_have(hosts, floor, more, budget, turn):
    """Of members that are alike, but for being busy or not; what cannot be divided goes round. What
    is lent in advance is divided less exactly, for it is asked back by who needs it."""
    kinds = {True: Demand.of(floor, floor + more, 30), False: Demand.of(floor, 0, 30)}
    members = [[kinds[True]] * busy + [kinds[False]] * quiet for busy, quiet in hosts]
    summed = [
        Demand.of(
            sum(each.floor for each in host), sum(each.need for each in host), 30 * len(host),
            len(host), sum(each.need > each.floor for each in host),
        )
        for host in members
    ]  # fmt: skip
    division = divide([each for host in members for each in host], budget, turn)
    parts = iter(division.parts)
    for host, part in zip(members, divide(summed, budget, turn).parts, strict=True):
        exact = sum(next(parts) for _ in host)
        assert abs(part - exact) <= len(host) or division.case == "ample"
