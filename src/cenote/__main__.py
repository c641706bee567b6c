"""The command line: `python -m cenote`, with `demo`, `check` and `fleet`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import inf

from . import __version__, demo
from .extras import check, fleet_capacity, fleet_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; None reads the arguments of the process."""
    commands = parser()
    options = commands.parse_args(arguments)
    if options.command is None:
        commands.print_help()
        return 0
    if options.command == "check":
        return check.run(options.url, timeout=options.timeout)
    if options.command == "fleet":
        return fleet(commands, options)
    if options.fleet and options.serve:
        commands.error("--serve repeats the demo of one process; leave it out with --fleet")
    return demo.run(
        seed=options.seed,
        fast=options.fast,
        color=options.color,
        page=options.page,
        port=options.port,
        serve=options.serve,
        many=options.fleet,
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m cenote", description="Resource pools and a database layer for asyncio."
    )
    top.add_argument("--version", action="version", version=f"cenote {__version__}")
    commands = top.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    show = commands.add_parser(
        "demo",
        help="show a minute of faults on an SQLite database, live in terminal and browser",
        description="100 tasks share 20 connections to an SQLite database: rush hour, forgotten "
        "transactions, broken connections, an outage. Only the faults are staged.",
    )
    show.add_argument("--seed", type=int, default=1, help="seed of the random load (default: 1)")
    show.add_argument("--fast", action="store_true", help="take 6 seconds instead of a minute")
    show.add_argument(
        "--no-color",
        dest="color",
        action="store_false",
        help="print no colors; setting NO_COLOR does the same",
    )
    show.add_argument(
        "--fleet",
        action="store_true",
        help="show eight processes that share one budget of connections, and a rolling deploy",
    )
    show.add_argument("--serve", action="store_true", help="repeat until interrupted")
    show.add_argument(
        "--port", type=port, default=0, help="port of the web page (default: any free port)"
    )
    show.add_argument(
        "--no-page", dest="page", action="store_false", help="do not serve the web page"
    )
    look = commands.add_parser(
        "check",
        help="connect to a database: driver, server, TLS, round trip, or what is wrong",
        description="Connects to a database and says what answers. If that fails, says what is "
        "wrong, and exits with status 1. The password is not shown.",
    )
    look.add_argument("url", metavar="URL", help="such as postgresql://app:secret@localhost/shop")
    look.add_argument(
        "--timeout",
        type=positive,
        default=10.0,
        metavar="SECONDS",
        help="the limit for connecting, and for the questions after it (default: 10)",
    )
    add_fleet(commands)
    return top


def add_fleet(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `fleet` to these."""
    show = commands.add_parser(
        "fleet",
        help="show the processes of a fleet, live; `fleet check URL`: suggest a budget",
        usage="%(prog)s [-h] [--name NAME] [--path PATH] [URL]\n"
        "       %(prog)s check [--timeout SECONDS] URL",
        description="Shows the processes of a fleet, and what they have and need, every second, or "
        "once if the output is not a terminal. `fleet check URL` shows how many connections a "
        "database server has, who else uses them, and which budget that suggests.",
    )
    show.add_argument(
        "words", nargs="*", metavar="URL",
        help="where the fleet keeps its budget, such as redis://cache:6379; without it, a file of "
        "this host. After `check`: the database, such as postgresql://app:secret@localhost/shop",
    )  # fmt: skip
    show.add_argument("--name", default="default", help="name of the fleet (default: default)")
    show.add_argument("--path", help="file of the fleet, if it was created with path=")
    show.add_argument(
        "--timeout",
        type=positive,
        default=10.0,
        metavar="SECONDS",
        help="for `check`: the limit for connecting, and for the questions after it (default: 10)",
    )


def fleet(commands: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the command `fleet` and return its exit status."""
    words: list[str] = options.words
    if words[:1] == ["check"]:
        if len(words) != 2:
            commands.error("fleet check takes one URL, that of the database")
        return fleet_capacity.run(words[1], timeout=options.timeout)
    if len(words) > 1:
        commands.error("fleet takes one URL, or none for the fleet of this host")
    return fleet_table.run(words[0] if words else None, name=options.name, path=options.path)


def positive(text: str) -> float:
    """Parse a number of seconds.

    Raises:
        argparse.ArgumentTypeError: The text is not a finite number above 0.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def port(text: str) -> int:
    """Parse a port number.

    Raises:
        argparse.ArgumentTypeError: The text is not a number from 0 to 65535.
    """
    if not text.isdigit() or not 0 <= int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
