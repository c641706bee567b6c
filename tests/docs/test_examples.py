"""Every example runs as a program of its own, and says what it did."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cenote
from tests.support.servers import RedisServer

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install


def run(name: str, *arguments: str) -> str:
    """What the example prints; it must end well, and must not complain."""
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def numbers(pattern: str, output: str) -> list[int]:
    found = re.search(pattern, output)
    assert found, output
    return [int(number) for number in found.groups()]


def test_every_example_is_tested_and_described() -> None:
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    tests, readme = Path(__file__).read_text(), (ROOT / "examples" / "README.md").read_text()
    assert names
    assert {name for name in names if f'run("{name}"' not in tests} == set()
    assert {name for name in names if f"`{name}`" not in readme} == set()


def test_the_http_pool_example_runs() -> None:
    output = run("http_pool.py")
    assert "the answer to /garbage is not HTTP" in output
    assert "40 tasks made 400 requests over at most 5 connections at once" in output
    opened, closed = numbers(r"connections opened: (\d+), closed: (\d+)", output)
    # 400 requests, ten for each connection; then garbage, twice.
    assert opened == closed >= 41
    [dead] = numbers(r"found dead before use: (\d+)", output)
    [discarded] = numbers(r"discarded in mid-request: (\d+)", output)
    assert dead + discarded >= 37
    assert discarded >= 2


def test_the_subprocess_workers_example_runs() -> None:
    output = run("subprocess_workers.py")
    assert "12 jobs were done by 3 processes" in output
    assert "a worker died of 'poison'" in output
    assert "of 3 processes 1 is new" in output
    assert "processes started: 4, ended: 4" in output


def test_the_custom_breaker_example_runs() -> None:
    output = run("custom_breaker.py")
    lines = output.splitlines()
    states = [line.split()[-1] for line in lines if " breaker " in line and line[0] == " "]
    assert states[:2] == ["INACTIVE", "RECOVERING"]
    assert states[-2:] == ["RECOVERING", "ACTIVE"]
    assert "in the end the breaker is ACTIVE" in output
    [refused] = numbers(r"refused at once: (\d+)", output)
    assert refused > 0


def test_the_redis_pool_example_runs(redis_server: RedisServer) -> None:
    output = run("redis_pool.py", redis_server.url)
    assert "100 tasks read 5000 values, all right: True" in output
    assert "over 20 connections" in output
    assert "connections opened: 20, closed: 20" in output
