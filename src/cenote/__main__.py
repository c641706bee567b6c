"""`python -m cenote demo`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__, demo


def main(arguments: Sequence[str] | None = None) -> int:
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
    top = argparse.ArgumentParser(prog="python -m cenote", description="One pool for asyncio.")
    top.add_argument("--version", action="version", version=f"cenote {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser(
        "demo",
        help="a minute of trouble on the embedded database, live in terminal and browser",
        description="100 tasks share 20 connections to an SQLite database: rush hour, forgotten "
        "transactions, broken connections, an outage. Everything is real but the trouble.",
    )
    show.add_argument("--seed", type=int, default=1, help="of the random load (default: 1)")
    show.add_argument("--fast", action="store_true", help="6 seconds instead of a minute")
    show.add_argument(
        "--no-color", dest="color", action="store_false", help="no colors; so does NO_COLOR"
    )
    show.add_argument("--serve", action="store_true", help="again and again, until Ctrl-C")
    show.add_argument(
        "--port", type=port, default=0, help="of the web page (default: any that is free)"
    )
    show.add_argument("--no-page", dest="page", action="store_false", help="in the terminal only")
    return top


def port(text: str) -> int:
    if not text.isdigit() or not 0 <= int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
