"""A real Prometheus scrapes a program: in trouble every alert fires, and every panel has values;
without trouble no alert does."""

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.prometheus import ALERTS, PrometheusServer, hurried, panel_queries
from tests.support.waiting import WAIT, eventually

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.once
SCRAPES = 20  # that a program without trouble is watched


@contextmanager
def watched(*arguments):
    """A Prometheus that scrapes the program in tests/support/trouble.py."""
    if reason := PrometheusServer.missing():
        pytest.skip(reason)
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.support.trouble", *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(program.stdout.readline())
        with PrometheusServer(port, hurried(ALERTS.read_text("utf-8"))) as server:
            yield server
    finally:
        program.communicate(timeout=WAIT)
    assert program.returncode == 0


@pytest.fixture
def prometheus_server():
    with watched() as server:
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


@pytest.mark.real_time("Prometheus and the program are other processes")
async def test_no_alert_fires_without_a_trouble():
    fired = set()

    def enough_was_seen():
        fired.update(alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"])
        return fired or server.has_values(f"count_over_time(cenote_pool_waiting[1m]) > {SCRAPES}")

    with watched("calm") as server:
        await eventually(enough_was_seen)
        assert server.has_values("rate(cenote_pool_acquired_total[20s]) > 1")
    assert not fired
