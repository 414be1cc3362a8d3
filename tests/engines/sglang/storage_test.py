"""KvdStorage on a real kvd, as SGLang calls it, without an engine: a pool, a scheduler and keys that look
like SGLang's."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import unittest
from types import SimpleNamespace
from typing import Any

import ctest
import torch
from kvd_process import KvdProcess, poll_until
from kvd_sglang import KvdStorage
from kvd_sglang.options import Options, parse
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

PAGE, LAYERS, HEADS, HEAD, PAGES = 16, 2, 2, 8, 64
LATE_S = 30.0  # a machine with other work


class MHATokenToKVPoolHost:
    """Imitates SGLang's class of this name: the only pool whose pages are stored."""

    page_size, layer_num, head_num, head_dim, start_layer, end_layer = PAGE, LAYERS, HEADS, HEAD, 0, LAYERS
    dtype, layout, storage_format_tag = torch.float32, "layer_first", None

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.kv_buffer = torch.randn(2, LAYERS, PAGES * PAGE, HEADS, HEAD, generator=random)

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        page = self.kv_buffer[:, :, index : index + PAGE]
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(2 * LAYERS * PAGE * HEADS * HEAD)

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        self.kv_buffer[:, :, index : index + PAGE] = data_page.view(2, LAYERS, PAGE, HEADS, HEAD)


class OtherPool(MHATokenToKVPoolHost):
    pass


def keys(count: int, start: str = "") -> list[str]:
    return [hashlib.sha256(f"{start}{at}".encode()).hexdigest() for at in range(count)]


def indices(count: int, first: int = 0) -> torch.Tensor:
    return torch.arange(first * PAGE, (first + count) * PAGE)


class Scheduler:
    """What a storage looks at of SGLang's; `make` is its call."""

    def __init__(self, seed: int = 1, **given: Any) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(8, 8)
        self.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(model=self.model))
        arguments = {"enable_lora": None, "speculative_algorithm": None, "quantization": None,
                     "kv_cache_dtype": "auto", "attention_backend": "torch_native"}  # fmt: skip
        self.server_args = SimpleNamespace(**{**arguments, **given})
        config = SimpleNamespace(architectures=["Tiny"], to_dict=lambda: {"theta": given.get("theta", 1)})
        self.model_config = SimpleNamespace(
            hf_config=config, context_len=128, dtype=torch.float32, is_multimodal=given.get("images", False)
        )

    def make(self, pool: Any = None, names: tuple[str, ...] = ("kv",), rank: int = 0, **extra: Any) -> KvdStorage:
        pool = pool or MHATokenToKVPoolHost()
        options = {"backend_name": "kvd", "module_path": "kvd_sglang", "class_name": "KvdStorage", **extra}
        config = HiCacheStorageConfig(
            tp_rank=rank, tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
            enable_storage_metrics=False, is_page_first_layout=False, model_name="m", extra_config=options,
        )  # fmt: skip
        storage = StorageBackendFactory.create_backend("dynamic", config, pool)
        storage.register_mem_pool_host(pool)
        for name in names:
            storage.register_mem_host_pool_v2(pool, name)
        storage.on_host_pools_registered()
        return storage


class Case(unittest.TestCase):
    def kvd(self, **given: Any) -> KvdProcess:
        return self.enterContext(KvdProcess(**given))

    def storage(
        self, kvd: KvdProcess, scheduler: Scheduler | None = None, pool: Any = None, **extra: Any
    ) -> KvdStorage:
        extra = {"copy_timeout_s": LATE_S, "timeout_s": LATE_S, **extra}
        found = (scheduler or Scheduler()).make(pool, endpoint=kvd.endpoint, **extra)
        self.addCleanup(found.close)
        return found

    def store(self, storage: KvdStorage, some: list[str]) -> None:
        """A late answer is a failure to SGLang, and here it is tried again."""
        self.assertTrue(poll_until(lambda: all(storage.batch_set_v1(some, indices(len(some))))))

    def find(self, storage: KvdStorage, some: list[str], count: int) -> None:
        self.assertTrue(poll_until(lambda: storage.batch_exists(some) == count), storage.batch_exists(some))


