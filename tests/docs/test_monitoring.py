"""The alert rules and the dashboard for Grafana that are in docs ask for metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.prometheus import ALERTS, GRAFANA, hurried, panel_queries

yaml = pytest.importorskip("yaml")
prometheus_client = pytest.importorskip("prometheus_client")

from cenote.extras.prometheus import Collector  # noqa: E402

PAGE = (GRAFANA.parents[1] / "observability.md").read_text("utf-8")
SERIES = re.compile(r"\b((?:cenote|db_client)_\w+)")


def rules():
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return group["rules"]


def series():
    """The names of all series that the collector exports."""
    registry = prometheus_client.CollectorRegistry()
    collector = Collector(registry=registry)
    found = set()
    for family in collector.describe():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
        found.update(family.name + suffix for suffix in suffixes.get(family.type, [""]))
    collector.close()
    return found


def promtool(*arguments):
    if shutil.which("promtool") is None:
        pytest.skip("promtool not installed: apt-get install prometheus")
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_promtool_accepts_the_alert_rules(tmp_path):
    result = promtool("check", "rules", str(ALERTS))
    assert result.returncode == 0, result.stderr
    assert f"{len(rules())} rules found" in result.stdout


def test_every_alert_says_what_to_do():
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["alert"].startswith("Cenote")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert f"`{rule['alert']}`" in PAGE
    assert "for: 1m" not in hurried(ALERTS.read_text("utf-8"))


def test_alerts_and_panels_ask_for_what_is_exported():
    known = series()
    queries = [rule["expr"] for rule in rules()] + [query for _, query in panel_queries()]
    for query in queries:
        asked = set(SERIES.findall(query)) - {"db_operation_name"}
        assert asked
        assert asked <= known, query


def test_what_users_of_a_database_see_names_no_hooks():
    """They have connections, and know of no factory."""
    collector = Collector(registry=None)
    helps = " ".join(family.documentation for family in collector.describe())
    collector.close()
    for text in (helps, ALERTS.read_text("utf-8"), GRAFANA.read_text("utf-8")):
        assert not re.search("factor|destructor", text, re.IGNORECASE)


def test_the_dashboard_for_grafana_is_complete():
    dashboard = json.loads(GRAFANA.read_text("utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "pool"]


def test_every_metric_is_on_a_panel_or_in_the_table():
    shown = " ".join(query for _, query in panel_queries())
    for name in series():
        base = re.sub(r"_(bucket|count|sum)$", "", name)
        assert base in shown, base
        assert f"`{base}`" in PAGE, base


@pytest.mark.parametrize(
    ("active", "inactive", "recovering", "expected"),
    [
        ("1 1 1 1", "0 0 0 0", "0 0 0 0", []),
        ("1 0 0 0", "0 1 0 1", "0 0 1 0", ["CenoteBreakerOpen"]),  # with a probe in between
        ("2 1 1 1", "0 1 1 1", "0 0 0 0", ["CenoteBreakerOpen"]),  # one of two of that name
    ],
)
def test_an_open_breaker_fires_after_its_minute(active, inactive, recovering, expected, tmp_path):
    labels = {"job": "shop", "instance": "a:1", "pool": "main"}
    written = ",".join(f'{name}="{value}"' for name, value in labels.items())
    rule = rules()[0]
    assert rule["alert"] == "CenoteBreakerOpen"
    alert = {
        "exp_labels": {**labels, "severity": "critical"},
        "exp_annotations": {
            **rule["annotations"],
            "summary": "The circuit breaker of pool main is not closed (a:1).",
        },
    }
    asked = {"eval_time": "3m", "alertname": rule["alert"], "exp_alerts": [alert] * len(expected)}
    states = {"active": active, "inactive": inactive, "recovering": recovering}
    found = [
        {"series": f'cenote_pool_circuit_state{{{written},state="{state}"}}', "values": values}
        for state, values in states.items()
    ]
    test = {"interval": "1m", "input_series": found, "alert_rule_test": [asked]}
    case = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}
    path = Path(tmp_path, "case.yml")
    path.write_text(json.dumps(case))
    result = promtool("test", "rules", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
