"""Gets the corpora from the Debian archive into a cache folder; nothing of them is committed.

apt works with lists, archives and sources of its own inside the folder: those of the system are
read for their addresses, and not changed.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[3] / "build" / "exhibits"
TIMEOUT = 1800.0  # seconds for one call of apt; the source of MariaDB's tests is large
TOOLS = ("apt-get", "dpkg-source", "dpkg-deb", "dpkg-query")


class Unavailable(Exception):
    """A corpus cannot be had here; the text says which one, why, and what to do."""


@dataclass(frozen=True)
class Corpus:
    """Where the scripts of one project come from."""

    name: str
    package: str  # of Debian
    source: bool  # a source package, or a binary one
    installed: str  # the binary package whose version it shall match; a glob
    patterns: tuple[str, ...]  # of its scripts, inside the unpacked package

    def folder(self, cache: Path = CACHE) -> Path:
        return cache / self.name

    def scripts(self, cache: Path = CACHE) -> list[Path]:
        """Its scripts, in a fixed order."""
        folder = self.folder(cache)
        found = {path for pattern in self.patterns for path in folder.glob(pattern)}
        return sorted(path for path in found if path.is_file())


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "postgresql",
            "postgresql-{major}",
            True,
            "postgresql-[0-9]*",
            (
                "*/src/test/regress/sql/*.sql",
                "*/src/pl/plpgsql/src/sql/*.sql",
                "*/contrib/*/sql/*.sql",
            ),
        ),
        Corpus(
            "mariadb",
            "mariadb-test-data",
            False,
            "mariadb-server",
            (
                "usr/share/mysql/mysql-test/main/*.test",
                "usr/share/mariadb/mariadb-test/main/*.test",
            ),
        ),
        Corpus("sqlite", "sqlite3", True, "libsqlite3-0", ("*/test/*.test",)),
    )
}


def fetch(corpus: Corpus, cache: Path = CACHE) -> str:
    """Make sure that the corpus is in the cache; returns package and version."""
    label = cache / f"{corpus.name}.version"
    if label.exists() and corpus.scripts(cache):
        return label.read_text().strip()
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise Unavailable(
            f"the corpus {corpus.name!r} comes from Debian's package {corpus.package}, and "
            f"{', '.join(missing)} is not installed. Install apt and dpkg-dev, or put its scripts "
            f"under {corpus.folder(cache)} and the version into {label}."
        )
    archive = Archive(cache / "apt")
    archive.update()
    version = installed_version(corpus.installed)
    package = corpus.package.format(major=(version or "").partition(".")[0])
    shutil.rmtree(corpus.folder(cache), ignore_errors=True)
    corpus.folder(cache).mkdir(parents=True)
    got = archive.get(package, version, corpus.folder(cache), source=corpus.source)
    scripts = corpus.scripts(cache)
    if not scripts:
        raise Unavailable(
            f"the corpus {corpus.name!r}: {got} has no {' or '.join(corpus.patterns)}; "
            f"see {corpus.folder(cache)}"
        )
    label.write_text(got)
    return got


class Archive:
    """apt with lists and sources of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options: list[str] = []

    def update(self) -> None:
        """Write the sources and get the lists."""
        for name in ("lists/partial", "archives/partial", "parts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        listed = self.folder / "sources.list"
        listed.write_text("".join(f"{line}\n" for line in self._sources()))
        settings = {
            "Dir::Etc::SourceList": listed,
            "Dir::Etc::SourceParts": self.folder / "parts",
            "Dir::State::Lists": self.folder / "lists",
            "Dir::Cache": self.folder,
            # Otherwise it becomes another user, who may not write here.
            "APT::Sandbox::User": "root",
        }
        self.options = [
            part for name, value in settings.items() for part in ("-o", f"{name}={value}")
        ]
        self._run(["update", "-qq"], self.folder)

    def get(self, package: str, version: str | None, folder: Path, *, source: bool) -> str:
        """Unpack the package there, of the version if the archive still has it."""
        command = ["source", "-qq"] if source else ["download", "-qq"]
        wanted = [f"{package}={version}", package] if version else [package]
        for attempt in wanted:
            try:
                self._run([*command, attempt], folder)
                break
            except Unavailable as error:
                if attempt == wanted[-1]:
                    raise
                print(f"exhibits: {attempt} is not in the archive; {error}", file=sys.stderr)
        for path in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(path), str(folder)], folder)
        names = [path.stem for pattern in ("*.deb", "*.dsc") for path in folder.glob(pattern)]
        return ", ".join(names) or package

    def _sources(self) -> list[str]:
        """Those of the distribution that the system uses, with sources."""
        fields = "$(SITE) $(RELEASE) $(COMPONENT) $(ORIGIN)"
        output = _run(
            ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], self.folder
        )
        lines = []
        for site, release, component, *origin in (line.split() for line in output.splitlines()):
            if origin and origin[0] in ("Debian", "Ubuntu"):
                place = f"{site} {release} {component}"
                lines += [f"deb {place}", f"deb-src {place}"]
        if not lines:
            raise Unavailable(
                "apt knows no archive of Debian: run `apt-get update` once, "
                "and look at /etc/apt/sources.list"
            )
        return list(dict.fromkeys(lines))

    def _run(self, command: list[str], folder: Path) -> str:
        return _run(["apt-get", *self.options, *command], folder)


def installed_version(pattern: str) -> str | None:
    """The newest installed one; None if there is none."""
    try:
        output = _run(["dpkg-query", "-W", "-f", "${Status}|${Version}\n", pattern], Path("/"))
    except Unavailable:
        return None
    versions = [
        line.partition("|")[2] for line in output.splitlines() if line.startswith("install ok")
    ]
    return max(versions, key=_sortable, default=None)


def _sortable(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"`{' '.join(command)}` took longer than {TIMEOUT:g} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Unavailable(
            f"`{' '.join(command)}` failed ({done.returncode}): {' / '.join(last) or 'no output'}"
        )
    return done.stdout
