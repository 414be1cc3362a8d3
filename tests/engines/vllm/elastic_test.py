"""Two real vLLM engines share a pool that holds 1.3 of the most that one may have: a burst on one takes
what the other does not use, the other gets its share as soon as it needs it, and at the end both have
given back all but what they keep. No token differs from an untouched vLLM's.
"""

from __future__ import annotations

import os
import random
import unittest
from typing import Any, NamedTuple

import ctest
from kvd_process import SLAB, KvdProcess, poll_until, pool_bytes_mapped, pool_ranges
from soak_test import MARGIN, PATIENCE_S, Server, next_line
from vllm_process import Bench

# A block of the tiny model is 64 KiB in each of 4 layers, so 32 blocks are a slab of each.
CHUNK = 4 * SLAB
MOST, SLABS = 8 * CHUNK, 42
POOL = SLABS * SLAB
REQUESTS, PROMPT, ANSWER = 12, 400, 200  # an engine's burst takes 228 of its 256 blocks
ROOM = {
    "kv_cache_memory_bytes": MOST, "max_model_len": 640, "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
}  # fmt: skip
# Each engine takes some seconds to start, so some of them run nightly only.
nightly = unittest.skipUnless(os.environ.get("KVD_TEST_ALL_ENGINES"), "KVD_TEST_ALL_ENGINES is not set")
# The machine may be busy.
PATIENT = {"required": True, "step_budget_s": 2.0, "load_timeout_s": 300, "timeout_s": 5}
KVD = {"scheduler_cls": "kvd_vllm.KvdScheduler"}


class Asked(NamedTuple):
    """A prompt, and of stock's answer the tokens before the first that was not clear."""

    prompt: list[int]
    answer: list[int]


def stocks_answers(bench: Bench) -> list[Asked]:
    source = random.Random(31)
    prompts = [[source.randrange(3, 2048) for _ in range(PROMPT)] for _ in range(2 * REQUESTS)]
    found: dict[int, Asked] = {}
    with Server(bench, "stock", None, ROOM) as stock:
        next_line(stock, PATIENCE_S)  # it is ready
        for number, prompt in enumerate(prompts):
            stock.ask({"name": str(number), "prompt": prompt, "answer": ANSWER, "margins": True})
        for _ in prompts:
            answer = next_line(stock, PATIENCE_S)
            number, clear = int(answer["name"]), [each > MARGIN for each in answer["margins"]]
            count = clear.index(False) if False in clear else ANSWER
            found[number] = Asked(prompts[number], answer["tokens"][:count])
        stock.end()
    return [found[number] for number in range(len(prompts))]


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    stock = stocks_answers(bench)


