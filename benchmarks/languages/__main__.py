"""`python -m benchmarks.languages`: PostgreSQL from C, Go, Java, JavaScript and Python.

Every contender is a process of its own, with the pool that is usual there, and does the same jobs
in turns with the others. What is not installed is skipped with a word.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.servers import PostgresServer

from .. import report
from ..measure import Samples, Table, median, rotated, spread
from ..statements import CONNECTIONS, KINDS, STREAMS, TASKS, fill
from .contenders import Contender, contenders

ROUNDS, SECONDS, ROWS = 3, 2.0, 1_000
ROOT = Path(__file__).parents[2]


def environment(url: str) -> dict[str, str]:
    """What every client of PostgreSQL reads."""
    parts = urlsplit(url)
    return {
        "PGHOST": str(parts.hostname),
        "PGPORT": str(parts.port),
        "PGUSER": unquote(str(parts.username)),
        "PGPASSWORD": unquote(str(parts.password)),
        "PGDATABASE": parts.path[1:],
    }


def run(found: Sequence[Contender], kind: str, url: str, *, rounds: int, seconds: float) -> Samples:
    """How many jobs a second each of them did, round by round."""
    samples: Samples = defaultdict(list)
    settings = {**os.environ, **environment(url)}
    each = {contender.name: contender for contender in found}
    for number in range(rounds):
        for name, contender in rotated(each, number):
            samples[name].append(contender.run(kind, TASKS, CONNECTIONS, seconds, url, settings))
    return {name: samples[name] for name in each}


def table(every: dict[str, Samples], skipped: Sequence[str]) -> Table:
    kinds = [*every]
    result = Table(
        f"PostgreSQL from other languages: {TASKS} tasks over {CONNECTIONS} connections",
        ["", *(cell for kind in kinds for cell in (f"{kind} a second", "spread"))],
    )
    best = {name: median(values) for name, values in every[kinds[0]].items()}
    for name in sorted(best, key=lambda name: -best[name]):
        cells = []
        for kind in kinds:
            cells += [f"{median(every[kind][name]):,.0f}", spread(every[kind][name])]
        result.rows.append([name, *cells])
    result.notes += skipped
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if (reason := PostgresServer.missing()) is not None:
        print(f"Nothing can be measured: {reason}.", file=sys.stderr)
        return 1
    with PostgresServer() as server, tempfile.TemporaryDirectory() as scratch:
        url = server.tcp_url()
        asyncio.run(fill(url, ROWS))
        found, absent = contenders(Path(scratch))
        skipped = [f"Skipped: {name}, because {reason}." for name, reason in absent.items()]
        print(*skipped, sep="\n", flush=True)
        every = {
            kind: run(found, kind, url, rounds=options.rounds, seconds=options.seconds)
            for kind in KINDS
            if kind != STREAMS
        }
    result = table(every, skipped)
    print(f"{result}\n")
    for name in report.write_languages(options.output, result):
        print(f"Written: {name}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.languages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one process")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        default=ROOT / "docs/benchmarks",
        help="where languages.md goes; the table also goes between the markers of FOLDER.md",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