class Storage(Case):
    def test_another_engine_has_the_same_bytes(self) -> None:
        kvd, pool, other = self.kvd(), MHATokenToKVPoolHost(1), MHATokenToKVPoolHost(2)
        first = self.storage(kvd, pool=pool)
        self.store(first, keys(40))
        second = self.storage(kvd, pool=other)
        self.find(second, keys(50), 40)
        self.assertTrue(second.exists(keys(40)[7]))
        before = other.kv_buffer.clone()
        # Five pages later than they were.
        self.assertTrue(poll_until(lambda: all(second.batch_get_v1(keys(40), indices(40, 5)))))
        tokens = slice(5 * PAGE, 45 * PAGE)
        self.assertTrue(torch.equal(other.kv_buffer[:, :, tokens], pool.kv_buffer[:, :, : 40 * PAGE]))
        self.assertTrue(torch.equal(other.kv_buffer[:, :, 45 * PAGE :], before[:, :, 45 * PAGE :]))

    def test_more_pages_than_the_window_has_rows(self) -> None:
        kvd, pool = self.kvd(), MHATokenToKVPoolHost(1)
        page = pool.get_data_page(0).numel() * 4
        storage = self.storage(kvd, pool=pool, window_bytes=6 * page)
        self.store(storage, keys(40))
        other = MHATokenToKVPoolHost(2)
        again = self.storage(kvd, pool=other, window_bytes=page)
        self.assertTrue(poll_until(lambda: all(again.batch_get_v1(keys(40), indices(40)))))
        self.assertTrue(torch.equal(other.kv_buffer[:, :, : 40 * PAGE], pool.kv_buffer[:, :, : 40 * PAGE]))

    def test_the_older_calls_find_the_same_pages(self) -> None:
        kvd, pool = self.kvd(), MHATokenToKVPoolHost(1)
        storage = self.storage(kvd, pool=pool)
        pages = [pool.get_data_page(at * PAGE) for at in range(3)]
        self.assertTrue(poll_until(lambda: storage.batch_set(keys(3), pages)))
        found = storage.batch_get(keys(4), [pool.get_dummy_flat_data_page() for _ in range(4)])
        self.assertIsNone(found[3])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(found, pages, strict=False)))
        self.assertTrue(torch.equal(storage.get(keys(3)[1]), pages[1]))
        self.assertIsNone(storage.get("ab" * 32))

    def test_what_was_cleared_is_not_found_again_by_this_engine(self) -> None:
        kvd = self.kvd()
        storage = self.storage(kvd)
        self.store(storage, keys(3))
        self.find(storage, keys(3), 3)
        storage.clear()
        self.find(storage, keys(3), 0)
        self.store(storage, keys(2))
        self.find(storage, keys(3), 2)

    def test_a_pool_without_room_for_the_window_has_a_smaller_one(self) -> None:
        kvd = self.kvd(slabs=1)
        storage = self.storage(kvd)
        self.store(storage, keys(20))
        self.find(storage, keys(20), 20)


class Identity(Case):
    def test_engines_that_compute_otherwise_share_nothing(self) -> None:
        kvd = self.kvd(slabs=64)
        self.store(self.storage(kvd), keys(4))
        wide = MHATokenToKVPoolHost()
        wide.layout = "page_first"
        others = {
            "weights": self.storage(kvd, Scheduler(seed=2)),
            "config": self.storage(kvd, Scheduler(theta=2)),
            "attention": self.storage(kvd, Scheduler(attention_backend="fa3")),
            "layout": self.storage(kvd, pool=wide),
            "rank": self.storage(kvd, rank=1),
        }
        self.find(self.storage(kvd), keys(4), 4)
        for name, each in others.items():
            with self.subTest(name):
                self.assertTrue(each._pages is not None and each._pages.is_up)
                self.assertEqual(each.batch_exists(keys(4)), 0)

    def test_one_changed_number_of_the_weights_is_another_model(self) -> None:
        kvd = self.kvd()
        self.store(self.storage(kvd), keys(4))
        other = Scheduler()
        with torch.no_grad():
            other.model.weight[3, 5] += 1e-3
        self.assertEqual(self.storage(kvd, other).batch_exists(keys(4)), 0)

    def test_weights_that_change_end_it_with_one_line(self) -> None:
        kvd, scheduler = self.kvd(), Scheduler()
        storage = self.storage(kvd, scheduler)
        self.store(storage, keys(4))
        with torch.no_grad():
            scheduler.model.weight.mul_(2)
        with self.assertLogs("kvd_sglang", "WARNING") as log:
            self.assertEqual(storage.batch_exists(keys(4)), 0)
            self.assertEqual(storage.batch_set_v1(keys(4), indices(4)), [False] * 4)
        self.assertEqual(len(log.output), 1)
        self.assertIn("weights have changed", log.output[0])

    def test_what_cannot_be_told_apart_is_refused_with_its_reason(self) -> None:
        kvd = self.kvd()
        mamba = PoolTransfer(PoolName.MAMBA, keys=keys(2), hit_policy=PoolHitPolicy.TRAILING_PAGES)
        for scheduler, made, reason in (
            (Scheduler(enable_lora=True), {}, "LoRA"),
            (Scheduler(images=True), {}, "more than text"),
            (Scheduler(speculative_algorithm="EAGLE"), {}, "draft model"),
            (Scheduler(), {"pool": OtherPool()}, "its pool is a OtherPool"),
            (Scheduler(), {"names": ("kv", "mamba")}, "pool mamba"),
        ):
            with self.subTest(reason), self.assertLogs("kvd_sglang", "WARNING") as log:
                storage = scheduler.make(**made, endpoint=kvd.endpoint)
                self.assertIn(reason, log.output[0])
                self.assertFalse(any(storage.batch_set_v1(keys(2), indices(2))))
                self.assertEqual(storage.batch_exists(keys(2)), 0)
                self.assertEqual(storage.batch_exists_v2(keys(2), [mamba]).kv_hit_pages, 0)
                self.assertEqual(storage.batch_get_v2([mamba]), {"mamba": [False, False]})
                self.assertEqual(storage.batch_set_v2([mamba]), {"mamba": [False, False]})
                storage.close()

    def test_options(self) -> None:
        with self.assertRaisesRegex(ValueError, "KvdStorage has no endpiont; it has endpoint, engine_name"):
            parse({"endpiont": "/a"})
        with self.assertRaisesRegex(ValueError, "copy_timeout_s: 0 is no time in seconds"):
            parse({"copy_timeout_s": 0})
        self.assertEqual(parse({"interface_v1": 1, "engine_name": "one"}, {"KVD_ENDPOINT": "/b"}),
                         Options(endpoint="/b", engine_name="one"))  # fmt: skip


