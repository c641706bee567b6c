"""The web page of a demo: served while it plays, and afterwards until somebody presses Enter."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


async def serve(*, page: bool, port: int) -> Any:
    """Serve the dashboard; None if it is not wanted, or the port cannot be used."""
    if not page:
        return None
    from ..extras.dashboard import serve_dashboard  # only if it is wanted

    try:
        return await serve_dashboard(port=port)
    except OSError as error:
        print(f"no page: port {port} cannot be used ({error.strerror})", file=sys.stderr)
        return None


async def enter_pressed(prompt: str) -> None:
    """Print the prompt, and wait until somebody presses Enter, or the input ends."""
    print(f"\n{prompt}", flush=True)
    loop = asyncio.get_running_loop()
    pressed = loop.create_future()

    def read() -> None:
        sys.stdin.readline()
        if not pressed.done():
            pressed.set_result(None)

    try:
        loop.add_reader(sys.stdin, read)
    except (NotImplementedError, OSError):  # Windows; an input that cannot be waited for
        await asyncio.to_thread(sys.stdin.readline)
        return
    try:
        await pressed
    finally:
        loop.remove_reader(sys.stdin)
