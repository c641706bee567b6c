"""asyncpg's tests of its pool, on servers that they start themselves."""

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cenote
from tests.support.servers import PostgresServer

from .fetch import Unavailable
from .peer import Peer, Setting

SUITE = "tests/test_pool.py"


@contextmanager
def prepare(source: Path) -> Iterator[Setting]:
    """Copy the tests out of the source tree, where they would find asyncpg without its compiled
    parts, and find somebody who may start PostgreSQL, which root may not.

    Raises `Unavailable` if no such user can run this Python.
    """
    with tempfile.TemporaryDirectory(prefix="cenote-peers-asyncpg-") as name:
        folder = Path(name)
        shutil.copy(source / SUITE, folder)
        initdb = shutil.which("initdb")
        assert initdb is not None, PostgresServer.missing()
        paths = [str(Path(cenote.__file__).parents[1]), sysconfig.get_path("platlib")]
        environment = {
            "HOME": name,
            "PGINSTALLATION": str(Path(initdb).resolve().parent),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        user, python = None, sys.executable
        if os.geteuid() == 0:
            user = next(filter(_exists, ("postgres", "nobody")))
            folder.chmod(0o755)
            python = _python_for(user, environment)
            shutil.chown(folder, user)
        yield Setting(folder, environment=environment, python=python, user=user)


def _exists(user: str) -> bool:
    return user in {entry.pw_name for entry in pwd.getpwall()}


def _python_for(user: str, environment: dict[str, str]) -> str:
    """Return a Python of this version that the user can run, with what is installed here."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        try:
            subprocess.run(
                [python, "-c", "import asyncpg, cenote, pytest"],
                env={**os.environ, **environment},
                user=user,
                cwd=environment["HOME"],
                capture_output=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    raise Unavailable(
        f"asyncpg: its tests start PostgreSQL, which root may not, and user {user} can run no "
        f"{name} with what is installed in {environment['PYTHONPATH']}; run this as another user"
    )


PEER = Peer(
    name="asyncpg",
    distribution="asyncpg",
    suites={SUITE: ("test_pool.py",)},
    short=("test_pool.py",),
    plug="plug_asyncpg",
    prepare=prepare,
    missing=PostgresServer.missing,
)
