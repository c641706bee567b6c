"""The pinned development environment agrees with the extras, on every supported Python."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
PYTHONS = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))


def environment(python: str) -> dict[str, str]:
    """CPython on Linux, as environment markers see it."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
    }


def applies(marker: Marker | None, python: str) -> bool:
    return marker is None or marker.evaluate(environment(python))


def required() -> Iterator[Requirement]:
    """Every requirement of the package and of its extras, without those on extras of its own."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    found = (Requirement(text) for group in groups for text in group)
    return (requirement for requirement in found if requirement.name != "cenote")


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_has_one_pin_in_its_range(python: str) -> None:
    pins: dict[str, list[str]] = {}
    for pin in PINS:
        if applies(pin.marker, python):
            [clause] = pin.specifier
            assert clause.operator == "==", pin
            pins.setdefault(canonicalize_name(pin.name), []).append(clause.version)
    assert {name for name, versions in pins.items() if len(versions) > 1} == set()
    for requirement in required():
        if applies(requirement.marker, python):
            [version] = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: `make constraints`"


def test_the_environments_are_made_with_the_constraints() -> None:
    script = (ROOT / "scripts/venv.sh").read_text("utf-8")
    assert "pip install -qq --disable-pip-version-check -c constraints.txt" in script
    assert "cat pyproject.toml constraints.txt" in script, "a new pin must renew the environment"


def test_every_development_extra_is_resolved() -> None:
    script = (ROOT / "scripts/constraints.sh").read_text("utf-8")
    assert set(re.findall(r"--extra (\w+)", script)) == {"dev", "bench", "coverage"}
