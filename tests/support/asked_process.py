"""A process of the tests that answers each line of its standard input with one, both in JSON."""

import asyncio
import contextlib
import json
import os
import signal
import sys

from tests.support.waiting import WAIT


class AskedProcess:
    """`async with` starts it, and kills it at the end; the first line says that it is ready."""

    module: str  # which `python -m` runs

    def __init__(self, *arguments):
        self.arguments = arguments

    async def __aenter__(self):
        program = [sys.executable, "-m", self.module, *self.arguments]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
        await self.answer()
        return self

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()
        self.process._transport.close()

    @property
    def pid(self):
        return self.process.pid

    def signal(self, number):
        os.kill(self.pid, number)

    async def kill(self):
        self.signal(signal.SIGKILL)
        await self.process.wait()

    async def ask(self, what, *arguments):
        self.process.stdin.write(json.dumps([what, *arguments]).encode() + b"\n")
        return await self.answer()

    async def answer(self):
        async with asyncio.timeout(WAIT):
            line = await self.process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)
