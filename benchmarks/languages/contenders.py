"""Who takes part: each is a program that prints how many jobs a second it did."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import client, drivers

HERE = Path(__file__).parent
GO = Path("/usr/share/gocode")  # of Debian's packages
JARS = ("HikariCP", "postgresql", "slf4j-api", "slf4j-nop")
JAVA = Path("/usr/share/java")
NODE = ("postgres", "pg")
PICK_KEY = f"{drivers.PICK}{drivers.KEY};\n"
SCRIPTS = {
    "statements": f"{drivers.TEXT};\n",
    "transactions": f"begin;\n{PICK_KEY}{PICK_KEY}commit;\n",
}

# Kind of job, tasks, connections, seconds, URL, environment; gives the jobs a second.
Start = Callable[[str, int, int, float, str, Mapping[str, str]], float]


class Missing(Exception):
    """Something is not installed; the text says what."""


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    run: Start


def contenders(scratch: Path) -> tuple[list[Contender], dict[str, str]]:
    """Those that are there, ready to run, and with the name of each other one the reason."""
    found, absent = [], {}
    makers: dict[str, Callable[[Path], Start]] = {
        "pgbench (C), 10 clients": pgbench,
        "pgxpool (Go)": pgxpool,
        "HikariCP with JDBC (Java)": hikari,
        "postgres.js (Node), pipelining": partial(node, library="postgres"),
        "pg (Node)": partial(node, library="pg"),
    }
    for name, make in makers.items():
        try:
            found.append(Contender(name, make(scratch)))
        except Missing as error:
            absent[name] = str(error)
    for way in (drivers.CENOTE, drivers.QUEUE, "asyncpg.Pool"):
        for loop in (client.STOCK, client.UVLOOP):
            name = f"{way}, asyncpg on {loop}"
            if (reason := client.missing(loop)) is not None:
                absent[name] = reason
            else:
                found.append(Contender(name, python(way, loop)))
    return found, absent


def python(way: str, loop: str) -> Start:
    def run(
        kind: str, tasks: int, connections: int, seconds: float, url: str, given: Mapping[str, str]
    ) -> float:
        return client.measure("asyncpg", way, loop, kind, tasks, connections, seconds, url)

    return run


def pgbench(scratch: Path) -> Start:
    """Without tasks: it has one connection for each of its clients."""
    program = shutil.which("pgbench") or next(debian_pgbench(), None)
    if program is None:
        raise Missing("pgbench is not installed: apt-get install postgresql")

    def run(
        kind: str, tasks: int, connections: int, seconds: float, url: str, given: Mapping[str, str]
    ) -> float:
        script = scratch / f"{kind}.sql"
        script.write_text(SCRIPTS[kind])
        threads = str(min(connections, os.cpu_count() or 1))
        command = [
            program, "--no-vacuum", "--protocol=prepared", f"--client={connections}",
            f"--jobs={threads}", f"--time={max(1, round(seconds))}", f"--file={script}",
        ]  # fmt: skip
        ended = subprocess.run(command, check=True, capture_output=True, text=True, env=given)
        match = re.search(r"tps = ([\d.]+)", ended.stdout)
        assert match is not None, ended.stdout
        return float(match[1])

    return run


def debian_pgbench() -> Iterator[str]:
    """The newest one of Debian's packages, which are outside of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), key=version_of)
    yield from (str(each) for each in reversed(found))


def version_of(program: Path) -> int:
    name = program.parents[1].name
    return int(name) if name.isdigit() else 0


def printing(*command: str, **more: str) -> Start:
    """A program that takes kind, tasks, connections and seconds, and prints the rate."""

    def run(
        kind: str, tasks: int, connections: int, seconds: float, url: str, given: Mapping[str, str]
    ) -> float:
        ended = subprocess.run(
            [*command, kind, str(tasks), str(connections), str(seconds)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**given, **more},
        )
        return float(ended.stdout)

    return run


def pgxpool(scratch: Path) -> Start:
    if shutil.which("go") is None or not (GO / "src/github.com/jackc/pgx/v4").exists():
        raise Missing(
            "Go or pgx is not installed: apt-get install golang-go golang-github-jackc-pgx-v4-dev"
        )
    program = scratch / "pgxpool"
    settings = {"GO111MODULE": "off", "GOPATH": str(GO), "GOCACHE": str(scratch / "go")}
    build("go", "build", "-o", str(program), str(HERE / "pool.go"), **settings)
    return printing(str(program))


def hikari(scratch: Path) -> Start:
    jars = [JAVA / f"{name}.jar" for name in JARS]
    if not (shutil.which("javac") and all(map(Path.exists, jars))):
        raise Missing(
            "Java, HikariCP or JDBC is not installed: "
            "apt-get install default-jdk-headless libhikaricp-java libpostgresql-jdbc-java "
            "libslf4j-java"
        )
    path = os.pathsep.join(map(str, [scratch, *jars]))
    build("javac", "-cp", path, "-d", str(scratch), str(HERE / "HikariBench.java"))
    return printing("java", "-cp", path, "HikariBench")


def node(scratch: Path, library: str) -> Start:
    if not (shutil.which("node") and shutil.which("npm")):
        raise Missing("Node is not installed: apt-get install nodejs npm")
    modules = scratch / "node_modules"
    if not modules.exists():
        build(
            "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(scratch), *NODE
        )
    return printing("node", str(HERE / "pools.cjs"), library, NODE_PATH=str(modules))


def build(*command: str, **settings: str) -> None:
    with tempfile.TemporaryFile("w+") as said:
        ended = subprocess.run(
            command, env={**os.environ, **settings}, stdout=said, stderr=subprocess.STDOUT
        )
        if ended.returncode:
            said.seek(0)
            last = said.read().strip().rpartition("\n")[2]
            raise Missing(f"{command[0]} {command[1]} failed: {last}")
