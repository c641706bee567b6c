"""`python -m tests.exhibits.replay`: see `make replay`."""

import argparse
import logging
import signal
import sys
import time
import warnings

from .expected import load
from .fetch import CORPORA, Unavailable
from .run import METHODS, REPLAYS, Findings, Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="exhibits", description=__doc__)
    parser.add_argument("--corpus", action="append", choices=[*CORPORA], help="only this one")
    parser.add_argument("--driver", action="append", help="only this one")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this one")
    parser.add_argument("--replay", action="append", choices=REPLAYS, help="only this one")
    parser.add_argument("--statements", type=int, default=0, help="of each corpus, at most")
    parser.add_argument("--seed", type=int, default=0, help="decides which ones")
    parser.add_argument("--files", default="", help="only scripts whose name matches this")
    parser.add_argument("--reset", default="auto", choices=["auto", "always", "never"])
    given = parser.parse_args()
    options = Options(
        corpora=tuple(given.corpus or CORPORA),
        drivers=tuple(given.driver or ()),
        methods=tuple(given.method or METHODS),
        replays=tuple(given.replay or REPLAYS),
        statements=given.statements,
        seed=given.seed,
        files=given.files,
        reset=given.reset,
    )
    # What the statements provoke is reported by the replay; thousands of lines of log hide it.
    for name in ("cenote", "asyncio", "asyncmy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")  # asyncmy repeats those of the server
    # Otherwise the servers that it has started would outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    try:
        findings = run(options, load())
    except Unavailable as error:
        print(f"exhibits: {error}", file=sys.stderr)
        return 2
    report(findings)
    print(f"\n{time.monotonic() - begun:,.0f} s, seed {options.seed}")
    return 1 if findings.new else 0


def report(findings: Findings) -> None:
    """Print what was left out, the causes, and the table."""
    for corpus, counts in findings.left_out.items():
        listed = ", ".join(f"{why} {count:,}" for why, count in counts.most_common())
        print(f"{corpus}, left out: {listed or 'nothing'}")
    for tally in findings.tallies:
        if tally.skipped:
            print(f"{tally.corpus}, {tally.driver}, {tally.method}: {tally.skipped:,} statements "
                  f"not run, after the session was lost on both sides")  # fmt: skip
        for cause, count in tally.causes.most_common():
            print(f"{tally.corpus}, {tally.driver}, {tally.method}: {count:,} x {cause}")
    print()
    print(findings.table())


if __name__ == "__main__":
    sys.exit(main())
