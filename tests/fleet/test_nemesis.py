"""The short forms of `make nemesis`: a few seconds of it, and everything of it once."""

import pytest

from tests.support.running import run_program
from tests.support.servers import PostgresServer, RedisServer

pytest.importorskip("asyncpg")
pytestmark = [pytest.mark.once, pytest.mark.driver]

LEDGERS = pytest.mark.parametrize("ledger", ["local", "redis", "postgresql"])


def nemesis(ledger: str, *options: str) -> None:
    for server in (PostgresServer, RedisServer) if ledger == "redis" else (PostgresServer,):
        if reason := server.missing():
            pytest.skip(reason)
    done = run_program("-m", "tests.exhibits.nemesis", "--ledger", ledger, *options)
    assert " 0 refusals" in done.stdout


@LEDGERS
def test_no_process_is_refused_for_some_seconds(ledger: str) -> None:
    nemesis(ledger, "--seconds", "3", "--processes", "3", "--budget", "9")


@pytest.mark.exhibit
@LEDGERS
def test_no_process_is_refused_whatever_happens_once(ledger: str) -> None:
    nemesis(ledger, "--once", "--processes", "4", "--budget", "12")
