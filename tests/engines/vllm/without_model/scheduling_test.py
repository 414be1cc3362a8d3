"""What kvd's decisions are worth to vLLM's scheduler under overload, in simulated time: goals are held
that stock misses, no answer stands still, nothing is computed twice, and little is moved for it.

KVD_SEED plays one seed. Figures: print them with -v; those of a model are deploy/bench-vllm.sh's.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import unittest
from pathlib import Path

import ctest
from kvd_process import KvdProcess
from model_free import write_config
from timed import GPU, LARGE, SMALL, Seen, Setup, TimedRig

# Taken out: kvd refuses variables that it does not know.
SEEDS = [int(each) for each in os.environ.pop("KVD_SEED", "1 2 3 4 5").split()]
REQUESTS = 60


class Scheduling(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-scheduling-"))
        cls.model = write_config(Path(folder))
        cls.kvd = cls.enterClassContext(KvdProcess(slabs=64, dram_slabs=16))

    def play(self, setup: Setup, rate: float, on_kvd: bool) -> list[Seen]:
        found = []
        for seed in SEEDS:
            rig = TimedRig(self.kvd.endpoint, self.model, on_kvd, seed, setup)
            try:
                found.append(rig.play(rate, seed, REQUESTS))
            finally:
                rig.close()
            print(f"seed {seed}, {rate} a second, {'kvd' if on_kvd else 'stock'}: {found[-1]}")
        return found

    def compare(self, setup: Setup, rate: float) -> tuple[Seen, Seen]:
        """Means of stock and of kvd."""
        both = []
        for on_kvd in (False, True):
            found = self.play(setup, rate, on_kvd)
            both.append(Seen(*(statistics.mean(each) for each in zip(*found, strict=True))))
        stock, kvd = both
        print(f"stock {stock}\nkvd   {kvd}", flush=True)
        self.assertEqual(kvd.recomputed, 1.0)
        return stock, kvd

    def assert_nobody_stands_still(self, stock: Seen, kvd: Seen) -> None:
        self.assertLessEqual(kvd.long_gaps, 0.01)
        self.assertLessEqual(kvd.longest_gap, 1.5 * stock.longest_gap)
        self.assertLessEqual(kvd.p99_ttft, 1.25 * stock.p99_ttft)

    def test_below_the_knee_it_is_stock(self) -> None:
        stock, kvd = self.compare(LARGE, 1.45)
        self.assertGreaterEqual(kvd.joint, stock.joint - 0.02)
        self.assertGreaterEqual(kvd.joint_paced, stock.joint_paced - 0.02)
        self.assertLess(kvd.preemptions, 10)
        self.assertEqual(kvd.long_gaps, 0)

    def test_a_little_above_it_goals_are_held(self) -> None:
        stock, kvd = self.compare(LARGE, 2.16)
        self.assertGreaterEqual(kvd.joint, 0.95)
        self.assertGreaterEqual(kvd.joint_paced, 0.90)
        self.assertGreaterEqual(kvd.tokens_per_s, stock.tokens_per_s)
        self.assertGreaterEqual(kvd.joint_gaps, 0.95)
        self.assert_nobody_stands_still(stock, kvd)

    def test_without_goals_it_takes_those_that_the_engine_can_meet(self) -> None:
        stock, kvd = self.compare(LARGE._replace(told=False), 2.16)
        self.assertGreaterEqual(kvd.joint_gaps, 0.90)
        self.assert_nobody_stands_still(stock, kvd)

    def test_on_a_fast_engine_nobody_pays_for_goals_that_nobody_notices(self) -> None:
        stock, kvd = self.compare(GPU, 8.0)
        self.assertGreaterEqual(kvd.joint_gaps, stock.joint_gaps + 0.3)
        self.assertLessEqual(kvd.p99_ttft, stock.p99_ttft)
        self.assertGreaterEqual(kvd.tokens_per_s, 0.94 * stock.tokens_per_s)
        self.assertEqual(kvd.long_gaps, 0)

    def test_far_above_it_most_are(self) -> None:
        stock, kvd = self.compare(LARGE, 2.7)
        self.assertGreaterEqual(kvd.joint, 0.80)
        self.assertGreaterEqual(kvd.mean_gap, 0.97)
        self.assertGreaterEqual(kvd.tokens_per_s, stock.tokens_per_s)
        self.assertLess(kvd.preemptions, 2 * REQUESTS)
        self.assertGreaterEqual(kvd.joint_gaps, 0.80)
        self.assert_nobody_stands_still(stock, kvd)

    def test_where_memory_binds_long_before_computing_turns_do_not_get_ever_shorter(self) -> None:
        stock, kvd = self.compare(SMALL, 9.0)
        self.assertGreater(kvd.joint, stock.joint + 0.2)
        self.assertGreaterEqual(kvd.mean_gap, 0.95)
        self.assertGreater(kvd.tokens_per_s, 0.95 * stock.tokens_per_s)
        self.assertLess(kvd.preemptions, 2 * REQUESTS)
        self.assertEqual(kvd.long_gaps, 0)


if __name__ == "__main__":
    ctest.main()
