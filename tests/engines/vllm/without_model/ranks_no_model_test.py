"""Several workers of one model, without a model: vLLM's scheduler, its own aggregation of what workers say,
and a KvdConnector for each rank, whose slots hold other numbers than those of the ranks before it. What one
rank lacks none is said to have, and no block is reused while a rank still copies it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import types
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

import ctest
import no_model_test
import torch
from kvd_process import KvdProcess
from model_free import PAGE, Rig, WrongBytes
from no_model_test import PARK_ONLY, SEEDS, STEPS, RandomScheduler

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

import kvd_client
from kvd_vllm import layout
from kvd_vllm.copies import NotYet
from kvd_vllm.daemon import Link
from kvd_vllm.doctor import rig as doctors
from kvd_vllm.memory import KvdRequired
from kvd_vllm.options import Options
from kvd_vllm.scheduler import KvdScheduler
from kvd_vllm.transfers import Ends, Workers, weights_of

RANK = 1 << 40  # what the slots of a rank hold more than those of the one before it
# These tests of one worker say most of several.
AS_OF_ONE = (
    "test_random_rotation_computes_nothing_twice", "test_with_async_scheduling_too",
    "test_copies_that_take_many_steps_change_nothing", "test_with_prefixes_of_kvd_and_of_vllm",
    "test_kvd_decides", "test_kvd_killed_and_started_again_costs_no_answer",
    "test_a_kvd_that_takes_the_region_back_has_blocks_again", "test_what_is_forgotten_is_told_together",
    "test_what_an_agent_comes_back_for_is_retained", "test_a_load_that_fails_is_computed_by_its_request",
    "test_groups_that_look_back_at_a_window_are_parked_and_found",
    "test_a_copy_that_the_worker_refuses_is_no_fault_of_kvd",
)  # fmt: skip


class RanksRig(Rig):
    """`pages`: by rank, the bytes of a block's layer, as ranks of a pipeline may have more layers or fewer."""

    def __init__(
        self, endpoint: str, folder: Path, scheduler: Any, seed: int, *, blocks: int = 40,
        windows: tuple[int, ...] = (0,), engine: dict[str, Any] | None = None,
        pages: tuple[int, ...] = (PAGE, 2 * PAGE), **given: Any,
    ) -> None:  # fmt: skip
        several = {**(engine or {}), "tensor_parallel_size": len(pages)}
        super().__init__(
            endpoint, folder, scheduler, seed, blocks=blocks, windows=windows, engine=several, page=pages[0], **given
        )
        config = self.worker._vllm_config
        self.computes = 0  # what its slots hold more than those of an engine of other weights
        self.ranks = [(self.worker, self.kv, self.slots)]
        for rank, page in enumerate(pages[1:], start=1):
            other = copy.copy(config)
            other.parallel_config = copy.copy(config.parallel_config)
            other.parallel_config.rank = rank
            self.model_runner = doctors.ModelRunner()
            self.make_worker(other, doctors._cache(blocks, page, windows))
            self.ranks.append((self.worker, self.kv, self.slots))
        opened = {(0, at): worker.get_handshake_metadata() for at, (worker, *_) in enumerate(self.ranks)}
        self.connector.set_xfer_handshake_metadata_pp_aware({at: each for at, each in opened.items() if each})
        self.aggregator = KVOutputAggregator.from_connector(self.connector, len(self.ranks))

    def execute(self, output: Any) -> Any:
        names = list(output.num_scheduled_tokens)
        expected, scheduled, made = self.expected, dict(self.scheduled), []
        for rank, (self.worker, self.kv, self.slots) in enumerate(self.ranks):
            self.expected = {name: expected[name] + RANK * rank + self.computes for name in names}
            self.scheduled = dict(scheduled)
            made.append(super().execute(output))
        self.expected = expected
        return self.aggregator.aggregate(made)

    def close(self) -> None:
        for self.worker, _, _ in self.ranks[1:]:
            self.kv, self.slots = [], []
            self.worker.shutdown()
        self.worker = self.ranks[0][0]
        self.ranks = []
        super().close()


class Ranks(no_model_test.NoModel):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        fewer = {"STEPS": STEPS // 4, "SEEDS": SEEDS[:1]}  # a step of two ranks takes twice as long
        cls.enterClassContext(unittest.mock.patch.multiple(no_model_test, **fewer))

