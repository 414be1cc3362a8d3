"""KvdConnector: what vLLM makes of `"kv_connector":"KvdConnector"`.

Level 1: the KV cache lies in kvd's pool. Level 2: full blocks are stored in kvd, and found there by
whoever runs this model. Level 3, with KvdScheduler: preempted requests are parked instead of
recomputed, and kvd decides who runs. This class only tells vLLM's calls apart: planning.py is the
scheduler's side, copying.py a worker's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import kvd_client
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata,
    SupportsHMA,
)  # fmt: skip
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvd_vllm import checks, options
from kvd_vllm.copying import Copier
from kvd_vllm.daemon import KvdCache, Link, NoCache
from kvd_vllm.lasting import LastingCache
from kvd_vllm.layout import CacheShape, Piece, pieces_of, refusal, shape_of
from kvd_vllm.memory import KvMemory, logger
from kvd_vllm.planning import Planner
from kvd_vllm.stats import KvdPromMetrics, KvdStats
from kvd_vllm.transfers import Ends, Transfers

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

# At the end of an engine: for the copies that are still under way.
_LAST_WAIT_S = 2.0


class KvdConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM makes one for the scheduler and one for each worker, with a session of its own each.

    All KV cache groups of a model lie in the one region. Only where there is one group, of full
    attention, and one worker are blocks stored and parked too; elsewhere the log says why not.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        extra = transfer.kv_connector_extra_config if transfer is not None else {}
        self._options = options.parse(extra)
        if transfer is not None:
            # vLLM's default is to fail a request whose load failed. It reads this later.
            transfer.kv_load_failure_policy = "recompute"
        self._memory = KvMemory(self._options)
        self._copier = Copier(NoCache(), kvd_client.KvdError, kvd_client.WouldBlock)
        self._link: Link | None = None
        self._planner: Planner | None = None
        self.shape: CacheShape | None = None
        reason = refusal(vllm_config, kv_cache_config)
        if not reason:
            self.shape = shape_of(vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self._plan(reason)

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---- a worker's side ----

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        faults = [f"{found.what}: {found.fault}" for found in checks.look() if found.fault]
        if faults:
            logger.warning(
                "kvd: this vLLM is not the one that was tested: %s; python -m kvd_vllm doctor says "
                "more", "; ".join(faults),
            )  # fmt: skip
        return self._memory.allocation()

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        tensors = _tensors_of(kv_caches.values())
        self._memory.check(tensors)
        client, region = self._memory.client, self._memory.region
        if self.shape is None or client is None or region is None:
            return
        try:
            pieces = pieces_of(tensors, region.address, self.shape.blocks)
            first = KvdCache(client, region, self.shape, pieces)
        except (ValueError, kvd_client.KvdError) as fault:
            logger.warning("kvd: no block is stored or parked: %s", fault)
            return
        open_cache = functools.partial(_cache_over, client, self.shape)
        cache = LastingCache(first, client, region, self.shape, pieces, open_cache)
        fence = functools.partial(_fence_of, region.device) if region.device >= 0 else None
        self._copier = Copier(
            cache, kvd_client.KvdError, kvd_client.WouldBlock, self._options.load_timeout_s, fence
        )

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Each step, before anything of it runs."""
        assert isinstance(kv_connector_metadata, Transfers)
        self._copier.begin(kv_connector_metadata.copies)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Before the forward where that reads what is loaded; after it otherwise, with nothing left
        to do."""
        self._copier.wait()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything is loaded before the forward."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Blocks are stored once they are full, a step later."""

    def wait_for_save(self) -> None:
        """The blocks that are stored are held until kvd is done with them."""

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        self._copier.advance()
        return None, self._copier.take_received() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._copier.take_bad_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._copier.take_ends()

    def shutdown(self) -> None:
        self._copier.close(_LAST_WAIT_S)
        if self._link is not None:
            self._link.close()
        self._memory.release()

    # ---- the scheduler's side ----

    def _plan(self, refused: str) -> None:
        if refused:
            logger.warning("kvd: no block is stored or parked: %s", refused)
        self._link = Link(self._options, self.shape)
        if self.shape is None:
            return
        given = self._options
        self._planner = Planner(
            self._link, self.shape.block_tokens, time.monotonic, sync_loads=given.load == "sync",
            prefixes=given.prefixes, parking=given.parking, patience_s=given.load_timeout_s,
        )  # fmt: skip

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        if self._planner is not None:
            self._planner.bind(gpu_block_pool)

    def on_new_request(self, request: Request) -> None:
        if self._planner is not None:
            self._planner.add(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._planner is None:
            return 0, False
        return self._planner.tokens_to_load(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if self._planner is not None:
            self._planner.admit(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return Transfers() if self._planner is None else self._planner.step(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        ends = connector_output.kv_connector_worker_meta
        if self._planner is not None and isinstance(ends, Ends):
            self._planner.end(ends)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._planner is not None:
            self._planner.finish(request, block_ids[0])
        return False, None

    def has_pending_block_frees(self) -> bool:
        return self._planner is not None and self._planner.has_room_coming()

    def has_pending_push_work(self) -> bool:
        return self._planner is not None and self._planner.has_work()

    def reset_cache(self) -> bool | None:
        if self._planner is not None:
            self._planner.forget_all()
        return True

    # ---- what KvdScheduler asks ----

    def schedule(self, batch: kvd_client.ScheduleBatch, **facts: int) -> kvd_client.Decision | None:
        """Client.schedule() within the step's budget; None: kvd did not answer."""
        decision = self._link.schedule(batch, facts) if self._link is not None else None
        if decision is None and self._planner is not None:
            self._planner.stats.add("stock_steps")
        return decision

    def park(self, request: Request, blocks: Sequence[int]) -> None:
        """Before the request is preempted."""
        if self._planner is not None:
            self._planner.park(request, blocks)

    def prepare(self, requests: Iterable[Request]) -> None:
        """Before schedule(): these may be admitted with this step, and looked up then."""
        if self._planner is not None:
            self._planner.prepare(requests)

    def parked(self, name: str) -> tuple[int, int]:
        """Tokens and blocks of a request that are parked; 0, 0: it is not."""
        return self._planner.parked(name) if self._planner is not None else (0, 0)

    def blocks_coming(self) -> int:
        """Blocks that are free as soon as the copies under way have ended."""
        return self._planner.blocks_coming() if self._planner is not None else 0

    # ---- counts ----

    def get_kv_connector_stats(self) -> KvdStats | None:
        if self._planner is None:
            return None
        if self._link is not None:
            self._planner.stats.add("unanswered_calls", self._link.take_unanswered())
        return self._planner.stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvdStats:
        return KvdStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KvdPromMetrics:
        return KvdPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors of a layer: one, or several for a recurrent one."""
    found: list[torch.Tensor] = []
    for value in values:
        found += [value] if isinstance(value, torch.Tensor) else _tensors_of(value)
    return found


def _cache_over(
    client: kvd_client.Client, shape: CacheShape, region: kvd_client.Region, blocks: int,
    pieces: Sequence[Piece],
) -> KvdCache:  # fmt: skip
    return KvdCache(client, region, shape._replace(blocks=blocks), pieces)


def _fence_of(device: int) -> Any:
    """An event behind all that was given to the GPU."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
