"""vLLM's TieringOffloadingSpec with copies that a CPU can make. vLLM's own are made on a GPU's streams."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvd_vllm.tier import pages

pages._CALL_S = 30.0  # the machine may be busy


class HostWorker(OffloadingWorker):
    """Each copy has ended by the time it is submitted."""

    def __init__(self, caches: Any, region: SharedOffloadRegion) -> None:
        self._tensors = [each.tensor.view(torch.int8).flatten(1) for each in caches.tensors]
        self._chunks = [region.create_next_worker_view(each.page_size_bytes) for each in caches.tensors]
        self._groups, self._region = caches.group_data_refs, region
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, lambda block, chunk: chunk.copy_(block))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, lambda block, chunk: block.copy_(chunk))

    def _copy(self, job_id: int, blocks: Any, chunks: Any, copy: Any) -> bool:
        at = 0
        for group, size in zip(self._groups, blocks.group_sizes, strict=True):
            for place in range(at, at + size):
                for ref in group:
                    size_of = ref.page_size_bytes
                    block = self._tensors[ref.tensor_idx][int(blocks.block_ids[place])]
                    copy(block[:size_of], self._chunks[ref.tensor_idx][int(chunks.block_ids[place])][:size_of])
            at += size
        self._done.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """There is nothing to wait for."""

    def shutdown(self) -> None:
        self._chunks.clear()
        self._region.cleanup()


class HostTiering(TieringOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> Any:
        self._worker: Any = self._worker or HostWorker(
            kv_caches,
            SharedOffloadRegion(self._engine_id, self.num_chunks, self.config.parallel.rank,
                                self.kv_bytes_per_chunk, self.cpu_page_size_per_worker),
        )  # fmt: skip
        return self._worker
