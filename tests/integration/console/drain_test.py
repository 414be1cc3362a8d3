"""`kvdctl drain` beside a real kvd: what is refused, what goes on, what ends, and the way back."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
import urllib.error
from pathlib import Path

import ctest
from kvd_client import Client, Draining, HoldReason, Report, Request, Shape, Step, Unavailable
from kvd_process import PATIENCE_S, KvdProcess, poll_until

BIN = os.environ["KVDTEST_BIN_DIR"]
SHAPE = Shape(layers=2, layers_per_block=1, block_tokens=16, bytes_per_token_per_layer=4096)


class Drain(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-drain-")))
        self.token = folder / "token"
        self.token.write_text(self.kvd.token)
        self.finished = 0

    def kvdctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"{BIN}/kvdctl", "--url", f"http://127.0.0.1:{self.kvd.port}", "--token-file", self.token, *words],
            capture_output=True, text=True, timeout=PATIENCE_S)  # fmt: skip

    def drain(self, *words: str, code: int = 0) -> str:
        done = self.kvdctl("drain", *words)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def engine(self) -> Client:
        return self.enterContext(Client(self.kvd.endpoint, shape=SHAPE, engine_name="python"))

    def number_of(self, name: str) -> str:
        found = [str(engine["id"]) for engine in self.kvd.engines() if engine["name"] == name]
        self.assertEqual(len(found), 1, self.kvd.engines())
        return found[0]

    def step(self, client: Client, *reports: Report) -> Step:
        step = client.step(list(reports), finished=self.finished)
        self.finished = step.iteration
        return step

    def begin(self, client: Client, request: int) -> None:
        """Its prompt is computed, and its content told."""
        client.submit(Request(request, prompt_tokens=20, max_new_tokens=40))
        for _ in range(10_000):
            if self.step(client).run:
                break
            client.wait_for_room()
        self.assertTrue(self.step(client, Report(request, 20)).run)

    def ready(self) -> bool:
        try:
            self.kvd.get("/readyz")
        except urllib.error.HTTPError:
            return False
        return True

    def pattern(self, name: str, *more: str) -> subprocess.Popen[str]:
        engine = subprocess.Popen(
            [f"{BIN}/kvd-pattern", "--endpoint", self.kvd.endpoint, "--name", name, "--layers", "8",
             "--deadline", "300", "--json", *more], stdout=subprocess.PIPE, text=True)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        self.assertTrue(poll_until(lambda: self.works(name) or engine.poll() is not None))
        self.assertIsNone(engine.poll(), f"{name} has ended")
        return engine

    def works(self, name: str) -> bool:
        return any(engine["name"] == name and engine["tokens"] > 0 for engine in self.kvd.engines())

    def test_what_runs_goes_on_and_nothing_new_is_taken(self) -> None:
        client = self.engine()
        self.begin(client, 7)
        number = self.number_of("python")
        client.submit(Request(8, prompt_tokens=20, max_new_tokens=4))
        shown = self.drain(number)
        self.assertIn(f"engine {number} 'python': draining", shown)
        with self.assertRaisesRegex(Draining, "another one"):
            client.submit(Request(9, prompt_tokens=20, max_new_tokens=4))
        with self.assertRaises(Draining):
            client.allocate(1)
        step = self.step(client, Report(7, 21))
        self.assertEqual([(h.request, h.reason) for h in step.hold], [(8, HoldReason.DRAINED)])
        self.assertEqual([run.request for run in step.run], [7])
        self.assertIn("draining", self.kvdctl("engines").stdout)
        self.assertTrue(poll_until(lambda: "1 requests or regions left" in self.drain()))
        client.finish(7)
        self.assertIn("drained", self.drain(number, "--wait"))
        self.assertIn("in service", self.drain(number, "--cancel"))
        client.submit(Request(9, prompt_tokens=20, max_new_tokens=4))

    def test_at_the_deadline_what_is_left_ends(self) -> None:
        client = self.engine()
        self.begin(client, 7)
        document = json.loads(self.drain(self.number_of("python"), "--deadline", "0", "--json"))
        drain = next(iter(document["engines"].values()))
        self.assertEqual((drain["state"], drain["left"], drain["deadline_s"]), ("late", 1, 0))
        step = self.step(client, Report(7, 21))
        self.assertEqual(step.run, [])
        self.assertEqual([(h.request, h.reason) for h in step.hold], [(7, HoldReason.DRAINED)])
        self.assertTrue(poll_until(lambda: self.kvd.get("/v1/status")["counters"]["requests_drained"] == 1))

    def test_a_node_takes_no_engines_until_it_is_put_back(self) -> None:
        self.assertTrue(self.ready())
        load = self.pattern("load", "--requests", "4", "--new", "300", "--step-ms", "100")
        shown = self.drain("node", "--deadline", "1", "--wait")
        self.assertIn("node: draining", shown)
        self.assertIn("drained", shown + self.drain())
        self.assertFalse(self.ready())
        out, _ = load.communicate(timeout=PATIENCE_S)
        self.assertEqual(load.returncode, 0, out)
        self.assertEqual(json.loads(out.splitlines()[-1])["drained"], 4)
        with self.assertRaisesRegex(Unavailable, "takes no engines"):
            Client(self.kvd.endpoint, shape=SHAPE)
        self.assertIn("out of service", self.kvdctl("status").stdout)
        self.assertIn("OUT OF SERVICE", self.kvdctl("top", "--once", "--interval", "0.1").stdout)
        self.drain("node", "--cancel")
        self.assertTrue(self.ready())
        again = self.pattern("again", "--requests", "1", "--new", "40", "--step-ms", "20")
        self.assertEqual(again.wait(PATIENCE_S), 0)

    def test_another_engine_does_not_notice(self) -> None:
        out = self.pattern("out", "--requests", "4", "--new", "300", "--step-ms", "100")
        stays = self.pattern("stays", "--requests", "4", "--new", "100", "--step-ms", "20")
        self.drain(self.number_of("out"), "--deadline", "0", "--wait")
        self.assertEqual(stays.wait(PATIENCE_S), 0)
        assert stays.stdout is not None
        summary = json.loads(stays.stdout.read().splitlines()[-1])
        self.assertEqual((summary["requests"], summary["drained"], summary["pattern_errors"]), (4, 0, 0))
        self.assertEqual(out.wait(PATIENCE_S), 0)

    def test_a_wrong_name_is_told(self) -> None:
        self.assertIn("no engine 99", self.drain("99", code=1))
        self.assertIn("neither", self.drain("nobody", code=2))
        self.assertIn("name an engine", self.drain("--cancel", code=2))
        self.assertIn("all are in service", self.drain())


if __name__ == "__main__":
    ctest.main()
