"""The alert rules in docs, on series that are made up: `promtool` plays them in no time."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.prometheus import ALERTS

pytestmark = pytest.mark.once
COUNTERS = {  # what an outage moves, and the alert that it fires
    'cenote_pool_create_failures_total{pool="a"}': "CenoteConnectFailing",
    'cenote_pool_refused_total{pool="a",reason="circuit"}': "CenoteAcquiresRefused",
    'cenote_pool_failed_total{pool="a"}': "CenoteAcquiresFailed",
    'cenote_pool_timeouts_total{pool="a"}': "CenoteAcquiresTimedOut",
    'db_client_operation_duration_seconds_count{pool="a",error_type="08006"}': (
        "CenoteStatementErrors"
    ),
}
ALL = 'db_client_operation_duration_seconds_count{pool="a"}'
OPEN = 'cenote_pool_circuit_state{pool="a",state="inactive"}'


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: it comes with Prometheus")
    return found


def play(
    promtool: str, folder: Path, interval: int, series: dict[str, str], at: str, fired: set[str]
) -> None:
    """Check which alerts have fired by then; `interval` is in seconds, between two scrapes."""
    query = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))'
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fired)]
    test: dict[str, Any] = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "15s",
        "tests": [{
            "interval": f"{interval}s",
            "input_series": [{"series": name, "values": text} for name, text in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": expected}],
        }],
    }  # fmt: skip
    path = folder / "test.yml"
    path.write_text(json.dumps(test), "utf-8")  # YAML, too
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("interval", [15, 60])
def test_an_outage_of_seconds_wakes_nobody(promtool: str, tmp_path: Path, interval: int) -> None:
    """All is well again by the time somebody has found the keyboard."""
    series = dict.fromkeys(COUNTERS, "0x8 200x80")
    series |= {ALL: "0+500x88", OPEN: "0x8 1 0x80"}
    play(promtool, tmp_path, interval, series, "20m", set())


@pytest.mark.parametrize("interval", [15, 60])
def test_an_outage_that_lasts_fires(promtool: str, tmp_path: Path, interval: int) -> None:
    calm = 600 // interval
    lasting = f"0x{calm} 1+1x{480 // interval}"
    series = dict.fromkeys(COUNTERS, lasting)
    series |= {ALL: lasting, OPEN: f"0x{calm} 1x{480 // interval}"}
    play(promtool, tmp_path, interval, series, "15m", {
        "CenoteBreakerOpen", *COUNTERS.values(),
    } - {"CenoteStatementErrors"})  # fmt: skip
    play(promtool, tmp_path, interval, series, "18m", {"CenoteBreakerOpen", *COUNTERS.values()})
