"""Real servers, private to a test run, on free loopback ports, in temporary directories."""

import contextlib
import os
import random
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
from typing import ClassVar, Self
from urllib.parse import quote

from tests.support.procfs import children_of, is_over
from tests.support.waiting import WAIT

STOP_TIMEOUT = 30.0  # real seconds until a server that was asked to end is killed
ATTEMPTS = 5  # a free port may be taken by somebody else before the server binds it

# Below the ports that systems give to clients: a stopped server finds its port free again, and who
# connects to it meanwhile cannot be given that same port, which would connect it to itself.
PORTS = range(20000, 32000)

# What belongs to a sanitizer in this process, and would keep other programs from starting.
SANITIZER = ("LD_PRELOAD", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC")

MYSQL_TREE = Path(__file__).parents[2] / ".cache/mysql"  # made by scripts/mysql.sh

SEQUENCES = (100, 1_000, 2_000, 5_000, 50_000, 200_000)  # tables of numbers, up to these

USER = "app"
PASSWORD = "s3cr:t/p@ss"  # must be quoted in a URL
DATABASE = "app"  # belongs to the user


class Server:
    """`with Server() as server:`; stop() or kill() and start() again keep the port and the data."""

    programs: ClassVar[tuple[str, ...]]  # what must be installed; the first one is the server
    packages: ClassVar[tuple[str, str]]  # where it comes from: of Debian, of Homebrew
    accounts: ClassVar[tuple[str, ...]] = ()  # whom to run as instead of root; none: root is fine
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, *, tls: bool = False) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.tls = tls  # with a certificate of its own making, which is also its authority
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def missing(cls) -> str | None:
        """Why there can be none on this machine, and what to do about it."""
        absent = [program for program in cls.programs if _find(program) is None]
        if not absent:
            return None
        debian, homebrew = cls.packages
        return (
            f"{', '.join(absent)} not installed: apt-get install {debian} "
            f"(or: brew install {homebrew})"
        )

    @property
    def directory(self) -> Path:
        assert self._directory is not None, "used outside its with block"
        return Path(self._directory.name)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        prefix = f"cenote-{type(self).__name__.lower()}-"
        # A killed server may still be writing.
        self._directory = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        try:
            user, group, _ = self._account()
            if user is not None and group is not None:
                os.chown(self.directory, user, group)
            self._initialize()
            self._start_on_free_port()
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
        """Returns when it answers; nothing to do for one that runs."""
        if self.running:
            return
        self._process = self._spawn(self._command())
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Lets it end in order, without waiting for its clients."""
        if self._process is None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def pause(self) -> None:
        """Let it hang until `go_on()`; its clients see nothing but silence."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a crash: nothing is said to the clients, nothing is saved."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # so that it has no more children
        orphans = children_of(self._process.pid)
        self._process.kill()
        for child in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # PostgreSQL does not start while a process of the old one has its memory.
        deadline = time.monotonic() + STOP_TIMEOUT
        while not all(map(is_over, orphans)) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _initialize(self) -> None:
        """Writes what the server needs before its first start."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _start_on_free_port(self) -> None:
        for attempt in range(ATTEMPTS):
            self.port = _free_port(self.host)
            try:
                self.start()
                return
            except ChildProcessError:
                if attempt == ATTEMPTS - 1:
                    raise

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + WAIT
        while not self._answers():
            if self._process.poll() is not None:
                raise ChildProcessError(f"{self.programs[0]} ended: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.programs[0]} is silent: {self._log_tail()}")
            time.sleep(0.01)

    def _run(self, command: list[str], *, text: str = "") -> None:
        """Runs a program to its end, with the text as its input."""
        process = self._spawn(command, stdin=subprocess.PIPE)
        try:
            process.communicate(text.encode(), timeout=WAIT)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            raise ChildProcessError(f"{command[0]} failed: {self._log_tail()}")

    def _spawn(
        self, command: list[str], *, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        program = self._resolve(command[0])
        user, group, others = self._account()
        with (self.directory / "log").open("ab") as output:
            return subprocess.Popen(
                [*program, *command[1:]],
                cwd=self.directory,
                user=user,
                group=group,
                extra_groups=others,
                env=environment(),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _resolve(self, program: str) -> list[str]:
        """What starts it."""
        path = _find(program)
        assert path is not None, self.missing()
        return [path]

    @property
    def certificate(self) -> str:
        return str(self.directory / "certificate.pem")

    @property
    def key(self) -> str:
        return str(self.directory / "key.pem")

    def _certify(self) -> None:
        if self.tls:
            name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
            files = ["-keyout", self.key, "-out", self.certificate]
            self._run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, *files])

    def _write(self, name: str, text: str) -> Path:
        """A file that the server may read."""
        (path := self.directory / name).write_text(text)
        user, group, _ = self._account()
        if user is not None and group is not None:
            os.chown(path, user, group)
        return path

    def _log_tail(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def _account(self) -> tuple[int | None, int | None, list[int] | None]:
        """The user, group and further groups to run as; None: as now."""
        if not self.accounts or os.geteuid() != 0:
            return None, None, None
        import pwd  # not on Windows

        users = {entry.pw_name: entry for entry in pwd.getpwall()}
        for name in (*self.accounts, "nobody"):
            if name in users:
                return users[name].pw_uid, users[name].pw_gid, []
        raise ChildProcessError(f"{self.programs[0]} does not run as root: no user {self.accounts}")


class RedisServer(Server):
    programs = ("redis-server",)
    packages = ("redis-server", "redis")

    @classmethod
    def missing(cls) -> str | None:
        other = os.environ.get("CENOTE_REDIS", "").split()
        if not other:
            return super().missing()
        return None if _find(other[0]) else f"CENOTE_REDIS: {other[0]} not found"

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def _resolve(self, program: str) -> list[str]:
        """`CENOTE_REDIS` names another one, such as Valkey, and what starts it."""
        other = os.environ.get("CENOTE_REDIS", "").split() if program == "redis-server" else []
        return other or super()._resolve(program)

    def _command(self) -> list[str]:
        options = {
            "bind": self.host,
            "port": str(self.port),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        command = ["redis-server"]
        for name, value in options.items():
            command += [f"--{name}", value]
        return command

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=WAIT) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class PostgresServer(Server):
    """On TCP for the user app with a password, on a socket in its own directory for anybody."""

    programs = ("postgres", "initdb")
    packages = ("postgresql", "postgresql")
    accounts = ("postgres",)
    stop_signal = signal.SIGINT  # does not wait for its clients

    @property
    def url(self) -> str:
        """The superuser on the socket, without a password."""
        return f"postgresql://postgres@/postgres?host={self.directory}&port={self.port}"

    def tcp_url(
        self, *, user: str = USER, password: str = PASSWORD, database: str = DATABASE
    ) -> str:
        return _url("postgresql", user, password, self.host, self.port, database)

    def _initialize(self) -> None:
        self._certify()
        data = str(self.directory / "data")
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self._run(["initdb", "-D", data, "--no-sync", *options])
        self._write(
            "data/pg_hba.conf",
            "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
        )
        single = ["-c", "fsync=off", "-c", "exit_on_error=on"]
        statements = [
            "SET password_encryption = 'scram-sha-256'",
            f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'",
            f"CREATE DATABASE {DATABASE} OWNER {USER}",
        ]
        self._run(
            ["postgres", "--single", "-D", data, *single, "postgres"],
            text="".join(f"{statement}\n" for statement in statements),
        )

    def _command(self) -> list[str]:
        tls = {"ssl": "on", "ssl_cert_file": self.certificate, "ssl_key_file": self.key}
        settings = {
            **(tls if self.tls else {}),
            "listen_addresses": self.host,
            "unix_socket_directories": str(self.directory),
            "port": str(self.port),
            "max_connections": "200",
            "max_prepared_transactions": "5",
            "fsync": "off",
            "full_page_writes": "off",
            # Without fsync it costs next to nothing, and what was committed survives kill().
            "synchronous_commit": "on",
        }
        command = ["postgres", "-D", str(self.directory / "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _answers(self) -> bool:
        # Nobody else's server can be on this socket.
        return _postgres_answers(socket.AF_UNIX, str(self.directory / f".s.PGSQL.{self.port}"))


class MariaDBServer(Server):
    """For the user app with a password; for root without one on `socket_path`."""

    programs: ClassVar[tuple[str, ...]] = ("mariadbd", "mariadb-install-db")
    packages = ("mariadb-server", "mariadb")
    accounts = ("mysql",)
    plain: ClassVar[dict[str, str]] = {"ssl": "0"}  # from 11.4 on it makes certificates by itself

    @property
    def socket_path(self) -> Path:
        return self.directory / "mariadb.sock"

    @property
    def url(self) -> str:
        return self.tcp_url()

    def tcp_url(
        self, *, user: str = USER, password: str = PASSWORD, database: str = DATABASE
    ) -> str:
        return _url("mysql", user, password, self.host, self.port, database)

    def _initialize(self) -> None:
        options = [
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
            "--skip-test-db",
        ]
        self._certify()
        self._run(["mariadb-install-db", *options, *self._storage()])
        statements = [
            f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON {DATABASE}.* TO {USER}@'%'",
            f"GRANT PROCESS, CONNECTION ADMIN ON *.* TO {USER}@'%'",
        ]
        self._write("init.sql", "".join(f"{statement};\n" for statement in statements))

    def _command(self) -> list[str]:
        settings = {
            "socket": str(self.socket_path),
            "pid-file": str(self.directory / "pid"),
            "init-file": str(self.directory / "init.sql"),
            "bind-address": self.host,
            "port": str(self.port),
            "max-connections": "200",
            "character-set-server": "utf8mb4",
            "local-infile": "1",
            # Not 0, which is as fast without fsync: what was committed survives kill().
            "innodb-flush-log-at-trx-commit": "2",
            "innodb-buffer-pool-dump-at-shutdown": "OFF",
            "innodb-buffer-pool-load-at-startup": "OFF",
        }
        encrypted = {"ssl-cert": self.certificate, "ssl-key": self.key}
        settings |= encrypted if self.tls else self.plain
        fixed = ["--no-defaults", "--skip-name-resolve", "--skip-log-bin", *self._storage()]
        return ["mariadbd", *fixed] + [f"--{name}={value}" for name, value in settings.items()]

    def _storage(self) -> list[str]:
        """Small, and never waiting for the disk."""
        return [
            f"--datadir={self.directory / 'data'}",
            # Of its own: one that starts removes the temporary tables of all others from it.
            f"--tmpdir={self.directory}",
            "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=4M",
            "--innodb-flush-method=nosync",
        ]

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(WAIT)
                connection.connect(str(self.socket_path))
                greeting = connection.recv(5)  # a header of 4 bytes, then the protocol's version
                return greeting[4:] == b"\x0a"
        except OSError:
            return False


class MySQLServer(MariaDBServer):
    """A real MySQL, out of a tree of Debian unstable that `make mysql` has made: its programs with
    its own libraries, and no chroot. Users log in with caching_sha2_password."""

    programs = ("mysqld",)
    packages = ("mysql-server", "mysql")
    plain: ClassVar[dict[str, str]] = {}

    tree: ClassVar[Path | None] = None  # where the tree is, if not in the usual place

    @classmethod
    def missing(cls) -> str | None:
        root = cls.root()
        if (root / "usr/sbin/mysqld").exists():
            return None
        return f"there is no MySQL server in {root}: run `make mysql` (MariaDB is tested instead)"

    @classmethod
    def root(cls) -> Path:
        return cls.tree or Path(os.environ.get("CENOTE_MYSQL") or MYSQL_TREE)

    @property
    def public_key(self) -> bytes:
        """Of the pair with which passwords are encrypted on a connection without TLS."""
        return (self.directory / "data/public_key.pem").read_bytes()

    def _initialize(self) -> None:
        self._certify()
        self._run(["mysqld", "--no-defaults", *self._storage(), "--initialize-insecure"])
        statements = [
            f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON {DATABASE}.* TO {USER}@'%'",
            f"GRANT PROCESS, CONNECTION_ADMIN ON *.* TO {USER}@'%'",
            f"SET SESSION cte_max_recursion_depth = {max(SEQUENCES)}",
        ]
        for most in SEQUENCES:  # which MariaDB has by itself
            table = f"{DATABASE}.seq_1_to_{most}"
            numbers = f"SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < {most}"
            statements += [
                f"CREATE TABLE IF NOT EXISTS {table} (seq BIGINT PRIMARY KEY)",
                f"INSERT IGNORE INTO {table} WITH RECURSIVE c AS ({numbers}) SELECT n FROM c",
            ]
        self._write("init.sql", "".join(f"{statement};\n" for statement in statements))

    def _command(self) -> list[str]:
        _, *options = super()._command()
        return ["mysqld", *options, "--mysqlx=OFF"]

    def _storage(self) -> list[str]:
        share = self.root() / "usr/share/mysql"
        return [
            f"--basedir={self.root() / 'usr'}",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}",
            f"--datadir={self.directory / 'data'}",
            f"--tmpdir={self.directory}",
            "--innodb-buffer-pool-size=16M",
            "--secure-file-priv=",
            "--auto-generate-certs=OFF",
            "--innodb-redo-log-capacity=8M",
            "--innodb-flush-method=nosync",
        ]

    def _resolve(self, program: str) -> list[str]:
        if program != "mysqld":
            return super()._resolve(program)
        usr = self.root() / "usr"
        loader = next(usr.glob("lib*/ld-linux-*.so.*"))
        libraries = next(usr.glob("lib/*-linux-gnu"))
        return [str(loader), "--library-path", str(libraries), str(usr / "sbin/mysqld")]


class PgBouncer(Server):
    """In front of a PostgreSQL server: transactions share `pool_size` connections to it."""

    programs = ("pgbouncer",)
    packages = ("pgbouncer", "pgbouncer")
    accounts = ("postgres",)
    # It has nothing to save, and of late waits for its clients at SIGTERM.
    stop_signal = signal.SIGKILL

    def __init__(self, postgres: PostgresServer, *, pool_size: int = 3) -> None:
        super().__init__()
        self.postgres = postgres
        self.pool_size = pool_size

    @property
    def url(self) -> str:
        return self.tcp_url()

    def tcp_url(
        self, *, user: str = USER, password: str = PASSWORD, database: str = DATABASE
    ) -> str:
        """The database pgbouncer is its own, for SHOW and the like."""
        return _url("postgresql", user, password, self.host, self.port, database)

    def _initialize(self) -> None:
        self._write("users", f'"{USER}" "{PASSWORD}"\n')

    def _command(self) -> list[str]:
        settings = {
            "listen_addr": self.host,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": self.directory / "users",
            "admin_users": USER,
            "pool_mode": "transaction",
            "default_pool_size": self.pool_size,
            "max_client_conn": 200,
            "server_login_retry": 0,  # seconds; by default it sulks for 15 after a failure
            "query_wait_timeout": 10,  # seconds that a client waits while there is no server
        }
        server = f"* = host={self.postgres.directory} port={self.postgres.port}"
        lines = ["[databases]", server, "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        path = self._write("pgbouncer.ini", "\n".join(lines) + "\n")
        return ["pgbouncer", str(path)]

    def _answers(self) -> bool:
        return _postgres_answers(socket.AF_INET, (self.host, self.port))


def environment() -> dict[str, str]:
    """For programs that are not ours."""
    return {name: value for name, value in os.environ.items() if name not in SANITIZER}


def _postgres_answers(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    words = ["user", USER, "database", DATABASE]
    greeting = b"\0\3\0\0" + b"".join(f"{word}\0".encode() for word in words) + b"\0"  # 3.0
    try:
        with socket.socket(family) as connection:
            connection.settimeout(WAIT)
            connection.connect(address)
            connection.sendall(struct.pack("!I", 4 + len(greeting)) + greeting)
            return connection.recv(1) == b"R"  # authentication; an error while it starts
    except OSError:
        return False


def _url(scheme: str, user: str, password: str, host: str, port: int, database: str) -> str:
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"{scheme}://{login}@{host}:{port}/{quote(database, safe='')}"


def _find(program: str) -> str | None:
    """Debian keeps some outside of the PATH; the newest PostgreSQL is the best."""
    folders = list(Path("/usr/lib/postgresql").glob("*/bin"))
    folders.sort(key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)])
    others = [*map(str, reversed(folders)), "/usr/sbin", "/usr/local/sbin"]
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(others))


def _free_port(host: str) -> int:
    while True:
        try:
            with socket.create_server((host, random.choice(PORTS))) as listener:
                port: int = listener.getsockname()[1]
                return port
        except OSError:
            pass
