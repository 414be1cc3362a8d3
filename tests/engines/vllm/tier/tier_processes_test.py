"""kvd below the CPU tier of real vLLM processes, whose copies to and from that tier a test makes: what one
engine computed, the next one finds in kvd."""

from __future__ import annotations

import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess
from level2_test import ANSWER, HIT, SHARED, STATS, prompts
from vllm_process import Bench, largest_difference, scribble_over_dram


def below(kvd: KvdProcess) -> dict[str, Any]:
    """The flag, as an argument of LLM."""
    tier = {"type": "KvdTier", "module_path": "kvd_vllm.tier", "endpoint": kvd.endpoint,
            "copy_timeout_s": 30, "timeout_s": 30, "window_bytes": 4 << 20}  # fmt: skip
    extra = {"spec_name": "HostTiering", "spec_module_path": "tier.host_tier", "cpu_bytes_to_use": 64 << 20,
             "secondary_tiers": [tier]}  # fmt: skip
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {**STATS, "enable_prefix_caching": True, "kv_transfer_config": transfer}


def setUpModule() -> None:
    global bench, stock
    bench = Bench(shape="windows")
    unittest.addModuleCleanup(bench.close)
    with bench.engine("stock", prompts=prompts(1, 2), answer=ANSWER) as engine:
        stock = engine.answers()[0]


class BelowTheCpuTier(unittest.TestCase):
    def test_the_next_engine_finds_the_prefix_and_a_corrupted_one_is_seen(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=32))
        with bench.engine("fill", engine=below(kvd), prompts=prompts(1, 1), answer=8) as engine:
            engine.answers()
        found = self.answer(kvd)
        self.assertEqual(found["counters"][HIT], SHARED)
        self.assertEqual(found["scheduled"], found["needed"] - SHARED)
        self.assertEqual(found["tokens"], stock["tokens"])
        self.assertLess(largest_difference(found["logprobs"], stock["logprobs"]), 1e-4)
        scribble_over_dram(kvd.process.pid)
        self.assertNotEqual(self.answer(kvd)["tokens"], stock["tokens"])

    def answer(self, kvd: KvdProcess) -> dict[str, Any]:
        with bench.engine("find", engine=below(kvd), prompts=prompts(1, 2), answer=ANSWER) as engine:
            found: dict[str, Any] = engine.answers()[0]
        return found


if __name__ == "__main__":
    ctest.main()
