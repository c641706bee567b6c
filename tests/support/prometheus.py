"""A real Prometheus, which scrapes one program; and what the files in docs ask of it."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.servers import Server
from tests.support.waiting import WAIT

DOCS = Path(__file__).parents[2] / "docs"
ALERTS = DOCS / "prometheus" / "alerts.yml"
GRAFANA = DOCS / "grafana" / "cenote.json"
INTERVAL = "500ms"  # between scrapes, and between evaluations
WINDOW = "20s"  # of rates, instead of minutes


class PrometheusServer(Server):
    """Scrapes the program at that port of this machine, and evaluates the rules in a text."""

    programs = ("prometheus",)
    packages = ("prometheus", "prometheus")

    def __init__(self, scraped: int, rules: str) -> None:
        super().__init__()
        self.scraped = scraped
        self.rules = rules

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(self, path: str, **arguments: str) -> Any:
        """What the API answers."""
        query = urllib.parse.urlencode(arguments)
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{query}", timeout=WAIT
            ) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{path} {arguments}: {error.read().decode()}") from None
        return found["data"]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def has_values(self, query: str) -> bool:
        """Whether a query has a result now."""
        return bool(self.ask("query", query=query)["result"])

    def _command(self) -> list[str]:
        self._write("rules.yml", self.rules)
        settings = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {
                    "job_name": "cenote",
                    "static_configs": [{"targets": [f"{self.host}:{self.scraped}"]}],
                }
            ],
        }
        path = self._write("prometheus.yml", json.dumps(settings))  # which is YAML, too
        return [
            "prometheus",
            f"--config.file={path}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={self.host}:{self.port}",
        ]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=WAIT) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def hurried(rules: str) -> str:
    """The same rules, with alerts that fire at once, of what happened in the last seconds."""
    rules = re.sub(r"\bfor: \w+", "for: 0s", rules)
    return re.sub(r"\[\d+m\]", f"[{WINDOW}]", rules)


def panel_queries() -> Iterator[tuple[str, str]]:
    """Every query of the dashboard for Grafana with the title of its panel, as Grafana would ask
    for all jobs, instances and pools."""
    for panel in json.loads(GRAFANA.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", WINDOW)
            yield panel["title"], re.sub(r"\$(job|instance|pool)\b", ".*", query)
