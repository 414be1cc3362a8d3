"""Layers whose full blocks lie in the host's memory, under an unmodified vLLM: class LayerConnector.

Every other layer is streamed. A block of it that is full leaves the KV cache at the end of the step that
filled it; its place is overwritten. Before a later step's attention in that layer it is copied into a staging
block, the last ones of the KV cache, which that layer's block table then names in its stead.

kv_connector_extra_config: `staging`, how many blocks of the KV cache are staging; `statistics`, a file that
each step rewrites; `leave_out`, true for a control that fetches one block too few.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

POISON = 1e4  # finite: kernels multiply rows that they mask by 0


class Run(NamedTuple):
    """Blocks beside each other, here and there."""

    block: int
    staging: int
    length: int


def number(layer: str) -> int:
    """A layer's number stands in its name."""
    (found,) = re.findall(r"\.(\d+)\.", layer)
    return int(found)


def runs(blocks: Sequence[int], staging: int = 0) -> list[Run]:
    """The fewest runs for blocks in ascending order, whose staging lies in one piece."""
    found: list[Run] = []
    for at, block in enumerate(blocks):
        if found and block == found[-1].block + found[-1].length:
            found[-1] = found[-1]._replace(length=found[-1].length + 1)
        else:
            found.append(Run(block, staging + at, 1))
    return found


@dataclass
class Step(KVConnectorMetadata):
    """Which blocks a step reads from the host, and which are full at its end."""

    read: list[int] = field(default_factory=list)
    filled: list[int] = field(default_factory=list)
    decodes: bool = False  # a token for each request


@dataclass
class Statistics:
    steps: int = 0
    copies: int = 0
    loads: int = 0  # a block of a layer each
    bytes: int = 0
    decode_steps: int = 0
    decode_bytes: int = 0
    most_staging: int = 0  # blocks
    saved: int = 0


