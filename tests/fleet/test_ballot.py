"""The breaker of a fleet: who opens it, who makes the probe, and what is too late."""

from itertools import combinations

import pytest

from cenote.fleet.ballot import PATIENCE, PROBE_EVERY, PROBE_LEASE, SUSPECT_FOR, Ballot
from cenote.fleet.ledger import FleetState

ACTIVE, SUSPECT, INACTIVE = FleetState


def hosts(text):
    """`a1 a2 b1`: members a1 and a2 of host a, and one of host b."""
    return {each: each[0] for each in text.split()}


def voted(where, votes, *, late=False):
    """The state after these votes, such as `a1- b1+`."""
    ballot, now = Ballot(), 10.0
    for vote in votes.split():
        ballot.vote(vote[:-1], where, ballot.epoch, vote[-1] == "-", now)
    if late:
        ballot.judge(where, now + PATIENCE)
    return ballot.state


@pytest.mark.parametrize(
    ("where", "votes", "at_once", "later"),
    [
        ("a1", "a1-", INACTIVE, INACTIVE),
        ("a1", "a1+", ACTIVE, ACTIVE),
        ("a1 a2", "a1-", SUSPECT, SUSPECT),
        ("a1 a2", "a1- a2-", INACTIVE, INACTIVE),
        ("a1 a2", "a1- a2+", SUSPECT, SUSPECT),
        ("a1 a2 a3", "a1- a2-", INACTIVE, INACTIVE),
        ("a1 b1", "a1-", SUSPECT, SUSPECT),
        ("a1 b1", "a1- b1-", INACTIVE, INACTIVE),
        ("a1 b1 c1", "a1- b1+ c1+", SUSPECT, SUSPECT),
        ("a1 b1 c1", "a1- b1-", INACTIVE, INACTIVE),
        ("a1 b1 c1 d1", "a1- b1-", SUSPECT, INACTIVE),
        ("a1 b1 c1 d1", "a1- b1- c1+ d1+", SUSPECT, SUSPECT),
        ("a1 b1 c1 d1 e1", "a1- b1- c1+", SUSPECT, INACTIVE),
        ("a1 a2 b1 b2 c1 c2", "a1- a2-", SUSPECT, SUSPECT),  # one host is cut off
        ("a1 a2 b1 b2 c1 c2", "a1- b1- c1-", SUSPECT, SUSPECT),  # one process each
    ],
)
def test_votes_are_counted_by_host(where, votes, at_once, later):
    assert voted(hosts(where), votes) is at_once
    assert voted(hosts(where), votes, late=True) is later


def test_a_suspicion_without_majority_is_dropped():
    ballot, where = Ballot(), hosts("a1 b1 c1")
    ballot.vote("a1", where, 0, True, 10.0)
    assert ballot.seen(10.0).next_in == PATIENCE
    assert not ballot.judge(where, 10.0 + PATIENCE)
    assert ballot.judge(where, 10.0 + SUSPECT_FOR)
    assert (ballot.state, ballot.epoch) == (ACTIVE, 2)


def test_votes_of_another_epoch_change_nothing():
    ballot, where = Ballot(), hosts("a1 b1")
    assert ballot.vote("a1", where, 0, True, 10.0)
    assert not ballot.vote("b1", where, 0, True, 10.0)
    assert ballot.state is SUSPECT
    assert ballot.vote("b1", where, 1, True, 10.0)
    assert ballot.state is INACTIVE


def test_one_member_at_a_time_makes_the_probe():
    ballot, now = Ballot(INACTIVE, 4, retry=10.0), 10.0
    assert not ballot.claim("a", 4, now - 0.1)
    assert ballot.claim("a", 4, now)
    assert (ballot.seen(now).prober, ballot.epoch) == ("a", 5)
    assert not ballot.claim("b", 5, now)
    assert ballot.verdict("a", 5, False, now + 0.2)
    assert ballot.seen(now + 0.2).next_in == pytest.approx(PROBE_EVERY - 0.2)
    assert ballot.claim("b", 6, now + PROBE_EVERY)
    assert ballot.verdict("b", 7, True, now + PROBE_EVERY)
    assert (ballot.state, ballot.epoch) == (ACTIVE, 8)


def test_a_prober_that_died_is_replaced():
    ballot = Ballot(INACTIVE, 4, retry=10.0)
    ballot.claim("a", 4, 10.0)
    assert ballot.seen(10.0).next_in == PROBE_LEASE
    assert ballot.claim("b", 5, 10.0 + PROBE_LEASE)
    assert not ballot.verdict("a", 5, True, 10.0 + PROBE_LEASE)
    assert ballot.state is INACTIVE


def orders(first, second):
    """Every interleaving of the steps of two members."""
    for places in combinations(range(len(first) + len(second)), len(first)):
        ours, theirs = iter(first), iter(second)
        yield [
            next(ours if place in places else theirs) for place in range(len(first) + len(second))
        ]


def test_interleaved_votes_claims_and_verdicts_are_safe():
    where = hosts("a1 b1")
    steps = ["look", "vote", "look", "claim", "look", "verdict"]
    seen = set()
    for order in orders([("a1", step) for step in steps], [("b1", step) for step in steps]):
        ballot, now, known = Ballot(), 10.0, {"a1": 0, "b1": 0}
        probing = set()
        for member, step in order:
            before = (ballot.state, ballot.epoch)
            if step == "look":
                known[member] = ballot.epoch
                now += 0.6
            elif step == "vote":
                ballot.vote(member, where, known[member], True, now)
            elif step == "claim":
                if ballot.claim(member, known[member], now):
                    probing.add(member)
                    known[member] = ballot.epoch
            elif ballot.verdict(member, known[member], True, now):
                assert member in probing
                assert ballot.state is ACTIVE
            if before[0] is not ballot.state:
                assert ballot.epoch > before[1]
            seen.add(ballot.state)
        assert ballot.state is not ACTIVE or len(probing) <= 1 or ballot.epoch > 4
    assert seen == {ACTIVE, SUSPECT, INACTIVE}
