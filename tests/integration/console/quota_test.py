"""`kvdctl quota` beside a real kvd: what it sets is what an engine gets."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import ctest
from kvd_process import PATIENCE_S, SLAB, KvdProcess, poll_until

BIN = os.environ["KVDTEST_BIN_DIR"]


class Quota(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=8, dram_slabs=32))
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-quota-")))
        self.token = folder / "token"
        self.token.write_text(self.kvd.token)

    def kvdctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"{BIN}/kvdctl", "--url", f"http://127.0.0.1:{self.kvd.port}", "--token-file", self.token, "quota", *words],
            capture_output=True, text=True, timeout=PATIENCE_S)  # fmt: skip

    def hbm(self) -> int:
        return sum(int(engine["hbm_bytes"]) for engine in self.kvd.engines())

    def test_an_engine_gets_what_the_quota_lets_it_have(self) -> None:
        done = self.kvdctl("set", f"default.hbm.maximum_bytes={2 * SLAB}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 MiB", done.stdout)
        engine = subprocess.Popen(
            [f"{BIN}/kvd-pattern", "--endpoint", self.kvd.endpoint, "--name", "hungry", "--requests", "64",
             "--prompt", "96", "--new", "300", "--layers", "8", "--step-ms", "10", "--deadline", "600",
             "--ttft-slo-ms", "600000", "--tbt-slo-ms", "60000", "--json"], stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        most = 0

        def has_filled_its_share() -> bool:
            nonlocal most
            most = max(most, self.hbm())
            return most > 1.5 * SLAB

        self.assertTrue(poll_until(has_filled_its_share), f"{most} bytes")
        for _ in range(20):
            has_filled_its_share()
        self.assertLessEqual(most, 2 * SLAB)
        # The control: without a maximum it takes more.
        self.assertEqual(self.kvdctl("set", "default.hbm.maximum_bytes=null").returncode, 0)
        self.assertTrue(poll_until(lambda: self.hbm() > 2 * SLAB), f"{self.hbm()} bytes")

    def test_what_the_pool_has_no_room_for_is_refused_and_changes_nothing(self) -> None:
        before = self.kvd.get("/v1/quotas")
        refused = self.kvdctl("set", f"default.dram.guarantee_bytes={33 * SLAB}")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("domains", refused.stderr)
        self.assertEqual(self.kvdctl("set", "other.dram.maximum_bytes=1").returncode, 1)
        self.assertEqual(self.kvd.get("/v1/quotas"), before)


if __name__ == "__main__":
    ctest.main()
