"""Two workers of one model, on real vLLM processes: tensor parallel, and stages of a pipeline. What one engine
computed the next one finds and parks, all ranks of it or none, and a worker that is killed costs its engine.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until
from vllm_process import SIGN_FLIPPED, Bench, Engine, largest_difference

import kvd_client

SHARED, TAIL, ANSWER, PROMPTS, BLOCK = 256, 20, 40, 3, 32  # tokens, but for PROMPTS
FOUND = SHARED // BLOCK
BYTES = 4 * 2 * 2 * 64 * BLOCK * 4  # half of a block: of each layer half of the heads, or all heads of half of them
TENSOR = {"tensor_parallel_size": 2}
PIPELINE = {"pipeline_parallel_size": 2, "worker_cls": "rotating.StagedWorker"}
ROTATING = {"scheduler_cls": "rotating.Rotating", "disable_log_stats": False}
PATIENT = {"step_budget_s": 2.0}  # the machine may be busy


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts whose first 256 tokens are the same, for every seed."""
    shared, own = random.Random(7), random.Random(seed)
    head = [shared.randrange(3, 2048) for _ in range(SHARED)]
    return [head + [own.randrange(3, 2048) for _ in range(TAIL)] for _ in range(count)]


def caches_in(engine: Engine) -> list[str]:
    """The names of the caches of its workers, in the order in which they began."""
    return re.findall(r"kvd: blocks are those of (.+)", engine.log)


def change_in_one_rank(kvd: KvdProcess, engine: Engine, is_kept: bool) -> None:
    """Takes the prefix away from the cache of one of its workers, or stores other bytes there under its names."""
    digests = engine.names[:FOUND]
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(kvd_client.Client(kvd.endpoint))
        region = client.allocate(FOUND * BYTES)
        cache = client.cache(
            caches_in(engine)[-1], block_tokens=BLOCK, block_bytes=BYTES, region=region, blocks=FOUND,
            pieces=[kvd_client.Piece(0, BYTES, BYTES)],
        )  # fmt: skip
        done = [kvd_client.TicketState.DONE]
        assert cache.wait([cache.load(digests, range(FOUND))]) == done
        cache.drop(digests)
        if is_kept:
            content = region.view()
            content[3 : FOUND * BYTES : 4] = bytes(content[3 : FOUND * BYTES : 4]).translate(SIGN_FLIPPED)
            assert cache.wait([cache.store(digests, range(FOUND))]) == done


class TwoWorkers(unittest.TestCase):
    """One story, as an engine of several workers takes long to begin."""

    @classmethod
    def setUpClass(cls) -> None:
        bench = Bench()
        cls.addClassCleanup(bench.close)
        cls.kvd = cls.enterClassContext(KvdProcess(slabs=32, dram_slabs=32))
        with bench.engine("stock", prompts=prompts(PROMPTS, 2), answer=ANSWER) as engine:
            cls.stock = engine.answers()[0]
        cls.compute_and_kill_a_worker(bench)
        asked = {"prompts": prompts(PROMPTS, 2), "answer": ANSWER, "extra": PATIENT, "pause_at": 1}
        tensor, pipeline = {"engine": {**TENSOR, **ROTATING}}, {"engine": {**PIPELINE, **ROTATING}}
        same = {"same": True}
        with bench.engine("find", cls.kvd.endpoint, fresh=True, **asked,
                          each=[tensor, same, same, pipeline, same]) as engine:  # fmt: skip
            for is_kept in (True, False, None, True, None):
                engine.wait_for_pause()
                if is_kept is not None:
                    change_in_one_rank(cls.kvd, engine, is_kept)
                engine.go_on()
            cls.found = engine.answers()
            cls.log = engine.log

    @classmethod
    def compute_and_kill_a_worker(cls, bench: Bench) -> None:
        """An engine computes the prefix, with either kind of workers. Then one of the workers is killed during a load.
        """
        rounds = [{"engine": PIPELINE}, {"engine": TENSOR}, {"same": True, "pause_on": "load"}]
        with bench.engine("fill", cls.kvd.endpoint, fresh=True, extra=PATIENT, prompts=prompts(1, 1), answer=8,
                          each=rounds) as engine:  # fmt: skip
            engine.wait_for_pause()
            os.kill(cls.workers()[-1], signal.SIGKILL)
            engine.go_on()
            cls.fault = engine.status()
        cls.is_back = poll_until(lambda: not cls.workers())

    @classmethod
    def workers(cls) -> list[int]:
        """The processes that have memory of kvd's."""
        return [each["pid"] for each in cls.kvd.get("/v1/engines")["engines"] if each["region_bytes"] > 0]

    def expect_stock(self, found: dict[str, Any], hits: int) -> None:
        self.assertEqual(found["tokens"], self.stock["tokens"])
        self.assertLess(largest_difference(found["logprobs"], self.stock["logprobs"]), 1e-3)
        self.assertEqual(found["scheduled"], found["needed"] - PROMPTS * hits)

    def test_the_next_engine_finds_the_prefix_and_parks(self) -> None:
        for kind, found in (("tensor", self.found[0]), ("pipeline", self.found[3])):
            with self.subTest(kind):
                self.expect_stock(found, SHARED)
                self.assertGreaterEqual(found["counters"]["kvd_parked_requests"], 5)
                self.assertEqual(found["counters"].get("kvd_recomputed_requests", 0), 0)
                self.assertEqual(found["counters"].get("kvd_failed_blocks", 0), 0)

    def test_what_one_rank_has_lost_is_computed(self) -> None:
        self.expect_stock(self.found[2], 0)

    def test_what_is_wrong_in_one_rank_is_seen(self) -> None:
        """The control: each rank computes with the blocks that are found."""
        for kind, found in (("tensor", self.found[1]), ("pipeline", self.found[4])):
            self.assertNotEqual(found["tokens"], self.stock["tokens"], kind)
            self.assertEqual(found["scheduled"], found["needed"] - PROMPTS * SHARED)

    def test_each_rank_has_a_cache_of_its_own(self) -> None:
        self.assertEqual(len(set(re.findall(r"kvd: blocks are those of (.+)", self.log))), 4)

    def test_a_worker_that_is_killed_costs_its_engine_alone(self) -> None:
        self.assertNotEqual(self.fault, 0)
        self.assertTrue(self.is_back, "the other worker's memory is kept")


if __name__ == "__main__":
    ctest.main()
