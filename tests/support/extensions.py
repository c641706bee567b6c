"""C extensions that the tests compile for themselves."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cenote
from tests.support.servers import environment


def compiler(variable="CC", default="cc"):
    """The command, or skip."""
    command = shlex.split(os.environ.get(variable) or sysconfig.get_config_var(variable) or default)
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no compiler: {command[0]} was not found")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        pytest.skip(f"Python's headers are not installed: {headers} has no Python.h")
    return [*command, "-Wall", "-Wextra", "-Werror", f"-I{headers}"]


def compile_extension(source, folder, include=None):
    """The path of the extension, in this folder."""
    target = folder / (source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    )
    command = [*compiler(), "-std=c11", "-O1", "-g", "-fPIC", *shared]
    command += [f"-I{include or cenote.get_include()}", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
    return target


def load(path):
    name = path.name.partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
