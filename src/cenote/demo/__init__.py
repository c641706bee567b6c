"""The demo: 100 tasks, 20 connections to an embedded database, and a minute of trouble."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from contextlib import suppress

from .. import caller
from . import pages, play, screen

__all__ = ["run"]


def run(
    *, seed: int, fast: bool, color: bool, page: bool, port: int, serve: bool, many: bool = False
) -> int:
    # What the pool logs is shown as news.
    logging.getLogger("cenote").addHandler(logging.NullHandler())
    logging.getLogger("cenote").propagate = False
    # The demo plays an application: the lines that hold connections are in this file.
    caller.internal[play.__file__] = False
    try:
        pace = 0.1 if fast else 1.0
        if many:
            asyncio.run(_run_fleet(pace, color, page, port))
        else:
            asyncio.run(_run(random.Random(seed), pace, color, page, port, serve))
    except KeyboardInterrupt:
        print("interrupted")
        return 128 + signal.SIGINT
    except asyncio.CancelledError:  # by `_run` itself
        print("terminated")
        return 128 + signal.SIGTERM
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


async def _run(
    chance: random.Random, pace: float, color: bool, page: bool, port: int, serve: bool
) -> None:
    _end_on_sigterm()
    shown = screen.Screen(sys.stdout, color=color)
    server = await pages.serve(page=page, port=port)
    try:
        if server is not None:
            shown.print(f"Watch it live: {server.url}")
        async with play.Play(chance, pace, shown) as story:
            await story.once()
            if server is not None and not serve and sys.stdin.isatty() and sys.stdout.isatty():
                await pages.enter_pressed(f"The page stays until you press Enter: {server.url}")
            while serve:
                shown.print("")
                await story.once()
    finally:
        if server is not None:
            await server.close()


async def _run_fleet(pace: float, color: bool, page: bool, port: int) -> None:
    from . import fleet  # which needs more than other demos

    caller.internal[fleet.__file__] = False
    _end_on_sigterm()
    await fleet.run(sys.stdout, pace=pace, color=color, page=page, port=port)


def _end_on_sigterm() -> None:
    """As Ctrl-C does: the terminal and the disk are left tidy. A second one ends it at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()

    with suppress(NotImplementedError, RuntimeError):  # Windows; not in the main thread
        loop.add_signal_handler(signal.SIGTERM, end)
