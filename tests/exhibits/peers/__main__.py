"""`python -m tests.exhibits.peers`: see `make peers`."""

import argparse
import signal
import sys
import time
from importlib.metadata import version

from . import asyncpg, redis, sqlalchemy
from .expected import Verdict, compare, load
from .fetch import Unavailable, source
from .peer import SHORT, Outcomes, Peer, run_tests

PEERS = {peer.name: peer for peer in (sqlalchemy.PEER, redis.PEER, asyncpg.PEER)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="peers", description=__doc__)
    parser.add_argument("--peer", action="append", choices=PEERS, help="only this one")
    parser.add_argument("--suite", default="", help="only those with this in their title")
    parser.add_argument("--short", action="store_true", help="only what is closest to the pools")
    given = parser.parse_args()
    # Otherwise the servers that it has started would outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    try:
        new = [
            name
            for peer in given.peer or PEERS
            for name in run_peer(PEERS[peer], given.suite, short=given.short)
        ]
    except Unavailable as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    print(f"\n{time.monotonic() - begun:,.0f} s, {len(new)} differences that nobody has reviewed")
    return 1 if new else 0


def run_peer(peer: Peer, suite: str = "", *, short: bool = False) -> list[str]:
    """Run the suites of a peer on both sides; print the table, and return what is new.

    Raises `Unavailable` if its tests cannot be had or run here.
    """
    if reason := peer.missing():
        raise Unavailable(f"{peer.name}: {reason}")
    print(f"\n{peer.name} {version(peer.distribution)}")
    print(f"{'suite':52} {'original':>12} {'adapter':>12} {'reviewed':>9} {'new':>4}", flush=True)
    new: list[str] = []
    entries = load()
    with peer.prepare(source(peer.distribution)) as setting:
        for title in (SHORT,) if short else peer.suites:
            if suite in title:
                original = run_tests(peer, title, setting, adapted=False)
                adapted = run_tests(peer, title, setting, adapted=True)
                verdict = compare(peer.name, original, adapted, entries)
                report(title, original, adapted, verdict)
                new += verdict.new
    return new


def report(title: str, original: Outcomes, adapted: Outcomes, verdict: Verdict) -> None:
    """Print a row of the table, and below it the differences."""
    print(
        f"{title:52} {_share(original):>12} {_share(adapted):>12} "
        f"{len(verdict.reviewed):9} {len(verdict.new):4}"
    )
    for test, reason in verdict.reviewed.items():
        print(f"    reviewed: {test}: {reason}")
    for test in verdict.new:
        print(f"    NEW: {test}: {original.get(test)} -> {adapted.get(test)}")
    for test in verdict.only_original:
        print(f"    fails with the original alone: {test}")
    sys.stdout.flush()


def _share(outcomes: Outcomes) -> str:
    ended = [*outcomes.values()]
    return f"{ended.count('passed')}/{len(ended) - ended.count('skipped')}"


if __name__ == "__main__":
    sys.exit(main())