    def rig(self, kvd: KvdProcess, scheduler: Any, seed: int, **given: Any) -> Any:
        with unittest.mock.patch.object(no_model_test, "Rig", RanksRig):
            return super().rig(kvd, scheduler, seed, **given)

    def prompt(self, rig: Rig, tokens: int = 200) -> list[int]:
        return [rig.random.randrange(3, 1900) for _ in range(tokens)]

    def drop_of_rank(self, kvd: KvdProcess, rig: Any, rank: int, digests: list[bytes]) -> None:
        name, size = rig.connector._workers.caches[rank]
        with kvd_client.Client(kvd.endpoint) as client:
            client.cache(name, block_tokens=32, block_bytes=size).drop(digests)

    def test_each_rank_has_a_cache_and_a_prefix_is_as_long_as_in_the_one_with_least(self) -> None:
        kvd = self.kvd()
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        prompt = self.prompt(rig)
        first = rig.scheduler.requests[rig.add(prompt, 10)]
        rig.run_dry()
        digests = rig.connector._planner.names.digests(first, [(0, at) for at in range(6)])
        for rank, left in ((1, 4), (0, 2), (1, 0)):
            self.drop_of_rank(kvd, rig, rank, digests[left:])
            self.assertEqual(rig.connector._link.lookup(digests), left, f"rank {rank}")
        for found in (0, 6 * 32):  # ranks that still have a block store it again as well, because another rank lost it
            name = rig.add(prompt, 10)
            rig.run_dry()
            self.assertEqual(rig.scheduled[name], len(rig.truth[name]) - 1 - found)
        rig.check_answers()
        rig.check_blocks()
        names = {name for name, _ in rig.connector._workers.caches.values()}
        self.assertEqual(len(names), 2, "ranks have names of their own")
        other = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        name = other.add(prompt, 10)
        other.run_dry()
        self.assertEqual(other.scheduled[name], len(other.truth[name]) - 1 - 6 * 32)
        other.check_answers()

    def test_an_engine_whose_other_rank_has_other_weights_finds_nothing(self) -> None:
        """Two checkpoints share the second rank's part. Nevertheless its blocks depend on the first rank's part."""
        kvd = self.kvd()
        usual = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        prompt = self.prompt(usual)
        usual.add(prompt, 10)
        usual.run_dry()
        changed = doctors.ModelRunner()
        torch.nn.init.zeros_(changed.get_model().weight)
        with unittest.mock.patch.object(doctors, "ModelRunner", side_effect=[changed, doctors.ModelRunner()]):
            other = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        other.computes = RANK // 2
        for found in (0, 6 * 32):  # then its own
            name = other.add(prompt, 10)
            other.run_dry()
            self.assertEqual(other.scheduled[name], len(other.truth[name]) - 1 - found)
        caches = [rig.connector._workers.caches for rig in (usual, other)]
        self.assertNotEqual(caches[0][0], caches[1][0])
        self.assertEqual(caches[0][1], caches[1][1], "the test is of one cache")
        other.check_answers()

