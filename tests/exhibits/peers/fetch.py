"""Gets the source distribution of a library, in the version that is installed, by pip as it is
configured on this machine; nothing of it is committed."""

import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).parents[3] / "build" / "peers"
TIMEOUT = 600.0  # seconds for a download

# `pip download` builds what it gets, to read its metadata; this takes the archive as it is.
DOWNLOAD = """
import sys
from pip._internal.commands import create_command
from pip._internal.network.download import Downloader
name, version, folder = sys.argv[1:]
command = create_command("download")
options, _ = command.parse_args(["--no-deps", "--no-binary=:all:", name])
with command.main_context():
    session = command.get_default_session(options)
    found = command._build_package_finder(options, session).find_all_candidates(name)
    links = [each.link for each in found if str(each.version) == version]
    if not links:
        sys.exit(f"no source distribution of {name} {version} is where pip looks")
    try:
        download = Downloader(session, "off")
    except TypeError:
        download = Downloader(session, "off", 5)
    download(links[0], folder)
"""


class Unavailable(Exception):
    """A source distribution cannot be had here; the text says which one, and why."""


def source(distribution: str, cache: Path = CACHE) -> Path:
    """Return the unpacked source of a distribution, in the installed version.

    Raises `Unavailable` if it cannot be fetched.
    """
    wanted = version(distribution)
    folder = cache / f"{distribution.lower()}-{wanted}"
    if not (folder / ".whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _unpack(_download(distribution, wanted, folder), folder)
        (folder / ".whole").touch()
    (found,) = (path for path in folder.iterdir() if path.is_dir())
    return found


def packages(distribution: str, needed: tuple[str, ...], cache: Path = CACHE) -> Path:
    """Return a folder in which the packages are that the tests of a distribution need, and that
    nothing else here needs.

    Raises `Unavailable` if they cannot be installed.
    """
    same = f"{distribution}=={version(distribution)}"  # of which they may want another one
    folder = cache / f"{distribution.lower()}-{version(distribution)}-packages"
    if not (folder / ".whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run_pip(
            ["-m", "pip", "install", "-qq", "--target", str(folder), same, *needed],
            f"what the tests of {distribution} need cannot be installed",
        )
        (folder / ".whole").touch()
    return folder


def _download(distribution: str, wanted: str, folder: Path) -> Path:
    _run_pip(
        ["-c", DOWNLOAD, distribution, wanted, str(folder)],
        f"{distribution} {wanted} cannot be fetched",
    )
    (archive,) = folder.iterdir()
    return archive


def _run_pip(arguments: list[str], otherwise: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip has said nothing"]
        raise Unavailable(f"{otherwise}: {lines[-1]}")


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
