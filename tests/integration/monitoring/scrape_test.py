"""Debian's Prometheus scrapes a kvd under load: every query of the dashboards and of the rules works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctest
from grafana_foundation_sdk.models import dashboard as grafana
from kvd_process import KvdProcess, free_port, poll_until
from redis_process import FOLDER, RedisProcess

DEPLOY = Path(__file__).parents[3] / "deploy"
PROMETHEUS = Path(os.environ["KVDTEST_MONITORING"], "prometheus/prometheus")
DASHBOARDS = [json.loads((DEPLOY / f"grafana/{name}.json").read_text()) for name in ("kvd", "glance")]
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

    def had(self, expression: str, since: float) -> bool:
        """Replaces an annotation that is always true by one of the time from then to now."""
        times = {"start": str(since), "end": str(time.time()), "step": "1"}
        return bool(self.ask("query_range", query=expression, **times)["result"])

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


def queries() -> list[tuple[str, str]]:
    """The title of each panel with one of its queries, and what fills the lists of choices."""
    found = []
    for dashboard in DASHBOARDS:
        for panel in dashboard["panels"]:
            found += [(panel["title"], target["expr"]) for target in panel.get("targets", [])]
        for variable in dashboard["templating"]["list"]:
            if values := re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]):
                found.append((variable["name"], f'count by ({values[2]}) ({values[1]}) > 0'))
    return found


def annotations() -> list[Any]:
    return [each for dashboard in DASHBOARDS for each in dashboard.get("annotations", {"list": []})["list"]]


def filled_in(expression: str) -> str:
    """Sends the query as Grafana does, with shorter times."""
    for word, text in {"$__rate_interval": "10s", "$job": "kvd", "1m": "2s", "> 60": "> 2"}.items():
        expression = expression.replace(word, text)
    return re.sub(r"\$(instance|engine|domain|device)", ".+", expression)


def left_of(named: list[tuple[str, str]], has_data: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Waits for all of them together, and returns those that still have no data."""
    left = named

    def all_have() -> bool:
        nonlocal left
        left = [each for each in left if not has_data(each[1])]
        return not left

    poll_until(all_have)
    return left


class Scrape(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-monitoring-")))
        # The load waits in line for its first tokens, for as long as the test takes.
        goals = "[slo.default]\nttft = '600s'\ntbt = '10s'\ntpot = '10s'\n"
        self.kvd = self.enterContext(KvdProcess(metrics=True, extra=self.remote(folder) + goals))
        self.engine = self.start_engine("load")
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

    def start_engine(self, name: str) -> subprocess.Popen[bytes]:
        """Decodes for longer than the test takes."""
        engine = subprocess.Popen(
            [f"{os.environ['KVDTEST_BIN_DIR']}/kvd-pattern", "--endpoint", self.kvd.endpoint,
             "--name", name, "--requests", "900", "--prompt", "48", "--new", "48",
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
        second = self.start_engine("second")
        self.come_true('kvd_engine_up{engine=~"second.+"}')
        second.kill()  # so that there is an alert
        there = [query for query in queries() if not any(name in query[1] for name in ABSENT)]
        self.assertEqual(left_of(there, lambda query: self.prometheus.has(filled_in(query))), [])

    def test_every_annotation_has_data(self) -> None:
        begin = time.time() - 10
        self.come_true("kvd_uptime_seconds > 4")  # a change is one of something that was there before
        self.kvd.patch("/v1/policy", {"rotation": {"policy": "fcfs", "beta_f": 0.25}})
        marks = [(each["name"], each["expr"]) for each in annotations()]
        self.assertGreater(len(marks), 2)
        self.assertEqual(left_of(marks, lambda query: self.prometheus.had(filled_in(query), begin)), [])

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
    def test_the_dashboards_are_ones_of_grafanas(self) -> None:
        for dashboard in DASHBOARDS:
            parsed = grafana.Dashboard.from_json(dashboard)
            assert parsed.panels is not None
            self.assertEqual(len(parsed.panels), len(dashboard["panels"]))
            again = json.loads(json.dumps(parsed.to_json(), default=lambda part: part.to_json()))
            for mine, theirs in zip(dashboard["panels"], again["panels"], strict=True):
                self.assertLessEqual(set(mine), set(theirs), "Grafana knows no such field of a panel")


if __name__ == "__main__":
    ctest.main()
