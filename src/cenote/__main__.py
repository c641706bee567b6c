"""The command line: `python -m cenote demo`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__, demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; None reads the arguments of the process."""
    options = parser().parse_args(arguments)
    return demo.run(
        seed=options.seed,
        fast=options.fast,
        color=options.color,
        page=options.page,
        port=options.port,
        serve=options.serve,
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m cenote", description="One pool for asyncio.")
    top.add_argument("--version", action="version", version=f"cenote {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
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
    show.add_argument("--serve", action="store_true", help="repeat until interrupted")
    show.add_argument(
        "--port", type=port, default=0, help="port of the web page (default: any free port)"
    )
    show.add_argument(
        "--no-page", dest="page", action="store_false", help="do not serve the web page"
    )
    return top


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
