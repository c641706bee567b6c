"""What the runner needs to know of a library, and of one run of its tests."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

PLUGS = Path(__file__).with_name("plugs")
TIMEOUT = 3600.0  # seconds for one suite on one side


@dataclass(frozen=True, slots=True)
class Setting:
    """Servers that run and a source tree that is ready, as long as the block of `prepare`."""

    folder: Path  # in which pytest is started
    arguments: tuple[str, ...] = ()  # for pytest, on both sides
    environment: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable
    user: str | None = None  # who runs the tests; None: as now


@dataclass(frozen=True, slots=True)
class Peer:
    """A library whose own tests are run twice: as it is, and with the adapter in its place."""

    name: str
    distribution: str
    suites: dict[str, tuple[str, ...]]  # by title: the files of the tests, and options
    short: tuple[str, ...]  # the same, of what is closest to the pool: for `make check`
    plug: str  # a module in `plugs`, a plugin of pytest that puts the adapter in
    prepare: Callable[[Path], AbstractContextManager[Setting]]  # of the unpacked source
    missing: Callable[[], str | None]  # why it cannot be run here


Outcomes = dict[str, str]  # by test: "passed", "failed" or "skipped"


SHORT = "short form"  # the title of `Peer.short`


def run_tests(peer: Peer, suite: str, setting: Setting, *, adapted: bool) -> Outcomes:
    """Run a suite in a process of its own, and return how each of its tests ended.

    Raises `RuntimeError` if pytest did not get as far as running tests.
    """
    plug = ("-p", peer.plug) if adapted else ()
    paths = [str(PLUGS), setting.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory(prefix="cenote-peers-") as folder:
        os.chmod(folder, 0o777)
        report = Path(folder, "report.xml")
        done = subprocess.run(
            [
                setting.python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
                *plug, *setting.arguments, *(peer.suites | {SHORT: peer.short})[suite],
                f"--junitxml={report}",
            ],
            cwd=setting.folder,
            env={**os.environ, **setting.environment, "PYTHONPATH": path},
            user=setting.user,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )  # fmt: skip
        side = "adapter" if adapted else "original"
        log = PLUGS.parents[3] / "build" / "peers" / f"{peer.name}-{slug(suite)}-{side}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout + done.stderr)
        outcomes = read_report(report) if report.exists() else {}
    if not outcomes or done.returncode not in (0, 1):
        raise RuntimeError(
            f"{peer.name}, {suite}, {side}: pytest ended with {done.returncode}: see {log}"
        )
    return outcomes


def read_report(path: Path) -> Outcomes:
    """Return how each test in a report of pytest ended; the worst, if it is in it twice."""
    ranks = ["skipped", "passed", "failed"]
    outcomes: Outcomes = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        now = "failed" if kinds & {"failure", "error"} else "passed"
        if "skipped" in kinds and now == "passed":
            now = "skipped"
        outcomes[name] = max(outcomes.get(name, now), now, key=ranks.index)
    return outcomes


def slug(text: str) -> str:
    """Return a text as a part of a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)
