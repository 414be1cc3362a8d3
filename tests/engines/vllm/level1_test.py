"""Level 1 on real vLLM processes: the KV cache lies in kvd's pool, and no answer differs by a bit."""

from __future__ import annotations

import signal
import unittest

import ctest
from kvd_process import KvdProcess, pool_bytes_mapped, pool_ranges
from vllm_process import Bench, Engine

CACHE = 16 << 20
HALF_WAY = 64
IN_THE_POOL = "lies in kvd's pool"
NOT_IN_THE_POOL = "kvd: not used, the KV cache is vLLM's own memory"


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    with bench.engine("stock") as one, bench.engine("stock2", seed=2) as two:
        stock = {1: one.answers()[0], 2: two.answers()[0]}


def zero_pool_of(pid: int) -> None:
    """From outside, as nothing in the process would."""
    with open(f"/proc/{pid}/mem", "wb", buffering=0) as memory:
        for begin, end in pool_ranges(pid):
            memory.seek(begin)
            memory.write(bytes(end - begin))


class Level1(unittest.TestCase):
    def kvd(self, slabs: int = 16) -> KvdProcess:
        return self.enterContext(KvdProcess(slabs=slabs, dram_slabs=2))

    def test_stock_answers_are_worth_comparing(self) -> None:
        for answers in stock.values():
            for tokens in answers["tokens"]:
                self.assertGreater(len(set(tokens)), 100)
        self.assertNotEqual(stock[1], stock[2])

    def test_two_engines_on_one_pool_answer_as_stock(self) -> None:
        """One of these engines is a Python process of its own from beginning to end."""
        kvd = self.kvd()
        with bench.engine("a", kvd.endpoint, pause_at=HALF_WAY) as a, \
                bench.engine("b", kvd.endpoint, fresh=True, pause_at=HALF_WAY, seed=2) as b:  # fmt: skip
            self.expect_served(kvd, a)
            self.expect_served(kvd, b)
            a.go_on()
            b.go_on()
            self.assertEqual(a.answers(), [stock[1]])
            self.assertEqual(b.answers(), [stock[2]])
            self.assertEqual(a.log.count(IN_THE_POOL), 1)
        self.assertTrue(kvd.all_returned())

    def test_an_engine_whose_pool_is_zeroed_from_outside_answers_otherwise(self) -> None:
        """The control of the test above: were the KV elsewhere, this would change nothing."""
        kvd = self.kvd()
        with bench.engine("zeroed", kvd.endpoint, pause_at=HALF_WAY) as engine:
            engine.wait_for_pause()
            zero_pool_of(engine.pid)
            engine.go_on()
            self.assertNotEqual(engine.answers()[0]["tokens"], stock[1]["tokens"])

    def test_a_killed_engine_gives_its_slabs_back(self) -> None:
        kvd = self.kvd()
        with bench.engine("killed", kvd.endpoint, pause_at=HALF_WAY) as engine:
            self.expect_served(kvd, engine)
            engine.process.send_signal(signal.SIGKILL)
            self.assertEqual(engine.status(), -signal.SIGKILL)
        self.assertTrue(kvd.all_returned())
        # The worker's session and the scheduler's, which were one process.
        self.assertEqual(kvd.get("/v1/status")["counters"]["engines_died"], 2)

    def test_an_engine_outlives_its_daemon(self) -> None:
        kvd = self.kvd()
        with bench.engine("widowed", kvd.endpoint, pause_at=HALF_WAY) as engine:
            engine.wait_for_pause()
            kvd.kill()
            engine.go_on()
            self.assertEqual(engine.answers(), [stock[1]])

    def test_engines_of_one_process_take_turns(self) -> None:
        """The pool has room for one engine: the second one's memory is what the first gave back."""
        kvd = self.kvd(slabs=8)
        with bench.engine("turns", kvd.endpoint, extra={"required": True}, rounds=2) as engine:
            self.assertEqual(engine.answers(), [stock[1], stock[1]])

    def test_with_prefix_caching_answers_as_stock(self) -> None:
        """A second round of the same prompts would find whatever an engine left behind. It finds nothing."""
        kvd = self.kvd()
        options = {"enable_prefix_caching": True}
        with bench.engine("prefix", kvd.endpoint, engine=options) as engine:
            self.assertEqual(engine.answers()[0]["tokens"], stock[1]["tokens"])

    def expect_served(self, kvd: KvdProcess, engine: Engine) -> None:
        """Every KV tensor lies in kvd's mappings, and the kernel counts as many bytes of them as the daemon."""
        tensors = engine.wait_for_pause()
        self.assertGreaterEqual(len(tensors), 4)
        begin, end = pool_ranges(engine.pid)[0][0], pool_ranges(engine.pid)[-1][1]
        for at, size in tensors:
            self.assertGreater(size, 0)
            self.assertTrue(begin <= at and at + size <= end)
        self.assertEqual(pool_bytes_mapped(engine.pid), CACHE)
        self.assertTrue(kvd.comes_to_serve(engine.pid, CACHE))


class FailOpen(unittest.TestCase):
    def test_without_a_daemon_the_engine_is_stock_and_says_so_once(self) -> None:
        with bench.engine("absent", "/nonexistent/attach.sock") as engine:
            self.assertEqual(engine.answers(), [stock[1]])
        self.assertEqual(engine.log.count(NOT_IN_THE_POOL), 1)
        self.assertIn("start it or set KVD_ENDPOINT", engine.log)

    def test_a_pool_that_is_too_small_is_told_with_what_helps(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=4, dram_slabs=2))
        with bench.engine("small", kvd.endpoint) as engine:
            self.assertEqual(engine.answers(), [stock[1]])
        self.assertEqual(engine.log.count(NOT_IN_THE_POOL), 1)
        self.assertIn("pool.hbm", engine.log)
        self.assertIn("--kv-cache-memory-bytes", engine.log)
        self.assertTrue(kvd.all_returned())

    def test_an_engine_that_requires_kvd_does_not_start_without(self) -> None:
        with bench.engine("required", "/nonexistent", extra={"required": True}) as engine:
            self.assertNotEqual(engine.status(), 0)
        self.assertIn("KvdRequired: kvd: Unavailable: no kvd listens at /nonexistent", engine.log)
        self.assertIn("without it vLLM runs on memory of its own", engine.log)

    def test_an_option_that_does_not_exist_is_refused(self) -> None:
        with bench.engine("slip", "/nonexistent", extra={"require": True}) as engine:
            self.assertNotEqual(engine.status(), 0)
        self.assertIn("KvdConnector has no require; it has endpoint, ", engine.log)


if __name__ == "__main__":
    ctest.main()
