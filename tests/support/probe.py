"""What the tests of the C API share: where the probe is, and how its log is read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cenote

native_only = pytest.mark.skipif(
    cenote.core == "pure", reason="the core is pure: the C API belongs to the native core"
)

ROOT = Path(__file__).parents[2]
PROBE = ROOT / "tests" / "c_api" / "probe.c"
SOURCE = str(Path(cenote.__file__).parent.parent)
ALL = "factory destructor healthcheck before_acquire before_release"
CHECKS = ["healthcheck", "before_acquire", "before_release"]


def called(plan):
    """The names of the handlers that were called, in order."""
    return [name for name, _ in plan.log]


def only(log, name):
    """The argument of the only entry."""
    [(found, argument)] = log
    assert found == name
    return argument


def python(code, *, path, options=(), **environment):
    """Run the code in a fresh interpreter, and return the process after its end."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "CENOTE"))
    }
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**inherited, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )


def last_line(done):
    """The last line on the standard error of a process that failed."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    return done.stderr.strip().splitlines()[-1]
