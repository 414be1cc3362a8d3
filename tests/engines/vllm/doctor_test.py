"""python -m kvd_vllm doctor: right about a vLLM that fits, and about one that does not."""

from __future__ import annotations

import json
import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess
from vllm_process import Bench

DOCTOR = ["-m", "kvd_vllm", "doctor", "--json"]
# The same, of a vLLM in which something is otherwise.
CHANGED = """
import sys
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.worker import utils
def allocate_kv_cache(kv_cache_config, device, layout): pass
utils.allocate_kv_cache = allocate_kv_cache
del base.KVConnectorBase_V1.get_mem_pool_context
from kvd_vllm import __main__
sys.exit(__main__.main(["doctor", "--json"]))
"""


class Doctor(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.bench = Bench(engines=False)
        cls.addClassCleanup(cls.bench.close)

    def faults(self, printed: str) -> dict[str, str]:
        findings: list[dict[str, Any]] = json.loads(printed)["findings"]
        return {found["what"].split(".")[-1]: found["fault"] for found in findings if found["fault"]}

    def test_finds_nothing_wrong_with_the_pinned_vllm(self) -> None:
        kvd = self.enterContext(KvdProcess())
        run = self.bench.run(DOCTOR, KVD_ENDPOINT=kvd.endpoint)
        self.assertEqual(self.faults(run.stdout), {}, run.stderr)
        self.assertEqual(run.returncode, 0)
        self.assertEqual(self.bench.run(DOCTOR, KVD_ENDPOINT="/nonexistent").returncode, 3)

    def test_finds_what_another_vllm_has_not(self) -> None:
        run = self.bench.run(["-c", CHANGED], KVD_ENDPOINT="/nonexistent")
        self.assertEqual(run.returncode, 1, run.stderr)
        faults = self.faults(run.stdout)
        self.assertEqual(faults["get_mem_pool_context"], "there is no get_mem_pool_context")
        self.assertIn("not (kv_cache_config, device, layout, kernel", faults["allocate_kv_cache"])


if __name__ == "__main__":
    ctest.main()
