"""Streamed layers without vLLM and without kvd: which layers stay, and where each block of each layer is
found. A memory of words plays every plan as a worker does; each layer reads what its requests wrote.
"""

from __future__ import annotations

import itertools
import random
import unittest
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import ctest

from kvd_vllm.layers.placement import (
    MOST_WINDOWS, NoRoom, Placement, Running, interleaved, least_pages, place, streamed,
)  # fmt: skip
from kvd_vllm.layers.table import Copy, LayerPlan, Plan, Table

TOKENS, LAYERS = 4, 5
NAMES, REQUESTS = 40, 3
PAGES = least_pages(NAMES, REQUESTS, LAYERS) + 1
Placer = Callable[..., Placement]


def request(first: int, before: int, after: int) -> Running:
    """The blocks lie beside each other."""
    return Running(tuple(range(first, first - (-after // TOKENS))), before, after)


class ThePlacement(unittest.TestCase):
    def test_has_layers_in_an_order_whose_beginnings_are_spread(self) -> None:
        self.assertEqual(interleaved(8), [0, 4, 2, 6, 1, 5, 3, 7])
        self.assertEqual(interleaved(5), [0, 4, 2, 1, 3])
        self.assertEqual(interleaved(1), [0])

    def test_keeps_all_layers_where_there_is_room(self) -> None:
        requests = [request(1, 0, 8), request(11, 8, 9)]
        found = place(requests, LAYERS, 5 * LAYERS, TOKENS)
        self.assertEqual(found.resident, [frozenset(range(LAYERS))] * 2)
        self.assertLess(len(place(requests, LAYERS, 5 * LAYERS - 1, TOKENS).resident[0]), LAYERS)

    def test_counts_a_shared_block_once(self) -> None:
        requests = [Running((1, 2, 3), 8, 12), Running((1, 2, 4), 8, 12)]
        found = place(requests, LAYERS, 4 * LAYERS, TOKENS)
        self.assertEqual(len(found.resident[0]), LAYERS)

    def test_gives_up_fetching_ahead_last_of_all(self) -> None:
        one = [request(1, 36, 40)]  # ten blocks, none partial
        self.assertEqual(place(one, LAYERS, 20, TOKENS), Placement([frozenset()], 2))
        self.assertEqual(place(one, LAYERS, 19, TOKENS), Placement([frozenset()], 1))
        self.assertEqual(place(one, LAYERS, 30, TOKENS), Placement([frozenset([0])], 2))
        with self.assertRaises(NoRoom):
            place(one, LAYERS, 9, TOKENS)

    def test_keeps_to_a_plan_where_it_fits(self) -> None:
        batch = [Running((1, 2, 3), 11, 12, "a"), Running((4, 5), 7, 8, "b")]
        every = frozenset(range(LAYERS))
        found = place(batch, LAYERS, 100, TOKENS, {"a": 2, "b": 0})
        self.assertEqual(found.resident, [every - {1, 3}, every])
        self.assertEqual((streamed(LAYERS, 2), streamed(LAYERS, 0)), ({1, 3}, frozenset()))
        # Nothing is known of one: it stays where there is room, and streams where not.
        self.assertEqual(place(batch, LAYERS, 100, TOKENS, {"a": 2}).resident[1], every)
        self.assertEqual(place(batch, LAYERS, 22, TOKENS, {"a": 2}).resident[1], frozenset())
        # Without room for the plan all go alike.
        alike = place(batch, LAYERS, 14, TOKENS, {"a": 0, "b": 0})
        self.assertEqual(len(set(alike.resident)), 1)
        with self.assertRaises(NoRoom):
            place(batch, LAYERS, 3, TOKENS, {"a": 0, "b": 0})

    def test_fits_whatever_the_requests_if_there_are_the_least_pages(self) -> None:
        source = random.Random(5)
        for _ in range(2000):
            requests, first = [], 0
            for _ in range(source.randint(1, REQUESTS)):
                after = source.randint(1, (NAMES - first) // 2 * TOKENS)
                requests.append(request(first, source.randrange(after), after))
                first += len(requests[-1].names)
            place(requests, LAYERS, PAGES - 1, TOKENS)


class Block(NamedTuple):
    """What was written into a block of a layer: the token behind each place, 0 where there is none."""

    words: tuple[int, ...] = (0,) * TOKENS


JUNK = Block((-1,) * TOKENS)  # what a request writes after it has read junk is junk as well


class Hbm:
    """Pages and rows. Plays a plan in the order in which a worker's copies and a layer's kernels run; a
    staging page is filled as soon as the worker may fill it, or too `early`: before it is read. A load
    is over as soon as it has begun, or as `late` as it may be: when its layer is read. Of the loads
    `losses` are lost, and junk may come into their pages long after."""

    def __init__(
        self, pages: int, early: bool = False, leave_out: bool = False, late: bool = False, losses: float = 0
    ) -> None:
        self.pages = [Block()] * pages
        self.rows: dict[int, Block] = {}
        self.early = early
        self.leave_out = leave_out
        self.late = late
        self.losses = losses
        self.source = random.Random(pages)
        self.lost: set[int] = set()  # pages

    def store(self, copies: list[Copy]) -> None:
        for each in copies:
            assert each.row not in self.rows, "a row is written twice"
            self.rows[each.row] = self.pages[each.page]

    def load(self, copies: list[Copy]) -> None:
        for each in copies[1:] if self.leave_out else copies:
            if self.source.random() < self.losses:
                self.lost.add(each.page)
            else:
                self.pages[each.page] = self.rows[each.row]

    def let_junk_in(self) -> None:
        for page in self.lost:
            self.pages[page] = JUNK

    def play(self, plan: Plan, write: Callable[[int], None], read: Callable[[int], None]) -> set[int]:
        """Returns the blocks that were lost."""
        self.store(plan.out)
        self.load(plan.back)
        lost = plan.names_on(self.lost & {copy.page for copy in plan.back}, 0)
        loads: list[list[Copy]] = [[] for _ in plan.layers]

        def fetch(at: int, copies: list[Copy]) -> None:
            loads[at] += copies
            if not self.late:
                self.load(copies)

        def fetch_later(each: LayerPlan) -> None:
            for later, copies in each.then.items():
                fetch(later, copies)

        for at, each in enumerate(plan.layers):
            fetch(at, each.fetch)
        for at, each in enumerate(plan.layers):
            write(at)
            if self.late:
                self.load(loads[at])
            lost |= plan.names_on(self.lost & {copy.page for copy in loads[at]}, at)
            self.let_junk_in()
            if self.early:
                fetch_later(each)
            read(at)
            self.store(each.store)
            if not self.early:
                fetch_later(each)
        for row in plan.dead:
            del self.rows[row]
        return lost


class Engine:
    """Requests that come, compute some tokens at a time, wait, share their beginnings, end and are
    preempted, at random. Those that read what was lost are computed again, as vLLM does it. `reads` counts
    blocks of a layer that were read, `wrong` the requests of a step that read something else unnoticed."""

    def __init__(
        self, seed: int, placer: Placer, pages: int = PAGES, keeps: bool = True, **faults: bool | float
    ) -> None:
        self.source = random.Random(seed)
        self.placer = placer
        self.keeps = keeps
        self.table = Table(LAYERS, pages, TOKENS)
        self.hbm = Hbm(pages, **faults)  # type: ignore[arg-type]
        self.free = list(range(1, NAMES + 1))
        self.live: dict[int, list[int]] = {}  # names of each request
        self.done: dict[int, int] = {}  # its tokens
        self.most: dict[int, int] = {}  # that it ever had
        self.words: dict[tuple[int, int], list[int]] = {}  # by layer and name, what was written there
        self.kept: list[list[int]] = []  # full blocks of a beginning that a request may share
        self.word = 0
        self.reads = self.wrong = self.fetched = self.again = 0

    def end(self, number: int) -> None:
        names, done, _ = self.live.pop(number), self.most.pop(number), self.done.pop(number)
        if self.keeps and names not in self.kept:
            self.kept = [names[: done // TOKENS]]
        used = {name for each in [*self.live.values(), *self.kept] for name in each}
        gone = {name for name in range(1, NAMES + 1)} - used - set(self.free)
        self.free += sorted(gone)
        if not self.keeps:
            self.table.release(gone)

    def begin(self) -> None:
        number = self.source.randrange(1 << 30)
        shared = self.kept[0] if self.kept and self.source.random() < 0.5 else []
        self.live[number] = list(shared)
        self.done[number] = self.most[number] = len(shared) * TOKENS

    def step(self) -> None:
        if self.live and self.source.random() < 0.05:
            self.end(self.source.choice(list(self.live)))
        if len(self.live) < REQUESTS and self.source.random() < 0.3 or not self.live:
            self.begin()
        requests: dict[int, Running] = {}
        for number in self.source.sample(list(self.live), self.source.randint(1, len(self.live))):
            before = self.done[number]
            after = before + self.source.choice((1, 1, 1, 2, 7, 11))
            new = -(-after // TOKENS) - len(self.live[number])
            if new > len(self.free):
                if self.kept:
                    self.kept = []
                self.end(number)  # preempted, or longer than there is room
                continue
            self.live[number] += [self.free.pop(0) for _ in range(new)]
            self.done[number], self.most[number] = after, max(after, self.most[number])
            requests[number] = Running(tuple(self.live[number]), before, after, str(number))
        if requests:
            self.play(requests)

    def play(self, by_number: dict[int, Running]) -> None:
        requests = list(by_number.values())
        if self.source.random() < 0.3:
            self.hbm.lost = set()
        self.table.set_aside(set(self.hbm.lost))
        plan = self.table.step(requests, self.placer(requests, LAYERS, self.table.pages, TOKENS))
        self.fetched += sum(len(some) for each in plan.layers for some in (each.fetch, *each.then.values()))
        misled: set[int] = set()

        def write(layer: int) -> None:
            for names, before, after, _ in requests:
                for name in names[-(-before // TOKENS) : -(-after // TOKENS)]:
                    self.words[layer, name] = [0] * TOKENS
            for number, (names, before, after, _) in by_number.items():
                for token in range(before, after):
                    name, at = names[token // TOKENS], token % TOKENS
                    self.word += 1
                    word = -1 if number in misled else self.word
                    self.words[layer, name][at] = word
                    page = plan.layers[layer].pages[name]
                    held = list(self.hbm.pages[page].words)
                    held[at] = word
                    self.hbm.pages[page] = Block(tuple(held))

        def read(layer: int) -> None:
            for number, (names, _, after, _) in by_number.items():
                for at, name in enumerate(names[: -(-after // TOKENS)]):
                    count = min(TOKENS, after - at * TOKENS)
                    held = list(self.hbm.pages[plan.layers[layer].pages[name]].words[:count])
                    self.reads += 1
                    if held != self.words[layer, name][:count] or min(held) <= 0:
                        misled.add(number)

        lost = self.hbm.play(plan, write, read)
        again = self.go_back(self.table.end(lost), by_number)
        self.again += len(again)
        self.wrong += len(misled - again)

    def go_back(self, invalid: set[int], step: dict[int, Running]) -> set[int]:
        """vLLM's Scheduler._update_requests_with_invalid_blocks: the first request that has a block
        computes it again."""
        marked: set[int] = set()
        again = set()
        for number, names in self.live.items():
            before = step[number].before if number in step else self.done[number]
            faults = [at for at in range(-(-before // TOKENS)) if names[at] in invalid]
            if faults:
                again.add(number)
                mine = [at for at in faults if names[at] not in marked]
                self.done[number] = mine[0] * TOKENS if mine else before
                marked.update(names[at] for at in mine)
        return again


class AtRandom:
    """Subsets of layers for each request, others in each step."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def __call__(self, requests: list[Running], layers: int, pages: int, tokens: int) -> Placement:
        some = [frozenset(at for at in range(layers) if self.source.random() < 0.5) for _ in requests]
        return Placement(some, self.source.randint(1, MOST_WINDOWS))


class AsPlanned(AtRandom):
    """Distances for most requests, others every few steps."""

    planned: dict[str, int]
    steps = 0

    def __call__(self, requests: list[Running], layers: int, pages: int, tokens: int) -> Placement:
        if self.steps % 7 == 0:
            some = [each.request for each in requests if self.source.random() < 0.8]
            self.planned = {each: self.source.randint(0, LAYERS) for each in some}
        self.steps += 1
        return place(requests, layers, pages, tokens, self.planned)


SEEDS, STEPS = range(10), 400


class TheTable(unittest.TestCase):
    def played(self, placer: Placer, seed: int, **given: bool | float) -> Engine:
        engine = Engine(seed, placer, **given)  # type: ignore[arg-type]
        for _ in range(STEPS):
            engine.step()
        return engine

    def test_finds_what_was_written_with_the_fewest_pages(self) -> None:
        for keeps, late in itertools.product((True, False), repeat=2):
            fetched = 0
            for seed in SEEDS:
                engine = self.played(place, seed, keeps=keeps, late=late)
                self.assertEqual(engine.wrong, 0, seed)
                self.assertGreater(engine.reads, 1000)
                fetched += engine.fetched
            self.assertGreater(fetched, 5000)

    def test_finds_it_wherever_the_layers_are_placed(self) -> None:
        for seed in SEEDS:
            engine = self.played(AtRandom(seed), seed, pages=(LAYERS + 2) * NAMES, late=seed % 2 == 0)
            self.assertEqual(engine.wrong, 0, seed)
            self.assertGreater(engine.fetched, 1000)

    def test_finds_it_by_plans_that_come_and_go(self) -> None:
        for seed in SEEDS[:4]:
            for pages in (PAGES, PAGES + 10, 2 * PAGES):
                engine = self.played(AsPlanned(seed), seed, pages=pages, late=seed % 2 == 0)
                self.assertEqual(engine.wrong, 0, (seed, pages))

    def with_losses(self, seed: int, keeps: bool) -> Engine:
        """Blocks that are being written make way as well."""
        pages = (LAYERS + 2) * NAMES
        return self.played(AtRandom(seed), seed, pages=pages, keeps=keeps, late=seed % 2 == 0, losses=0.01)

    def test_finds_out_who_reads_what_was_lost(self) -> None:
        again = 0
        for keeps in (True, False):
            for seed in SEEDS[:4]:
                engine = self.with_losses(seed, keeps)
                self.assertEqual(engine.wrong, 0, seed)
                again += engine.again
                engine.hbm.losses = 0
                for _ in range(STEPS):
                    engine.step()
                count = engine.again
                for _ in range(20):
                    engine.step()
                self.assertEqual((engine.again, engine.wrong), (count, 0), seed)
        self.assertGreater(again, 500)

    def test_leaves_no_row_and_no_page_behind(self) -> None:
        engine = self.played(place, 1, keeps=False)
        for number in list(engine.live):
            engine.end(number)
        engine.live, engine.done, engine.most = {1: []}, {1: 0}, {1: 0}
        engine.free = list(range(1, NAMES + 1))
        engine.live[1] = [engine.free.pop()]
        engine.play({1: Running(tuple(engine.live[1]), 0, 1)})
        self.assertEqual(engine.hbm.rows, {})
        self.assertEqual(len(engine.table._free), engine.table.pages - LAYERS)

    def test_with_room_for_all_copies_nothing(self) -> None:
        engine = self.played(place, 2, pages=NAMES * LAYERS + 1)
        self.assertEqual((engine.fetched, engine.hbm.rows), (0, {}))

    def test_does_not_keep_what_a_block_held_before(self) -> None:
        table, all_stay = Table(LAYERS, PAGES, TOKENS), frozenset(range(LAYERS))
        table.step([request(1, 0, 8)], Placement([all_stay], 1))
        plan = table.step([request(1, 0, 8)], Placement([frozenset()], 1))
        self.assertEqual((plan.out, plan.dead), ([], []))

    def test_copies_a_block_once_it_is_full_and_not_before(self) -> None:
        table, nothing_stays = Table(LAYERS, PAGES, TOKENS), Placement([frozenset()], 1)
        for before in range(TOKENS + 1):
            plan = table.step([request(1, before, before + 1)], nothing_stays)
            full, is_next = before + 1 == TOKENS, before == TOKENS
            self.assertEqual(plan.out, [])
            self.assertEqual([len(each.store) for each in plan.layers], [full] * LAYERS)
            first, *others = plan.layers
            self.assertEqual(([len(first.fetch)], [each.fetch for each in others]), ([is_next], [[]] * (LAYERS - 1)))
            later = [{at + 1: [Copy]} if is_next else {} for at in range(LAYERS - 1)]
            found = [{at: [type(copy) for copy in some] for at, some in each.then.items() if some} for each in plan.layers]
            self.assertEqual(found, [*later, {}])

    def test_does_not_fit_where_the_placement_does_not(self) -> None:
        table = Table(LAYERS, 11, TOKENS)
        with self.assertRaises(NoRoom):
            table.step([request(1, 0, 12)], Placement([frozenset(range(LAYERS))], 1))

    def test_the_checks_see_what_goes_wrong(self) -> None:
        """The controls: a fetch that lacks a block, a window that is filled too early, and losses that are kept
        quiet or that a step's own reads alone find."""
        self.assertGreater(sum(self.played(place, seed, leave_out=True).wrong for seed in range(3)), 0)
        self.assertGreater(sum(self.played(place, seed, early=True).wrong for seed in range(3)), 0)
        with mock.patch.object(Table, "end", lambda self, lost: set()):
            self.assertGreater(self.with_losses(1, True).wrong, 0)
        with mock.patch.object(Table, "end", lambda self, lost: lost):
            self.assertGreater(sum(self.with_losses(seed, True).wrong for seed in range(3)), 0)
        with mock.patch.object(Table, "_forget_row"):  # so that a stale row stands for what was written since
            with self.assertRaises((AssertionError, KeyError)):
                for seed in SEEDS:
                    self.assertEqual(self.played(place, seed).wrong, 0)


if __name__ == "__main__":
    ctest.main()
