"""The tested versions of the libraries are those that the extras allow, and that the pages name."""

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from cenote.drivers.library import Library

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
# The extra, the module that knows the library, its name there, and the guide that names the range.
ADAPTERS = {
    "postgresql": ("asyncpg", "cenote.adapters.asyncpg.private", "library", None),
    "redis": ("redis", "cenote.adapters.redis", "REDIS", "redis.md"),
    "sqlalchemy": ("sqlalchemy", "cenote.adapters.sqlalchemy", "LIBRARY", "sqlalchemy.md"),
}


@pytest.mark.parametrize("extra", [*ADAPTERS])
def test_the_range_is_the_same_wherever_it_stands(extra: str) -> None:
    package, module, name, guide = ADAPTERS[extra]
    pytest.importorskip(package)
    library: Library = getattr(import_module(module), name)
    oldest, newest = library.tested
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (requirement,) = map(Requirement, project["optional-dependencies"][extra])
    (specifier,) = requirement.specifier
    assert (specifier.operator, Version(specifier.version)) == (">=", Version(oldest))
    installation = (ROOT / "docs/installation.md").read_text("utf-8")
    assert f"| {library.name} | {oldest} | {newest} |" in installation
    if guide is not None:
        text = " ".join((ROOT / "docs/guides" / guide).read_text("utf-8").split())
        assert f"{oldest} to {newest}" in text


@pytest.mark.parametrize("extra", [*ADAPTERS])
def test_what_a_version_lacks_is_named_with_the_range(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, module, name, _ = ADAPTERS[extra]
    pytest.importorskip(package)
    library: Library = getattr(import_module(module), name)
    with pytest.raises(ImportError, match=f"tested with {library.name} {library.tested[0]} to"):
        library.require(sys, ["no_such_name"])
