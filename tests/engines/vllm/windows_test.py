"""Levels 1 to 3 on real vLLM processes, with a model of which every other layer has a sliding window:
vLLM keeps its KV cache in two groups, with a block table each.
"""

from __future__ import annotations

import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess
from level2_test import ANSWER, HIT, PATIENT, SHARED, STATS, prompts
from vllm_process import Bench, largest_difference, scribble_over_dram

ROOM = {
    "num_gpu_blocks_override": 20, "max_model_len": 256, "max_num_seqs": 8,
    "disable_log_stats": False,
}  # fmt: skip
UNITED = {"disable_hybrid_kv_cache_manager": True}
SEEDS = [1]


def setUpModule() -> None:
    global bench, stock, crowded
    bench = Bench(shape="windows")
    unittest.addModuleCleanup(bench.close)
    with bench.engine("stock", prompts=prompts(1, 2), answer=ANSWER) as engine:
        stock = engine.answers()[0]
    crowded = bench.stock_answers(ROOM, SEEDS)


class Windows(unittest.TestCase):
    def kvd(self, bandwidth: str = "unlimited") -> KvdProcess:
        return self.enterContext(KvdProcess(slabs=16, dram_slabs=32, bandwidth=bandwidth))

    def fill(self, kvd: KvdProcess, engine: dict[str, Any]) -> None:
        """An engine computes the prefix, and exits."""
        with bench.engine("fill", kvd.endpoint, engine=engine, prompts=prompts(1, 1),
                          answer=8) as filling:  # fmt: skip
            filling.answers()
            self.assertNotIn("kvd: no block is stored or parked", filling.log)

    def find(self, kvd: KvdProcess, engine: dict[str, Any], **given: Any) -> dict[str, Any]:
        """Another engine, which finds the same prefix."""
        with bench.engine("find", kvd.endpoint, engine={**STATS, **engine}, extra=PATIENT,
                          prompts=prompts(1, 2), answer=ANSWER, **given) as finding:  # fmt: skip
            found: dict[str, Any] = finding.answers()[0]
        self.assertEqual(found["counters"][HIT], SHARED)
        self.assertEqual(found["scheduled"], found["needed"] - SHARED)
        return found

    def test_the_next_engine_finds_the_prefix(self) -> None:
        """It works as well where vLLM was told to keep one group, as if every layer looked back at all tokens."""
        for engine in ({}, UNITED):
            kvd = self.kvd()
            self.fill(kvd, engine)
            found = self.find(kvd, engine)
            self.assertEqual(found["tokens"], stock["tokens"])
            self.assertLess(largest_difference(found["logprobs"], stock["logprobs"]), 1e-4)

    def test_what_one_kind_of_engine_stored_is_nothing_to_the_other(self) -> None:
        kvd = self.kvd()
        self.fill(kvd, {})
        with self.assertRaisesRegex(AssertionError, f"0.* != {SHARED}"):
            self.find(kvd, UNITED)

    def test_a_copy_that_was_corrupted_answers_otherwise(self) -> None:
        kvd = self.kvd()
        self.fill(kvd, {})
        scribble_over_dram(kvd.process.pid)
        self.assertNotEqual(self.find(kvd, {})["tokens"], stock["tokens"])

    def test_kvd_killed_while_it_loads_costs_the_load_alone(self) -> None:
        """vLLM is told of requests here, because it refuses to be told of blocks where there are groups."""
        kvd = self.kvd(bandwidth="2MiB/s")
        self.fill(kvd, {})
        with bench.engine("orphan", kvd.endpoint, engine=STATS, extra=PATIENT, prompts=prompts(1, 2),
                          answer=ANSWER, pause_on="load") as engine:  # fmt: skip
            engine.wait_for_pause()
            kvd.kill()
            engine.go_on()
            found = engine.answers()[0]
        self.assertEqual(found["tokens"], stock["tokens"])
        self.assertGreater(found["counters"]["kvd_failed_blocks"], 0)

    def test_more_requests_than_room_and_nothing_is_computed_twice(self) -> None:
        kvd = self.kvd()
        for scheduler, least in (("kvd_vllm.KvdScheduler", 0), ("rotating.Rotating", 50)):
            with bench.engine(scheduler, kvd.endpoint, extra={**PATIENT, "prefixes": False},
                              engine={**ROOM, "scheduler_cls": scheduler},
                              each=[{"seed": seed} for seed in SEEDS]) as engine:  # fmt: skip
                found = dict(zip(SEEDS, engine.answers(), strict=True))
            for seed, each in found.items():
                self.assertEqual(each["tokens"], crowded[seed]["tokens"], f"seed {seed}")
                self.assertEqual(each["scheduled"], each["needed"], f"seed {seed}")
                self.assertGreater(crowded[seed]["scheduled"], each["needed"], "there was room")
                self.assertGreater(each["counters"]["num_preemptions"], least)
                self.assertGreater(each["counters"]["kvd_parked_requests"], 0)


if __name__ == "__main__":
    ctest.main()
