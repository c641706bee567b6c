"""10,000 timeouts of statements at random moments on each driver: none hits another statement.

The short form runs with the other tests of the database (`tests/sql/test_timeout_moments.py`).
"""

import re
import subprocess
import sys

import pytest

from tests.support.servers import MariaDBServer, PostgresServer

pytestmark = [pytest.mark.once, pytest.mark.driver]

TIMEOUTS = 10_000


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "mysql", "sqlite"])
@pytest.mark.timeout(2500)
def test_ten_thousand_timeouts_hit_their_own_statement(driver: str) -> None:
    kind = MariaDBServer if driver == "mysql" else PostgresServer
    if driver != "sqlite" and (reason := kind.missing()):
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-m", "tests.exhibits.timeouts",
         "--driver", driver, "--timeouts", str(TIMEOUTS)],
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    counted = re.search(r"timeouts ([\d,]+)", done.stdout)
    assert counted is not None, done.stdout
    assert int(counted[1].replace(",", "")) >= TIMEOUTS
