"""The command line as a program: on a pipe, and on a pseudo-terminal."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cenote

SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install
COMMAND = [sys.executable, "-m", "cenote"]
PATIENCE = 100.0  # real seconds


def environment(**more: str) -> dict[str, str]:
    unwanted = ("COLUMNS", "LINES", "NO_COLOR", "TERM", "PYTHONIOENCODING")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    path = os.pathsep.join(filter(None, [SOURCE, kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "PYTHONUTF8": "1", **more}


def run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )


class Terminal:
    """The demo on a pseudo-terminal."""

    def __init__(self, *arguments: str, columns: int = 80, page: bool = False, **more: str) -> None:
        pty = pytest.importorskip("pty")
        termios = pytest.importorskip("termios")
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self.process = subprocess.Popen(
            [*COMMAND, "demo", *([] if page else ["--no-page"]), *arguments],
            env=environment(TERM="xterm", **more),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.output = b""

    def write(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read(self, until: bytes | None = None) -> str:
        """Everything so far, when `until` was seen, or at the end."""
        deadline = time.monotonic() + PATIENCE
        while until is None or until not in self.output:
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, f"silent since {self.output[-500:]!r}"
            try:
                part = os.read(self._master, 65536)
            except OSError:  # Linux says so when the other side is gone
                part = b""
            if not part:
                assert until is None, f"ended without {until!r}: {self.output[-500:]!r}"
                break
            self.output += part
        return self.output.decode()

    def interrupt(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Its exit code, when it has ended."""
        self.read()
        os.close(self._master)
        return self.process.wait(PATIENCE)
