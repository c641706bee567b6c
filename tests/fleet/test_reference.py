"""The reference ledger, rule by rule; the other ledgers are compared with it."""

import math

import pytest

from cenote.fleet.ledger import News, Sync
from cenote.fleet.reference import ReferenceLedger

BEAT, TTL = 2.0, 10.0


class Members:
    """Members of one ledger, which ask for what they want and keep what they are told."""

    def __init__(self, **options):
        self.ledger = ReferenceLedger(TTL, BEAT, **options)
        self.now = 100.0
        self.seqs = {}
        self.grants = {}

    def sync(self, member, need=1, *, keep=None, floor=1, ceiling=20, budget=30, seq=None, **more):
        if seq is None:
            seq = self.seqs[member] = self.seqs.get(member, 0) + 1
        if keep is None:
            keep = self.grants[member].held if member in self.grants else 0
        host = more.pop("host", "here")
        request = Sync(member, seq, keep, need, floor, ceiling, budget, host, 1, "pool", **more)
        grant = self.ledger.sync(request, self.now)
        if grant.accepted:
            self.grants[member] = grant
        return grant

    def woken(self):
        return [each.member for each in self.ledger.take_news() if each.member]


@pytest.fixture
def members():
    return Members(learns=False)


def test_the_first_member_is_lent_all_it_can_use(members):
    grant = members.sync("a")
    assert (grant.held, grant.target, grant.used, grant.budget) == (20, 20, 20, 30)
    assert (grant.share, grant.lasts, grant.processes) == (20, TTL, 1)
    assert members.sync("b").held == 10


def test_who_needs_more_gets_back_what_was_lent(members):
    members.sync("a", ceiling=30)
    members.sync("b", ceiling=30)
    assert members.grants["b"].held == 0
    assert members.woken() == ["a"]  # b has not even its floor
    grant = members.sync("a", ceiling=30)
    assert (grant.held, grant.target, grant.owed, grant.lend) == (30, 15, 1, True)
    members.sync("a", keep=29, ceiling=30)
    assert members.woken() == ["b"]
    assert members.sync("b", ceiling=30).held == 1


def test_members_that_were_told_are_not_woken_again(members):
    members.sync("a", 30, ceiling=30)
    members.sync("b", 30, ceiling=30)
    assert members.woken() == ["a"]
    members.sync("a", 30, ceiling=30)
    members.sync("b", 30, ceiling=30)
    assert members.woken() == []


def test_a_request_that_was_overtaken_changes_nothing(members):
    members.sync("a", keep=0)
    members.sync("a", keep=5, ceiling=5)
    before = members.ledger.rows["a"].charge
    grant = members.sync("a", keep=20, seq=1)
    assert not grant.accepted
    assert members.ledger.rows["a"].charge == grant.held == before == 5


def test_a_member_that_says_more_is_believed(members):
    members.sync("a", 20, keep=25, ceiling=25)
    grant = members.sync("b", 5, keep=20)
    assert (grant.held, grant.used) == (20, 45)
    assert members.sync("c").held == 0  # until the debt is paid
    members.sync("b", 5, keep=5)
    assert members.sync("c").held == 0
    members.sync("a", 20, keep=20, ceiling=25)
    assert members.sync("c").held >= 1


def test_a_debt_is_owed_by_those_above_the_part(members):
    members.sync("a", 3, keep=20)
    grant = members.sync("b", 3, keep=14)
    assert (grant.used, grant.target, grant.owed) == (34, 15, 4)
    assert members.woken() == ["a"]
    grant = members.sync("a", 3, keep=20)
    assert (grant.held, grant.target, grant.owed) == (20, 15, 4)
    assert members.sync("a", 3, keep=16).owed == 0


def test_a_lease_ends_after_the_ttl(members):
    members.sync("a")
    for _ in range(4):
        members.now += BEAT
        members.sync("b")
    members.now += BEAT - 0.01
    assert members.sync("b").used == 30
    members.now += 0.01
    grant = members.sync("b")
    assert (grant.held, grant.used, grant.processes) == (20, 20, 1)


