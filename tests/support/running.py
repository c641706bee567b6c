"""Programs and servers that run for a test."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

import cenote
from tests.support.servers import Server

S = TypeVar("S", bound=Server)

SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install


def running(kind: type[S], *, tls: bool = False) -> Iterator[S]:
    """For a fixture: a server of this kind, or a skip that says why there is none."""
    if reason := kind.missing():
        pytest.skip(reason)
    with kind(tls=tls) as server:
        yield server


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, and what is tested on its path; it must end well."""
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_forking(prelude: str, script: str, arguments: Sequence[str] = ()) -> list[str]:
    """The lines that a program wrote which forks; it runs in a process of its own."""
    # From 3.12 on Python warns of a fork beside any thread, also of those that only wait.
    warnings = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
    done = run_program(*warnings, "-c", prelude + textwrap.dedent(script), *arguments)
    assert done.stderr == ""
    return done.stdout.splitlines()
