"""Real servers, private to a test run, on free loopback ports, in temporary directories."""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT = 10.0  # real seconds until a server must answer
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


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
