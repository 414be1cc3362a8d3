"""What KvdConnector becomes with the option `layers`: the KV cache has names for more blocks than HBM
holds, and layers that do not stay there are streamed. This class only tells vLLM's calls apart.

vLLM's one allocation is answered with addresses for all names in every layer, and nothing behind them.
Behind them lies the HBM, in pages that all layers share. A layer reaches any of them by a block
number beyond its own blocks, since all lie in one range of addresses.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import kvd_client
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
)  # fmt: skip
from vllm.platforms import current_platform

from kvd_vllm import checks, identity, options
from kvd_vllm.elastic.chunks import Geometry
from kvd_vllm.elastic.mapping import back_the_base
from kvd_vllm.layers.placement import least_pages
from kvd_vllm.layers.plans import Plans
from kvd_vllm.layers.rows import Rows
from kvd_vllm.layers.streaming import Streams
from kvd_vllm.layers.table import Table
from kvd_vllm.layers.tracking import Step, Tracker
from kvd_vllm.layout import Piece, pieces_of
from kvd_vllm.memory import KvdRequired, KvMemory, logger
from kvd_vllm.stats import KvdStats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_BACKEND = "CPU_ATTN"  # reads its blocks by block_table and slot_mapping alone, wherever they are


class PagesBehind(KvMemory):
    """A KV cache of addresses with `pages` bytes of memory behind all of them."""

    def __init__(self, given: options.Options, pages: int) -> None:
        super().__init__(given._replace(required=True), [Piece(0, 0, 0)])
        self._pages = pages

    def _reserve(self, count: int) -> kvd_client.ElasticRegion:
        assert self._client is not None
        region = self._client.reserve(count + self._pages, timeout=self._options.timeout_s)
        slab = region.granularity
        base = range(count // slab, -(-(count + self._pages) // slab))
        try:
            back_the_base(region, Geometry(1, 1, slab, tuple(base), ((),)), self._options.timeout_s)
        except kvd_client.KvdError:
            region.free(timeout=self._options.timeout_s)
            raise
        return region


class LayersConnector(KVConnectorBase_V1):
    """vLLM makes one for the scheduler and one for the worker. Raises KvdRequired where layers cannot be
    streamed: there is no memory for all of vLLM's blocks, so it cannot run without."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._options = options.parse(transfer.kv_connector_extra_config if transfer else {})
        if transfer is not None:
            # vLLM's default is to fail a request whose blocks are lost. vLLM reads this setting later.
            transfer.kv_load_failure_policy = "recompute"
        if reason := refusal(vllm_config, kv_cache_config) or _refusal_of(self._options, transfer):
            raise KvdRequired(
                f"kvd: layers cannot be streamed: {reason}; or take KvdConnector's option `layers` (or "
                "KVD_VLLM_LAYERS) away"
            )
        (group,) = kv_cache_config.kv_cache_groups
        self._tokens = group.kv_cache_spec.block_size
        self._page = group.kv_cache_spec.page_size_bytes
        self._names = kv_cache_config.num_blocks
        self._pages = vllm_config.cache_config.kv_cache_memory_bytes // self._page
        self._tracker = Tracker(bool(vllm_config.cache_config.enable_prefix_caching))
        self._memory = PagesBehind(self._options, self._pages * self._page)
        self._streams: Streams | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---- the worker's side ----

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        return self._memory.allocation()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._memory.check(kv_caches.values())
        client, region = self._memory.client, self._memory.region
        assert client is not None and region is not None
        self._check_backends()
        layers = sorted(kv_caches, key=_number_of)
        behind = self._names * self._page * len(layers)
        first = []
        for layer in layers:
            (piece,) = pieces_of([kv_caches[layer]], region.address, self._names)
            blocks, rest = divmod(behind - piece.offset, self._page)
            if piece.stride != self._page or rest:
                raise KvdRequired(f"kvd: layers cannot be streamed: blocks of {layer} are not beside each other")
            first.append(blocks)
        name = identity.private("streamed layers")
        pieces = [kvd_client.Piece(behind, self._page, self._page)]
        open_cache = functools.partial(
            client.cache, name, block_tokens=self._tokens, block_bytes=self._page, region=region,
            blocks=self._pages, pieces=pieces,
        )  # fmt: skip
        pages = region.torch()[behind : behind + self._pages * self._page].view(self._pages, self._page)
        session = functools.partial(_session_of, client)
        rows = Rows(open_cache, session, pages, self._options.load_timeout_s, logger.warning)
        table = Table(len(layers), self._pages, self._tokens)
        ask = functools.partial(client.place_layers, block_tokens=self._tokens, block_bytes=self._page)
        plans = Plans(ask, len(layers))
        self._streams = Streams(table, rows, plans, layers, first, self._names, self._tokens)
        logger.info(
            "kvd: layers are streamed: %d blocks of %d layers over %d pages of %d bytes",
            self._names, len(layers), self._pages, self._page,
        )  # fmt: skip

    def _check_backends(self) -> None:
        layers = self._vllm_config.compilation_config.static_forward_context.values()
        found = {each.get_attn_backend().get_name() for each in layers if hasattr(each, "get_attn_backend")}
        if found != {_BACKEND}:
            raise KvdRequired(
                f"kvd: layers cannot be streamed: the attention is {', '.join(sorted(found))}, and only "
                f"{_BACKEND} is tried"
            )

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        if self._streams is None:
            return
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        self._streams.release(step.released)
        if forward_context.attn_metadata is not None:
            self._streams.begin(step.requests, forward_context)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._streams is not None:
            self._streams.wait(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        if self._streams is not None:
            self._streams.save(layer_name)

    def wait_for_save(self) -> None:
        if self._streams is not None:
            self._streams.end()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """On the worker's side, once a step."""
        return self._streams.take_invalid() if self._streams is not None else set()

    def get_kv_connector_stats(self) -> KvdStats | None:
        """On the worker's side, once a step."""
        if self._streams is None:
            return None
        stats = KvdStats({})
        stats.add("layer_blocks_fetched", self._streams.fetched_blocks)
        stats.add("layer_blocks_stored", self._streams.stored_blocks)
        stats.add("layer_blocks_lost", self._streams.lost_blocks)
        self._streams.fetched_blocks = self._streams.stored_blocks = self._streams.lost_blocks = 0
        return stats.take()

    def shutdown(self) -> None:
        self._streams = None
        self._memory.release()

    # ---- the scheduler's side ----

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Nothing is loaded for a request as a whole."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        scheduler_output.has_sync_kv_loads = True  # vLLM calls start_load_kv before the forward pass
        return self._tracker.step(scheduler_output)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None


def refusal(config: VllmConfig, cache: KVCacheConfig) -> str:
    """Why layers of this engine cannot be streamed, with a remedy; "": they can be."""
    given = config.cache_config
    if fault := checks.what_is_off().get(checks.LAYERS):
        return f"this vLLM lacks {fault}"
    if not current_platform.is_cpu():
        return "it is tried on CPUs alone: start vLLM for CPUs"
    if config.model_config.dtype != torch.float32 or given.cache_dtype not in ("auto", "float32"):
        return "it is tried with float32 alone: add --dtype float32"
    if config.parallel_config.world_size > 1:
        return f"{config.parallel_config.world_size} workers share a model: start it with one"
    if config.speculative_config is not None:
        return "a draft model's layers are not told apart: take --speculative-config away"
    if "kvd_vllm" in str(config.scheduler_config.scheduler_cls):
        return "kvd's scheduler does not know of it yet: take --scheduler-cls (or KVD_VLLM) away"
    if config.scheduler_config.async_scheduling:
        return "a step begins before the last one has ended: add --no-async-scheduling"
    kinds = [type(group.kv_cache_spec).__name__ for group in cache.kv_cache_groups]
    if kinds != ["FullAttentionSpec"]:
        return f"the KV cache is {', '.join(kinds) or 'nothing'}, not of attention to all tokens in every layer"
    if not given.num_gpu_blocks_override or not given.kv_cache_memory_bytes:
        return (
            "say how much HBM there is (--kv-cache-memory-bytes), and of how many blocks HBM and DRAM hold all "
            "layers (--num-gpu-blocks-override)"
        )
    return _too_many(config, cache)


def _too_many(config: VllmConfig, cache: KVCacheConfig) -> str:
    """Why a step may lack room: one layer has to be there as a whole, and of the others what is being
    written. One block is vLLM's padding, one page is what that names."""
    (group,) = cache.kv_cache_groups
    names, requests = cache.num_blocks, config.scheduler_config.max_num_seqs
    pages = config.cache_config.kv_cache_memory_bytes // group.kv_cache_spec.page_size_bytes
    least = least_pages(names - 1, requests, len(group.layer_names)) + 1
    if least <= pages:
        return ""
    return (
        f"{names} blocks and {requests} requests take {least} pages where one layer is there at a time, and HBM "
        f"has {pages}: lower --num-gpu-blocks-override or --max-num-seqs, or raise --kv-cache-memory-bytes"
    )


def _refusal_of(given: options.Options, transfer: Any) -> str:
    if checks.vllms_transfer() is not transfer:
        return "another connector would copy from addresses without memory: take KvdConnector out of the MultiConnector"
    return "a KV cache that grows and shrinks has no room for it: take `elastic` away" if given.elastic else ""


def _session_of(client: kvd_client.Client) -> object:
    """Resumes it where kvd has restarted. A kvd that does not answer is asked for nothing more."""
    client.ping(0.2)
    found = client.session()
    return found.boot_id, found.generation


def _number_of(layer: str) -> list[int]:
    """vLLM computes layers in the order of their numbers."""
    return [int(part) for part in layer.split(".") if part.isdigit()]
