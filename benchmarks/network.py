"""The main program of a benchmark that needs every network driver."""

import sys
from collections.abc import Awaitable, Callable

from tests.support.servers import MariaDBServer, PostgresServer

from .measure import FULL, QUICK, Part, Scale

Run = Callable[[Scale, dict[str, str]], Awaitable[Part]]


async def run_on_servers(run: Run) -> None:
    """Run it with the URL of each driver, on servers of our own, and print its tables.

    With `--quick` among the arguments of the program it takes a few seconds.
    """
    with PostgresServer() as postgres, MariaDBServer() as mariadb:
        url = postgres.tcp_url()
        urls = {
            "asyncpg": url,
            "psycopg": url.replace("postgresql:", "postgresql+psycopg:"),
            "asyncmy": mariadb.tcp_url(),
        }
        part = await run(QUICK if "--quick" in sys.argv else FULL, urls)
    print(*part.tables, sep="\n\n")