    def test_a_load_that_one_rank_lost_is_lost_for_all_and_told_once(self) -> None:
        for lost in range(2):
            rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], blocks=60)
            prompt = self.prompt(rig)
            rig.add(prompt, 10)
            rig.run_dry()
            cache = rig.ranks[lost][0]._copier._cache
            cache.load = unittest.mock.Mock(side_effect=kvd_client.NotFound("gone"))
            name = rig.add(prompt, 10)
            rig.run_dry()
            cache.load.assert_called_once()
            self.assertEqual(rig.scheduled[name], len(rig.truth[name]) - 1)
            self.assertEqual(rig.counts["failed_blocks"], 6)
            rig.check_answers()
            rig.check_blocks()

    def test_what_one_rank_refused_to_store_is_kept_by_none(self) -> None:
        kvd = self.kvd()
        for windows in ((0,), (64, 0)):
            rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=120, windows=windows)
            request = rig.scheduler.requests[rig.add(self.prompt(rig), 10)]
            with unittest.mock.patch.object(rig.ranks[0][0]._loaded, "judge", lambda: lambda copy: False):
                rig.run_dry()
            self.assertGreater(rig.counts["failed_blocks"], 0)
            places = [(group, at) for group in range(len(windows)) for at in range(6)]
            name, size = rig.connector._workers.caches[1]
            with kvd_client.Client(kvd.endpoint) as client:
                cache = client.cache(name, block_tokens=32, block_bytes=size)
                there = [cache.lookup([each]) for each in rig.connector._planner.names.digests(request, places)]
            self.assertEqual(there, [0] * len(places))

    def test_with_a_pipelines_steps_in_flight(self) -> None:
        """vLLM's scheduler without async scheduling goes on while a step is on its way through the stages."""
        for windows in ((0,), (64, 0)):
            rig = self.rig(self.kvd("4MiB/s"), RandomScheduler, SEEDS[0], blocks=40 * len(windows), windows=windows)
            rig.depth = 2
            self.play(rig, STEPS // 10, shared=True)
            self.assertEqual(rig.computed_twice(), {})
            self.assertGreater(rig.counts["parked_blocks"], 0)

    def test_a_rank_that_copies_nothing_keeps_all_from_it(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0])
        opened = [worker.get_handshake_metadata() for worker, *_ in rig.ranks]
        self.assertEqual(opened, [None, None])
        rig.ranks[1][0]._copies = False
        rig.connector.set_xfer_handshake_metadata_pp_aware({(0, 1): rig.ranks[1][0].get_handshake_metadata()})
        self.assertFalse(rig.connector.can_park)
        rig.add(self.prompt(rig), 10)
        rig.run_dry()
        self.assertEqual(rig.counts.get("stored_blocks", 0), 0)

    def test_ends_of_one_rank_alone_are_seen(self) -> None:
        """The control: blocks are reused, and parked requests come back, once the first rank is done."""

        class Hasty(Workers):
            def hear(self, ends: Ends) -> Ends:
                first = [each for each in (ends, *ends.others) if each.rank == 0]
                return super().hear(dataclasses.replace(first[0], others=[]) if first else Ends())

        rig = self.rig(self.kvd("1MiB/s"), RandomScheduler, SEEDS[0], options=PARK_ONLY)
        rig.connector._workers = Hasty(1)
        with self.assertRaises(WrongBytes):
            self.play(rig, STEPS)

    def test_bytes_of_another_rank_are_seen(self) -> None:
        """The control: both ranks have one cache."""
        pages = {"pages": (PAGE, PAGE)}
        with unittest.mock.patch("kvd_vllm.identity.config_of", lambda *_: "the same"):
            rig = self.rig(self.kvd(), RandomScheduler, SEEDS[0], **pages)
        with self.assertRaises(WrongBytes):
            self.play(rig, STEPS, shared=True)

    def test_kvd_is_told_of_the_blocks_of_all_ranks(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], pages=(PAGE, PAGE))
        parts = [worker.shape.block_bytes for worker, *_ in rig.ranks]
        self.assertEqual(rig.connector.shape.block_bytes, sum(parts))

    def test_an_elastic_cache_is_refused_and_the_option_named(self) -> None:
        kvd = self.kvd()
        with self.assertRaisesRegex(KvdRequired, "2 workers share a model; take .*`elastic`"):
            self.rig(kvd, KvdScheduler, SEEDS[0], options={"elastic": True})
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], options={"elastic": True, "required": False})
        self.assertIsNone(rig.connector.balloon)
        rig.add(self.prompt(rig), 10)
        rig.run_dry()
        self.assertGreater(rig.counts["stored_blocks"], 0)

    def test_kv_events_of_several_are_refused_and_said(self) -> None:
        events = {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}}
        with self.assertLogs("vllm.kvd_vllm", "WARNING") as log:
            rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], engine=events)
        self.assertIn("several workers have a part of each", "".join(log.output))
        self.assertIsNone(rig.connector._planner.announcer)

    def test_workers_that_were_never_tried_together_are_refused_with_the_flag_that_helps(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0])
        cache, config = rig.scheduler.kv_cache_config, copy.copy(rig.scheduler.vllm_config)
        self.assertEqual(layout.refusal(config, cache), "")
        usual = config.parallel_config
        for change, reason in (
            ({"distributed_executor_backend": "ray"}, "--distributed-executor-backend mp"),
            ({"nnodes": 2}, "--nnodes away"),
            ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
            ({"prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
            ({"enable_eplb": True}, "--enable-eplb"),
            ({"world_size": 16}, "16 workers"),
        ):
            several = copy.copy(usual)
            for name, value in change.items():
                object.__setattr__(several, name, value)
            config.parallel_config = several
            self.assertIn(reason, layout.refusal(config, cache))
            # With one worker nothing changes.
            object.__setattr__(several, "world_size", 1)
            self.assertEqual(layout.refusal(config, cache), "")
        for world_size in (1, 2):
            several = copy.copy(usual)
            object.__setattr__(several, "data_parallel_size", 2)
            object.__setattr__(several, "world_size", world_size)
            config.parallel_config = several
            self.assertIn("--data-parallel-size", layout.refusal(config, cache))
        config.parallel_config = usual
        object.__setattr__(config, "lora_config", types.SimpleNamespace())
        self.assertIn("--enable-lora", layout.refusal(config, cache))


for inherited in dir(no_model_test.NoModel):
    if inherited.startswith("test_") and inherited not in AS_OF_ONE:
        setattr(Ranks, inherited, None)


class LinkToSeveralCaches(unittest.TestCase):
    SHAPES = (layout.CacheShape("a", 32, PAGE, 0, (0,)), layout.CacheShape("b", 32, PAGE, 0, (0,)))
    NAMES = (bytes(31) + b"1", bytes(31) + b"2")

    def setUp(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=16))
        self.link = Link(Options(endpoint=kvd.endpoint, step_budget_s=5.0))
        self.addCleanup(self.link.close)
        self.link.open(self.SHAPES)

    def test_what_cannot_be_posted_is_not_late(self) -> None:
        for each in self.link._caches:
            for call in ("post_lookup", "post_drop"):
                setattr(each, call, unittest.mock.Mock(side_effect=kvd_client.WouldBlock("32 are posted")))
        self.link.expect(self.NAMES)
        self.assertEqual(self.link.drop(self.NAMES, wait=False), 0)
        self.assertEqual(self.link.lookup(self.NAMES), 0, "kvd is not asked")
        self.assertEqual(self.link.take_unanswered(), 0)

    def test_nothing_in_one_is_nothing_whatever_comes_to_another(self) -> None:
        later = kvd_client.WouldBlock("remote servers are asked")
        for answers, found in (((0, later), 0), ((later, 0), 0), ((2, later), None), ((later, 2), None), ((2, 1), 1)):
            for cache, answer in zip(self.link._caches, answers, strict=True):
                setattr(cache, "lookup", unittest.mock.Mock(side_effect=[answer]))
            with self.assertRaises(NotYet) if found is None else contextlib.nullcontext():
                self.assertEqual(self.link.lookup(self.NAMES), found)

    def test_where_one_is_refused_none_stays_open(self) -> None:
        self.link._shapes = (self.SHAPES[0], self.SHAPES[1]._replace(block_tokens=0))
        for _ in range(20):  # kvd has 16 for a session
            with self.assertRaises(kvd_client.InvalidArgument):
                self.link._attach(5.0)
        self.link.open(self.SHAPES)
        self.assertTrue(self.link.is_up)


class WhatWorkersSay(unittest.TestCase):
    def test_is_put_together(self) -> None:
        both = Workers(2)
        first = Ends(model="a", weights="A", block_bytes=1)
        first.aggregate(Ends(rank=1, model="b", weights="B", block_bytes=2))
        whole = both.hear(first)
        self.assertEqual(both.caches, {0: ("a", 1), 1: ("b", 2)})
        self.assertEqual([weights_of(whole.weights, rank) for rank in range(2)], ["A", "B"])
        self.assertTrue(whole.model)
        whole = both.hear(Ends(rank=1, weights="C"))
        self.assertEqual([weights_of(whole.weights, rank) for rank in range(2)], ["A", "C"])
        self.assertEqual((whole.model, both.hear(Ends()).weights), ("", ""))
        self.assertEqual(weights_of("", 1), "")

    def test_a_copy_ends_with_its_last_part_as_its_worst(self) -> None:
        both = Workers(2)
        cases = (("done", "done"), ("done", "refused"), ("failed", "refused"), ("done", "failed"))
        for number, (one, other) in enumerate(cases):
            for first, second in ((one, other), (other, one)):
                whole = both.hear(Ends(**{first: [number]}))
                self.assertEqual(whole.done + whole.refused + whole.failed, [])
                self.assertEqual(getattr(both.hear(Ends(rank=1, **{second: [number]})), other), [number])
        together = Ends(done=[7])
        together.aggregate(Ends(rank=1, done=[7]))
        self.assertEqual(both.hear(together).done, [7])


if __name__ == "__main__":
    ctest.main()