class Faults(Case):
    def test_kvd_is_started_later(self) -> None:
        kvd = self.kvd()
        kvd.kill()
        with self.assertLogs("kvd_sglang", "WARNING") as log:
            storage = self.storage(kvd)
            self.assertEqual(storage.batch_set_v1(keys(2), indices(2)), [False] * 2)
            self.assertEqual(storage.batch_get_v1(keys(2), indices(2)), [False] * 2)
            kvd.start()
            self.store(storage, keys(2))
        self.find(storage, keys(2), 2)
        self.assertEqual(sum("no answer" in line for line in log.output), 1)

    def test_kvd_is_killed_while_pages_are_stored_and_found(self) -> None:
        kvd, pool = self.kvd(slabs=16, dram_slabs=16), MHATokenToKVPoolHost(1)
        storage = self.storage(kvd, pool=pool)
        stop = threading.Event()
        wrong: list[int] = []

        def work(number: int) -> None:
            while not stop.is_set():
                some = keys(30, f"{number} ")
                storage.batch_set_v1(some, indices(30))
                pages = storage.batch_get(some[: storage.batch_exists(some)])
                wrong.extend(at for at, page in enumerate(pages)
                             if page is not None and not torch.equal(page, pool.get_data_page(at * PAGE)))  # fmt: skip

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for each in threads:
            each.start()
        for _ in range(4):
            kvd.kill()
            kvd.start()
            self.assertTrue(poll_until(lambda: storage._pages.is_up))
        stop.set()
        for each in threads:
            each.join()
        self.assertEqual(wrong, [])
        self.store(storage, keys(5))
        self.find(storage, keys(5), 5)

    def test_a_kvd_that_hangs_costs_a_bounded_time(self) -> None:
        kvd = self.kvd()
        storage = self.storage(kvd, copy_timeout_s=0.5)
        self.store(storage, keys(4))
        os.kill(kvd.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, kvd.process.pid, signal.SIGCONT)
        done = threading.Event()

        def ask() -> None:
            for _ in range(20):
                storage.batch_exists(keys(4))
                storage.batch_get_v1(keys(4), indices(4))
                storage.batch_set_v1(keys(4), indices(4))
            done.set()

        thread = threading.Thread(target=ask)
        thread.start()
        self.assertTrue(done.wait(LATE_S))
        thread.join()
        os.kill(kvd.process.pid, signal.SIGCONT)
        self.find(storage, keys(4), 4)

    def test_its_memory_is_given_back(self) -> None:
        kvd = self.kvd()
        storage = self.storage(kvd)
        self.store(storage, keys(4))
        self.assertEqual(kvd.get("/v1/status")["engines"], 1)
        storage.close()
        self.assertTrue(poll_until(lambda: kvd.get("/v1/status")["engines"] == 0))


if __name__ == "__main__":
    ctest.main()
