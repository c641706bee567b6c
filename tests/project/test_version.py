"""There is one version, and the changelog and the metadata agree with it."""

import ast
import datetime
import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

import cenote

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
SECTIONS = ["Breaking", "Added", "Changed", "Deprecated", "Removed", "Fixed"]
RELEASE = re.compile(r"^## (\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?) \((unreleased|\d{4}-\d\d-\d\d)\)$")
SUPPORTED = ["3.11", "3.12", "3.13", "3.14", "3.15"]


def releases() -> list[tuple[str, str]]:
    """Version and date of each release of the changelog, the newest first."""
    headings = [line for line in CHANGELOG.splitlines() if line.startswith("## ")]
    found = [RELEASE.match(heading) for heading in headings]
    assert all(found), [text for text, match in zip(headings, found, strict=True) if not match]
    return [(match[1], match[2]) for match in found if match]


# -- the version ---------------------------------------------------------------------------------


def test_the_version_is_written_in_one_place_only() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "cenote.__version__"}
    assert metadata("cenote")["Version"] == cenote.__version__


def test_the_version_is_a_literal_that_setuptools_need_not_import() -> None:
    tree = ast.parse((ROOT / "src/cenote/__init__.py").read_text("utf-8"))
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == ["__version__"]
    ]
    [value] = values
    assert ast.literal_eval(value) == cenote.__version__


# -- the changelog -------------------------------------------------------------------------------


def test_the_changelog_opens_with_the_version_of_the_package() -> None:
    version, date = releases()[0]
    assert version == cenote.__version__
    if date != "unreleased":
        datetime.date.fromisoformat(date)


def test_only_the_newest_release_of_the_changelog_has_no_date() -> None:
    dates = [date for _, date in releases()[1:]]
    assert "unreleased" not in dates
    assert dates == sorted(dates, reverse=True)


def test_every_entry_of_the_changelog_opens_with_its_verb() -> None:
    section, wrong = "", []
    for block in re.split(r"\n(?=- |#)", CHANGELOG):
        if block.startswith("### "):
            section = block.removeprefix("### ").strip()
            assert section in SECTIONS
        elif block.startswith("- "):
            text = block.strip()
            if section != "Breaking" and not text.startswith(f"- {section} "):
                wrong.append(f"{section}: {text}")
            elif not text.endswith((".", ".)", "`")):
                wrong.append(f"no sentence: {text}")
    assert wrong == []


def test_the_sections_of_a_release_stand_in_their_order() -> None:
    for release in CHANGELOG.split("\n## ")[1:]:
        found = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert found == [name for name in SECTIONS if name in found], release.splitlines()[0]


# -- the metadata --------------------------------------------------------------------------------


def test_the_links_of_the_project_lead_to_one_repository() -> None:
    urls = PROJECT["project"]["urls"]
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    for name in ("Issues", "Changelog"):
        assert urls[name].startswith(urls["Source"] + "/"), name


def test_every_supported_python_is_named_wherever_they_are_listed() -> None:
    prefix = "Programming Language :: Python :: "
    classifiers = [text.removeprefix(prefix) for text in PROJECT["project"]["classifiers"]]
    assert [name for name in classifiers if re.fullmatch(r"3\.\d+", name)] == SUPPORTED
    assert PROJECT["project"]["requires-python"] == f">={SUPPORTED[0]}"
    wheels = [f"cp{version.replace('.', '')}-*" for version in SUPPORTED]
    assert PROJECT["tool"]["cibuildwheel"]["build"] == wheels
    matrix = (ROOT / "scripts/matrix.py").read_text("utf-8")
    assert f"VERSIONS = {tuple(SUPPORTED)}".replace("'", '"') in matrix
