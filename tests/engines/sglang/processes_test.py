"""Several SGLangs on one kvd, and what kvd costs an SGLang that finds nothing there."""

from __future__ import annotations

import statistics
import unittest

import ctest
import tiny_model
from kvd_process import KvdProcess, poll_until
from sglang_process import FOUND, HICACHE, PAGE, Bench, on_kvd, prompt, stored

ROUNDS, ANSWER = 12, 32


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        self.bench = Bench()
        self.addCleanup(self.bench.close)
        self.kvd = self.enterContext(KvdProcess(slabs=32, dram_slabs=128))
        self.flags = on_kvd(window_bytes=4 << 20)

    def test_the_next_process_finds_the_prompt_unless_its_weights_are_others(self) -> None:
        bench, kvd = self.bench, self.kvd
        with bench.engine("first", kvd.endpoint, **self.flags) as engine:
            first = engine.ask([prompt(1)])
            self.assertTrue(poll_until(lambda: stored(kvd) >= FOUND // PAGE))
        tiny_model.write(bench.folder / "other", seed=2)
        with (
            bench.engine("second", kvd.endpoint, **self.flags) as second,
            bench.engine("other", kvd.endpoint, model=bench.folder / "other", **self.flags) as other,
        ):
            found = second.ask([prompt(1)])
            self.assertEqual((found["cached"], found["tokens"]), ([FOUND], first["tokens"]))
            self.assertEqual(other.ask([prompt(1)])["cached"], [0])
            self.assertIn("kvd: keeps the pages", other.log)

    def test_what_it_costs_with_nothing_to_find(self) -> None:
        """Prints figures. The rounds of the engines alternate, since the machine may have other work."""
        kinds = {"hicache alone": HICACHE, "kvd": self.flags, "file": {**HICACHE, "hicache_storage_backend": "file"}}
        engines = {
            kind: self.enterContext(self.bench.engine(kind, self.kvd.endpoint, **flags))
            for kind, flags in kinds.items()
        }
        wall: dict[str, list[float]] = {kind: [] for kind in kinds}
        cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
        for at in range(-1, ROUNDS):
            order = list(engines.items())
            for kind, engine in order[at % 3 :] + order[: at % 3]:
                done = engine.ask([prompt(100 + at)], answer=ANSWER)
                self.assertEqual(done["cached"], [0])
                if at >= 0:  # the one before warms up
                    wall[kind].append(done["seconds"])
                    cpu[kind].append(done["cpu_seconds"])
        for kind in kinds:
            seconds = statistics.median(wall[kind])
            print(f"{kind:14} {(700 + ANSWER) / seconds:8.1f} tokens/s, median of {ROUNDS} rounds, "
                  f"{statistics.median(cpu[kind]):.3f} s of CPU a round")  # fmt: skip


if __name__ == "__main__":
    ctest.main()
