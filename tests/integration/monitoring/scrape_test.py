"""Debian's Prometheus scrapes a kvd under load: every query of the dashboard and of the rules works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import ctest
from grafana_foundation_sdk.models import dashboard as grafana
from kvd_process import KvdProcess, free_port, poll_until
from redis_process import FOLDER, RedisProcess

DEPLOY = Path(__file__).parents[3] / "deploy"
PROMETHEUS = Path(os.environ["KVDTEST_MONITORING"], "prometheus/prometheus")
DASHBOARD = json.loads((DEPLOY / "grafana/kvd.json").read_text())
# On the host backend there is no GPU to tell of, and without Redis no server that nodes share.
ABSENT = {"kvd_gpu_info"} | (set() if FOLDER else {"kvd_remote_"})


class Prometheus:
    """Debian's, scraping `target` every second, with kvd's rules."""

    def __init__(self, folder: Path, target: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/api/v1/"
        config = (DEPLOY / "prometheus/prometheus.yml").read_text()
        config = config.replace("15s", "1s").replace("127.0.0.1:9470", target)
        config = config.replace("kvd.rules.yml", str(DEPLOY / "prometheus/kvd.rules.yml"))
        (folder / "prometheus.yml").write_text(config)
        self.log = folder / "prometheus.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [PROMETHEUS, f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
                stderr=log)  # fmt: skip

    def ask(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is still starting
                raise
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def has(self, expression: str) -> bool:
        try:
            return bool(self.query(expression))
        except urllib.error.URLError:
            return False

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def panels() -> list[Any]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def filled_in(expression: str) -> str:
    """As Grafana sends it."""
    return expression.replace("$__rate_interval", "10s").replace("$job", "kvd").replace("$instance", ".+")


class Scrape(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-monitoring-")))
        # The load waits in line for its first tokens, for as long as the test takes.
        goals = "[slo.default]\nttft = '600s'\ntbt = '10s'\ntpot = '10s'\n"
        self.kvd = self.enterContext(KvdProcess(metrics=True, extra=self.remote(folder) + goals))
        self.engine = self.start_engine()
        self.prometheus = self.enterContext(
            Prometheus(folder, f"127.0.0.1:{self.kvd.metrics_port}"))  # fmt: skip
        self.come_true("rate(kvd_tokens_total[10s]) > 0")

    def remote(self, folder: Path) -> str:
        """A Redis that kvd keeps blocks on."""
        if not FOLDER:
            return ""
        redis = self.enterContext(RedisProcess())
        secret = folder / "secret"
        secret.write_text("s" * 64)
        secret.chmod(0o600)
        return f"[remote]\nservers = '{redis.address}'\nsecret_file = '{secret}'\n"

    def start_engine(self) -> subprocess.Popen[bytes]:
        """Decodes for longer than the test takes."""
        engine = subprocess.Popen(
            [f"{os.environ['KVDTEST_BIN_DIR']}/kvd-pattern", "--endpoint", self.kvd.endpoint,
             "--name", "load", "--requests", "900", "--prompt", "48", "--new", "48",
             "--step-ms", "20", "--deadline", "600", "--json"], stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        return engine

    def come_true(self, expression: str) -> None:
        self.assertTrue(poll_until(lambda: self.prometheus.has(expression)),
                        f"{expression} has no data: {self.prometheus.log.read_text()}")  # fmt: skip

    def expression_of(self, alert: str) -> str:
        rules = [rule for group in self.prometheus.ask("rules")["groups"] for rule in group["rules"]]
        found: str = next(rule["query"] for rule in rules if rule["name"] == alert)
        return found

    def test_every_panel_has_data(self) -> None:
        for panel in panels():
            for target in panel["targets"]:
                with self.subTest(panel["title"]):
                    if not any(name in target["expr"] for name in ABSENT):
                        self.come_true(filled_in(target["expr"]))

    def test_rules_are_sound_and_faults_are_seen(self) -> None:
        for group in self.prometheus.ask("rules")["groups"]:
            for rule in group["rules"]:
                self.assertEqual(rule["health"] in ("ok", "unknown"), True, rule)
                if rule["type"] == "recording":
                    self.come_true(rule["name"])
                else:
                    self.assertEqual(self.prometheus.query(rule["query"]), [], rule["name"])
        self.engine.send_signal(signal.SIGKILL)
        self.come_true(self.expression_of("KvdEngineDied"))
        self.kvd.kill()
        self.come_true(self.expression_of("KvdDown"))


class Schema(unittest.TestCase):
    def test_the_dashboard_is_one_of_grafanas(self) -> None:
        parsed = grafana.Dashboard.from_json(DASHBOARD)
        assert parsed.panels is not None
        self.assertEqual(len(parsed.panels), len(DASHBOARD["panels"]))
        again = json.loads(json.dumps(parsed.to_json(), default=lambda part: part.to_json()))
        for mine, theirs in zip(DASHBOARD["panels"], again["panels"], strict=True):
            self.assertLessEqual(set(mine), set(theirs), "Grafana knows no such field of a panel")


if __name__ == "__main__":
    ctest.main()
