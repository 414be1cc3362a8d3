"""An elastic KV cache with vLLM's own scheduler and block pool and a real kvd, without a model: random
grants and pressure, thousands of steps. No block without memory is ever handed out (it would be a fault
to touch it), every block is accounted for, every answer is right.

KVD_SEED plays one seed, KVD_STEPS says how many steps there are in all.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ctest
from kvd_process import SLAB, KvdProcess, pool_bytes_mapped
from model_free import LAYERS, TOKENS, Rig, write_config
from no_model_test import SEEDS, STEPS, RandomAsyncScheduler, RandomScheduler, Whims
from rotating import StockOrder

import kvd_client
from kvd_vllm.elastic.balloon import Balloon, State
from kvd_vllm.elastic.mapping import Mapper

PAGE = SLAB // 4
BLOCKS, CHUNK = 48, 4  # so that 12 chunks are two slabs each
MOST = BLOCKS * PAGE * LAYERS
KEPT = CHUNK * PAGE * LAYERS
ELASTIC = {"elastic": True, "prefixes": False}


class ElasticRig(Rig):
    """Looks at every block after every step."""

    step_s = 0.0  # what a step takes by the balloon's clock; 0: as long as it takes

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, blocks=BLOCKS, page=PAGE, **more)
        balloon, mapper = self.connector.balloon, self.worker._mapper
        assert balloon is not None and mapper is not None, "it is not elastic"
        self.balloon: Balloon = balloon
        self.mapper: Mapper = mapper
        self.lowest, self.highest = BLOCKS, 0

    def play_by_steps(self, shares: Iterator[int]) -> None:
        """It has no mapper thread and a clock of its own, so that a seed always plays the same."""
        self.mapper.close()
        self.step_s = 0.005
        self.balloon._clock = lambda: self.steps * self.step_s
        begin, region = self.mapper.begin, self.mapper._region
        region.share = lambda **demand: next(shares)  # type: ignore[method-assign]

        def begin_and_work(orders: Any) -> None:
            begin(orders)
            self.mapper.work()

        self.mapper.begin = begin_and_work  # type: ignore[method-assign]

    def execute(self, output: Any) -> Any:
        """Blocks are looked at before they are touched, and once they were freed."""
        self.look()
        return super().execute(output)

    def step(self) -> None:
        super().step()
        self.look()
        if self.step_s == 0.0 and not self.scheduler.running:
            time.sleep(0.001)  # goes on as vLLM's own loop does, after a step that computed nothing

    def close(self) -> None:
        """Frees the views as well, so that the region goes. It is safe to call this again."""
        if self.kv:
            self.kv, self.slots = [], []
            super().close()

    def look(self) -> None:
        balloon, pool = self.balloon, self.scheduler.kv_cache_manager.block_pool
        states, with_memory = balloon._state, {*self.mapper._parts, *self.mapper._own}
        usable = 0
        for at, block in enumerate(pool.blocks[1:], 1):
            state = states[at // CHUNK]
            if at in balloon._claimed:
                assert block.ref_cnt == 1, f"block {at} was claimed and is used by others"
                assert block.block_hash is None, f"block {at} was claimed and can be found"
                assert state not in (State.KEPT, State.GRANTED), f"block {at} is held back"
                continue
            usable += 1
            assert state not in (State.HELD, State.LEAVING), f"block {at} can be handed out"
            assert state == State.KEPT or at // CHUNK in with_memory, f"block {at} has no memory"
        assert balloon.granted_blocks == usable, f"{balloon.granted_blocks} of {usable} are granted"
        for name in self.scheduler.requests:
            for at in itertools.chain(*self.scheduler.kv_cache_manager.get_block_ids(name)):
                assert at == 0 or at not in balloon._claimed, f"{name} has block {at}"
        free = pool.get_num_free_blocks()
        used = sum(block.ref_cnt > 0 for block in pool.blocks[1:])
        assert free + used == BLOCKS - 1, f"{free} free and {used} used"
        self.lowest, self.highest = min(self.lowest, usable), max(self.highest, usable)


class Elastic(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-elastic-"))
        cls.model = write_config(Path(folder))

    def kvd(self, slabs: int = MOST // SLAB) -> KvdProcess:
        return self.enterContext(KvdProcess(slabs=slabs, dram_slabs=5 * MOST // SLAB))

    def rig(self, kvd: KvdProcess, scheduler: Any, seed: int, **given: Any) -> ElasticRig:
        print(f"seed {seed}", flush=True)
        Whims.kvd_random = random.Random(seed)
        options = {**ELASTIC, **given.pop("options", {})}
        rig = ElasticRig(kvd.endpoint, self.model, scheduler, seed, options=options, **given)
        self.addCleanup(rig.close)
        return rig

    def play(
        self, rig: ElasticRig, steps: int, events: dict[int, Callable[[], None]] | None = None
    ) -> None:
        pick, end = rig.random, rig.steps + steps
        while rig.steps < end:
            (events or {}).get(rig.steps, lambda: None)()
            # Bursts, and between them nothing.
            if rig.steps % 400 < 250 and pick.random() < 0.3 and len(rig.unfinished) < 16:
                prompt = [pick.randrange(3, 1900) for _ in range(pick.randrange(1, 250))]
                rig.add(prompt, pick.randrange(2, 60))
            if rig.unfinished and pick.random() < 0.01:
                rig.abort(pick.choice(sorted(rig.unfinished)))
            rig.step()
        rig.run_dry()
        rig.check_answers()
        rig.check_blocks()

    def shares(self, pick: random.Random) -> Iterator[int]:
        """An answer holds for some steps, then it changes."""
        while True:
            share = KEPT + pick.randrange(12) * KEPT
            for _ in range(pick.randrange(1, 60)):
                yield share

    def play_at_random(self, rig: ElasticRig, seed: int, steps: int) -> None:
        rig.play_by_steps(self.shares(random.Random(1000 + seed)))
        self.play(rig, steps)
        self.assertEqual(rig.balloon._have(), 0, "an idle engine has not given all back")
        self.assertEqual(pool_bytes_mapped(os.getpid()), KEPT)
        self.assertEqual(rig.lowest, CHUNK - 1)
        self.assertGreater(rig.highest, BLOCKS // 2)
        self.assertGreater(rig.counts["grown_blocks"], BLOCKS)
        self.assertEqual(rig.counts["grown_blocks"], rig.counts["given_back_blocks"])
        rig.close()

    def test_random_grants_and_pressure(self) -> None:
        kvd = self.kvd()
        for seed in SEEDS:
            rig = self.rig(kvd, RandomScheduler, seed)
            self.play_at_random(rig, seed, STEPS // len(SEEDS))
            self.assertEqual(rig.computed_twice(), {})

    def test_with_async_scheduling_too(self) -> None:
        kvd = self.kvd()
        for seed in SEEDS[:2]:
            rig = self.rig(kvd, RandomAsyncScheduler, seed, is_async=True)
            self.play_at_random(rig, seed, STEPS // len(SEEDS))

    def test_with_vllms_own_order_and_both_prefix_caches(self) -> None:
        kvd = self.kvd()
        for seed in SEEDS[:2]:
            rig = self.rig(kvd, StockOrder, seed, options={"prefixes": True},
                           engine={"enable_prefix_caching": True})  # fmt: skip
            self.play_at_random(rig, seed, STEPS // len(SEEDS))

    def test_with_groups_that_look_back_at_a_window(self) -> None:
        kvd = self.kvd()
        for seed in SEEDS[:2]:
            rig = self.rig(kvd, RandomScheduler, seed, options={"prefixes": True}, windows=(64, 0))
            self.play_at_random(rig, seed, STEPS // len(SEEDS))
            self.assertEqual(rig.computed_twice(), {})

    def test_a_prefix_cache_can_be_reset(self) -> None:
        rig = self.rig(self.kvd(), StockOrder, SEEDS[0], engine={"enable_prefix_caching": True})
        self.play(rig, 100)
        self.assertTrue(rig.scheduler.reset_prefix_cache())
        rig.look()

    def test_what_is_never_given_back(self) -> None:
        kvd = self.kvd()
        rig = self.rig(kvd, StockOrder, SEEDS[0], options={"elastic_kept_bytes": 3 * KEPT - 1})
        self.assertEqual(rig.balloon.granted_blocks, 3 * CHUNK - 1)
        self.play(rig, 200)
        self.assertEqual(rig.balloon.granted_blocks, 3 * CHUNK - 1)
        self.assertEqual(pool_bytes_mapped(os.getpid()), 3 * KEPT)

    def test_two_engines_lend_each_other_what_they_do_not_use(self) -> None:
        """kvd's own shares apply: there is room for 1.3 times what one may have."""
        kvd = self.kvd(slabs=16 * MOST // SLAB // 12)
        rigs = [self.rig(kvd, StockOrder, seed) for seed in (SEEDS * 2)[:2]]
        for first, second in ((0, 1), (1, 0)):
            for number in (first, second):
                for _ in range(8):
                    rigs[number].add([rigs[number].random.randrange(3, 1900) for _ in range(150)], 40)
                rigs[number].highest = 0
                for _ in range(60):  # the second burst comes while the first is under way
                    for rig in rigs:
                        if rig.scheduler.has_requests():
                            rig.step()
            while any(rig.scheduler.has_requests() for rig in rigs):
                for rig in rigs:
                    if rig.scheduler.has_requests():
                        rig.step()
            self.assertGreater(rigs[first].highest, BLOCKS // 2)
            self.assertGreater(rigs[second].highest, BLOCKS // 4)
        for rig in rigs:
            rig.check_answers()
            rig.check_blocks()
            self.assertEqual(rig.balloon.granted_blocks, CHUNK - 1)
        self.assertEqual(pool_bytes_mapped(os.getpid()), 2 * KEPT)

    def test_a_batch_makes_way_for_chats(self) -> None:
        """Both engines want all there is. With the same goals each would get half of it."""
        kvd = self.kvd(slabs=16 * MOST // SLAB // 12)
        batch, chat = (self.rig(kvd, StockOrder, seed) for seed in (SEEDS * 2)[:2])
        half, deadline = 16 * CHUNK // 2, time.monotonic() + 60
        while chat.highest <= half + 2 * CHUNK and time.monotonic() < deadline:
            for rig, goal in ((batch, 600.0), (chat, 5.0)):
                while len(rig.unfinished) < 8 and (rig is batch or batch.highest > half + CHUNK):
                    rig.add([rig.random.randrange(3, 1900) for _ in range(150)], 40, kvd_ttft_s=goal)
                rig.step()
        self.assertGreater(chat.highest, half + 2 * CHUNK)
        while any(rig.scheduler.has_requests() for rig in (batch, chat)):
            for rig in (batch, chat):
                if rig.scheduler.has_requests():
                    rig.step()
        for rig in (batch, chat):
            rig.check_answers()
            rig.check_blocks()

    def test_a_kvd_that_is_killed_costs_no_answer(self) -> None:
        kvd = self.kvd()
        rig = self.rig(kvd, StockOrder, SEEDS[0])
        self.play(rig, 600, events={300: kvd.kill, 450: kvd.start})

    def test_without_kvd_a_request_gets_what_it_needs_and_no_more(self) -> None:
        kvd = self.kvd()
        rig = self.rig(kvd, StockOrder, SEEDS[0])
        self.assertEqual(rig.balloon.granted_blocks, CHUNK - 1)
        kvd.kill()
        longest = 250 + 60
        for _ in range(3):
            rig.add([rig.random.randrange(3, 1900) for _ in range(250)], longest - 250)
        rig.run_dry()
        rig.check_answers()
        rig.check_blocks()
        needed = -(-(longest // TOKENS + 1) // CHUNK)
        self.assertLessEqual(rig.balloon.granted_blocks, (needed + 1) * CHUNK)
        self.assertGreaterEqual(rig.balloon.granted_blocks, longest // TOKENS)

    def test_a_block_that_is_not_claimed_is_seen(self) -> None:
        """The control: a balloon that lets go of blocks which have no memory."""

        class Leaking(Balloon):
            def _claim(self, at: int) -> None:
                if at % CHUNK != 1:
                    super()._claim(at)

            def sweep(self) -> None:
                super().sweep()
                self._claimed.update(at for chunk in self._since for at in self._blocks(chunk))

        rig = self.rig(self.kvd(), RandomScheduler, SEEDS[0])
        rig.balloon.__class__ = Leaking
        rig.play_by_steps(self.shares(random.Random(1)))
        with self.assertRaisesRegex(AssertionError, "block "):
            self.play(rig, STEPS)

    def test_a_chunk_that_is_unmapped_while_it_is_used_is_seen(self) -> None:
        """The control: an engine is told to give back what it did not offer."""
        rig = self.rig(self.kvd(), StockOrder, SEEDS[0])
        rig.play_by_steps(iter(lambda: 12 * KEPT, 0))
        work = rig.mapper.work

        def hasty() -> float:
            if rig.steps > 50 and rig.mapper._parts:
                rig.mapper._leaving.append(min(rig.mapper._parts))
            return work()

        rig.mapper.work = hasty  # type: ignore[method-assign]
        with self.assertRaisesRegex(AssertionError, "chunk .* is|has no memory|token .* of"):
            self.play(rig, 200)


if __name__ == "__main__":
    ctest.main()
