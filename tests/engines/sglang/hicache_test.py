"""A real SGLang finds its pages in kvd once it has forgotten them itself."""

from __future__ import annotations

import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until
from sglang_process import FOUND, PAGE, Bench, on_kvd, prompt, stored
from vllm_process import scribble_over_dram


def setUpModule() -> None:
    global bench, kvd, engine
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    kvd = unittest.enterModuleContext(KvdProcess(slabs=16, dram_slabs=64))
    engine = unittest.enterModuleContext(bench.engine("engine", kvd.endpoint, **on_kvd(window_bytes=4 << 20)))


class HiCache(unittest.TestCase):
    """Each test has a prompt of its own."""

    def again(self, prompt: list[int], **more: Any) -> dict[str, Any]:
        """The answer of an engine that has nothing of its own."""
        engine.tell(flush=True)
        return engine.ask([prompt], **more)

    def fill(self, prompt: list[int], **more: Any) -> list[int]:
        """What the engine answers once kvd has the pages."""
        before = stored(kvd)
        first = engine.ask([prompt], **more)
        self.assertEqual(first["cached"], [0])
        self.assertTrue(poll_until(lambda: stored(kvd) >= before + FOUND // PAGE))
        tokens: list[int] = first["tokens"]
        return tokens

    def test_finds_the_prompt_and_answers_the_same(self) -> None:
        tokens = self.fill(prompt(1))
        found = self.again(prompt(1))
        self.assertEqual(found["cached"], [FOUND])
        self.assertEqual(found["tokens"], tokens)

    def test_answers_otherwise_where_the_pages_were_corrupted(self) -> None:
        """The control of the test above: were the KV computed, this would change nothing."""
        tokens = self.fill(prompt(2))
        scribble_over_dram(kvd.process.pid)
        found = self.again(prompt(2))
        self.assertEqual(found["cached"], [FOUND])
        self.assertNotEqual(found["tokens"], tokens)

    def test_shares_nothing_between_extra_keys_and_salts(self) -> None:
        self.fill(prompt(3), extra_key="a")
        for more in ({}, {"extra_key": "b"}, {"salt": "a"}, {"extra_key": "a", "salt": "a"}):
            with self.subTest(**more):
                self.assertEqual(self.again(prompt(3), **more)["cached"], [0])
        self.assertEqual(self.again(prompt(3), extra_key="a")["cached"], [FOUND])

    def test_goes_on_while_kvd_is_killed_and_comes_back(self) -> None:
        tokens = self.fill(prompt(4))
        kvd.kill()
        without = self.again(prompt(4))
        self.assertEqual((without["cached"], without["tokens"]), ([0], tokens))
        kvd.start()
        self.assertTrue(poll_until(lambda: kvd.get("/v1/status")["engines"] == 1))
        engine.tell(flush=True)
        self.assertEqual(self.fill(prompt(4)), tokens)
        found = self.again(prompt(4))
        self.assertEqual((found["cached"], found["tokens"]), ([FOUND], tokens))
        self.assertEqual(engine.log.count("kvd: no answer"), 1)


if __name__ == "__main__":
    ctest.main()
