"""Level 2 on real vLLM processes: what one engine computed, the next one finds in kvd."""

from __future__ import annotations

import random
import tempfile
import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until
from vllm_process import Bench, largest_difference, on_kvd, scribble_over_dram

SHARED, TAIL, ANSWER = 256, 20, 40
BLOCK = 32  # tokens
HIT = "external_prefix_cache_hits"
PATIENT = {"step_budget_s": 2.0}  # the machine may be busy
STATS = {"disable_log_stats": False}


def prompts(tails: int, seed: int) -> list[list[int]]:
    """Prompts whose first 256 tokens are the same, for every seed."""
    shared, own = random.Random(7), random.Random(seed)
    head = [shared.randrange(3, 2048) for _ in range(SHARED)]
    return [head + [own.randrange(3, 2048) for _ in range(TAIL)] for _ in range(tails)]


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    with bench.engine("stock", prompts=prompts(1, 2), answer=ANSWER) as engine:
        stock = engine.answers()[0]


class Level2(unittest.TestCase):
    def kvd(self, bandwidth: str = "unlimited", extra: str = "") -> KvdProcess:
        kvd = KvdProcess(slabs=16, dram_slabs=32, bandwidth=bandwidth, extra=extra)
        return self.enterContext(kvd)

    def fill(self, kvd: KvdProcess, fresh: bool = False) -> None:
        """An engine computes the prefix, and exits."""
        with bench.engine("fill", kvd.endpoint, fresh=fresh, prompts=prompts(1, 1), answer=8) as engine:
            engine.answers()

    def find(self, kvd: KvdProcess, *rounds: dict[str, Any]) -> list[dict[str, Any]]:
        """Another engine with the same prefix, started once for each round."""
        with bench.engine("find", kvd.endpoint, engine=STATS, extra=PATIENT, each=list(rounds),
                          prompts=prompts(1, 2), answer=ANSWER) as engine:  # fmt: skip
            return engine.answers()

    def expect_hit(self, found: dict[str, Any], tokens: int = SHARED) -> None:
        self.assertEqual(found["counters"][HIT], tokens)
        self.assertEqual(found["scheduled"], found["needed"] - tokens)

    def test_the_next_engine_finds_the_prefix(self) -> None:
        kvd = self.kvd()
        self.fill(kvd, fresh=True)  # its hashes have a seed of their own
        bounded = {"arguments": {"kv_transfer_params": {"max_load_tokens": 100}}}
        found = self.find(kvd, {"engine": on_kvd(PATIENT)}, {"salt": "other"}, bounded)
        # Within an engine the answer of the earlier request is found as well, but never under another salt.
        for each, tokens in zip(found, (SHARED, 0, 96), strict=True):
            self.expect_hit(each, tokens)
            self.assertEqual(each["tokens"], stock["tokens"])
            self.assertLess(largest_difference(each["logprobs"], stock["logprobs"]), 1e-4)

    def test_a_copy_that_was_corrupted_answers_otherwise(self) -> None:
        """The control of the test above: were the KV computed, this would change nothing."""
        kvd = self.kvd()
        self.fill(kvd)
        scribble_over_dram(kvd.process.pid)
        (found,) = self.find(kvd, {})
        self.expect_hit(found)
        self.assertNotEqual(found["tokens"], stock["tokens"])

    def test_the_disk_has_the_prefix_when_kvds_memory_is_gone(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-test-"))
        disk = f'[disk]\npath = "{folder}"\nsize = "64MiB"\nfloor = "0"\ntouches = 1\n'
        kvd = self.kvd(extra=disk)
        self.fill(kvd)

        def is_written() -> bool:
            """What cached_bytes counts on disk may still be on its way there."""
            return bool(kvd.get("/v1/cache")["disk"]["stores"] >= SHARED // BLOCK)

        self.assertTrue(poll_until(is_written), kvd.get("/v1/cache"))
        kvd.kill()
        kvd.start()  # without a holder: DRAM is gone, and empty
        (found,) = self.find(kvd, {})
        self.expect_hit(found)
        self.assertEqual(found["tokens"], stock["tokens"])
        self.assertLess(largest_difference(found["logprobs"], stock["logprobs"]), 1e-4)
        self.assertGreater(kvd.get("/v1/cache")["disk"]["loads"], 0)

    def test_kvd_killed_while_it_loads_costs_the_load_alone(self) -> None:
        kvd = self.kvd(bandwidth="2MiB/s")
        self.fill(kvd)
        with bench.engine("orphan", kvd.endpoint, engine=STATS, extra=PATIENT,
                          prompts=prompts(2, 2), answer=ANSWER, pause_on="load") as engine:  # fmt: skip
            engine.wait_for_pause()
            kvd.kill()
            engine.go_on()
            found = engine.answers()[0]
        self.assertEqual(found["tokens"][0], stock["tokens"][0])
        self.assertEqual(len(found["tokens"][1]), ANSWER)
        self.assertGreater(found["counters"]["kvd_failed_blocks"], 0)
        self.assertEqual(engine.log.count("kvd: a copy failed"), 1)


if __name__ == "__main__":
    ctest.main()
