"""A process that is a member of a fleet: it does what its standard input says, one line for each.

Run as `python -m tests.support.ledger_process PATH`, by `LedgerProcess`.
"""

import asyncio
import dataclasses
import json
import os
import random
import signal
import sys

from cenote.fleet.ledger import LedgerConfig, Sync
from cenote.fleet.local import LocalLedger
from tests.support.asked_process import AskedProcess


class LedgerProcess(AskedProcess):
    """One member in a process of its own."""

    module = "tests.support.ledger_process"

    def __init__(self, path):
        super().__init__(str(path))


async def main(path):
    news = []
    ledger = LocalLedger(LedgerConfig("", "shop", 10.0, path))
    await ledger.open(news.append)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    member, seq, held = f"process {os.getpid()}", 0, 0
    print("0", flush=True)
    while line := await reader.readline():
        what, *arguments = json.loads(line)
        seq += 1
        if what == "sync":
            (need,) = arguments
            grant = await ledger.sync(_request(member, seq, held, need))
            held = grant.held
            print(json.dumps(dataclasses.asdict(grant)), flush=True)
        elif what == "hammer":  # until it is killed; says when thirty are done
            for done in range(1 << 30):
                seq += 1
                need = random.randrange(20)
                grant = await ledger.sync(_request(member, seq, held, need))
                held = min(grant.held, grant.target) if grant.lend else grant.held
                assert grant.used <= grant.budget, grant
                if done == 30:
                    print("0", flush=True)
        elif what == "vote":
            await ledger.vote(member, *arguments, down=True)
            print("0", flush=True)
        elif what == "fork":  # a child that does nothing, and does not end
            child = os.fork()
            if not child:
                os.closerange(0, 3)
                signal.pause()
            print(child, flush=True)
        elif what == "close":
            await ledger.close()
            print(json.dumps([repr(each) for each in news]), flush=True)
            return


def _request(member, seq, keep, need):
    return Sync(member, seq, keep, need, 1, 20, 30, "here", os.getpid(), "p", breaker="ACTIVE")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
