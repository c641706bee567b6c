"""The workflows and templates name only what exists."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SOURCES = pytest.mark.skipif(not GITHUB.exists(), reason="an sdist has no workflows")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def commands(workflow: Any) -> list[str]:
    """Every command of a workflow, with the values of its matrix filled in."""
    found = []
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job.get("steps", []):
            texts = [step.get("run", "")]
            for name, values in matrix.items():
                hole = f"${{{{ matrix.{name} }}}}"
                texts = [text.replace(hole, str(value)) for text in texts for value in values]
            found += filter(None, texts)
    return found


@SOURCES
def test_every_file_of_github_is_yaml_that_can_be_read() -> None:
    assert {path.name for path in WORKFLOWS} == {"ci.yml", "nightly.yml", "release.yml"}
    for path in GITHUB.rglob("*.yml"):
        assert isinstance(load(path), dict), path


@SOURCES
def test_every_target_and_script_of_a_workflow_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path in WORKFLOWS:
        for command in commands(load(path)):
            for target in re.findall(r"\bmake ([a-z-]+)", command):
                assert target in targets, f"{path.name}: {command}"
            for name in re.findall(r"\b(?:scripts|tests)/[\w./-]+", command):
                assert (ROOT / name).exists(), f"{path.name}: {command}"


@SOURCES
def test_every_system_is_tested_with_every_supported_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = re.findall(r"Python :: (3\.\d+)\b", "\n".join(project["classifiers"]))
    jobs = load(GITHUB / "workflows/ci.yml")["jobs"]
    for system in ("linux", "macos", "windows"):
        assert jobs[system]["strategy"]["matrix"]["python"] == versions


@SOURCES
def test_only_the_publishing_job_may_do_more_than_read() -> None:
    for path in WORKFLOWS:
        workflow = load(path)
        assert workflow["permissions"] == {"contents": "read"}, path
        more = [name for name, job in workflow["jobs"].items() if "permissions" in job]
        assert more == (["publish"] if path.name == "release.yml" else [])


@SOURCES
def test_every_path_of_the_code_owners_exists() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text("utf-8").splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    for path, *owners in rules[1:]:
        assert (ROOT / path.strip("/")).exists(), path
        assert owners


@SOURCES
def test_every_pinned_environment_is_renewed_by_dependabot() -> None:
    updates = load(GITHUB / "dependabot.yml")["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"github-actions", "pip"}


@SOURCES
def test_the_nights_bring_what_takes_too_long_for_a_push() -> None:
    jobs = load(GITHUB / "workflows/nightly.yml")["jobs"]
    wanted = {"check", "sanitize", "soak", "fuzz", "chaos", "dist"}
    assert wanted <= set(jobs["long"]["strategy"]["matrix"]["target"])
    assert jobs["drivers"]["strategy"]["matrix"]["age"] == ["oldest", "newest"]
