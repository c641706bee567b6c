"""`python -m cenote demo`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__, demo


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    return demo.run(seed=options.seed, fast=options.fast, color=options.color)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m cenote", description="A universal asyncio pool.")
    top.add_argument("--version", action="version", version=f"cenote {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser(
        "demo",
        help="100 tasks, 20 resources, one outage, live in the terminal",
        description="100 tasks share 20 connections to a backend in memory, which goes down and "
        "comes back. The backend is simulated, the pool is real.",
    )
    show.add_argument("--seed", type=int, default=1, help="of the random load (default: 1)")
    show.add_argument("--fast", action="store_true", help="3 seconds instead of 12")
    show.add_argument(
        "--no-color", dest="color", action="store_false", help="no colors; so does NO_COLOR"
    )
    return top


if __name__ == "__main__":
    sys.exit(main())
