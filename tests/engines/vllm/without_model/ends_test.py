"""Four fifths of HBM are two engines' without a model, a llama.cpp's, and a region's that grows, and kvd is
killed and upgraded under them: each time the same slabs are the same regions again, without a copy, what was
cached is found, and no token is wrong.

KVD_TEST_ENDS says how often.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import tempfile
import threading
import time
import unittest
from pathlib import Path

import ctest
from kvd_process import DEVICE, SLAB, KvdProcess, poll_until
from llama_process import PLUGIN, Llama
from model_free import LAYERS, TOKENS, Rig, write_config
from no_model_test import RandomScheduler, Whims

import kvd_client

ENDS = int(os.environ.get("KVD_TEST_ENDS", "2"))
PAGE, BLOCKS = SLAB // 16, 48
VLLM, LLAMA, GROWN = 2 * BLOCKS * LAYERS * PAGE, 4 * SLAB, 2 * SLAB  # bytes of regions
SLABS = 22  # HBM has these, and lends 18
HEAD = 5 * TOKENS  # a prompt begins with this many tokens that are looked up


def slabs_of(pid: int) -> set[str]:
    """The slabs of HBM that the process maps, by their files."""
    line = re.compile(r"\S+ .w.. \S+ \S+ (\d+) .*/memfd:kvd-hbm")
    found = (line.match(each) for each in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {hit[1] for hit in found if hit}


@unittest.skipIf(DEVICE == "cuda", "HBM of a GPU is not taken over in place")
@unittest.skipUnless(PLUGIN.exists(), "llama.cpp is not installed")
class Ends(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-ends-")))
        self.kvd = self.enterContext(KvdProcess(slabs=SLABS, dram_slabs=512, held=True))
        Whims.kvd_random = random.Random(1)
        model = write_config(folder / "model")
        self.rigs = [
            Rig(self.kvd.endpoint, model, RandomScheduler, seed, blocks=BLOCKS, page=PAGE) for seed in (1, 2)
        ]
        for rig in self.rigs:
            self.addCleanup(rig.close)
        # Few enough for DRAM to have them all: kvd forgets with its life who was used last.
        self.prompts = [self.some_tokens(self.rigs[0], at) for at in range(6, 300, 6)]
        self.under_way: list[set[str]] = [set(), set()]  # by rig: requests that it had while kvd was away
        self.llama = self.enterContext(Llama(self.kvd.endpoint, folder, "--pause-at", "128"))
        self.llama.wait_for_pause()

    def step(self) -> None:
        for rig in self.rigs:
            if rig.random.random() < 0.2 and len(rig.unfinished) < 24:
                prompt = rig.random.choice(self.prompts)
                if rig.random.random() < 0.05:
                    prompt = self.some_tokens(rig, len(prompt))
                rig.add(prompt, rig.random.randrange(2, 60))
            rig.step()

    def some_tokens(self, rig: Rig, count: int) -> list[int]:
        return [rig.random.randrange(3, 1900) for _ in range(count)]

    def is_back(self) -> bool:
        """Everybody has what it had, and nothing else."""
        engines = self.kvd.engines()
        lent = sum(each["region_bytes"] for each in engines)
        return lent == VLLM + LLAMA + GROWN and not any(each["orphaned_bytes"] for each in engines)

    def end(self, number: int) -> float:
        """The seconds until all is back. The engines go on meanwhile."""
        before = [rig.worker._copier._cache._cache for rig in self.rigs]
        first = [set(rig.unfinished) for rig in self.rigs]
        made = [rig.made for rig in self.rigs]
        begun = time.monotonic()
        ender = threading.Thread(target=(self.kvd.kill_held, self.kvd.upgrade_held)[number % 2])
        ender.start()
        while ender.is_alive():
            self.step()
            ender.join(0.01)
        self.assertTrue(poll_until(lambda: self.step() or self.is_back()), self.kvd.engines())
        took = time.monotonic() - begun
        for at, rig in enumerate(self.rigs):
            cache = rig.worker._copier._cache
            self.assertTrue(poll_until(lambda: self.step() or cache._cache is not before[at]), "no cache")  # noqa: B023
            self.assertIsNone(cache._window, "copied by way of a window")
            self.assertTrue(poll_until(lambda: rig.ask() is not None), "not asked again")  # noqa: B023
            rig.connector._planner.copies._paused_until = 0.0  # after what failed it would rest for long
            self.under_way[at] |= first[at] | {f"r{name}" for name in range(made[at], rig.made)}
        return took

    def found(self, rig: Rig, head: list[int]) -> int:
        """Tokens of the prompt that are not computed."""
        rig.run_dry()
        name = rig.add([*head, 5], 2)
        rig.run_dry()
        return len(rig.truth[name]) - 1 - rig.scheduled[name]

    def test_what_was_lent_stays_lent_and_what_was_cached_is_found(self) -> None:
        client = self.enterContext(kvd_client.Client(self.kvd.endpoint))
        grown = client.reserve(4 * SLAB)
        grown.grow([0, 3])
        heads = [self.some_tokens(rig, HEAD) for rig in self.rigs]
        for rig, head in zip(self.rigs, heads, strict=True):
            self.assertEqual(self.found(rig, head), 0)
        self.assertTrue(poll_until(self.is_back), self.kvd.engines())
        mapped = [slabs_of(pid) for pid in (os.getpid(), self.llama.process.pid)]
        self.assertEqual(sum(map(len, mapped)), 18)
        took, missed = [], 0
        for number in range(ENDS):
            for _ in range(40):
                self.step()
            took.append(self.end(number))
            self.assertEqual([slabs_of(pid) for pid in (os.getpid(), self.llama.process.pid)], mapped)
            self.assertLessEqual(mapped[0] | mapped[1], slabs_of(self.kvd.pid), "kvd has other memory")
            for rig in self.rigs:
                missed += sum(HEAD - self.found(rig, head) for head in heads)
            grown.shrink(grown.grow([1]))
        print(
            f"{ENDS} ends: all back after {statistics.median(took):.2f} s, at most {max(took):.2f} s; "
            f"{missed} of {4 * ENDS * HEAD} tokens not found; {[rig.counts for rig in self.rigs]}"
        )
        self.assertEqual(missed, 0)
        for rig, under_way in zip(self.rigs, self.under_way, strict=True):
            rig.check_answers()
            rig.check_blocks()
            self.assertLessEqual(set(rig.computed_twice()), under_way)
            self.assertGreater(rig.preemptions, 0)
        self.assertEqual(self.llama.differs(), 0)
        grown.free()


if __name__ == "__main__":
    ctest.main()
