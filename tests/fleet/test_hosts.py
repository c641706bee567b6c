"""What hosts show of themselves in PostgreSQL, and what each of them decides."""

import pytest

from cenote.fleet.hosts import LONGEST, HostRow, lock_key, plan, session_prefix

BEAT = 2.0


def row(
    key, held, need, *, floor=1, ceiling=30, budget=30, processes=1, busy=1, since=None, tokens=None
):
    """A host whose tokens are as many as it holds, from a place of its own."""
    numbers = range(100 * key, 100 * key + (held if tokens is None else tokens))
    return HostRow(
        key, f"h{key}", budget, need, floor, ceiling, held, processes, since or key,
        frozenset(numbers), busy,
    )  # fmt: skip


@pytest.mark.parametrize("host", ["web-1", "a" * 80, "o'neill; --", "höst", ""])
def test_the_name_of_a_session_says_it_all(host):
    shown = HostRow(7, host, 90, 12, 3, 80, 40, 5, 1_700_000_000, frozenset({1}), 4).shown("shop")
    assert len(shown) <= LONGEST
    assert shown.startswith(session_prefix("shop"))
    assert "'" not in shown
    read = HostRow.read(7, shown, frozenset({1, 2}))
    assert (read.budget, read.need, read.floor, read.ceiling) == (90, 12, 3, 80)
    assert (read.held, read.processes, read.since, read.charge) == (40, 5, 1_700_000_000, 40)
    assert read.busy == 4
    assert (
        read.host
        == "".join(c if c.isascii() and c not in "'; " else "-" for c in host)[: len(read.host)]
    )


@pytest.mark.parametrize("shown", ["", "psql", "cenote:1234abcd nonsense"])
def test_other_sessions_are_no_hosts(shown):
    assert HostRow.read(1, shown, frozenset()) is None


def test_fleets_have_keys_of_their_own():
    keys = {lock_key(f"fleet {number}") for number in range(1000)}
    assert len(keys) == 1000
    assert all(0 <= key < 2**31 for key in keys)


def test_a_host_alone_may_have_everything():
    found = plan(row(1, 0, 5), [], BEAT, 100.0)
    assert (found.grant.held, found.surplus, found.told) == (30, 0, ())


def test_a_host_with_too_much_gives_back_what_others_need():
    one, two = row(1, 30, 2), row(2, 0, 10)
    assert plan(one, [two], BEAT, 100.0).surplus == 10
    found = plan(two, [one], BEAT, 100.0)
    assert (found.grant.held, found.told) == (0, (1,))


def test_what_was_given_back_is_told_to_who_is_short():
    one, two = row(1, 20, 2), row(2, 0, 10)
    found = plan(one, [two], BEAT, 100.0)
    assert (found.surplus, found.told) == (0, (2,))
    assert plan(two, [one], BEAT, 100.0).grant.held == 10


@pytest.mark.parametrize(
    ("needs", "budget", "parts"),
    [  # of a host with one process, and of one with nine
        (((20, 1), (180, 9)), 90, (9, 81)),  # everybody is busy
        (((20, 1), (28, 1)), 30, (11, 19)),  # one of the nine is: eight have their floor
        (((1, 0), (9, 0)), 90, (9, 81)),  # nobody is: all is lent, to each as much
    ],
)
def test_a_budget_is_divided_by_processes_and_not_by_hosts(needs, budget, parts):
    one, nine = (
        row(key, 0, need, floor=many, ceiling=20 * many, budget=budget, processes=many, busy=busy)
        for key, many, (need, busy) in zip((1, 2), (1, 9), needs, strict=True)
    )
    found = plan(one, [nine], BEAT, 0.0), plan(nine, [one], BEAT, 0.0)
    assert tuple(each.grant.target for each in found) == parts
    assert [each.grant.share for each in found] == [budget // 10, budget * 9 // 10]


def test_what_a_host_has_without_tokens_is_charged():
    lost = row(1, 12, 12, tokens=0)
    assert plan(row(2, 0, 30), [lost], BEAT, 100.0).grant.held == 18
    assert plan(row(2, 30, 30), [lost], BEAT, 100.0).surplus == 12


def test_a_host_that_only_looks_has_no_part():
    looking = row(1, 0, 0, floor=0, ceiling=0, budget=0, processes=0)
    found = plan(row(2, 0, 30), [looking], BEAT, 100.0)
    assert (found.grant.held, found.grant.budget) == (30, 30)


def test_hosts_without_room_for_all_take_turns():
    hosts = [row(key, 0, 1, budget=2) for key in range(1, 6)]
    served = set()
    for turn in range(5):
        parts = [
            plan(each, [o for o in hosts if o is not each], BEAT, turn * 5.0).grant.target
            for each in hosts
        ]
        assert sum(parts) == 2
        served |= {each.key for each, part in zip(hosts, parts, strict=True) if part}
    assert served == {1, 2, 3, 4, 5}
