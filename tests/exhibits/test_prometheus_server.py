"""A real Prometheus scrapes a program in trouble: every alert fires, and every panel has values."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.prometheus import ALERTS, PrometheusServer, hurried, panel_queries
from tests.support.waiting import WAIT, eventually

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.once


@pytest.fixture
def trouble():
    """The port of a program in trouble."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.support.trouble"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield int(program.stdout.readline())
    program.communicate(timeout=WAIT)
    assert program.returncode == 0


@pytest.fixture
def prometheus_server(trouble):
    if reason := PrometheusServer.missing():
        pytest.skip(reason)
    with PrometheusServer(trouble, hurried(ALERTS.read_text("utf-8"))) as server:
        yield server


@pytest.mark.real_time("Prometheus and the program are other processes")
async def test_every_alert_fires_and_every_panel_has_values(prometheus_server):
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8")))
    assert len(alerts) == 11
    queries = [*panel_queries()]
    assert len(queries) > 30
    silent, empty = set(alerts), set(queries)

    def all_came():
        silent.difference_update(prometheus_server.firing())
        empty.difference_update(
            [(title, query) for title, query in empty if prometheus_server.has_values(query)]
        )
        return not silent and not empty

    try:
        await eventually(all_came)
    except TimeoutError:
        pytest.fail(f"never fired: {sorted(silent)}; never had a value: {sorted(empty)}")
    rules = prometheus_server.ask("rules", type="alert")["groups"][0]["rules"]
    assert {rule["name"] for rule in rules} == alerts
    assert all(rule["health"] == "ok" for rule in rules)
    texts = [alert["annotations"]["summary"] for rule in rules for alert in rule["alerts"]]
    assert any("pool full" in text for text in texts)
    assert not any("<no value>" in text or "{{" in text for text in texts)
