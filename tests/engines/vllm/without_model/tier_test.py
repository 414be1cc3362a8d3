"""kvd below vLLM's CPU tier: vLLM's own tiering manager, driven as its scheduler does, on a real kvd."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import signal
import tempfile
import types
import unittest
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

import ctest
import kvd_client
import torch
from kvd_client import TicketState
from kvd_process import SLAB, KvdProcess, poll_until
from kvd_vllm.tier.pages import Kind, Options, Pages
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig, OffloadingParallelConfig,
)  # fmt: skip
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

PAGE, CHUNKS = 8192, 8
LATE_S = 30.0  # a machine with other work
SOME = types.SimpleNamespace


def keys(count: int, start: str = "", group: int = 0) -> list[OffloadKey]:
    return [make_offload_key(f"{start} block {at}".encode().ljust(32), group) for at in range(count)]


def content(key: bytes) -> bytes:
    """What a block has, which differs for each."""
    random = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:4]))
    return torch.randint(256, (PAGE,), dtype=torch.uint8, generator=random).numpy().tobytes()


def digest(block: bytes | memoryview) -> str:
    """Stands for a block in what a test says."""
    return hashlib.sha256(block).hexdigest()[:16]


def digests(some: Sequence[OffloadKey]) -> list[str | None]:
    return [digest(content(key)) for key in some]


class Engine:
    """The parts of vLLM that a tier looks at, its scheduler's calls, and its workers' copies."""

    def __init__(self, kvd: KvdProcess, seeds: Sequence[int] = (1,), **given: Any) -> None:
        self.workers = [self._worker(seed, rank, len(seeds), **given) for rank, seed in enumerate(seeds)]
        self.vllm_config = self.workers[0].vllm_config
        self.model_executor = self
        tier = {"type": "KvdTier", "module_path": "kvd_vllm.tier", "endpoint": kvd.endpoint,
                "copy_timeout_s": LATE_S, "timeout_s": LATE_S, "window_bytes": 32 * PAGE,
                **given.get("tier", {})}  # fmt: skip
        config = OffloadingConfig(
            groups=tuple(OffloadingGroupConfig(16, (f"layer.{at}",), at) for at in range(2)),
            worker_kv_bytes_per_block=PAGE // len(seeds), enable_kv_cache_events=False, engine_id=uuid.uuid4().hex,
            extra_config={"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": PAGE * CHUNKS,
                          "secondary_tiers": [tier]},
            model=OffloadingModelConfig("/some/model", "float16"),
            cache=OffloadingCacheConfig(16, 1),
            parallel=OffloadingParallelConfig(
                0, len(seeds), len(seeds), 1, 1, 1, given.get("replica", 0), 1, None, False
            ),
            kv_cache_layout=given.get("layout", "NHD"),
        )  # fmt: skip
        spec = OffloadingSpecFactory.create_spec(dataclasses.replace(config, **given.get("offloading", {})))
        self.manager: Any = spec.get_manager()
        self.tier = self.manager.secondary_tiers[0]
        self.requests = 0

    def _worker(self, seed: int, rank: int, ranks: int, **given: Any) -> Any:
        torch.manual_seed(seed)
        model = torch.nn.Linear(8, 8)
        cache = SOME(kv_cache_layout="NHD", kv_cache_groups=[
            SOME(layer_names=[f"layer.{at}"], kv_cache_spec=kind) for at, kind in enumerate(("attention", "mamba"))
        ])  # fmt: skip
        config = SOME(
            model_config=SOME(
                hf_config=SOME(to_dict=lambda: {"theta": given.get("theta", 1)}, architectures=["Hybrid"]),
                dtype=given.get("dtype", "float16"), quantization=None, multimodal_config=None,
                is_multimodal_model=given.get("images", False),
            ),
            cache_config=SOME(cache_dtype=given.get("cache_dtype", "auto"), prefix_caching_hash_algo="sha256"),
            parallel_config=SOME(rank=rank, world_size=ranks, tensor_parallel_size=ranks,
                                 data_parallel_size=given.get("replicas", 1)),
            compilation_config=SOME(static_forward_context={}), lora_config=given.get("lora"),
            load_config=SOME(load_format=given.get("load_format", "auto")),
            speculative_config=SOME(draft_model_config=SOME(hf_config=SOME(to_dict=lambda: {"eps": given["draft"]})))
            if given.get("draft") else None,
        )  # fmt: skip
        draft = torch.nn.Linear(4, 4) if given.get("draft") else None
        runner = SOME(kv_cache_config=cache, get_model=lambda: model, get_draft_model=lambda: draft)
        return SOME(vllm_config=config, model_runner=runner)

    def collective_rpc(self, method: Any) -> list[Any]:
        return [method(worker) for worker in self.workers]

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def settle(self) -> None:
        assert poll_until(lambda: self.step() or not self.manager.has_pending_work())

    def reset(self) -> None:
        self.manager.reset_cache()
        # From 0.33 on vLLM says when its workers have ended, and loads nothing until then.
        getattr(self.manager, "on_reset_flushed", lambda: None)()

    def begin(self) -> ReqContext:
        self.requests += 1
        context = ReqContext(f"request {self.requests}")
        self.manager.on_new_request(context)
        return context

    def end(self, context: ReqContext) -> None:
        self.manager.on_request_finished(context)
        self.settle()

    def store(self, some: Sequence[OffloadKey]) -> None:
        """Computes blocks, which go to the CPU tier and from there to kvd."""
        context = self.begin()
        out = self.manager.prepare_store(some, context)
        view = self.manager.primary_tier.get_kv_memoryview().cast("B")
        for key, chunk in zip(out.keys_to_store, out.store_spec.chunk_ids, strict=True):
            view[chunk * PAGE : (chunk + 1) * PAGE] = content(key)
        view.release()
        self.manager.complete_store(out.keys_to_store, context)
        self.end(context)

    def evict(self, some: Sequence[OffloadKey]) -> None:
        """Fills the CPU tier with other blocks."""
        self.store(keys(CHUNKS, uuid.uuid4().hex))
        assert not any(self.manager.primary_tier.lookup(key, ReqContext("")) is LookupResult.HIT for key in some)

    def find(self, some: Sequence[OffloadKey]) -> list[str | None]:
        """The blocks as a request gets them; None: it has to compute them."""
        context = self.begin()
        found: list[Any] = []

        def look() -> bool:
            found[:] = [self.manager.lookup(key, context) for key in some]
            self.step()
            return all(each in (LookupResult.HIT, LookupResult.MISS) for each in found)

        assert poll_until(look), found
        there = [key for key, each in zip(some, found, strict=True) if each is LookupResult.HIT]
        chunks = iter(self.manager.prepare_load(there, context).chunk_ids if there else ())
        view = self.manager.primary_tier.get_kv_memoryview().cast("B")
        blocks = [
            digest(view[(at := int(next(chunks))) * PAGE : (at + 1) * PAGE]) if each is LookupResult.HIT else None
            for each in found
        ]  # fmt: skip
        view.release()
        if there:
            self.manager.complete_load(there, context)
        self.end(context)
        return blocks


class Case(unittest.TestCase):
    call_s = LATE_S  # what comes late is neither stored nor found

    def setUp(self) -> None:
        self.enterContext(mock.patch("kvd_vllm.tier.pages._CALL_S", self.call_s))

    def kvd(self, **given: Any) -> KvdProcess:
        return self.enterContext(KvdProcess(**given))

    def engine(self, kvd: KvdProcess, seeds: Sequence[int] = (1,), **given: Any) -> Engine:
        engine = Engine(kvd, seeds, **given)
        self.addCleanup(engine.manager.shutdown)
        return engine

    def find(self, engine: Engine, some: Sequence[OffloadKey]) -> None:
        self.assertEqual(engine.find(some), digests(some))


class Tier(Case):
    def test_blocks_that_left_the_cpu_tier_come_back(self) -> None:
        engine = self.engine(self.kvd())
        some = keys(3) + keys(3, group=1)
        engine.store(some)
        engine.evict(some)
        self.find(engine, some)

    def test_other_bytes_in_kvd_are_seen(self) -> None:
        """The control of all of these tests: what kvd has is what comes back."""
        engine = self.engine(self.kvd())
        some = keys(3)
        engine.store(some)
        engine.evict(some)
        names, pages = engine.tier._digests(some[1:2]), engine.tier._pages
        pages._session.cache.drop(names)
        pages.store(names, lambda at, row: row.fill_(7))
        self.assertEqual(engine.find(some), [*digests(some[:1]), digest(b"\7" * PAGE), *digests(some[2:])])

    def test_another_engine_has_them_and_finds_the_ones_between_gaps(self) -> None:
        kvd = self.kvd()
        some = keys(8)
        there = [some[at] for at in (0, 1, 3, 4, 5, 7)]
        self.engine(kvd).store(there)
        other = self.engine(kvd)
        self.assertEqual(other.find(some), [digest(content(key)) if key in there else None for key in some])
        self.engine(kvd).store(some)
        self.find(self.engine(kvd), some)

    def test_new_blocks_cost_one_question(self) -> None:
        engine = self.engine(self.kvd())
        cache = engine.tier._pages._session.cache
        with mock.patch.object(cache, "lookup", wraps=cache.lookup) as asked:
            engine.store(keys(CHUNKS))
        self.assertEqual(asked.call_count, 1)

    def test_more_blocks_than_the_window_has_rows(self) -> None:
        engine = self.engine(self.kvd(), tier={"window_bytes": 3 * 2 * PAGE})
        engine.store(keys(CHUNKS))
        engine.evict(keys(CHUNKS))
        self.find(engine, keys(CHUNKS))

    def test_kvds_disk_has_them_after_a_restart(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-tier-"))
        kvd = self.kvd(extra=f'[disk]\npath = "{folder}"\nsize = "64MiB"\nfloor = "0"\ntouches = 1\n')
        engine = self.engine(kvd)
        engine.store(keys(4))
        self.assertTrue(poll_until(lambda: kvd.get("/v1/cache")["disk"]["stores"] >= 4))
        engine.evict(keys(4))
        kvd.kill()
        kvd.start()
        self.assertEqual(engine.find(keys(4)), [None] * 4, "it has heard of the end")
        self.assertTrue(poll_until(lambda: engine.tier._pages.is_up and engine.find(keys(4)) == digests(keys(4))))
        self.assertGreaterEqual(kvd.get("/v1/cache")["disk"]["loads"], 4)

    def test_what_the_cpu_tier_was_emptied_of_is_not_found_again(self) -> None:
        """Changes names as vLLM does for other weights."""
        kvd = self.kvd()
        engine = self.engine(kvd)
        engine.store(keys(3))
        self.find(engine, keys(3))
        engine.reset()
        self.assertEqual(engine.find(keys(3)), [None] * 3)
        engine.store(keys(2))
        engine.evict(keys(2))
        self.find(engine, keys(2))
        self.find(self.engine(kvd), keys(3))


class Identity(Case):
    def test_engines_that_compute_otherwise_share_nothing(self) -> None:
        kvd = self.kvd(slabs=64)
        self.engine(kvd).store(keys(2))
        others = {
            "weights": self.engine(kvd, (2,)),
            "draft model": self.engine(kvd, draft=1e-6),
            "config": self.engine(kvd, theta=2),
            "type": self.engine(kvd, dtype="bfloat16"),
            "type of the cache": self.engine(kvd, cache_dtype="fp8"),
            "layout": self.engine(kvd, layout="HND"),
            "blocks of a chunk": self.engine(kvd, offloading={"cache": OffloadingCacheConfig(8, 1)}),
            "groups": self.engine(kvd, offloading={"groups": (OffloadingGroupConfig(16, ("layer.0",), 0),)}),
        }
        self.find(self.engine(kvd), keys(2))
        self.find(self.engine(kvd, replica=1), keys(2))
        for name, each in others.items():
            with self.subTest(name):
                self.assertTrue(each.tier._pages.is_up)
                self.assertEqual(each.find(keys(2)), [None] * 2)

    def test_other_settings_of_a_draft_model_of_equal_weights_share_nothing(self) -> None:
        kvd = self.kvd()
        self.engine(kvd, draft=1e-6).store(keys(2))
        self.find(self.engine(kvd, draft=1e-6), keys(2))
        self.assertEqual(self.engine(kvd, draft=1e-5).find(keys(2)), [None] * 2)

    def test_the_weights_of_every_worker_count(self) -> None:
        kvd = self.kvd(slabs=64)
        self.engine(kvd, (1, 2)).store(keys(2))
        self.find(self.engine(kvd, (1, 2)), keys(2))
        for seeds in ((1, 3), (3, 2), (2, 1)):
            self.assertEqual(self.engine(kvd, seeds).find(keys(2)), [None] * 2, seeds)

    def test_what_cannot_be_told_apart_is_found_by_its_own_engine_alone(self) -> None:
        kvd = self.kvd(slabs=64)
        for given, reason in (({"lora": object()}, "LoRA"), ({"images": True}, "more than text"),
                              ({"replicas": 2}, "experts"), ({"load_format": "dummy"}, "once it runs")):  # fmt: skip
            with self.subTest(reason), self.assertLogs("vllm.kvd_vllm", "WARNING") as log:
                engine = self.engine(kvd, **given)
                self.assertIn(reason, log.output[0])
                engine.store(keys(2))
                engine.evict(keys(2))
                self.find(engine, keys(2))
                self.assertEqual(self.engine(kvd, **given).find(keys(2)), [None] * 2)

    def test_an_engine_without_workers_to_ask_is_alone(self) -> None:
        class Silent(Engine):
            def collective_rpc(self, method: Any) -> list[Any]:
                raise TimeoutError("no answer of a worker")

        kvd = self.kvd()
        names = []
        with self.assertLogs("vllm.kvd_vllm", "WARNING"):
            for _ in range(2):
                engine = Silent(kvd)
                self.addCleanup(engine.manager.shutdown)
                names.append(engine.tier._pages._kind.name)
        self.assertEqual(len(set(names)), 2)

    def test_options_that_do_not_exist_keep_vllm_from_starting(self) -> None:
        kvd = self.kvd()
        with self.assertRaisesRegex(ValueError, "KvdTier has no endpiont; it has endpoint, engine_name"):
            Engine(kvd, tier={"endpiont": "/a"})
        with self.assertRaisesRegex(ValueError, "copy_timeout_s: 0 is no time in seconds"):
            Engine(kvd, tier={"copy_timeout_s": 0})


class Faults(Case):
    def test_kvd_is_killed_in_between_and_is_used_again(self) -> None:
        kvd = self.kvd()
        engine = self.engine(kvd)
        engine.store(keys(3))
        engine.evict(keys(3))
        with self.assertLogs("vllm.kvd_vllm", "WARNING") as log:
            kvd.kill()
            self.assertEqual(engine.find(keys(3)), [None] * 3)
            engine.store(keys(3, "meanwhile"))
            self.find(engine, keys(3, "meanwhile"))
            kvd.start()
            self.assertTrue(poll_until(lambda: engine.tier._pages.is_up))
        self.assertEqual(sum("no answer" in line for line in log.output), 1)
        self.assertEqual(engine.find(keys(3)), [None] * 3, "that kvd has none of them")
        engine.store(keys(3))
        engine.evict(keys(3))
        self.find(engine, keys(3))

    def test_vllm_starts_without_kvd(self) -> None:
        kvd = self.kvd()
        kvd.kill()
        with self.assertLogs("vllm.kvd_vllm", "WARNING"):
            engine = self.engine(kvd)
            engine.store(keys(3))
            self.find(engine, keys(3))
            kvd.start()
            self.assertTrue(poll_until(lambda: engine.tier._pages.is_up))
        engine.store(keys(3, "later"))
        engine.evict(keys(3, "later"))
        self.find(engine, keys(3, "later"))

    def test_chunks_larger_than_a_slab_are_refused_once_with_the_reason(self) -> None:
        kvd = self.kvd()
        attach = mock.patch("kvd_vllm.tier.pages.kvd_client.Client", wraps=kvd_client.Client)
        with self.assertLogs("x", "WARNING") as log, attach as attached:
            pages = Pages(Options(endpoint=kvd.endpoint), Kind("large", 16, 2 * SLAB), logging.getLogger("x"))
            self.addCleanup(pages.close)
        self.assertIsNone(pages._finder)
        self.assertEqual((len(log.output), attached.call_count), (1, 1))
        self.assertIn("does not fit a slab of 2097152 bytes: use", log.output[0])
        self.assertTrue(poll_until(lambda: not kvd.engines()))

    def test_blocks_that_leave_kvd_before_they_are_loaded_are_computed(self) -> None:
        """vLLM would look for them for ever if it were not told of a failed load."""
        kvd = self.kvd()
        engine = self.engine(kvd)
        engine.store(keys(4))
        engine.evict(keys(4))
        context = engine.begin()
        looked_up = [(key, context) for key in keys(4)]
        self.assertTrue(poll_until(lambda: engine.step() or all(
            engine.tier.lookup(*each) is LookupResult.HIT for each in looked_up)))  # fmt: skip
        engine.tier._pages._session.cache.drop(engine.tier._digests(keys(4)[2:]))
        found: list[Any] = []

        def look() -> bool:
            found[:] = [engine.manager.lookup(key, context) for key in keys(4)]
            engine.step()
            return LookupResult.HIT_PENDING not in found

        self.assertTrue(poll_until(look))
        self.assertEqual(found, [LookupResult.HIT] * 2 + [LookupResult.MISS] * 2)
        engine.end(context)

    def test_rows_that_kvd_may_still_read_are_not_written(self) -> None:
        engine = self.engine(self.kvd())
        pages = engine.tier._pages
        half = pages._session.stores
        half.under_way, before = [1], half.rows.clone()
        with mock.patch.object(pages._session.cache, "poll", lambda tickets: [TicketState.PENDING] * len(tickets)):
            self.assertEqual(pages.store([b"1" * 32], lambda at, row: row.fill_(7)), 0)
        self.assertTrue(torch.equal(half.rows, before))

    def test_its_memory_is_given_back(self) -> None:
        kvd = self.kvd()
        engine = Engine(kvd)
        engine.store(keys(3))
        path = Path(engine.manager.primary_tier._mmap_region.mmap_path)
        self.assertTrue(path.exists())
        engine.manager.shutdown()
        self.assertFalse(path.exists())
        self.assertNotIn(str(path), Path("/proc/self/maps").read_text())
        self.assertTrue(poll_until(lambda: kvd.get("/v1/status")["engines"] == 0))


class Late(Case):
    call_s = 0.25

    def test_a_kvd_that_hangs_costs_a_bounded_time(self) -> None:
        kvd = self.kvd()
        engine = self.engine(kvd, tier={"copy_timeout_s": 0.5})
        engine.store(keys(3))
        engine.evict(keys(3))
        kvd.signal(signal.SIGSTOP)
        self.addCleanup(kvd.signal, signal.SIGCONT)
        for at in range(5):
            self.assertEqual(engine.find(keys(3)), [None] * 3)
            engine.store(keys(3, str(at)))
        engine.reset()
        kvd.signal(signal.SIGCONT)


if __name__ == "__main__":
    ctest.main()
