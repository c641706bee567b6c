"""The file of a local ledger: who may use it, locks on its bytes, and the states in it.

The file begins with what it is: magic bytes, the version of the format, and the name of the fleet.
Two places for a state follow. A new state goes to the place of the older one and counts the
generation up; a process that is killed while it writes leaves a wrong checksum behind, and the
state before counts again.

The file is not mapped: a file that somebody truncates, or a disk that is full, is an `OSError` here
and would be a deadly signal there; and a mapping would keep the locks alive in the child of a fork.

Locks are OFD locks: they belong to the open file, so that the kernel releases them when the process
ends, however it ends. Their bytes lie far beyond the end of the file, and stay where they are in
every version of the format.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Final
from urllib.parse import quote

from .ledger import LedgerConfigError, LedgerError

try:
    import fcntl
except ImportError as _error:
    raise ImportError(
        "a fleet without a URL needs locks on files, which this system does not have: give the "
        "fleet a URL of Redis or PostgreSQL, such as cenote.Fleet('redis://...')"
    ) from _error

VERSION: Final = 1
MAGIC: Final = b"cenote fleet\r\n\x1a\n"
HEADER: Final = struct.Struct("<16sIH")  # magic, version, length of the name, which follows
PLACE: Final = struct.Struct("<QII")  # generation, length, checksum of what follows
PLACES: Final = (1 << 12, 1 << 22)  # where the two places begin; the file is sparse
LONGEST: Final = PLACES[1] - PLACES[0] - PLACE.size  # bytes of a state

MUTEX: Final = 1 << 40  # the byte that is locked while somebody decides
SEATS: Final = MUTEX + 1  # the first byte of those that say who is alive

# What is wrong with a path, rather than with the moment.
_UNFIT: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EROFS}
)

if sys.platform == "darwin":
    _SET: Final = getattr(fcntl, "F_OFD_SETLK", 90)
    _GET: Final = getattr(fcntl, "F_OFD_GETLK", 92)
    _FLOCK: Final = struct.Struct("@qqihh")  # start, length, pid, type, whence
else:
    _SET = getattr(fcntl, "F_OFD_SETLK", 37)
    _GET = getattr(fcntl, "F_OFD_GETLK", 36)
    _FLOCK = struct.Struct("@hhqqi4x")  # type, whence, start, length, pid


def default_path(name: str) -> Path:
    """The file of a fleet of this name and user; the same whatever the environment says, and also
    for services with a `/tmp` of their own."""
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    shown = quote(name, safe=" ")
    if len(shown) > 100:
        shown = hashlib.sha256(name.encode()).hexdigest()
    return base / f"cenote-{os.geteuid()}" / f"{shown}.fleet"


class LedgerFile:
    """The open file of a fleet. Every method may raise `OSError`.

    Attributes:
        path: Where it is.
        mailboxes: The directory of the FIFOs beside it; it has the permissions of the file.
        board: The directory in which members show who holds what; of one user.
    """

    def __init__(self, path: str | None, name: str) -> None:
        """Open the file, and make it if it is not there.

        Raises `LedgerConfigError` if it must not be used. `path`: None for the default.
        """
        self.path: Path = default_path(name) if path is None else Path(path)
        self.mailboxes: Path = self.path.with_name(f"{self.path.name}.news")
        self.board: Path = self.path.with_name(f"{self.path.name}.who")
        self._name = name
        if path is None:
            _make_private(self.path.parent)
        self._fd = self._open()
        try:
            self._check()
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close it, and with it release its locks, unless a child of a fork has it too."""
        os.close(self._fd)

    def is_replaced(self) -> bool:
        """Whether somebody has removed it, or put another file in its place."""
        mine = os.fstat(self._fd)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return True
        return (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino)

    # -- locks -------------------------------------------------------------------------------------

    def try_lock(self) -> bool:
        """Whether the mutex could be locked; `unlock` ends that."""
        return self._try_lock(MUTEX)

    def unlock(self) -> None:
        """Unlock the mutex."""
        fcntl.fcntl(self._fd, _SET, _flock(fcntl.F_UNLCK, MUTEX))

    def try_seat(self, seat: int) -> bool:
        """Whether the lock of a seat was free, and now is ours until the file is closed."""
        return self._try_lock(SEATS + seat)

    def is_alive(self, seat: int) -> bool:
        """Whether somebody else has this seat."""
        return self._is_locked(SEATS + seat, 1)

    def has_others(self) -> bool:
        """Whether anybody else has any seat."""
        return self._is_locked(SEATS, 0)

    def _try_lock(self, byte: int) -> bool:
        try:
            fcntl.fcntl(self._fd, _SET, _flock(fcntl.F_WRLCK, byte))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _is_locked(self, byte: int, length: int) -> bool:
        answer = fcntl.fcntl(self._fd, _GET, _flock(fcntl.F_WRLCK, byte, length))
        fields = _FLOCK.unpack(answer)
        kind: int = fields[3] if sys.platform == "darwin" else fields[0]
        return kind != fcntl.F_UNLCK

    # -- content, while the mutex is locked --------------------------------------------------------

    def prepare(self) -> None:
        """Make a new file one of this fleet. Raises `LedgerConfigError` if it is another one's."""
        head = os.pread(self._fd, PLACES[0], 0)
        name = self._name.encode()
        if head:
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                raise LedgerConfigError(
                    f"{self.path} is not the file of a fleet, and was left as it is: choose "
                    f"another path, or remove it"
                )
            _, version, length = HEADER.unpack_from(head)
            if version != VERSION and self.has_others():
                raise LedgerConfigError(
                    f"{self.path} is used by processes with another version of cenote (format "
                    f"{version}; this one has {VERSION}): end them first, or choose another path"
                )
            found = head[HEADER.size : HEADER.size + length]
            if version == VERSION and found != name:
                raise LedgerConfigError(
                    f"{self.path} belongs to the fleet {found.decode(errors='replace')!r}, not to "
                    f"{self._name!r}: give each fleet a path of its own"
                )
            if version == VERSION:
                return
            os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, HEADER.pack(MAGIC, VERSION, len(name)) + name, 0)

    def write(self, state: bytes, generation: int) -> None:
        """Replace the state; `generation` is one more than that of the state before."""
        if len(state) > LONGEST:
            raise LedgerError(f"{self.path} is full: a fleet on one host cannot have more members")
        head = PLACE.pack(generation, len(state), zlib.crc32(state, generation & 0xFFFFFFFF))
        data = head + state
        if os.pwrite(self._fd, data, PLACES[generation % 2]) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    # -- content, for everybody --------------------------------------------------------------------

    def generation(self) -> int:
        """The newest generation that somebody has begun to write; 0 for none."""
        return max(self._head(at)[0] for at in PLACES)

    def read(self) -> tuple[int, bytes]:
        """Generation and state, the newest that is whole; 0 and nothing for a new file."""
        for at in sorted(PLACES, key=self._head, reverse=True):
            generation, length, checksum = self._head(at)
            if not generation or length > LONGEST:
                continue
            state = os.pread(self._fd, length, at + PLACE.size)
            if len(state) == length and zlib.crc32(state, generation & 0xFFFFFFFF) == checksum:
                return generation, state
        return 0, b""

    def _head(self, at: int) -> tuple[int, int, int]:
        head = os.pread(self._fd, PLACE.size, at)
        return PLACE.unpack(head) if len(head) == PLACE.size else (0, 0, 0)

    # -- permissions -------------------------------------------------------------------------------

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return os.open(self.path, flags, 0o600)
        except OSError as error:
            if error.errno not in _UNFIT:
                raise
            raise LedgerConfigError(
                f"{self.path} cannot be the file of a fleet: {error.strerror}. It must be in a "
                f"directory where this user may make files, and no symbolic link; a fleet of "
                f"several users needs a path that all may write"
            ) from error

    def _check(self) -> None:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise LedgerConfigError(f"{self.path} is not a regular file: choose another path")
        if found.st_mode & stat.S_IWOTH:
            raise LedgerConfigError(
                f"{self.path} is writable by everybody: change that (chmod o-w), or choose "
                f"another path"
            )

    def make_mailbox(self, seat: int) -> int:
        """Make the FIFO of a seat, for the owner of the seat, and return its descriptor."""
        found = os.fstat(self._fd)
        for_group = bool(found.st_mode & stat.S_IWGRP)
        try:
            self.mailboxes.mkdir(mode=0o700)
        except FileExistsError:
            self._check_mailboxes(for_group)
        else:
            if for_group:
                os.chown(self.mailboxes, -1, found.st_gid)
                self.mailboxes.chmod(0o770)
        path = self.mailboxes / str(seat)
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        if for_group:
            path.chmod(0o660)
            os.chown(path, -1, found.st_gid)
        # For reading, and for writing, so that it never is at its end.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def _check_mailboxes(self, for_group: bool) -> None:
        found = self.mailboxes.lstat()
        mine = found.st_uid == os.geteuid() or for_group
        if not stat.S_ISDIR(found.st_mode) or not mine or found.st_mode & stat.S_IWOTH:
            raise LedgerConfigError(
                f"{self.mailboxes} must be a directory where only the users of {self.path.name} "
                f"may write: remove it, or choose another path"
            )

    def open_mailbox(self, seat: int) -> int | None:
        """A descriptor to write to the FIFO of a seat; None if nobody reads it."""
        try:
            return os.open(self.mailboxes / str(seat), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return None
            raise

    def remove_mailbox(self, seat: int) -> None:
        """Remove the FIFO of a seat."""
        (self.mailboxes / str(seat)).unlink(missing_ok=True)


def _make_private(directory: Path) -> None:
    """The directory of the default path. Raises `LedgerConfigError` if others could get at it."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise LedgerConfigError(
            f"{directory} must be a directory that belongs to this user and that no other user can "
            f"enter: remove it, or give the fleet a path"
        )


def _flock(kind: int, start: int, length: int = 1) -> bytes:
    if sys.platform == "darwin":
        return _FLOCK.pack(start, length, 0, kind, os.SEEK_SET)
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