class TwoEngines(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=SLABS, dram_slabs=64))

    def engine(self, name: str, engine: dict[str, Any], **extra: Any) -> Server:
        options = {**PATIENT, "elastic": True, **extra}
        server = Server(bench, name, self.kvd.endpoint, {**ROOM, **engine}, options)
        return self.enterContext(server)

    def bytes_of(self, server: Server) -> int:
        return self.kvd.bytes_served_to(server.process.pid)

    def burst(self, server: Server, numbers: range) -> None:
        for number in numbers:
            server.ask({"name": str(number), "prompt": stock[number].prompt, "answer": ANSWER})

    def answers(self, server: Server, count: int) -> dict[int, list[int]]:
        lines = [next_line(server, PATIENCE_S) for _ in range(count)]
        return {int(line["name"]): line["tokens"] for line in lines}

    def differing(self, found: dict[int, list[int]]) -> list[int]:
        """Requests whose answer is not stock's, as far as that was clear."""
        return [
            number for number, tokens in found.items()
            if tokens[: len(stock[number].answer)] != stock[number].answer
        ]  # fmt: skip

    def comes_to_keep(self, server: Server, kept: int) -> None:
        """The counts are kvd's and the kernel's."""
        pid = server.process.pid
        self.assertTrue(poll_until(lambda: self.bytes_of(server) == kept), self.bytes_of(server))
        self.assertEqual(pool_bytes_mapped(pid), kept)

    def lend_and_return(self, engine: dict[str, Any]) -> None:
        one, two = self.engine("one", engine), self.engine("two", engine, elastic_kept_bytes=CHUNK + 1)
        for server, kept in ((one, CHUNK), (two, 2 * CHUNK)):
            next_line(server, PATIENCE_S)  # it is ready
            self.comes_to_keep(server, kept)
        self.burst(one, range(REQUESTS))
        self.assertTrue(poll_until(lambda: self.bytes_of(one) > POOL // 2), self.bytes_of(one))
        self.assertEqual(self.bytes_of(two), 2 * CHUNK, "it was idle")
        self.burst(two, range(REQUESTS, 2 * REQUESTS))
        share = POOL // 2 - CHUNK  # in whole chunks
        self.assertTrue(poll_until(lambda: self.bytes_of(two) >= share), self.bytes_of(two))
        print(f"{one.lines.qsize()} of {REQUESTS} answers were complete", flush=True)
        self.was_early = one.lines.qsize() < REQUESTS
        found = {**self.answers(one, REQUESTS), **self.answers(two, REQUESTS)}
        self.assertEqual(self.differing(found), [])
        self.comes_to_keep(one, CHUNK)
        self.comes_to_keep(two, 2 * CHUNK)
        self.burst(one, range(1))  # what was given back comes again
        self.assertEqual(self.differing(self.answers(one, 1)), [])
        for server in (one, two):
            server.end()
        self.assertTrue(self.kvd.all_returned())

    def test_stocks_answers_are_worth_comparing(self) -> None:
        self.assertGreater(sum(len(each.answer) for each in stock), 2 * REQUESTS * ANSWER // 3)

    def test_lend_each_other_what_they_do_not_use(self) -> None:
        self.lend_and_return(KVD)
        self.assertTrue(self.was_early, "the second one waited until the first had ended")

    @nightly
    def test_under_vllms_own_scheduler_wait_for_requests_to_end(self) -> None:
        self.lend_and_return({"enable_prefix_caching": True})

    @nightly
    def test_without_kvd_an_engine_answers_with_what_it_has(self) -> None:
        one = self.engine("one", KVD)
        next_line(one, PATIENCE_S)
        self.burst(one, range(REQUESTS))
        self.assertTrue(poll_until(lambda: self.bytes_of(one) >= 3 * CHUNK), self.bytes_of(one))
        self.kvd.kill()
        self.assertEqual(self.differing(self.answers(one, REQUESTS)), [])
        self.burst(one, range(2))
        self.assertEqual(self.differing(self.answers(one, 2)), [])
        one.end()

    @nightly
    def test_without_kvd_a_small_one_gets_memory_of_its_own(self) -> None:
        one = self.engine("one", KVD)
        next_line(one, PATIENCE_S)
        self.comes_to_keep(one, CHUNK)
        self.kvd.kill()
        self.burst(one, range(REQUESTS))
        self.assertEqual(self.differing(self.answers(one, REQUESTS)), [])
        one.end()

    @nightly
    def test_without_a_kvd_and_with_too_few_chunks_it_is_as_large_as_asked_for(self) -> None:
        small = {**ROOM, "kv_cache_memory_bytes": 2 * CHUNK}
        for name, endpoint, room, said in (
            ("absent", "/nonexistent/attach.sock", ROOM, "not used, the KV cache is vLLM's own"),
            ("small", self.kvd.endpoint, small, "not elastic: its 64 blocks are no 4 chunks"),
        ):
            with bench.engine(name, endpoint, {"elastic": True, "timeout_s": 5}, engine=room,
                              prompts=[each.prompt for each in stock[:2]], answer=ANSWER) as engine:  # fmt: skip
                tokens = engine.answers()[0]["tokens"]
            self.assertEqual(self.differing(dict(enumerate(tokens))), [])
            self.assertEqual(engine.log.count(said), 1)

    def test_the_checks_see_what_goes_wrong(self) -> None:
        """The controls: an engine that is not elastic has no room beside another; and memory that is
        not what was written there makes other answers."""
        one = self.engine("one", KVD)
        next_line(one, PATIENCE_S)
        whole = self.engine("whole", KVD, elastic=False)
        next_line(whole, PATIENCE_S)
        self.assertEqual(self.bytes_of(whole), MOST)
        refused = self.engine("refused", KVD, elastic=False)
        self.assertNotEqual(refused.process.wait(PATIENCE_S), 0)
        self.assertIn("KvdRequired", refused.log)
        self.burst(one, range(REQUESTS))
        self.assertTrue(poll_until(lambda: self.bytes_of(one) > CHUNK), self.bytes_of(one))
        with open(f"/proc/{one.process.pid}/mem", "wb", buffering=0) as memory:
            for begin, end in pool_ranges(one.process.pid):
                memory.seek(begin)
                memory.write(bytes(end - begin))
        self.assertNotEqual(self.differing(self.answers(one, REQUESTS)), [])


if __name__ == "__main__":
    ctest.main()
