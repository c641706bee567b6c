"""Count how far six everyday operations travel through the package.

    python tools/journeys.py [--trace NUMBER]

Each journey runs once to warm up and once under `sys.setprofile`, on either core, each core in a
process of its own. Counted are the calls of Python functions of the package (a coroutine that is
resumed counts again) and the calls from outside into the native module; the distinct files these
are in; and the switches, that is how often a call is in another file than the call before. The
journeys use nothing but the public interface, so that the figures of two versions compare.

(iv) and (v) need PostgreSQL: `CENOTE_JOURNEYS_URL`, else a private server as the tests start it;
without either they run on SQLite, and the table says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NATIVE = "C"  # the name under which all of the native module counts as one file


class Figures(NamedTuple):
    calls: int
    files: int
    switches: int

    def __str__(self) -> str:
        return f"{self.calls} / {self.files} / {self.switches}"


class Profile:
    """Records the calls inside the package while it is entered."""

    def __init__(self) -> None:
        import cenote

        self.calls: list[tuple[str, str]] = []  # (file, function)
        self._package = str(Path(cenote.__file__).parent) + os.sep

    def __enter__(self) -> Profile:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def figures(self) -> Figures:
        files = [file for file, _ in self.calls]
        switches = sum(a != b for a, b in pairwise(files))
        return Figures(len(files), len(set(files)), switches)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        inside = file.startswith(self._package)
        if event == "call" and inside:
            self.calls.append((file.removeprefix(self._package), frame.f_code.co_qualname))
        elif event == "c_call" and not inside and _is_native(argument):
            self.calls.append((NATIVE, argument.__qualname__))


def _is_native(function: Any) -> bool:
    """Whether this is a method in C of a class of the package."""
    owner = type(getattr(function, "__self__", None))
    for base in owner.__mro__:
        if function.__name__ in vars(base):
            return base.__module__.startswith("cenote")
    return False


# -- the journeys: each is entered once, and gives the step that is measured ---------------------


class Thing:
    alive = True


async def idle(profile: Profile) -> None:
    """`async with pool.acquire()`, idle"""
    import cenote

    async with cenote.Pool(Thing, max_size=2) as pool:
        for _ in range(2):
            async with pool.acquire():
                pass
        with profile:
            async with pool.acquire():
                pass


async def handed_over(profile: Profile) -> None:
    """full pool, timeout, handed over, returned"""
    import cenote

    async with cenote.Pool(Thing, max_size=1) as pool:

        async def wait() -> None:
            async with pool.acquire(timeout=5.0):
                pass

        for measured in (False, True):
            held = await pool.acquire()
            with profile if measured else contextlib.nullcontext():
                waiter = asyncio.create_task(wait())
                await asyncio.sleep(0)
                await pool.release(held)
                await waiter


async def breaker_opens(profile: Profile) -> None:
    """release, async `before_release` rejects, breaker opens"""
    import cenote

    class OpenAtOnce:
        def report_success(self, source: Any) -> None:
            pass

        def report_failure(self, source: Any, error: BaseException) -> None:
            source.deactivate()

    async def reject(thing: Thing) -> bool:
        return False

    async with cenote.Pool(
        Thing, max_size=1, before_release=reject, strategy=OpenAtOnce(), name="journey"
    ) as pool:
        for measured in (False, True):
            pool.activate()
            held = await pool.acquire()
            waiter = asyncio.create_task(_acquire(pool))
            await asyncio.sleep(0)
            with profile if measured else contextlib.nullcontext():
                await pool.release(held)
            with contextlib.suppress(cenote.ServiceUnavailableError):
                await waiter


async def _acquire(pool: Any) -> None:
    async with pool.acquire():
        pass


async def statement(profile: Profile) -> None:
    """`db.fetch_one`"""
    import cenote

    async with cenote.Database(_url(), max_size=2) as db:
        for _ in range(3):
            await db.fetch_one("SELECT ?", ["1"])
        with profile:
            await db.fetch_one("SELECT ?", ["1"])


async def lost_transaction(profile: Profile) -> None:
    """transaction + savepoint, connection lost"""
    import cenote

    async with cenote.Database(_url(), max_size=2) as db:
        async with db.transaction():  # analyses the texts
            await db.fetch_val("SELECT 1")
            await db.execute("SELECT 2")
        with profile, contextlib.suppress(Exception):
            async with db.transaction():
                await db.fetch_val("SELECT 1")
                async with db.transaction():
                    await _lose_connection(db)
                    await db.execute("SELECT 2")


async def _lose_connection(db: Any) -> None:
    """The server ends the session; the client learns of it by its next statement."""
    connection = db.bound_connection
    if not hasattr(connection, "get_server_pid"):  # SQLite cannot lose its file: end the handle
        await _outside(connection.close())
        return
    import asyncpg

    async def kill() -> None:
        other = await asyncpg.connect(_url())
        await other.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
        await other.close()

    await _outside(kill())


async def _outside(work: Any) -> None:
    """Do this without counting it."""
    counted = sys.getprofile()
    sys.setprofile(None)
    await asyncio.ensure_future(work)
    sys.setprofile(counted)


async def healthcheck(profile: Profile) -> None:
    """healthcheck finds a dead one, `min_size` restored"""
    import cenote

    made: list[Thing] = []
    found = asyncio.Event()

    async def make() -> Thing:
        made.append(Thing())
        if len(made) > 1:
            found.set()
        return made[-1]

    async def check(thing: Thing) -> bool:
        return thing.alive

    async with cenote.Pool(make, healthcheck=check, healthcheck_interval=0.02, min_size=1) as pool:
        made[0].alive = False
        with profile:
            await found.wait()
            for _ in range(5):  # steps until what the factory made is idle
                await asyncio.sleep(0)
        assert pool.idle_count == 1


JOURNEYS: dict[str, Callable[[Profile], Any]] = {
    "i": idle,
    "ii": handed_over,
    "iii": breaker_opens,
    "iv": statement,
    "v": lost_transaction,
    "vi": healthcheck,
}


def _url() -> str:
    return os.environ["CENOTE_JOURNEYS_URL"]


# -- running them --------------------------------------------------------------------------------


def run(only: str | None) -> dict[str, list[tuple[str, str]]]:
    """The calls of every journey, on the core that this process has."""
    logging.getLogger("cenote").setLevel(logging.CRITICAL + 1)
    found = {}
    for number, journey in JOURNEYS.items():
        if only is None or number == only:
            profile = Profile()
            asyncio.run(journey(profile))
            found[number] = profile.calls
    return found


def run_apart(*, pure: bool, url: str, only: str | None) -> dict[str, Profile]:
    environment = os.environ | {"CENOTE_JOURNEYS_URL": url}
    environment.pop("CENOTE_PURE", None)
    if pure:
        environment["CENOTE_PURE"] = "1"
    command = [sys.executable, __file__, "--here", *(["--trace", only] if only else [])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found = {}
    for number, calls in json.loads(done.stdout).items():
        found[number] = Profile()
        found[number].calls = [(file, function) for file, function in calls]
    return found


@contextlib.contextmanager
def database() -> Iterator[str]:
    """The URL of what (iv) and (v) run on."""
    if "CENOTE_JOURNEYS_URL" in os.environ:
        yield os.environ["CENOTE_JOURNEYS_URL"]
        return
    server = _server()
    if server is None:
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite:///{directory}/journeys.db"
        return
    with server:
        yield server.url


def _server() -> Any:
    """PostgreSQL by the helper of the tests, or None where it is not installed."""
    sys.path.insert(0, str(ROOT))
    for name in ("tests.support.servers", "tests.servers"):
        try:
            found: Any = import_module(name).PostgresServer
        except ImportError:
            continue
        return None if found.missing() else found()
    return None


def table(url: str, native: dict[str, Profile], pure: dict[str, Profile]) -> Iterator[str]:
    yield "| journey | native: calls / files / switches | pure: calls / files / switches |"
    yield "|---|---|---|"
    for number, journey in JOURNEYS.items():
        on = f" on {url.partition(':')[0]}" if number in ("iv", "v") else ""
        figures = f"{native[number].figures()} | {pure[number].figures()}"
        yield f"| ({number}) {journey.__doc__}{on} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", choices=JOURNEYS, help="print the calls of this journey")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(run(given.trace)))
        return
    with database() as url:
        native = run_apart(pure=False, url=url, only=given.trace)
        pure = run_apart(pure=True, url=url, only=given.trace)
    if given.trace:
        for core, found in (("native", native), ("pure", pure)):
            print(f"{core}: {found[given.trace].figures()}")
            for file, function in found[given.trace].calls:
                print(f"    {file:32} {function}")
    else:
        print("\n".join(table(url, native, pure)))


if __name__ == "__main__":
    main()
