"""Level 3 on real vLLM processes: more requests than room, and no token is computed twice."""

from __future__ import annotations

import os
import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess
from vllm_process import Bench, largest_difference

# Taken out: kvd refuses variables that it does not know. Nightly: 100.
SEEDS = list(range(1, 1 + int(os.environ.pop("KVD_SEEDS", "5"))))
ROOM = {
    "num_gpu_blocks_override": 16, "max_model_len": 480, "max_num_seqs": 8,
    "disable_log_stats": False,
}  # fmt: skip
KVD = "kvd_vllm.KvdScheduler"


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    with bench.engine("stock", engine=ROOM, seeds=SEEDS) as engine:
        stock = dict(zip(SEEDS, engine.answers(), strict=True))


class Level3(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=32))

    def run_on(
        self, kvd: str, scheduler: str, seeds: list[int], **extra: Any
    ) -> list[dict[str, Any]]:
        """Answers as stock, each seed on an engine of its own."""
        options = {**ROOM, "scheduler_cls": scheduler}
        with bench.engine(scheduler, kvd, engine=options, seeds=seeds,
                          extra={"prefixes": False, "step_budget_s": 2.0, **extra}) as engine:  # fmt: skip
            found = engine.answers()
            self.log = engine.log
        for seed, each in zip(seeds, found, strict=True):
            self.assertEqual(each["tokens"], stock[seed]["tokens"], f"seed {seed}")
            difference = largest_difference(each["logprobs"], stock[seed]["logprobs"])
            self.assertLess(difference, 1e-4, f"seed {seed}")
        return found

    def expect_nothing_twice(self, seeds: list[int], found: list[dict[str, Any]]) -> None:
        """By vLLM's own counts: each prompt and each answer but its last token, once."""
        for seed, each in zip(seeds, found, strict=True):
            self.assertEqual(each["scheduled"], each["needed"], f"seed {seed}")
            self.assertGreater(stock[seed]["scheduled"], each["needed"], "stock had room for all")

    def test_kvd_decides_and_nothing_is_computed_twice(self) -> None:
        for load in ("async", "sync"):
            found = self.run_on(self.kvd.endpoint, KVD, SEEDS, load=load)
            self.expect_nothing_twice(SEEDS, found)

    def test_whom_vllm_preempts_is_parked(self) -> None:
        for load in ("async", "sync"):
            found = self.run_on(self.kvd.endpoint, "rotating.StockOrder", SEEDS[:1], load=load)
            self.expect_nothing_twice(SEEDS[:1], found)
            self.assertGreater(found[0]["counters"]["num_preemptions"], 0)
            self.assertGreater(found[0]["counters"]["kvd_parked_requests"], 0)

    def test_many_rotations_change_no_answer(self) -> None:
        for load in ("async", "sync"):
            found = self.run_on(self.kvd.endpoint, "rotating.Rotating", SEEDS[:1], load=load)
            self.expect_nothing_twice(SEEDS[:1], found)
            self.assertGreater(found[0]["counters"]["num_preemptions"], 50)

    def test_without_kvd_it_is_stock_vllm(self) -> None:
        found = self.run_on("/nonexistent/attach.sock", KVD, SEEDS[:1])
        self.assertEqual(found[0]["scheduled"], stock[SEEDS[0]]["scheduled"])
        self.assertEqual(self.log.count("kvd: no answer, vLLM decides as without it"), 1)

    def test_the_class_that_does_not_fit_is_refused(self) -> None:
        options = {**ROOM, "scheduler_cls": "kvd_vllm.KvdAsyncScheduler"}
        with bench.engine("wrong", self.kvd.endpoint, engine=options) as engine:
            self.assertNotEqual(engine.status(), 0)
        self.assertIn("use --scheduler-cls kvd_vllm.KvdScheduler", engine.log)


if __name__ == "__main__":
    ctest.main()