class LayerConnector(KVConnectorBase_V1):
    """On CUDA each layer is fetched on a stream of its own, beside the layers before it."""

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        given = vllm_config.kv_transfer_config.kv_connector_extra_config
        (group,) = kv_cache_config.kv_cache_groups
        self._tokens = group.kv_cache_spec.block_size
        self._blocks = kv_cache_config.num_blocks
        self._staging = self._blocks - given["staging"]  # the first of them
        self._out = Path(given["statistics"])
        self._leave_out = bool(given.get("leave_out"))
        self._tables: dict[str, list[int]] = {}
        self._pages: dict[str, torch.Tensor] = {}  # the streamed layers; a row is a block
        self._host: dict[str, torch.Tensor] = {}
        self._beside: Any = None  # the stream of the fetches
        self._fetched: dict[str, Any] = {}
        self._statistics = Statistics()

    # The scheduler's.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        gpu_block_pool.touch(gpu_block_pool.blocks[self._staging :])

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing is loaded from elsewhere."""

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        scheduler_output.has_sync_kv_loads = True  # start_load_kv comes before the forward pass
        computed: dict[str, int] = {}
        for new in scheduler_output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        for name, fresh, count in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            kept = [] if name in cached.resumed_req_ids else self._tables[name]
            self._tables[name] = kept + (list(fresh[0]) if fresh else [])
            computed[name] = count
        read: set[int] = set()
        filled: set[int] = set()
        for name, count in scheduler_output.num_scheduled_tokens.items():
            before, after = computed[name] // self._tokens, (computed[name] + count) // self._tokens
            read.update(self._tables[name][:before])
            filled.update(self._tables[name][before:after])
        for name in scheduler_output.finished_req_ids:
            self._tables.pop(name, None)
        decodes = set(scheduler_output.num_scheduled_tokens.values()) == {1}
        # One request may read what another one writes in the same step: it lies where it was written.
        return Step(sorted(read - filled), sorted(filled), decodes)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    # The worker's.

    @torch.inference_mode()
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        for layer in sorted(kv_caches, key=number)[1::2]:
            cache = kv_caches[layer]
            elements = cache[0].numel()
            extent = 1 + sum((size - 1) * stride for size, stride in zip(cache.shape[1:], cache.stride()[1:]))
            if cache.shape[0] != self._blocks or extent != elements:
                found = f"{tuple(cache.shape)} by {cache.stride()}"
                raise RuntimeError(f"{layer}: {found} is not {self._blocks} dense blocks")
            pages = cache.as_strided((self._blocks, elements), (cache.stride(0), 1))
            pages[self._staging :].fill_(POISON)
            self._pages[layer] = pages
            self._host[layer] = torch.empty(
                (self._staging, elements), dtype=cache.dtype, device="cpu", pin_memory=cache.is_cuda
            )
            if cache.is_cuda:
                self._beside = self._beside or torch.cuda.Stream(cache.device)
                self._fetched[layer] = torch.cuda.Event()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        if not forward_context.attn_metadata or not step.read:
            return
        if self._staging + len(step.read) > self._blocks:
            raise RuntimeError(f"{len(step.read)} blocks do not fit into {self._blocks - self._staging} of staging")
        self._redirect(forward_context.attn_metadata, step.read)
        wanted = runs(step.read, self._staging)
        if self._beside:
            self._beside.wait_stream(torch.cuda.current_stream())  # the staging and what was written out
        with torch.cuda.stream(self._beside) if self._beside else contextlib.nullcontext():
            for at, layer in enumerate(self._pages):
                short = self._leave_out and at == 0
                self._fetch(layer, runs(step.read[1:], self._staging + 1) if short else wanted, step.decodes)
                if self._beside:
                    self._fetched[layer].record()
        self._statistics.most_staging = max(self._statistics.most_staging, len(step.read))

    def wait_for_layer_load(self, layer_name: str) -> None:
        if layer_name in self._fetched and self._get_connector_metadata().read:
            torch.cuda.current_stream().wait_event(self._fetched[layer_name])

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        count = len(self._get_connector_metadata().read)
        if layer_name in self._pages and count:
            self._pages[layer_name][self._staging : self._staging + count].fill_(POISON)

    @torch.inference_mode()
    def wait_for_save(self) -> None:
        step = self._get_connector_metadata()
        for layer, pages in self._pages.items():
            for block, _, length in runs(step.filled):
                given_up = pages[block : block + length]
                self._host[layer][block : block + length].copy_(given_up, non_blocking=True)
                given_up.fill_(POISON)
                self._statistics.saved += length
        self._statistics.steps += 1
        self._statistics.decode_steps += step.decodes
        self._out.write_text(json.dumps(asdict(self._statistics)))

    def _redirect(self, metadata: dict[str, Any], read: list[int]) -> None:
        """Makes the streamed layers' block tables name the staging. All layers may share one metadata. Breaks off
        with an attention backend whose metadata holds no block_table, FlashInfer's for one."""
        moved = list(range(self._blocks))
        for at, block in enumerate(read):
            moved[block] = self._staging + at
        tables: dict[int, Any] = {}
        for layer, pages in self._pages.items():
            shared = metadata[layer]
            if id(shared) not in tables:
                where = torch.tensor(moved, dtype=torch.int32, device="cpu", pin_memory=pages.is_cuda)
                where = where.to(pages.device, non_blocking=True)
                tables[id(shared)] = where[shared.block_table.long()]
            mine = copy.copy(shared)
            mine.block_table = tables[id(shared)]
            metadata[layer] = mine

    def _fetch(self, layer: str, wanted: list[Run], decodes: bool) -> None:
        pages, host, statistics = self._pages[layer], self._host[layer], self._statistics
        for block, staging, length in wanted:
            pages[staging : staging + length].copy_(host[block : block + length], non_blocking=True)
            size = length * host[0].nbytes
            statistics.copies += 1
            statistics.loads += length
            statistics.bytes += size
            statistics.decode_bytes += size if decodes else 0
