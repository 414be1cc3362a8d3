"""Level 3 for two real vLLM engines on one kvd: each has more requests than room, both park at the same
time in the same DRAM, and no token is computed twice.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable
from typing import Any

import ctest
from kvd_process import KvdProcess
from vllm_process import Bench, largest_difference, on_kvd, scribble_over_dram

SEEDS = (21, 22)  # of the engines' prompts, which share nothing
ROOM = {
    "num_gpu_blocks_override": 16, "max_model_len": 480, "max_num_seqs": 8,
    "disable_log_stats": False,
}  # fmt: skip
# The machine may be busy, and the one that pauses first waits for the other.
PATIENT = {"step_budget_s": 2.0, "load_timeout_s": 300}


def round_of(scheduler: str, pause: bool = True, **options: Any) -> dict[str, Any]:
    """Each round has a salt of its own, so nothing of the round before it is found."""
    engine = {"scheduler_cls": scheduler, **on_kvd({**PATIENT, **options})}
    salt = f"{scheduler} {options}"
    return {"engine": engine, "salt": salt, **({"pause_on": "preempted"} if pause else {})}


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    stock = bench.stock_answers(ROOM, SEEDS)


class TwoEngines(unittest.TestCase):
    def setUp(self) -> None:
        # Each engine has half of the pool for good: 16 MiB of blocks, of which 16 are in use.
        self.kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=32))

    def play(
        self, *rounds: dict[str, Any], at_pause: Callable[[], None] = lambda: None
    ) -> dict[int, list[dict[str, Any]]]:
        """Both engines at a time; where a round pauses, they stand still together, each with requests
        that are parked. The rounds' answers by seed."""
        with contextlib.ExitStack() as stack:
            engines = {
                seed: stack.enter_context(
                    bench.engine(f"engine{seed}", self.kvd.endpoint, engine=ROOM, seed=seed,
                                 extra=PATIENT, each=list(rounds))
                )
                for seed in SEEDS
            }  # fmt: skip
            for each in rounds:
                if "pause_on" in each:
                    for engine in engines.values():
                        engine.wait_for_pause()
                    at_pause()
                    for engine in engines.values():
                        engine.go_on()
            return {seed: engine.answers() for seed, engine in engines.items()}

    def test_both_rotate_and_nothing_is_computed_twice(self) -> None:
        found = self.play(round_of("rotating.Rotating"), round_of("kvd_vllm.KvdScheduler"))
        for seed, rounds in found.items():
            for each in rounds:
                self.assertEqual(each["tokens"], stock[seed]["tokens"], f"seed {seed}")
                difference = largest_difference(each["logprobs"], stock[seed]["logprobs"])
                self.assertLess(difference, 1e-4, f"seed {seed}")
                # vLLM itself counts: each prompt once, and each answer but its last token.
                counts = f"seed {seed}: {each['counters']}"
                self.assertEqual(each["scheduled"], each["needed"], counts)
                self.assertGreaterEqual(each["counters"]["kvd_parked_requests"], 2)
                self.assertEqual(each["counters"].get("kvd_recomputed_requests", 0), 0)
            self.assertGreater(rounds[0]["counters"]["num_preemptions"], 50)
            self.assertGreater(stock[seed]["scheduled"], each["needed"], "stock had room for all")

    def test_the_checks_see_what_goes_wrong(self) -> None:
        """The controls: parked blocks are what comes back, and without parking tokens are computed twice."""
        pid = self.kvd.process.pid
        found = self.play(
            round_of("rotating.Rotating"),
            round_of("rotating.Rotating", pause=False, parking=False, prefixes=False),
            at_pause=lambda: scribble_over_dram(pid),
        )  # fmt: skip
        for seed, (scribbled, unparked) in found.items():
            self.assertNotEqual(scribbled["tokens"], stock[seed]["tokens"], f"seed {seed}")
            self.assertEqual(unparked["tokens"], stock[seed]["tokens"], f"seed {seed}")
            self.assertGreater(unparked["scheduled"], unparked["needed"], f"seed {seed}")
            self.assertGreater(unparked["counters"]["kvd_recomputed_requests"], 50)


if __name__ == "__main__":
    ctest.main()
