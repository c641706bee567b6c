"""Transactions of psycopg over a network: a proxy passes every answer 2 ms later, 1 ms each way.

The proxy is a process of its own, so that it does not take the interpreter from what is measured.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from urllib.parse import urlsplit

from cenote.testing import FaultProxy

from . import drivers
from .drivers import CENOTE, QUEUE
from .measure import (
    Goal,
    Part,
    Samples,
    Scale,
    Table,
    Versus,
    compare,
    interleave,
    median,
    ratios,
    spread,
)
from .statements import CONNECTIONS, TASKS, busy, fill

DRIVER = "psycopg"
ROUND_TRIP = 0.002  # seconds that the proxy adds to each
TITLE = f"Transactions with {DRIVER}, {1000 * ROUND_TRIP / 2:.0f} ms each way"
FASTER = 1.3  # times as many a second as the bare driver's


async def run(scale: Scale, url: str) -> Part:
    await fill(url, scale.rows)
    peers = drivers.peers(DRIVER)
    async with AsyncExitStack() as stack:
        slow = stack.enter_context(proxied(url))
        shared = {
            name: await stack.enter_async_context(make(slow, CONNECTIONS))
            for name, make in peers.items()
            if name != drivers.BARE
        }
        cases = {name: busy(jobs.transaction, TASKS) for name, jobs in shared.items()}
        samples = await interleave(
            cases, rounds=scale.rounds, operations=max(TASKS, TASKS * scale.turns // 4)
        )
    return Part([table(samples)], samples, goals_of(samples), [*versus(samples).values()])


def versus(samples: Samples) -> dict[str, Versus]:
    return compare(f"{DRIVER}: transactions over 1 ms each way", samples, CENOTE)


def goals_of(samples: Samples) -> list[Goal]:
    faster = median(ratios(samples[QUEUE], samples[CENOTE]))
    what = "psycopg: transactions a second over 1 ms each way, to the bare driver"
    return [Goal(what, FASTER, faster, at_least=True)]


def table(samples: Samples) -> Table:
    result = Table(
        f"{TITLE}: {TASKS} tasks over {CONNECTIONS} connections",
        ["", "a second", "spread", "to cenote"],
    )
    against = versus(samples)
    for name, values in samples.items():
        each = str(against.get(name, "1"))
        result.rows.append([name, f"{1 / median(values):,.0f}", spread(values), each])
    result.notes.append(
        "Begin, two selects, commit: the bare driver waits for the server four times, cenote three "
        "times, because BEGIN travels with the first select."
    )
    return result


@contextmanager
def proxied(url: str) -> Iterator[str]:
    """The same URL by way of the proxy."""
    parts = urlsplit(url)
    command = [sys.executable, "-m", "benchmarks.latency", str(parts.hostname), str(parts.port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        try:
            port = int(proxy.stdout.readline())
            yield url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{port}")
        finally:
            proxy.stdin.close()  # it ends with its input


def main() -> int:
    host, port = sys.argv[1:]
    with FaultProxy(host, int(port)) as proxy:
        proxy.slow(ROUND_TRIP)
        print(proxy.port, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
