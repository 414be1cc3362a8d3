"""An engine waits beside one that works: kvdctl, REST and the metrics say who waits, how late, and why."""

from __future__ import annotations

import os
import subprocess
import unittest
import urllib.request
from typing import Any

import ctest
from kvd_process import PATIENCE_S, KvdProcess, poll_until

BIN = os.environ["KVDTEST_BIN_DIR"]


class Waits(unittest.TestCase):
    def setUp(self) -> None:
        goals = '[slo.default]\nttft = "20ms"\ntbt = "100ms"\n'
        self.kvd = self.enterContext(KvdProcess(slabs=1, dram_slabs=1, metrics=True, extra=goals))

    def start_engine(self, name: str, *options: str) -> int:
        """The engine's id, once it has attached."""
        engine = subprocess.Popen(
            [f"{BIN}/kvd-pattern", "--endpoint", self.kvd.endpoint, "--name", name, "--prompt", "200", "--new", "200",
             "--step-ms", "20", "--deadline", "600", "--json", *options], stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        found: list[int] = []

        def has_attached() -> bool:
            found[:] = [each["id"] for each in self.kvd.engines() if each["name"] == name]
            return bool(found)

        self.assertTrue(poll_until(has_attached))
        return found[0]

    def late(self, engine: int) -> list[dict[str, Any]]:
        """Requests of the engine that wait, and whose goals have passed."""
        return [r for r in self.kvd.get("/v1/requests")["requests"]
                if r["engine"] == engine and r["waits_for"] and (r["late_s"] or 0) > 0]  # fmt: skip

    def missed(self, engine: int) -> int:
        classes = [c for each in self.kvd.engines() if each["id"] == engine for c in each["classes"]]
        return sum(int(one["ttft"]["missed"]) for one in classes)

    def metric(self, series: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.kvd.metrics_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))

    def kvdctl(self, *words: str) -> str:
        return subprocess.run([f"{BIN}/kvdctl", "--url", f"http://127.0.0.1:{self.kvd.port}", *words], text=True,
                              stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True).stdout  # fmt: skip

    def test_a_goal_that_passes_is_missed_before_its_token_comes(self) -> None:
        self.start_engine("batch", "--requests", "64")
        self.assertTrue(poll_until(lambda: bool(self.kvd.get("/v1/status")["counters"]["tokens"])))
        chat = self.start_engine("chat", "--requests", "2")
        late: list[dict[str, Any]] = []

        def waits() -> bool:
            late[:] = self.late(chat)
            return bool(late)

        self.assertTrue(poll_until(waits), self.kvdctl("requests"))
        request = late[0]
        self.assertEqual((request["class"], request["awaits"]), ("default", "ttft"))
        self.assertGreater(request["vlt_s"], 0)
        self.assertTrue(poll_until(lambda: self.missed(chat) > 0))
        domain = next(each["domain"] for each in self.kvd.engines() if each["id"] == chat)
        labels = f'{{engine="chat-{chat}",domain="{domain}",class="default"'
        self.assertTrue(poll_until(lambda: self.metric(f"kvd_engine_oldest_wait_goals{labels}}}") > 1))
        self.assertGreater(self.metric(f'kvd_engine_slo_intervals_total{labels},goal="ttft",outcome="missed"}}'), 0)
        self.assertRegex(self.kvdctl("requests"), rf"(?m)^ *{chat} .* default +waiting .* ttft 20 ms +\S+ \S+ +\w+ \w+ ")


if __name__ == "__main__":
    ctest.main()
