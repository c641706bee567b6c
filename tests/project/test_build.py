"""What setup.py does where the native core cannot be compiled."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = f"native{sysconfig.get_config_var('EXT_SUFFIX')}"
COMPLAINT = """\
src/cenote/_native/internal.h:22:10: fatal error: Python.h: No such file or directory
    4 | #include <Python.h>
compilation terminated."""

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="this is no source tree"),
    pytest.mark.skipif(
        sys.implementation.name != "cpython" or sys.platform == "win32",
        reason="needs CPython, and a shell script as compiler",
    ),
]


@pytest.fixture
def project(tmp_path):
    """A source tree with a core from an earlier build."""
    pytest.importorskip("setuptools", reason="setuptools is not installed: setup.py cannot run")
    unwanted = shutil.ignore_patterns("__pycache__", "build_failure.txt", "*.so")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=unwanted)
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "setup.cfg").write_text("[options]\npackage_dir =\n    = src\n")
    (tmp_path / "src" / "cenote" / "_core" / NATIVE).write_text("stale")
    compiler = tmp_path / "cc.sh"
    compiler.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nnoise 1\nnoise 2\n{COMPLAINT}\nEND\nexit 1\n")
    compiler.chmod(0o755)
    return tmp_path


def run(project, *arguments, **environment):
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CENOTE_PURE", "CENOTE_NATIVE")
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**inherited, "PYTHONPATH": str(project / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )


def build(project, **environment):
    return run(project, "setup.py", "build_ext", "--inplace", **environment)


def test_a_failed_compilation_keeps_what_the_compiler_said(project):
    done = build(project, CC=str(project / "cc.sh"))
    assert done.returncode == 0, done.stderr
    assert COMPLAINT in done.stderr  # it is heard, and not swallowed
    assert f"could not be compiled:\nnoise 1\nnoise 2\n{COMPLAINT}\n***" in done.stdout
    record = project / "src" / "cenote" / "_core" / "build_failure.txt"
    assert record.read_text() == f"noise 1\nnoise 2\n{COMPLAINT}\n"
    assert not (record.parent / NATIVE).exists()
    imported = run(project, "-c", "import cenote; print(cenote.core)")
    assert imported.stdout == "pure\n", imported.stderr
    assert "RuntimeWarning: cenote runs on its pure core" in imported.stderr
    assert f"\n{COMPLAINT}\nInstall a C compiler" in imported.stderr


def test_a_missing_compiler_is_named_in_the_failure(project):
    done = build(project, CC=str(project / "no-such-compiler"))
    assert done.returncode == 0, done.stderr
    record = project / "src" / "cenote" / "_core" / "build_failure.txt"
    assert "no-such-compiler" in record.read_text()
    assert not (record.parent / NATIVE).exists()


def test_a_failed_compilation_of_a_required_core_is_an_error(project):
    done = build(project, CC=str(project / "cc.sh"), CENOTE_NATIVE="1")
    assert done.returncode == 1
    assert COMPLAINT in done.stderr
    core = project / "src" / "cenote" / "_core"
    assert not (core / "build_failure.txt").exists()
    assert (core / NATIVE).read_text() == "stale"
