"""A process of the tests that answers each line of its standard input with one, both in JSON."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Any, Self

from tests.support.waiting import WAIT


class AskedProcess:
    """`async with` starts it, and kills it at the end; the first line says that it is ready."""

    module: str  # which `python -m` runs

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments

    async def __aenter__(self) -> Self:
        program = [sys.executable, "-m", self.module, *self.arguments]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
        await self.answer()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()
        self.process._transport.close()  # type: ignore[attr-defined]

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.process.wait()

    async def ask(self, what: str, *arguments: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, *arguments]).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT):
            line = await self.process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)
