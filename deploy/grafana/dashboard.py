"""Makes deploy/grafana/kvd.json, the dashboard of all metrics, out of the metric catalogue.

    python3 deploy/grafana/dashboard.py build/release/bin/kvd-metric-list > deploy/grafana/kvd.json

Each metric of the catalogue has one panel, in the row that the catalogue names. A test compares the
file with what this makes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

# Rows in the order of a glance; those not named here follow by name.
FIRST_ROWS = ["Overview", "SLO attainment", "Latency", "Requests", "Steps", "Engines", "Memory"]
PANELS_A_ROW, WIDTH, HEIGHT = 3, 8, 7
UNITS = {"seconds": "s", "bytes": "bytes", "bytes_per_second": "Bps", "ratio": "percentunit"}
RATES = {"seconds": "percentunit", "bytes": "Bps", "": "ops"}  # seconds a second: a share of time
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SELECTOR = '{job=~"$job",instance=~"$instance"}'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """One line of the catalogue."""

    name: str
    type: str
    unit: str
    labels: list[str]
    row: str
    help: str


def catalogue(program: str) -> list[Metric]:
    text = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout
    fields = (line.split("\t") for line in text.splitlines())
    return [Metric(name, kind, unit, labels.split(",") if labels else [], row, help_)
            for name, kind, unit, labels, row, help_ in fields]  # fmt: skip


def targets(metric: Metric) -> list[Json]:
    """The queries of a metric's panel."""
    by = ", ".join(["instance", *metric.labels])
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels or ["instance"])
    if metric.type == "counter":
        queries = {legend: f"sum by ({by}) (rate({metric.name}{SELECTOR}[$__rate_interval]))"}
    elif metric.type == "histogram":
        by = ", ".join(["le", *metric.labels])
        rate = f"sum by ({by}) (rate({metric.name}_bucket{SELECTOR}[$__rate_interval]))"
        queries = {f"{name} {legend if metric.labels else ''}".strip():
                   f"histogram_quantile({quantile}, {rate})"
                   for name, quantile in QUANTILES.items()}  # fmt: skip
    else:
        queries = {legend: f"{metric.name}{SELECTOR}"}
    return [{"refId": chr(ord("A") + number), "expr": query, "legendFormat": name,
             "datasource": DATASOURCE} for number, (name, query) in enumerate(queries.items())]  # fmt: skip


def title(metric: Metric) -> str:
    words = metric.name.removeprefix("kvd_").removesuffix("_total").split("_")
    if metric.unit:
        words = [word for word in words if word not in metric.unit.split("_")]
    text = " ".join(words) or metric.name
    return text[0].upper() + text[1:] + (" a second" if metric.type == "counter" else "")


def panel(metric: Metric, number: int, x: int, y: int) -> Json:
    units = RATES if metric.type == "counter" else UNITS
    return {
        "id": number,
        "type": "timeseries",
        "title": title(metric),
        "description": f"{metric.help} ({metric.name})",
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": units.get(metric.unit, "short"), "min": 0}
                        if metric.type == "counter" else
                        {"unit": units.get(metric.unit, "short")}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True,
                               "calcs": []},
                    "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": targets(metric),
    }  # fmt: skip


def panels(metrics: list[Metric]) -> list[Json]:
    rows = sorted({metric.row for metric in metrics},
                  key=lambda row: (FIRST_ROWS.index(row) if row in FIRST_ROWS else 99, row))  # fmt: skip
    made: list[Json] = []
    y = 0
    for row in rows:
        made.append({"id": len(made) + 1, "type": "row", "title": row, "collapsed": False,
                     "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})  # fmt: skip
        inside = [metric for metric in metrics if metric.row == row]
        for at, metric in enumerate(inside):
            x, line = at % PANELS_A_ROW * WIDTH, at // PANELS_A_ROW
            made.append(panel(metric, len(made) + 1, x, y + 1 + line * HEIGHT))
        y += 1 + -(-len(inside) // PANELS_A_ROW) * HEIGHT
    return made


def variable(name: str, query: str) -> Json:
    return {"name": name, "type": "query", "datasource": DATASOURCE, "query": query,
            "refresh": 2, "multi": True, "includeAll": True, "allValue": ".+",
            "current": {"text": ["All"], "value": ["$__all"], "selected": True}}  # fmt: skip


def document(uid: str, title: str, description: str, variables: list[Json], panels: list[Json]) -> Json:
    """A dashboard about the nodes that its reader chooses, with links to the others of kvd."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["kvd"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "10s",
        "links": [{"type": "dashboards", "title": "kvd", "tags": ["kvd"], "asDropdown": False,
                   "includeVars": True, "keepTime": True}],
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            variable("job", "label_values(kvd_uptime_seconds, job)"),
            variable("instance", 'label_values(kvd_uptime_seconds{job=~"$job"}, instance)'),
            *variables,
        ]},
        "panels": panels,
    }  # fmt: skip


def dashboard(metrics: list[Metric]) -> Json:
    return document("kvd", "kvd: all metrics", "Each metric of kvd, with what it means", [], panels(metrics))


if __name__ == "__main__":
    json.dump(dashboard(catalogue(sys.argv[1])), sys.stdout, indent=1)
    print()
