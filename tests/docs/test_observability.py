"""The programs in docs/observability.md run, and do what the page says."""

import json
import re
from pathlib import Path

import pytest

import cenote
from tests.support.running import run_program

pytestmark = pytest.mark.exhibit

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
SOURCE = str(Path(cenote.__file__).parent.parent)
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

# What each of them needs, and prints; those that print nothing are only imported. Only the one
# about logs writes to stderr.
EXPECTED = [
    ("prometheus_client", ['cenote_pool_created_total{pool="shop"} 1.0']),
    (
        "opentelemetry.sdk",
        ['"name": "create orders"', '"cenote.acquire"', "db.client.connection.count"],
    ),
    (None, ["create table orders (id integer)  fine"]),
    (None, ['"cenote_event": "created"', '"level": "WARNING"', '"cenote_reason": "INACTIVE"']),
    ("starlette", []),
    (None, []),
]


@pytest.mark.parametrize(
    ("program", "package", "shown"),
    [
        (program, package, shown)
        for program, (package, shown) in zip(PROGRAMS, EXPECTED, strict=True)
    ],
    ids=["prometheus", "opentelemetry", "observer", "logs", "starlette", "lifespan"],
)
def test_a_program_of_the_page(program, package, shown):
    if package is not None:
        pytest.importorskip(package)
    done = run_program("-W", "error", "-c", program)
    logs = "StreamHandler" in program
    for text in shown:
        assert text in (done.stderr if logs else done.stdout)
    for line in done.stderr.splitlines():
        assert logs, done.stderr
        assert "cenote_event" in json.loads(line)
