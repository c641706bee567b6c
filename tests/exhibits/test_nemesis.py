"""The short version of `make nemesis`."""

import subprocess
import sys

import pytest

from tests.support.servers import PostgresServer

pytestmark = pytest.mark.once


@pytest.mark.parametrize("ledger", ["local", "redis", "postgresql"])
def test_no_process_of_a_fleet_is_refused_whatever_happens(ledger: str) -> None:
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    pytest.importorskip("asyncpg")
    command = [sys.executable, "-m", "tests.exhibits.nemesis", "--ledger", ledger]
    command += ["--seconds", "15", "--processes", "4", "--budget", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 refusals" in done.stdout
