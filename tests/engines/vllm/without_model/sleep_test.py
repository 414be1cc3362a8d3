"""Sleep mode of vLLM 0.33 and later: its own worker's sleep() and wake_up(), with KvdConnector and a real kvd,
but without a model, and without a GPU, whose memory of weights vLLM would move.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ctest
import torch
from kvd_process import SLAB, KvdProcess, pool_bytes_mapped
from model_free import LAYERS, TOKENS, Rig, write_config

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_worker import Worker

import kvd_client
from kvd_vllm.memory import KvdRequired
from kvd_vllm.scheduler import KvdScheduler

PAGE, BLOCKS = SLAB // 4, 24
CACHE = LAYERS * BLOCKS * PAGE


@unittest.skipUnless(hasattr(KVConnectorBase_V1, "unregister_kv_caches"), "this vLLM tells no connector that it sleeps")
class Sleep(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-sleep-"))
        cls.model = write_config(Path(folder))

    def rig(self, kvd: KvdProcess, **options: Any) -> Rig:
        able = mock.patch.object(type(current_platform), "is_sleep_mode_available", lambda _: True)
        engine = {"enable_sleep_mode": True, "enable_prefix_caching": True}
        with able:
            rig = Rig(kvd.endpoint, self.model, KvdScheduler, 1, blocks=BLOCKS, page=PAGE, engine=engine,
                      options=options)  # fmt: skip
        self.addCleanup(rig.close)
        return rig

    @contextlib.contextmanager
    def worker(self, rig: Rig) -> Iterator[Any]:
        """vLLM's worker as far as sleep() and wake_up() look at it."""
        config = SimpleNamespace(model_config=SimpleNamespace(enable_nccl_comm_suspend=False))
        state = SimpleNamespace(
            vllm_config=config, sleep_mode_backend=mock.Mock(), synchronize_device=lambda: None,
            _sleep_saved_parameters={}, _sleep_saved_buffers={}, _sleep_saved_draft_buffers={},
        )  # fmt: skip
        device = mock.patch.multiple(
            torch.accelerator, synchronize=lambda: None, get_memory_info=lambda: (1 << 30, 1 << 30)
        )
        with device, mock.patch.object(kv_transfer_state, "_KV_CONNECTOR_AGENT", rig.worker):
            yield state

    def ask(self, rig: Rig, prompt: list[int]) -> int:
        """How many tokens of the prompt were computed for its answer, which is right."""
        name = rig.add(prompt, 4)
        rig.run_dry(10**6)
        rig.check_answers()
        return rig.scheduled[name] - 3

    def prompt(self, tokens: int) -> list[int]:
        source = random.Random(tokens)
        return [source.randrange(3, 1900) for _ in range(tokens)]

    def test_the_memory_is_kvds_while_vllm_sleeps(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=CACHE // SLAB, dram_slabs=32))
        rig = self.rig(kvd, timeout_s=1.0)
        prompt = self.prompt(3 * TOKENS + 5)
        self.assertEqual(pool_bytes_mapped(os.getpid()), CACHE)
        self.assertEqual(self.ask(rig, prompt), len(prompt))
        with self.worker(rig) as worker:
            for _ in range(2):
                self.assertTrue(rig.scheduler.reset_prefix_cache())  # as vLLM's engine does before it sleeps
                Worker.sleep(worker, 1)
                self.assertEqual(pool_bytes_mapped(os.getpid()), 0)
                Worker.discard(worker, ("kv_cache",))  # a second time
                with kvd_client.Client(kvd.endpoint, engine_name="other") as other:
                    lent = other.allocate(CACHE, timeout=10)
                    with self.assertRaisesRegex(KvdRequired, "wake vLLM again once there is room"):
                        Worker.wake_up(worker)
                    lent.free()
                Worker.wake_up(worker, ["weights"])
                self.assertEqual(pool_bytes_mapped(os.getpid()), 0)
                Worker.wake_up(worker, ["kv_cache"])
                self.assertEqual(pool_bytes_mapped(os.getpid()), CACHE)
                # What was computed before is found in kvd's DRAM.
                self.assertEqual(self.ask(rig, prompt), 5)

    def test_an_elastic_kv_cache_sleeps_too(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=CACHE // SLAB, dram_slabs=32))
        rig = self.rig(kvd, elastic=True)
        self.assertIsNotNone(rig.connector.balloon)
        prompt = self.prompt(200)
        self.ask(rig, prompt)
        kept = pool_bytes_mapped(os.getpid())
        with self.worker(rig) as worker:
            Worker.sleep(worker, 1)
            self.assertEqual(pool_bytes_mapped(os.getpid()), 0)
            Worker.wake_up(worker)
        self.assertEqual(pool_bytes_mapped(os.getpid()), kept)
        self.ask(rig, self.prompt(201))

    def test_a_kvd_that_ends_meanwhile_is_told_with_what_helps(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=CACHE // SLAB, dram_slabs=32))
        rig = self.rig(kvd, timeout_s=1.0)
        with self.worker(rig) as worker:
            Worker.sleep(worker, 1)
            kvd.kill()
            with self.assertRaisesRegex(KvdRequired, "restart vLLM"):
                Worker.wake_up(worker)


if __name__ == "__main__":
    ctest.main()
