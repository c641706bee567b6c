"""Run the suite on every Python, core, loop, driver and server that there is, and print one table.

    python scripts/matrix.py [options] [-- arguments of pytest]

The Pythons of this machine run on the servers of this machine. As root on Debian, a scratch system
of the unstable suite is made (scripts/unstable.sh) for CPython 3.14 and 3.15, PyPy, and the newest
servers; MySQL has a tree of its own (scripts/mysql.sh). The counts of each run are kept in
build/matrix, so that `--only` repeats some runs and the table still has the others.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build/matrix"
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
UNSTABLE = ("3.14", "3.15")  # what the scratch system has
BEGIN, END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"
OUTCOMES = ("passed", "failed", "skipped")

# What PyPy has: asyncpg, asyncmy, uvloop, pydantic and newer versions of hypothesis are
# compiled for CPython.
PYPY = (
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis<6.156", "packaging", "setuptools"),
    *("psycopg", "redis", "prometheus-client", "opentelemetry-sdk", "httpx"),
)
DATABASE = ("tests/sql", "tests/drivers")
SERVER = "usr/sbin/mysqld"  # in the folder of MySQL

# Who runs what: the name, the environment, and the arguments of pytest.
SUITES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "native": ({}, ()),
    "uvloop": ({}, ("--loop=uvloop", "-m", "not once and not own_loop")),
    "pure": ({"CENOTE_PURE": "1"}, ("-m", "not once and not driver")),
    "mysql": ({}, ("--mysql", "-k", "mysql and not mariadb", *DATABASE)),
    "oldest": ({}, (*DATABASE, "tests/adapters")),
    "pypy": ({}, ("tests/core", "tests/pool", *DATABASE, "tests/adapters")),
}


@dataclass(frozen=True)
class System:
    """Where Pythons run: this machine, or the scratch system."""

    source: Path  # the project, as this machine sees it
    enter: tuple[str, ...] = ()  # what stands before each command
    environment: tuple[tuple[str, str], ...] = ()

    def run(self, *command: str, **variables: str) -> int:
        """Run a command in the folder of the project. Returns its status."""
        given = {**dict(self.environment), **variables}
        if self.enter:
            words = [*self.enter, "-i", *(f"{name}={value}" for name, value in given.items())]
            return subprocess.run([*words, *command], check=False).returncode
        environment = {**os.environ, **given}
        return subprocess.run(command, cwd=self.source, env=environment, check=False).returncode


@dataclass(frozen=True)
class Run:
    """One Python with one suite."""

    version: str  # "3.14", "pypy"
    python: str
    suite: str
    system: System

    @property
    def name(self) -> str:
        return f"{self.version}-{self.suite}"

    def __call__(self, arguments: Sequence[str]) -> None:
        """Run it, and keep its counts; a run without counts has failed."""
        result = RESULTS / f"{self.name}.json"
        result.unlink(missing_ok=True)
        venv = f".venv-{self.version}" + ("-oldest" if self.suite == "oldest" else "")
        written = self.system.source / "build/tally.json"
        written.parent.mkdir(exist_ok=True)
        written.unlink(missing_ok=True)
        if self._install(venv) == 0:
            variables, own = SUITES[self.suite]
            plugin = ("-p", "tests.support.tally", "--tally", "build/tally.json")
            self.system.run(
                *(f"{venv}/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin),
                *("-n", str((os.cpu_count() or 1) + 1), "--dist", "loadfile"),
                *own,
                *arguments,
                **variables,
            )
        if written.exists():
            result.write_text(written.read_text("utf-8"))
        else:
            say(f"{self.name}: it did not run")
            result.write_text(json.dumps(broken(self)))

    def _install(self, venv: str) -> int:
        kind = "plain" if self.version == "pypy" else "test"
        status = self.system.run("scripts/venv.sh", venv, self.python, kind)
        pip = (f"{venv}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
        if status == 0 and self.version == "pypy":
            status = self.system.run(*pip, *PYPY)
        if status == 0 and self.suite == "oldest":
            listed = subprocess.run(
                [sys.executable, "scripts/driver_versions.py", "oldest"],
                cwd=ROOT, capture_output=True, text=True, check=True,
            )  # fmt: skip
            status = self.system.run(*pip, *listed.stdout.split())
        return status


def broken(run: Run) -> dict[str, Any]:
    """The record of a run that has none of its own."""
    where = {"python": run.version, "core": run.suite, "loop": "-"}
    return {**where, "cells": [], "skips": {}, "failures": ["did not run"]}


def say(text: str) -> None:
    print(f"cenote: {text}", file=sys.stderr, flush=True)


def find_python(version: str) -> str | None:
    """Its path on this machine, of the PATH or of pyenv."""
    folders = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(
        folders.glob(f"{version}.*/bin/python"),
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.parent.name)],
    )
    for candidate in (shutil.which(f"python{version}"), *map(str, reversed(installed))):
        # A shim of pyenv exists for versions that are not active, and then fails: run it to know.
        if candidate and not subprocess.run([candidate, "-c", ""], capture_output=True).returncode:
            return candidate
    return None


def can_install() -> bool:
    """Whether scripts/unstable.sh and scripts/mysql.sh can make what is not there."""
    linux = sys.platform.startswith("linux")
    return linux and os.geteuid() == 0 and shutil.which("apt-get") is not None


def scratch_system(folder: Path, mysql: Path) -> System:
    """The scratch system, which need not be there yet; `make_scratch()` makes it."""
    source = folder.resolve() / "srv/cenote"
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt",
        "CENOTE_REDIS": "valkey-server",
        "CENOTE_MYSQL": "/mysql",
    }
    enter = ("scripts/unstable.sh", "--enter", str(folder.resolve()), str(source), str(mysql))
    return System(source, enter, tuple(environment.items()))


def make_scratch(folder: Path, source: Path) -> bool:
    """Make the scratch system, and put a copy of the project as it is now into it."""
    if subprocess.run(["scripts/unstable.sh", str(folder)], cwd=ROOT, check=False).returncode:
        return False
    for room in ("src", "tests", "docs"):  # a file that is gone here must not stay there
        for path in (source / room).rglob("*.*"):
            if (
                path.suffix in (".py", ".c", ".md")
                and not (ROOT / path.relative_to(source)).exists()
            ):
                path.unlink()
    subprocess.run(["scripts/copy.sh", str(source)], cwd=ROOT, check=True)
    return True


def runs(options: argparse.Namespace) -> Iterator[Run]:
    """Those that were asked for, in the order of the table. Nothing is made for that."""
    mysql = options.mysql.resolve()
    here = System(ROOT, environment=(("CENOTE_MYSQL", str(mysql)),))
    scratch = None
    if options.unstable and can_install():
        scratch = scratch_system(options.unstable, mysql)
    elif options.unstable:
        say("no scratch system of Debian unstable: that takes root on Debian")
    has_mysql = can_install() or (mysql / SERVER).exists()
    suites = ["native", "uvloop", "pure", *(["mysql"] if has_mysql else [])]
    found: list[Run] = []
    for version in VERSIONS:
        python = find_python(version)
        system = here
        if python is None and scratch is not None and version in UNSTABLE:
            python, system = f"python{version}", scratch
        if python is None:
            say(f"Python {version}: not found")
            continue
        found += [Run(version, python, suite, system) for suite in suites]
        if version == VERSIONS[0]:
            found.append(Run(version, python, "oldest", system))
    if scratch is not None:
        found.append(Run("pypy", "pypy3", "pypy", scratch))
    for run in found:
        if not options.only or any(re.match(pattern, run.name) for pattern in options.only):
            yield run


def prepared(chosen: Sequence[Run], options: argparse.Namespace) -> list[Run]:
    """Make what these runs need. Return those that are possible then."""
    missing = set()
    # The suites of the scratch system use MySQL where it is there.
    if any(run.suite == "mysql" or run.system.enter for run in chosen):
        folder = str(options.mysql.resolve())
        if subprocess.run(["scripts/mysql.sh", folder], cwd=ROOT, check=False).returncode:
            missing.update(run for run in chosen if run.suite == "mysql")
    scratch = [run for run in chosen if run.system.enter]
    if scratch and not make_scratch(options.unstable, scratch[0].system.source):
        missing.update(scratch)
    for run in chosen:
        if run in missing:
            say(f"{run.name}: left out, what it needs could not be made")
    return [run for run in chosen if run not in missing]


def records() -> list[dict[str, Any]]:
    """The counts of every run that there has been, in the order of the table."""
    order = [f"{version}-{suite}" for version in (*VERSIONS, "pypy") for suite in SUITES]
    paths = [RESULTS / f"{name}.json" for name in order]
    return [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]


def table(found: list[dict[str, Any]]) -> str:
    """In Markdown: a line for each run, driver and server; then why tests were skipped."""
    heads = ("Python", "core", "loop", "driver", "server", *OUTCOMES)
    rows = []
    for record in found:
        where = (record["python"], record["core"], record["loop"])
        for driver, server, counts in record["cells"]:
            rows.append((*where, driver, server, *(str(counts[name]) for name in OUTCOMES)))
        if not record["cells"]:
            rows.append((*where, "-", "-", "0", "1", "0"))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, tuple("-" * width for width in widths), *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def reasons(found: list[dict[str, Any]]) -> str:
    """Why tests were skipped, how often, and where."""
    skips: dict[str, tuple[int, set[str]]] = {}
    for record in found:
        for reason, count in record["skips"].items():
            before, where = skips.get(reason, (0, set()))
            skips[reason] = (before + count, where | {record["python"]})
    return "\n".join(
        f"- {reason}: {count} ({', '.join(sorted(where))})"
        for reason, (count, where) in sorted(skips.items())
    )


def write_page(page: Path, text: str) -> None:
    """Put the table between the marks of a page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{after}", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    system = os.environ.get("CENOTE_UNSTABLE", "build/unstable")
    parser.add_argument(
        "--unstable",
        type=Path,
        default=Path(system),
        metavar="FOLDER",
        help="the scratch system; made if it is not there (default: build/unstable)",
    )
    parser.add_argument("--no-unstable", dest="unstable", action="store_const", const=None)
    parser.add_argument(
        "--mysql",
        type=Path,
        metavar="FOLDER",
        default=Path(os.environ.get("CENOTE_MYSQL", ".cache/mysql")),
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="PATTERN",
        default=[],
        help="only the runs whose name matches, such as 3.14-native or 3.15",
    )
    parser.add_argument("--list", action="store_true", help="only print the names of the runs")
    parser.add_argument(
        "--table", action="store_true", help="only print the table of what was kept"
    )
    parser.add_argument("--page", type=Path, help="also write the table into this page")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()

    os.chdir(ROOT)
    if options.list:
        for run in runs(options):
            print(run.name)
        return 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not options.table:
        for run in prepared([*runs(options)], options):
            say(run.name)
            run(options.arguments)
    found = records()
    print(table(found), reasons(found), sep="\n\n")
    if options.page:
        write_page(options.page, f"{table(found)}\n\n{reasons(found)}")
    failures = [f"{each['python']}: {name}" for each in found for name in each["failures"]]
    for failure in failures:
        say(f"failed: {failure}")
    return 1 if failures or not found else 0


if __name__ == "__main__":
    sys.exit(main())
