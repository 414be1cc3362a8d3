"""The dashboards are what their programs make, and they and the rules name metrics of the catalogue only."""

from __future__ import annotations

import json
import os
import re
import sys
import unittest
from pathlib import Path

import ctest

ROOT = Path(__file__).parents[3]
PROGRAM = f"{os.environ['KVDTEST_BIN_DIR']}/kvd-metric-list"
METRIC = re.compile(r"(?<!:)\bkvd_[a-z0-9_]+")
sys.path.insert(0, str(ROOT / "deploy/grafana"))

import dashboard  # noqa: E402
import glance  # noqa: E402


class Dashboard(unittest.TestCase):
    def setUp(self) -> None:
        self.metrics = dashboard.catalogue(PROGRAM)

    def test_is_the_file_in_the_repository(self) -> None:
        kept = json.loads((ROOT / "deploy/grafana/kvd.json").read_text())
        self.assertEqual(
            dashboard.dashboard(self.metrics), kept,
            "run: python3 deploy/grafana/dashboard.py BUILD/bin/kvd-metric-list > deploy/grafana/kvd.json"
        )  # fmt: skip

    def test_has_a_panel_for_each_metric_and_none_overlap(self) -> None:
        made = dashboard.panels(self.metrics)
        shown = [panel for panel in made if panel["type"] != "row"]
        self.assertEqual(len(shown), len(self.metrics))
        self.assertEqual(len({panel["id"] for panel in made}), len(made))
        self.assertEqual(len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in made}), len(made))
        self.assertEqual(len({(p["title"], p["description"]) for p in shown}), len(shown))


class Glance(unittest.TestCase):
    def test_is_the_file_in_the_repository(self) -> None:
        kept = json.loads((ROOT / "deploy/grafana/glance.json").read_text())
        self.assertEqual(
            glance.dashboard(), kept, "run: python3 deploy/grafana/glance.py > deploy/grafana/glance.json"
        )

    def test_names_metrics_of_the_catalogue(self) -> None:
        known = {metric.name for metric in dashboard.catalogue(PROGRAM)}
        named = {name.removesuffix("_bucket") for name in METRIC.findall(json.dumps(glance.dashboard()))}
        self.assertLessEqual(named, known)
        self.assertGreater(len(named), 20)

    def test_no_panels_overlap(self) -> None:
        cells = [(p["gridPos"]["x"] + x, p["gridPos"]["y"] + y) for p in glance.panels()
                 for x in range(p["gridPos"]["w"]) for y in range(p["gridPos"]["h"])]  # fmt: skip
        self.assertEqual(len(cells), len(set(cells)))
        self.assertLess(max(x for x, _ in cells), 24)


class Rules(unittest.TestCase):
    rules = (ROOT / "deploy/prometheus/kvd.rules.yml").read_text()

    def test_name_metrics_of_the_catalogue(self) -> None:
        known = {metric.name for metric in dashboard.catalogue(PROGRAM)}
        named = set(METRIC.findall(self.rules)) - {"kvd_docs"}  # a label
        self.assertLessEqual(named, known)
        self.assertGreater(len(named), 10)

    def test_send_to_a_page_that_says_what_to_do(self) -> None:
        page = (ROOT / "docs/alerts.md").read_text()
        alerts = re.findall(r"- alert: (\w+)", self.rules)
        self.assertEqual(re.findall(r"^## (\w+)$", page, re.M), alerts)
        for alert in alerts:
            self.assertRegex(self.rules, rf'runbook_url: ".*/alerts\.md#{alert.lower()}"\n')


if __name__ == "__main__":
    ctest.main()