def test_after_everybody_was_silent_leases_live_longer():
    members = Members()
    members.sync("a", ceiling=30)
    members.now += 2 * BEAT
    members.sync("a", ceiling=30)
    members.now += 10 * TTL
    assert members.sync("b").held == 0
    members.now += 2 * BEAT - 0.01
    assert members.sync("b").held == 0
    members.now += 0.01
    assert members.sync("b").held == 20


def test_an_empty_ledger_gives_floors_at_first():
    members = Members()
    assert members.sync("a", 10, floor=2).held == 2
    assert members.sync("b", 10, keep=12).held == 12
    members.now += 2 * BEAT
    assert members.sync("a", 10).held == 15


def test_silent_members_stay_charged_until_they_are_counted(members):
    members.sync("a", audit=True)
    for _ in range(5):
        members.now += BEAT
        grant = members.sync("b", audit=True)
    assert grant.silent == ("a",)
    assert (grant.held, grant.used) == (10, 30)
    assert members.sync("b", audit=True).silent == ()  # b counts already
    members.ledger.settle("a", 4, members.now)
    assert members.ledger.used == 14
    members.now += BEAT
    assert members.sync("b", audit=True).silent == ("a",)
    members.ledger.settle("a", 0, members.now)
    assert [each.member for each in members.ledger.members(members.now)] == ["b"]


def test_a_silent_member_that_wakes_is_not_settled(members):
    members.sync("a", audit=True)
    for _ in range(5):
        members.now += BEAT
        members.sync("b", audit=True)
    members.sync("a", audit=True)
    members.ledger.settle("a", 0, members.now)
    assert members.ledger.rows["a"].charge == 20


def test_the_smallest_budget_of_the_living_counts(members):
    assert members.sync("a", budget=30).budget == 30
    assert members.sync("b", budget=12).budget == 12
    assert members.ledger.used == 20  # nobody is granted more until it is below 12
    assert members.sync("a", 1).target == 6
    members.ledger.leave("b", 99, members.now)
    assert members.sync("a").budget == 30


def test_what_a_leaving_member_had_is_free(members):
    members.sync("a", ceiling=30)
    members.sync("b")
    members.woken()
    members.ledger.leave("a", 1, members.now)  # an old request
    assert "a" in members.ledger.rows
    members.ledger.leave("a", 2, members.now)
    assert members.woken() == ["b"]
    assert members.sync("b").held == 20


def test_what_a_dead_member_had_is_free(members):
    members.ledger.ttl = math.inf
    members.sync("a", ceiling=30)
    members.sync("b")
    members.woken()
    members.ledger.drop(["a", "unknown"], members.now)
    assert members.woken() == ["b"]


def test_floors_come_before_what_others_need(members):
    members.sync("a", 30, ceiling=30)
    members.sync("b", 30, ceiling=30)
    members.sync("c", 30, ceiling=30)
    members.sync("a", 30, keep=29, ceiling=30)
    assert members.sync("b", 30, ceiling=30).held == 1
    members.sync("a", 30, keep=27, ceiling=30)
    assert members.sync("b", 30, ceiling=30).held == 2  # one is left for c
    assert members.sync("c", 30, ceiling=30).held == 1


def test_a_newer_epoch_of_a_member_is_learned(members):
    grant = members.sync("a", epoch=7)
    assert (grant.circuit.epoch, grant.circuit.state) == (8, "ACTIVE")
    assert members.ledger.take_news() == [News(circuit=grant.circuit)]
    assert members.sync("a", epoch=8).circuit.epoch == 8


def test_rows_show_the_oldest_member_first(members):
    members.sync("b", host="x", breaker="ACTIVE")
    members.sync("a", host="y")
    rows = members.ledger.members(members.now)
    assert [(each.member, each.host, each.held, each.breaker) for each in rows] == [
        ("b", "x", 20, "ACTIVE"), ("a", "y", 10, None),
    ]  # fmt: skip
