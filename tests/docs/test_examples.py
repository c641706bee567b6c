"""Every example runs as a program of its own, and says what it did."""

import re
from pathlib import Path

import pytest

import cenote
from tests.support.running import run_program
from tests.support.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install


def run(name: str, *arguments: str) -> str:
    """What the example prints; it must end well, and must not complain."""
    done = run_program(str(ROOT / "examples" / name), *arguments)
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


def test_the_fastapi_sqlalchemy_example_runs(postgres_server: PostgresServer) -> None:
    for name in ("fastapi", "sqlalchemy", "asyncpg", "httpx"):
        pytest.importorskip(name)
    url = postgres_server.tcp_url().replace("postgresql://", "postgresql+asyncpg://")
    output = run("fastapi_sqlalchemy.py", url)
    assert output.count("POST /notes: 201") == 2
    source = (ROOT / "examples" / "fastapi_sqlalchemy.py").read_text().splitlines()
    [line] = [number for number, text in enumerate(source, 1) if "pg_sleep" in text]
    held = f"a connection is held by fastapi_sqlalchemy.py:{line}\n"
    assert output.count(held) == 3
    guide = (ROOT / "docs" / "guides" / "sqlalchemy.md").read_text()
    assert guide.count(held) == 3
    assert f"- Line {line} is" in guide
    assert "with no connection free: 503" in output
    assert "the reports: 503 503 503" in output
    assert "circuit breaker ACTIVE -> INACTIVE (open): 3 failures since the last change" in output
    assert numbers(r"the breaker is open: 503, Retry-After: (\d+)", output) >= [1]
    assert "the dashboard: 200" in output
    assert "GET /notes/1: 200, milk\nthe breaker is ACTIVE" in output
    assert "Current Checked out connections: 0" in output.splitlines()[-1]
