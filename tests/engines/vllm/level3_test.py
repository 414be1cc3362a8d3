"""Level 3 on real vLLM processes: more requests than room, and no token is computed twice."""

from __future__ import annotations

import os
import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess
from vllm_process import Bench, largest_difference, on_kvd

# Taken out: kvd refuses variables that it does not know. Nightly: 100.
SEEDS = list(range(1, 1 + int(os.environ.pop("KVD_SEEDS", "2"))))
ROOM = {
    "num_gpu_blocks_override": 16, "max_model_len": 480, "max_num_seqs": 8,
    "disable_log_stats": False,
}  # fmt: skip
KVD = "kvd_vllm.KvdScheduler"


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    stock = bench.stock_answers(ROOM, SEEDS)


class Level3(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=32))

    def run_on(
        self, kvd: str, scheduler: str, seeds: list[int]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Plays each seed on an engine of its own, and compares with stock's answers."""
        options = {"prefixes": False, "step_budget_s": 2.0}  # the machine may be busy
        rounds = [{"seed": seed, "engine": on_kvd(options)} for seed in seeds]
        found = bench.answers(scheduler, rounds, kvd, engine={**ROOM, "scheduler_cls": scheduler})
        pairs = [(one["seed"], each) for one, each in zip(rounds, found, strict=True)]
        for seed, each in pairs:
            self.assertEqual(each["tokens"], stock[seed]["tokens"], f"seed {seed}")
            difference = largest_difference(each["logprobs"], stock[seed]["logprobs"])
            self.assertLess(difference, 1e-4, f"seed {seed}")
        return pairs

    def expect_nothing_twice(self, found: list[tuple[int, dict[str, Any]]]) -> None:
        """vLLM itself counts: each prompt once, and each answer but its last token."""
        for seed, each in found:
            self.assertEqual(each["scheduled"], each["needed"], f"seed {seed}")
            self.assertGreater(stock[seed]["scheduled"], each["needed"], "stock had room for all")

    def test_kvd_decides_and_nothing_is_computed_twice(self) -> None:
        self.expect_nothing_twice(self.run_on(self.kvd.endpoint, KVD, SEEDS))

    def test_whom_vllm_preempts_is_parked(self) -> None:
        found = self.run_on(self.kvd.endpoint, "rotating.StockOrder", SEEDS[:1])
        self.expect_nothing_twice(found)
        for _, each in found:
            self.assertGreater(each["counters"]["num_preemptions"], 0)
            self.assertGreater(each["counters"]["kvd_parked_requests"], 0)

    def test_many_rotations_change_no_answer(self) -> None:
        found = self.run_on(self.kvd.endpoint, "rotating.Rotating", SEEDS[:1])
        self.expect_nothing_twice(found)
        for _, each in found:
            self.assertGreater(each["counters"]["num_preemptions"], 50)

    def test_without_kvd_it_is_stock_vllm(self) -> None:
        ((seed, found),) = self.run_on("/nonexistent/attach.sock", KVD, SEEDS[:1])
        self.assertEqual(found["scheduled"], stock[seed]["scheduled"])
        self.assertEqual(bench.log.count("kvd: no answer, vLLM decides as without it"), 1)

    def test_the_class_that_does_not_fit_is_refused(self) -> None:
        options = {**ROOM, "scheduler_cls": "kvd_vllm.KvdAsyncScheduler"}
        with bench.engine("wrong", self.kvd.endpoint, engine=options) as engine:
            self.assertNotEqual(engine.status(), 0)
        self.assertIn("use --scheduler-cls kvd_vllm.KvdScheduler", engine.log)


if __name__ == "__main__":
    ctest.main()
