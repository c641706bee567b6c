"""The workflows and templates name only what exists."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.rooms import ROOMS

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
def test_every_action_is_pinned_to_the_commit_of_a_release() -> None:
    """A tag can be moved by whoever takes the repository over; the comment is for dependabot."""
    pinned = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
    own = re.compile(r"uses: \./\.github/workflows/[\w-]+\.yml$")
    found: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for line in path.read_text("utf-8").splitlines():
            if "uses:" in line:
                text = line.strip().removeprefix("- ")
                assert pinned.match(text) or own.match(text), f"{path.name}: {text}"
                name, _, version = text.removeprefix("uses: ").partition("@")
                found.setdefault(name, set()).add(version)
    assert all(len(versions) == 1 for versions in found.values()), found


@SOURCES
def test_every_expression_of_a_workflow_has_a_value() -> None:
    for path in WORKFLOWS:
        jobs = load(path)["jobs"]
        for name, job in jobs.items():
            assert "uses" in job or {"runs-on", "timeout-minutes", "steps"} <= job.keys(), name
            needs = job.get("needs", [])
            assert ({needs} if isinstance(needs, str) else set(needs)) <= jobs.keys(), name
            matrix = job.get("strategy", {}).get("matrix", {})
            for context, rest in re.findall(r"\$\{\{ *(\w+)\.([\w.-]+)", json.dumps(job)):
                assert context in {"github", "matrix", "secrets"}, f"{path.name}: {name}"
                assert context != "matrix" or rest in matrix, f"{path.name}: {name}: {rest}"


@SOURCES
def test_every_script_of_a_workflow_is_bash(tmp_path: Path) -> None:
    for path in WORKFLOWS:
        for number, command in enumerate(commands(load(path))):
            script = tmp_path / f"{path.stem}-{number}.sh"
            script.write_text(re.sub(r"\$\{\{.*?\}\}", "x", command))
            done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
            assert done.returncode == 0, f"{path.name}: {command}: {done.stderr}"


@SOURCES
def test_jobs_with_make_call_a_target_of_it() -> None:
    """Windows has no make, PyPy not every package, and a release is built by the index's tools."""
    for path in WORKFLOWS[:2]:
        for name, job in load(path)["jobs"].items():
            own = name in {"windows", "pypy"}
            assert own or job["steps"][-1]["run"].startswith("make "), name


@SOURCES
def test_pypy_gets_the_packages_of_the_matrix() -> None:
    steps = load(GITHUB / "workflows/nightly.yml")["jobs"]["pypy"]["steps"]
    [install] = [step["run"] for step in steps if "pip install" in step.get("run", "")]
    packages = install.replace('"', "").split("-e . ")[1].split()
    assert set(packages) <= set(load_script("matrix").PYPY)


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
    wanted = {"check", "coverage", "sanitize", "soak", "fuzz", "chaos", "nemesis", "dist"}
    assert wanted <= set(jobs["long"]["strategy"]["matrix"]["target"])
    assert jobs["drivers"]["strategy"]["matrix"]["age"] == ["oldest", "newest"]


def test_coverage_is_measured_in_every_room_of_the_package() -> None:
    script = (ROOT / "scripts/coverage.sh").read_text("utf-8")
    [program] = re.findall(r"-c '(from tests\.support\.rooms[^']*)'", script)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    without = {"docs", "project", "support", "exhibits"}
    assert done.stdout.split() == [f"tests/{room}" for room in ROOMS if room not in without]


def test_a_report_below_a_floor_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = load_script("coverage_report")
    python, c = tmp_path / "python.json", tmp_path / "c.json"
    for lines, status in ((1000, 0), (900, 1)):
        summary = {"covered_lines": lines, "num_statements": 1000}
        summary |= {"covered_branches": 10, "num_branches": 10}
        names = ("/x/src/cenote/sql/row.py", "/tmp/cenote/copy.py")
        python.write_text(json.dumps({"files": {name: {"summary": summary} for name in names}}))
        counts = {"line_covered": 9, "line_total": 9, "branch_covered": 9, "branch_total": 9}
        c.write_text(json.dumps({"files": [{"filename": "core.c", **counts}]}))
        assert report.main(str(python), str(c)) == status
        assert ("of the lines" in capsys.readouterr().out) == bool(status)


def load_script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    del sys.modules[name]
    return module
