"""The processes of `python -m cenote demo --fleet`, as the one that starts them sees them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]  # where cenote is
PATIENCE: Final = 60.0  # real seconds for the end of a process


class Hand:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, kind: str) -> None:
        self.process: asyncio.subprocess.Process = process
        self.kind: str = kind  # "old" or "new"
        self.served: int = 0
        self.errors: Counter[str] = Counter()
        self.reports: bool = False  # it has said something
        self.was_killed: bool = False
        self._listening = asyncio.create_task(self._listen(), name=f"listen {process.pid}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def load(self, tasks: int) -> None:
        """Let so many of its tasks work."""
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(f"{tasks}\n".encode())

    def kill(self) -> None:
        """As the system does it if memory runs out."""
        self.was_killed = True
        self.process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    async def end(self) -> None:
        """Let it finish what it does, give back what it has, and end."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self.process.wait()
        except TimeoutError:
            self.kill()
            await self.process.wait()
        await self._listening

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            with suppress(ValueError):  # it was killed in the middle of a line
                self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        self.reports = True
        self.served = said["served"]
        self.errors = Counter(said["errors"])


async def hire(kind: str, *arguments: object) -> Hand:
    """Start one."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cenote.demo.worker", *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # an interrupt is for the one that starts them
    )  # fmt: skip
    return Hand(process, kind)
