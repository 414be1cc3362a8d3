"""KvdConnector: what vLLM makes of `"kv_connector":"KvdConnector"`.

Level 1: the KV cache lies in kvd's pool. Level 2: full blocks are stored in kvd, and any engine
that runs this model finds them there. Level 3, with KvdScheduler: preempted requests are parked
instead of recomputed, and kvd decides which requests run. This class only tells vLLM's calls apart:
planning.py is the scheduler's side, copying.py a worker's.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import kvd_client
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorRole,
    KVConnectorTransferResults, KVConnectorWorkerMetadata, SupportsHMA,
)  # fmt: skip
from vllm.platforms import current_platform

from kvd_vllm import checks, handoffs, identity, options
from kvd_vllm.copying import Cache, Copier
from kvd_vllm.daemon import KvdCache, Link, NoCache
from kvd_vllm.elastic.balloon import Balloon
from kvd_vllm.elastic.mapping import Mapper
from kvd_vllm.groups import Tables
from kvd_vllm.lasting import LastingCache, Opener
from kvd_vllm.layout import (
    CacheShape, Piece, pieces_of, pieces_planned, refusal, shape_of,
)  # fmt: skip
from kvd_vllm.loaded import Loaded, adapters_in, models_of, runner_of_caller, weights_in
from kvd_vllm.memory import KvdRequired, KvMemory, logger
from kvd_vllm.planning import Planner
from kvd_vllm.stats import KvdPromMetrics, KvdStats
from kvd_vllm.transfers import Copy, Ends, Opened, Transfers, Workers, weights_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

# How long the end of an engine waits for copies that are still under way.
_LAST_WAIT_S = 2.0
# How many steps an engine without requests makes to hear what names its cache.
_STEPS_TO_NAME = 8


def _hit_source() -> Any:
    """What vLLM counts found tokens as; None: it does not tell sources apart (0.31)."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return None
    return CacheHitSource.HOST


def _supported(given: options.Options, workers: int) -> options.Options:
    """The options without what this vLLM does not support, or not with so many workers of a model."""
    off = checks.what_is_off()
    if checks.BLOCKS in off:
        logger.warning("kvd: no block is stored or parked: this vLLM lacks %s", off[checks.BLOCKS])
        given = given._replace(prefixes=False, parking=False)
    if checks.ELASTIC in off and given.elastic:
        _refuse_elastic(f"this vLLM lacks {off[checks.ELASTIC]}", given.required)
        given = given._replace(elastic=False)
    if workers > 1 and given.elastic:
        _refuse_elastic(f"{workers} workers share a model", given.required)
        given = given._replace(elastic=False)
    return given


class KvdConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM makes one connector for the scheduler and one for each worker; each has a session of its
    own.

    All KV cache groups of a model lie in the one region. Blocks are also stored and parked where
    each group has attention to all tokens or to a window of them. Elsewhere the log says why not.
    Of several workers of a model each has its part of a block in a cache of its own.
    """

    _cache_hit_source = _hit_source()

    def __new__(cls, vllm_config: VllmConfig, *rest: Any, **named: Any) -> Any:
        """With the option `layers` another connector takes the place of this one."""
        transfer = vllm_config.kv_transfer_config
        if transfer is None or not options.parse(transfer.kv_connector_extra_config).layers:
            return super().__new__(cls)
        from kvd_vllm.layers.connector import LayersConnector

        return LayersConnector(vllm_config, *rest, **named)

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        extra = transfer.kv_connector_extra_config if transfer is not None else {}
        workers = vllm_config.parallel_config.world_size
        self._workers = Workers(workers)
        self._options = _supported(options.parse(extra), workers)
        if transfer is not None:
            # vLLM's default is to fail a request whose load failed. vLLM reads this setting later.
            transfer.kv_load_failure_policy = "recompute"
        self._cache_config = kv_cache_config
        self._runner: Any = None
        self._loaded: Loaded | None = None
        self._mapper: Mapper | None = None
        self._balloon: Balloon | None = None
        self._link: Link | None = None
        self._planner: Planner | None = None
        self._steps_to_name = 0  # that it still makes for that alone
        self.shape: CacheShape | None = None
        reason = refusal(vllm_config, kv_cache_config)
        if not reason:
            self.shape = shape_of(vllm_config, kv_cache_config)
            if role == KVConnectorRole.SCHEDULER:  # until it hears the sizes of all parts
                self.shape = self.shape._replace(block_bytes=workers * self.shape.block_bytes)
        self._copier = self._copier_of(NoCache())
        self._copies = False
        is_elastic = self._options.elastic and self.shape is not None
        pieces = pieces_planned(kv_cache_config) if is_elastic else []
        sleeps = _sleeps(vllm_config) and role == KVConnectorRole.WORKER
        self._memory = KvMemory(self._options, pieces, kv_cache_config.num_blocks, sleeps)
        if self._options.elastic and reason and role == KVConnectorRole.WORKER:
            _refuse_elastic(reason, self._options.required)
        if role == KVConnectorRole.SCHEDULER:
            self._plan(reason)

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Puts blocks first on a GPU: then a block is one copy instead of one for each layer. vLLM
        drops this wish, with a line in its log, where the attention backend accepts only another
        layout."""
        return "BLNHC" if current_platform.is_cuda() else None

    # ---- a worker's side ----

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        self._runner = runner_of_caller()
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
        fence = functools.partial(_fence_of, region.device) if region.device >= 0 else None
        self._name_cache()
        try:
            pieces = pieces_of(tensors, region.address, self.shape.blocks)
            self._memory.check_pieces(pieces)
            if isinstance(region, kvd_client.ElasticRegion) and self._memory.geometry is not None:
                self._mapper = Mapper(region, self._memory.geometry, fence)
                self._mapper.start()
            open_cache = functools.partial(_cache_over, client, self.shape)
            first = _opened(open_cache, region, self.shape.blocks, pieces)
        except (ValueError, kvd_client.KvdError) as fault:
            logger.warning("kvd: no block is stored or parked: %s", fault)
            return
        cache = LastingCache(first, client, region, self.shape, pieces, open_cache)
        self._copier = self._copier_of(cache, fence)
        self._copies = True

    def unregister_kv_caches(self) -> None:
        """Before vLLM sleeps (from 0.33 on), when no request runs."""
        if self._copier.drain(_LAST_WAIT_S):
            self._memory.sleep()
        else:
            logger.warning("kvd: the KV cache keeps its memory while vLLM sleeps: copies of it are under way")

    def restore_kv_caches(self) -> None:
        """Once vLLM has woken up."""
        self._memory.wake()

    def _name_cache(self) -> None:
        """Names the cache by the content of what vLLM has loaded, or else by something that no
        other engine has."""
        assert self.shape is not None
        try:
            models = models_of(self._runner)
            found = identity.identity_of(self._vllm_config, self._cache_config, models)
            weights, name = found.weights, found.name()
        except (identity.NoIdentity, *identity.UNEXPECTED) as fault:
            name = weights = identity.private(str(fault))
            logger.warning("kvd: no block is shared beyond this engine: %s", fault)
        self.shape = self.shape._replace(model=name)
        logger.info("kvd: blocks are those of %s", name)
        self._loaded = Loaded(name, weights_in(self._runner, weights), adapters_in(self._runner))

    def _copier_of(self, cache: Cache, fence: Callable[[], Any] | None = None) -> Copier:
        return Copier(
            cache, kvd_client.KvdError, kvd_client.WouldBlock, self._options.load_timeout_s, fence
        )

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Called once, after the KV cache was made and before the first step."""
        geometry = self._memory.geometry if self._mapper is not None else None
        return Opened(geometry, self._copies) if geometry is not None or not self._copies else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """vLLM calls this in each step, before any of it runs."""
        assert isinstance(kv_connector_metadata, Transfers)
        if self._mapper is not None and kv_connector_metadata.orders is not None:
            self._mapper.begin(kv_connector_metadata.orders)
        if self._loaded is not None:
            transfers = kv_connector_metadata
            weights = weights_of(transfers.weights, self._rank)
            self._loaded.step_begins(weights, transfers.look, transfers.adapters)
        self._begin(kv_connector_metadata.copies)

    def _begin(self, copies: list[Copy]) -> None:
        if self._loaded is not None:
            self._copier.begin(copies, self._loaded.judge())
        else:
            self._copier.refuse(copies)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Loads go on between steps, and no forward waits for one."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A request runs once everything is loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Blocks are stored once they are full, a step later."""

    def wait_for_save(self) -> None:
        """Called after the forward. The blocks that are stored are held until kvd is done with
        them."""
        transfers = self._get_connector_metadata()
        assert isinstance(transfers, Transfers)
        self._begin(transfers.copies_after)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._copier.advance()
        return KVConnectorTransferResults(
            finished_recving=self._copier.take_received(), failed_recving=self._copier.take_failed()
        )

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        ends = self._copier.take_ends()
        news = self._mapper.take_news() if self._mapper is not None else None
        if news is not None:
            ends = ends or Ends()
            ends.news = news
        if self._loaded is not None:
            self._loaded.step_ends()
            ends = self._loaded.add_to(ends)
        if ends is not None and self.shape is not None:
            ends.rank, ends.block_bytes = self._rank, self.shape.block_bytes
        return ends

    @property
    def _rank(self) -> int:
        """This worker's, among those of its model."""
        return int(self._vllm_config.parallel_config.rank)

    def shutdown(self) -> None:
        if self._mapper is not None:
            self._mapper.close()
        self._copier.close(_LAST_WAIT_S)
        if self._planner is not None:
            self._planner.forget()
            self._planner.deadlines.close()
            if self._planner.announcer is not None:
                self._planner.announcer.close()
        if self._link is not None:
            self._link.close()
        self._memory.release()

    # ---- the scheduler's side ----

    def _plan(self, refused: str) -> None:
        if refused:
            logger.warning("kvd: no block is stored or parked: %s", refused)
        self._link = Link(self._options)
        if self.shape is None:
            return
        given = self._options
        self._planner = self._planner_class()(
            self._link, self.shape.block_tokens, time.monotonic, windows=self.shape.windows,
            prefixes=given.prefixes, parking=given.parking,
            patience_s=given.load_timeout_s, handoff_s=given.handoff_s,
        )  # fmt: skip
        transfer = checks.vllms_transfer()
        if transfer is not None and transfer.kv_load_failure_policy != "recompute":
            logger.warning(
                "kvd: no block is loaded, as vLLM would fail the requests whose load fails: add "
                '"kv_load_failure_policy":"recompute" to the outer --kv-transfer-config'
            )
            self._planner.load_no_prefix()
        self._announce()
        if given.elastic:
            self._balloon = Balloon(
                self.shape.block_tokens, time.monotonic, self._planner.stats, self.groups
            )

    def _planner_class(self) -> Callable[..., Planner]:
        wanted = getattr(self._vllm_config, "observability_config", None)
        if not getattr(wanted, "otlp_traces_endpoint", None):
            return Planner
        if fault := checks.what_is_off().get(checks.TRACES):
            logger.warning("kvd: requests have no spans: this vLLM lacks %s", fault)
            return Planner
        from kvd_vllm.traces import TracedPlanner

        assert self.shape is not None
        return functools.partial(TracedPlanner, self.shape.block_bytes)

    def _announce(self) -> None:
        assert self._planner is not None and self._link is not None and self.shape is not None
        wanted = self._vllm_config.kv_events_config
        if wanted is None or not wanted.enable_kv_cache_events:
            return
        if fault := checks.what_is_off().get(checks.EVENTS):
            logger.warning("kvd: KV events leave out what kvd has: this vLLM lacks %s", fault)
            return
        if any(self.shape.windows):
            logger.warning("kvd: KV events leave out what kvd has: some layers look back at a window only")
            return
        if self._vllm_config.parallel_config.world_size > 1:
            logger.warning("kvd: KV events leave out what kvd has: several workers have a part of each block")
            return
        from kvd_vllm import events

        kind = events.spec_kind(self._cache_config.kv_cache_groups[0].kv_cache_spec)
        self._planner.announcer = events.Announcer(
            self._link, self.shape.block_tokens, kind, events.waker_of_caller()
        )
        self._steps_to_name = _STEPS_TO_NAME

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        if self._planner is not None:
            self._planner.bind(gpu_block_pool)
        if self._balloon is not None:
            self._balloon.bind(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """By rank in the pipeline and within its stage."""
        self.set_xfer_handshake_metadata(dict(enumerate(metadata.values())))

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """What the workers made of the KV cache; nothing where it is as usual. Where one of them copies
        nothing, none does."""
        opened = [each for each in metadata.values() if isinstance(each, Opened)]
        if self._planner is not None and not all(each.copies for each in opened):
            self._planner.copy_nothing()
        if self._balloon is not None:
            self._balloon.open(opened[0].geometry if opened else None)

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
            self._planner.admit(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        if self._planner is None:
            return Transfers()
        self._steps_to_name = max(0, self._steps_to_name - 1)
        transfers = self._planner.step(scheduler_output)
        if self._balloon is not None:
            transfers.orders = self._balloon.step(self._planner.requests)
        return transfers

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._planner is not None and connector_output.failed_recving:
            self._planner.give_up(connector_output.failed_recving)
        ends = connector_output.kv_connector_worker_meta
        if self._planner is not None and isinstance(ends, Ends):
            ends = self._workers.hear(ends)
            if ends.model and self.shape is not None and self._link is not None:
                caches = self._workers.caches.values()
                self.shape = self.shape._replace(model=ends.model, block_bytes=sum(size for _, size in caches))
                self._link.open([self.shape._replace(model=name, block_bytes=size) for name, size in caches])
            self._planner.end(ends)
            if self._balloon is not None and ends.news is not None:
                self._balloon.hear(ends.news)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        handoff = None
        if self._planner is not None:
            handoff = self._planner.hand_over(request, block_ids)
            self._planner.finish(request, block_ids)
        return False, handoffs.answer(handoff) if handoff is not None else None

    def has_pending_block_frees(self) -> bool:
        if self._planner is not None and self._planner.copies.has_room_coming():
            return True
        return self._balloon is not None and self._balloon.has_room_coming()

    def has_pending_push_work(self) -> bool:
        if self._planner is not None and self._planner.has_work():
            return True
        if self._steps_to_name > 0 and self._link is not None and not self._link.is_open:
            return True  # so that an engine without requests announces what kvd has
        return self._balloon is not None and self._balloon.has_work()

    def take_events(self) -> Iterable[KVCacheEvent]:
        """What kvd has gained and lost; called once a step."""
        announcer = self._planner.announcer if self._planner is not None else None
        return announcer.take() if announcer is not None else ()

    def reset_cache(self) -> bool | None:
        if self._planner is not None:
            self._planner.forget_all()
        return True

    # ---- what KvdScheduler asks ----

    def schedule(self, batch: kvd_client.ScheduleBatch, **facts: int) -> kvd_client.Decision | None:
        """Calls Client.schedule() within the step's budget; None: kvd did not answer."""
        decision = self._link.schedule(batch, facts) if self._link is not None else None
        if decision is None and self._planner is not None:
            self._planner.stats.add("stock_steps")
        return decision

    def set_gaps(self, gaps: Mapping[int, float]) -> bool:
        """Calls Client.set_gaps() within the step's budget. Returns whether kvd knows them."""
        return self._link is not None and self._link.set_gaps(gaps)

    def park(self, request: Request, tables: Tables) -> None:
        """Called before the request is preempted."""
        if self._planner is not None:
            self._planner.park(request, tables)

    @property
    def can_park(self) -> bool:
        """Whether requests that are preempted now are parked, if they can be at all."""
        return self._planner is not None and self._planner.can_park

    @contextlib.contextmanager
    def let_go(self) -> Iterator[None]:
        """While this is open nothing is handed out: blocks that wait for a copy or for memory are released."""
        with contextlib.ExitStack() as held:
            if self._balloon is not None:
                held.enter_context(self._balloon.let_go())
            if self._planner is not None:
                held.enter_context(self._planner.copies.let_go())
            yield

    def forget_parks(self) -> None:
        """What is parked is not loaded any more."""
        if self._planner is not None:
            self._planner.forget_parks()

    def prepare(self, requests: Iterable[Request]) -> None:
        """Called before schedule(): these requests may be admitted with this step, and are looked
        up then."""
        if self._planner is not None:
            self._planner.prepare(requests)

    def parked(self, name: str) -> tuple[int, int]:
        """How many tokens of a request are parked, and its blocks in each group; 0, 0: it is not
        parked."""
        return self._planner.parked(name) if self._planner is not None else (0, 0)

    def blocks_coming(self) -> int:
        """Blocks that are free as soon as the copies under way have ended."""
        return self._planner.copies.blocks_coming() if self._planner is not None else 0

    @property
    def groups(self) -> int:
        """The number of KV cache groups; a token has a place in each."""
        return len(self.shape.windows) if self.shape is not None else 1

    @property
    def balloon(self) -> Balloon | None:
        """The balloon of an elastic KV cache; None: it is not elastic."""
        return self._balloon

    # ---- counts ----

    def get_kv_connector_stats(self) -> KvdStats | None:
        """Called at the end of each step, after blocks were freed."""
        if self._planner is None:
            return None
        if self._balloon is not None:
            self._balloon.sweep()
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


def _sleeps(config: VllmConfig) -> bool:
    """Whether vLLM may be told to sleep, and says so to its connector."""
    may = getattr(config.model_config, "enable_sleep_mode", False)
    return bool(may) and hasattr(KVConnectorBase_V1, "unregister_kv_caches")


def _refuse_elastic(reason: str, is_required: bool) -> None:
    text = (
        f"the KV cache cannot grow and shrink: {reason}; take KvdConnector's option `elastic` (or "
        "KVD_VLLM_ELASTIC) away"
    )
    if is_required:
        raise KvdRequired(f"kvd: {text}")
    logger.warning("kvd: %s; the KV cache is as large as vLLM asks for", text)


def _tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors of a layer: one, or several for a recurrent layer."""
    found: list[torch.Tensor] = []
    for value in values:
        found += [value] if isinstance(value, torch.Tensor) else _tensors_of(value)
    return found


def _cache_over(
    client: kvd_client.Client, shape: CacheShape, region: kvd_client.Region, blocks: int,
    pieces: Sequence[Piece],
) -> KvdCache:  # fmt: skip
    return KvdCache(client, region, shape._replace(blocks=blocks), pieces)


def _opened(
    open_cache: Opener, region: kvd_client.Region, blocks: int, pieces: Sequence[Piece]
) -> Cache:
    """A cache whose copies all fail where kvd gives none now; LastingCache finds another one."""
    try:
        return open_cache(region, blocks, pieces)
    except kvd_client.KvdError as fault:
        logger.warning("kvd: no block is stored or parked for now: %s", fault)
        return NoCache()


def _fence_of(device: int) -> Any:
    """An event behind all the work that the GPU was given."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
