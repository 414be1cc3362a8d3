"""Plans of streamed layers carried out on made-up pages and rows: every block that a layer reads holds what was
written into that block of that layer, wherever it lies."""

from __future__ import annotations

import os
import random
import time
import unittest
from collections.abc import Iterable, Sequence

import ctest
from kvd_vllm.layers.placement import NoRoom, Placement, Running, least_pages, place, streamed
from kvd_vllm.layers.table import NOBODYS, Copy, Plan, Table

SEED = int(os.environ.get("KVD_SEED", time.time_ns()))
LAYERS, TOKENS, NAMES, REQUESTS = 5, 4, 40, 5
Content = list[int]  # of a block of a layer: the number of the write that each token came with


class Machine:
    """Pages and rows, and what each block of each layer has to hold."""

    def __init__(self, pages: int, source: random.Random) -> None:
        self.source = source
        self.table = Table(LAYERS, pages, TOKENS)
        self.pages: list[Content] = [[0] * TOKENS for _ in range(pages)]
        self.rows: dict[int, Content] = {}
        self.truth: list[dict[int, Content]] = [{} for _ in range(LAYERS)]
        self.writes = self.reads = 0
        self.breaks = 0  # of loads, one in so many is left out; 0: none

    def step(self, requests: Sequence[Running], placement: Placement) -> list[tuple[int, int]]:
        """Returns the (layer, block) that hold something else."""
        plan = self.table.step(requests, placement)
        self.copy(plan.out, is_load=False)
        self.copy(plan.back, is_load=True)
        fetches: list[list[Copy]] = [[] for _ in plan.layers]
        for at, each in enumerate(plan.layers):
            fetches[at] += self.begin(each.fetch)
        wrong: list[tuple[int, int]] = []
        for at, each in enumerate(plan.layers):
            self.write(requests, at, plan)
            self.copy(fetches[at], is_load=True)
            wrong += self.read(requests, at, plan)
            self.copy(each.store, is_load=False)
            for later, copies in each.then.items():
                fetches[later] += self.begin(copies)
        for row in plan.dead:
            self.rows.pop(row, None)
        assert not self.table.end(())
        return wrong

    def begin(self, loads: Sequence[Copy]) -> list[Copy]:
        """Some end at once. Returns the others, which end when somebody waits for them."""
        later = [each for each in loads if self.source.random() < 0.5]
        self.copy([each for each in loads if each not in later], is_load=True)
        return later

    def copy(self, copies: Iterable[Copy], is_load: bool) -> None:
        for row, page in copies:
            if not is_load:
                self.rows[row] = list(self.pages[page])
            elif not (self.breaks and self.source.randrange(self.breaks) == 0):
                self.pages[page] = list(self.rows[row])

    def write(self, requests: Sequence[Running], layer: int, plan: Plan) -> None:
        for names, before, after, _ in requests:
            for token in range(before, after):
                name, at = names[token // TOKENS], token % TOKENS
                self.writes += 1
                page = plan.layers[layer].pages[name]
                assert page != NOBODYS
                self.pages[page][at] = self.writes
                self.truth[layer].setdefault(name, [0] * TOKENS)[at] = self.writes

    def read(self, requests: Sequence[Running], layer: int, plan: Plan) -> list[tuple[int, int]]:
        wrong = []
        for names, _, after, _ in requests:
            for at, name in enumerate(names[: -(-after // TOKENS)]):
                some = min(TOKENS, after - at * TOKENS)
                self.reads += 1
                if self.pages[plan.layers[layer].pages[name]][:some] != self.truth[layer][name][:some]:
                    wrong.append((layer, name))
        return wrong


class Engine:
    """Requests that come, grow and end, by chance."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.free = list(range(1, NAMES))
        self.requests: dict[str, tuple[list[int], int]] = {}  # its blocks, and its tokens
        self.count = 0

    def batch(self, table: Table) -> list[Running]:
        if len(self.requests) < REQUESTS and self.source.random() < 0.3:
            self.count += 1
            self.requests[str(self.count)] = ([], 0)
        running = []
        for request in self.source.sample(sorted(self.requests), k=len(self.requests)):
            names, tokens = self.requests[request]
            if self.source.random() < 0.05:
                del self.requests[request]
                table.release(names)
                self.free += names
                continue
            if self.source.random() < 0.2:
                continue  # it is not in this step
            grown = tokens + (1 if tokens else self.source.randint(1, 3 * TOKENS))
            while len(names) * TOKENS < grown and self.free:
                names.append(self.free.pop())
            grown = min(grown, len(names) * TOKENS)
            if grown > tokens:
                running.append(Running(tuple(names), tokens, grown, request))
                self.requests[request] = (names, grown)
        return running


class Tables(unittest.TestCase):
    def setUp(self) -> None:
        print("seed", SEED, flush=True)

    def play(self, pages: int, steps: int, seed: int, breaks: int = 0) -> tuple[Machine, int]:
        source = random.Random(seed)
        machine, engine, wrong = Machine(pages, source), Engine(source), 0
        machine.breaks = breaks
        planned: dict[str, int] = {}
        for step in range(steps):
            running = engine.batch(machine.table)
            if step % 7 == 0:
                planned = {each.request: source.randint(0, LAYERS) for each in running if source.random() < 0.8}
            if running:
                placement = place(running, LAYERS, machine.table.pages, TOKENS, planned)
                wrong += len(machine.step(running, placement))
        return machine, wrong

    def test_each_layer_reads_what_was_written(self) -> None:
        least = least_pages(NAMES - 1, REQUESTS, LAYERS) + 1
        for at, pages in enumerate((least, least + 10, 2 * least, LAYERS * NAMES + 1)):
            machine, wrong = self.play(pages, 400, SEED + at)
            self.assertEqual(wrong, 0, f"{pages} pages")
            self.assertGreater(machine.reads, 5000)

    def test_a_load_that_is_left_out_is_seen(self) -> None:
        least = least_pages(NAMES - 1, REQUESTS, LAYERS) + 1
        self.assertGreater(self.play(least, 400, SEED, breaks=50)[1], 0)

    def test_a_plan_is_kept_where_it_fits(self) -> None:
        batch = [Running((1, 2, 3), 11, 12, "a"), Running((4, 5), 7, 8, "b")]
        every = frozenset(range(LAYERS))
        placement = place(batch, LAYERS, 100, TOKENS, {"a": 2, "b": 0})
        self.assertEqual(placement.resident, [every - {1, 3}, every])
        self.assertEqual(streamed(LAYERS, 2), {1, 3})
        self.assertEqual(streamed(LAYERS, 0), frozenset())
        # Nothing is known of one: it stays where there is room, and streams where not.
        self.assertEqual(place(batch, LAYERS, 100, TOKENS, {"a": 2}).resident[1], every)
        self.assertEqual(place(batch, LAYERS, 22, TOKENS, {"a": 2}).resident[1], frozenset())
        # Without room for the plan all go alike.
        alike = place(batch, LAYERS, 14, TOKENS, {"a": 0, "b": 0})
        self.assertEqual(len(set(alike.resident)), 1)
        with self.assertRaises(NoRoom):
            place(batch, LAYERS, 3, TOKENS, {"a": 0, "b": 0})


if __name__ == "__main__":
    ctest.main()
