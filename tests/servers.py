"""Real servers, private to a test run, on free loopback ports, in temporary directories."""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT = 10.0  # real seconds until a server must answer
INIT_TIMEOUT = 60.0  # until the files of a new database must exist
ATTEMPTS = 5  # a free port may be taken by somebody else before the server binds it


class RedisServer:
    """`with RedisServer() as server:`; stop() or kill() and start() again keep the port."""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @staticmethod
    def missing() -> str | None:
        """Why there can be none on this machine, and what to do about it."""
        if shutil.which("redis-server"):
            return None
        return (
            "redis-server is not installed: apt-get install redis-server (or: brew install redis)"
        )

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="cenote-redis-")
        try:
            for attempt in range(ATTEMPTS):
                self.port = _free_port(self.host)
                try:
                    self.start()
                    break
                except ChildProcessError:
                    if attempt == ATTEMPTS - 1:
                        raise
        except BaseException:
            self._directory.cleanup()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if self._directory is not None:
            self._directory.cleanup()

    def start(self) -> None:
        assert self._directory is not None, "used outside its with block"
        directory = Path(self._directory.name)
        options = {
            "bind": self.host,
            "port": str(self.port),
            "dir": str(directory),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        command = ["redis-server"]
        for name, value in options.items():
            command += [f"--{name}", value]
        log = directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self._wait_until_ready(log)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def _wait_until_ready(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None:
                raise ChildProcessError(f"redis-server ended: {log.read_text()[-1000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"redis-server is silent: {log.read_text()[-1000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class PostgresServer:
    """`with PostgresServer() as server:`; on a socket in its own directory, without a password."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @staticmethod
    def missing() -> str | None:
        """Why there can be none on this machine, and what to do about it."""
        if _postgres("initdb") is None or _postgres("postgres") is None:
            return (
                "PostgreSQL is not installed: apt-get install postgresql "
                "(or: brew install postgresql)"
            )
        return None

    @property
    def url(self) -> str:
        assert self._directory is not None, "used outside its with block"
        return f"postgresql://postgres@/postgres?host={self._directory.name}&port=5432"

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="cenote-postgres-")
        try:
            user, group, _ = _ordinary_user()
            if user is not None and group is not None:
                os.chown(self._directory.name, user, group)
            self._initialize()
            self.start()
        except BaseException:
            self._directory.cleanup()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if self._directory is not None:
            self._directory.cleanup()

    def start(self) -> None:
        directory, log = self._paths()
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(directory),
            "port": "5432",  # the name of the socket
            "fsync": "off",
        }
        command = ["-D", str(directory / "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._process = self._run("postgres", command, log)
        try:
            self._wait_until_ready(log)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)  # does not wait for its clients
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def _initialize(self) -> None:
        directory, log = self._paths()
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        initdb = self._run("initdb", ["-D", str(directory / "data"), "--no-sync", *options], log)
        if initdb.wait(INIT_TIMEOUT) != 0:
            raise ChildProcessError(f"initdb failed: {log.read_text()[-1000:]}")

    def _run(self, program: str, options: list[str], log: Path) -> subprocess.Popen[bytes]:
        path = _postgres(program)
        assert path is not None, self.missing()
        user, group, others = _ordinary_user()
        with log.open("ab") as output:
            return subprocess.Popen(
                [path, *options],
                cwd=log.parent,
                user=user,
                group=group,
                extra_groups=others,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _wait_until_ready(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None:
                raise ChildProcessError(f"postgres ended: {log.read_text()[-1000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"postgres is silent: {log.read_text()[-1000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        greeting = b"\0\3\0\0user\0postgres\0\0"  # protocol 3.0
        directory, _ = self._paths()
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(directory / ".s.PGSQL.5432"))
                connection.sendall(struct.pack("!I", 4 + len(greeting)) + greeting)
                return connection.recv(1) == b"R"  # authentication; an error while it starts
        except OSError:
            return False

    def _paths(self) -> tuple[Path, Path]:
        assert self._directory is not None, "used outside its with block"
        directory = Path(self._directory.name)
        return directory, directory / "log"


def _postgres(program: str) -> str | None:
    """Debian keeps them outside of the PATH; the newest is the best."""
    folders = list(Path("/usr/lib/postgresql").glob("*/bin"))
    folders.sort(key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)])
    found = os.pathsep.join(map(str, reversed(folders)))
    return shutil.which(program) or shutil.which(program, path=found)


def _ordinary_user() -> tuple[int | None, int | None, list[int] | None]:
    """PostgreSQL refuses to run as root: the user, group and further groups to run as instead."""
    if os.geteuid() != 0:
        return None, None, None
    import pwd  # not on Windows

    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = users.get("postgres") or users.get("nobody")
    if entry is None:
        raise ChildProcessError("PostgreSQL does not run as root, and there is no user postgres")
    return entry.pw_uid, entry.pw_gid, []


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
