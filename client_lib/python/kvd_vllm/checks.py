"""What this package relies on in vLLM, name by name, and whether this vLLM has it.

vLLM calls its connector interface experimental, and promises nothing about what lies below it. So
each name is looked at before it is used. This tells a vLLM that moved a name apart from a kvd that
is absent.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvd_vllm import TESTED_VLLM
from kvd_vllm.doors.callers import callers


# What a vLLM that lacks a name goes without.
MEMORY, BLOCKS, SCHEDULING = "level 1", "level 2", "level 3"
ELASTIC, EVENTS, TRACES, LAYERS, TIER = "elastic", "KV events", "traces", "layers", "kvd_vllm.tier"


class Finding(NamedTuple):
    """The result of one look. `fault` is "" where all is well; otherwise it names what is wrong.
    `off`: what does not work in this vLLM; "": all does, though a fault says what nobody has tried."""

    what: str
    fault: str = ""
    off: str = ""


class Name(NamedTuple):
    """A name of vLLM's: `path` in `module`, which takes `parameters` (None: not looked at). Each of
    its objects has `attribute` from the start. Where only an engine with a model runs it
    (doctor/trial.py has none), its source has one of `texts`: versions differ. What has texts and no
    parameters is only relied on, and not called."""

    module: str
    path: str
    parameters: tuple[str, ...] | None = None
    texts: tuple[str, ...] = ()
    attribute: str = ""

    @property
    def is_called(self) -> bool:
        return self.parameters is not None or not self.texts


def _of(module: str, kind: str, *names: str) -> tuple[Name, ...]:
    """Names that a class has, or the objects of its dataclass."""
    return tuple(Name(module, f"{kind}.{each}") for each in names)


def _made(module: str, kind: str, *names: str) -> tuple[Name, ...]:
    """Names that each object gets when it is made."""
    return tuple(Name(module, f"{kind}.__init__", attribute=each) for each in names)


_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
_METRICS = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
_EVENTS = "vllm.distributed.kv_events"
_INTERFACE = "vllm.v1.kv_cache_interface"
_MANAGER = "vllm.v1.core.kv_cache_manager"
_OUTPUT = "vllm.v1.core.sched.output"
_REQUEST = "vllm.v1.request"
_POOL = "vllm.v1.core.block_pool"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_TRANSFER = "vllm.config.kv_transfer"
_TIERING = "vllm.v1.kv_offload.tiering"

# What is needed, by what goes without it. A level needs those before it.
NEEDED = {
    MEMORY: (
        Name("vllm.plugins", "load_general_plugins", ()),
        Name(_FACTORY, "KVConnectorFactory.register_connector", ("name", "module_path", "class_name")),
        Name(_TRANSFER, "KVTransferConfig.kv_connector_extra_config"),
        Name(_BASE, "KVConnectorBase_V1.__init__", ("self", "vllm_config", "role", "kv_cache_config")),
        Name(_BASE, "KVConnectorBase_V1.get_mem_pool_context", ("self",)),
        Name(_BASE, "KVConnectorBase_V1.register_kv_caches", ("self", "kv_caches")),
        Name(_BASE, "KVConnectorBase_V1.shutdown", ("self",)),
        Name(_BASE, "KVConnectorBase_V1.requires_kv_delivery"),
        Name(_BASE, "KVConnectorBase_V1.get_required_kvcache_layout", ("vllm_config",)),
        *_of("vllm.platforms", "current_platform", "is_cpu", "is_cuda"),
        Name("vllm.engine.arg_utils", "EngineArgs.create_engine_config"),
        Name(_BASE, "KVConnectorBase_V1.get_transfer_results", ("self", "finished_req_ids")),
        Name(_BASE, "KVConnectorTransferResults.failed_recving"),
        Name("vllm.v1.outputs", "KVConnectorOutput.failed_recving"),
        Name(_SCHEDULER, "Scheduler._handle_failed_recving", ("self", "failed_req_ids")),
        Name(_BASE, "SupportsHMA.request_finished_all_groups", ("self", "request", "block_ids")),
        *_of(_BASE, "KVConnectorRole", "SCHEDULER", "WORKER"),
        Name(_BASE, "KVConnectorMetadata"),
        Name(_METRICS, "KVConnectorStats"),
        # The configuration that vLLM was given, and what it makes of its KV cache.
        *_of(_TRANSFER, "KVTransferConfig", "kv_load_failure_policy"),
        *_of("vllm.config.cache", "CacheConfig", "block_size", "cache_dtype", "enable_prefix_caching",
             "prefix_caching_hash_algo", "prefix_match_unit"),
        *_of("vllm.config.scheduler", "SchedulerConfig", "async_scheduling", "enable_chunked_prefill"),
        *_of("vllm.config.parallel", "ParallelConfig", "world_size", "rank", "tensor_parallel_size",
             "data_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size",
             "distributed_executor_backend", "nnodes", "enable_eplb"),
        *_of("vllm.config.model", "ModelConfig", "is_prefix_caching_supported"),
        *_of(_INTERFACE, "KVCacheConfig", "num_blocks", "kv_cache_groups", "kv_cache_layout"),
        *_of(_INTERFACE, "KVCacheGroupSpec", "layer_names", "kv_cache_spec", "is_eagle_group"),
        *_of(_INTERFACE, "SlidingWindowSpec", "block_size", "page_size_bytes", "sliding_window",
             "extra_retained_tokens"),
        Name("vllm.transformers_utils.repo_utils", "try_get_local_file", ("model", "file_name", "revision")),
        Name("vllm.multimodal.hasher", "MultiModalHasher.hash_kwargs", None, ("hexdigest()",)),
        *_of("vllm.multimodal.inputs", "MultiModalFeatureSpec", "data", "identifier", "mm_position"),
        *_of("vllm.multimodal.inputs", "MultiModalFieldElem", "data"),
        Name("vllm.multimodal.cache.shm", "_get_shm_handle", None, ('"address" not in mm_item',)),
        Name(_INTERFACE, "FullAttentionSpec"),
        Name(_INTERFACE, "MLAAttentionSpec"),
        # These are not public: the one allocation, and the code that runs it in the context.
        Name("vllm.v1.worker.utils", "allocate_kv_cache",
             ("kv_cache_config", "device", "layout", "kernel_block_sizes")),
        Name("vllm.v1.worker.gpu_worker", "Worker.initialize_from_config",
             ("self", "kv_cache_config"), ("get_mem_pool_context()",)),
        Name("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.initialize_kv_cache_tensors", None,
             ("kv_cache_allocation_context",)),
        Name("vllm.v1.worker.cpu_model_runner", "CPUModelRunner.initialize_kv_cache_tensors", None,
             ("kv_cache_allocation_context",)),
        Name("vllm.v1.worker.gpu.attn_utils", "init_kv_cache", None, ("kv_cache_allocation_context",)),
    ),
    BLOCKS: (
        Name(_BASE, "KVConnectorBase_V1.has_pending_block_frees", ("self",)),
        Name(_BASE, "KVConnectorBase_V1.handle_preemptions", ("self", "kv_connector_metadata")),
        Name(_BASE, "KVConnectorWorkerMetadata.aggregate", ("self", "other")),
        Name("vllm.v1.outputs", "KVConnectorOutput.kv_connector_worker_meta"),
        Name(_METRICS, "KVConnectorPromMetrics.observe",
             ("self", "transfer_stats_data", "engine_idx")),
        Name(_OUTPUT, "KVConnectorBlockState.resolve_block_ids"),
        Name(_OUTPUT, "SchedulerOutput.kv_connector_block_state"),
        Name(_OUTPUT, "CachedRequestData.resumed_req_ids"),
        *_of(_OUTPUT, "SchedulerOutput", "scheduled_new_reqs", "scheduled_cached_reqs",
             "num_scheduled_tokens"),
        Name(_OUTPUT, "NewRequestData.req_id"),
        Name(_MANAGER, "KVCacheBlocks.get_block_ids"),
        Name(_POOL, "BlockPool.touch", ("self", "blocks")),
        Name(_POOL, "BlockPool.free_blocks", ("self", "ordered_blocks")),
        *_made(_REQUEST, "Request", "request_id", "status", "arrival_time", "sampling_params", "max_tokens",
               "num_prompt_tokens", "num_computed_tokens", "num_in_flight_tokens", "is_prefill_chunk",
               "kv_transfer_params", "block_hashes", "skip_reading_prefix_cache", "lora_request",
               "mm_features", "prompt_token_ids", "cache_salt", "_block_hasher"),
        Name(_REQUEST, "RequestStatus.FINISHED_LENGTH_CAPPED"),
        *_of(_REQUEST, "Request", "num_tokens", "num_output_tokens"),
        *_of("vllm.sampling_params", "SamplingParams", "extra_args"),
        Name("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.execute_model", None,
             ("handle_preemptions(kv_connector_metadata)",)),
        # These are for naming blocks: what is loaded, vLLM's hash of tokens, and that its prefix cache was
        # emptied.
        Name("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.get_model", ("self",)),
        Name("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.get_draft_model", ("self",)),
        *_of("vllm.config", "VllmConfig", "speculative_config"),
        *_of("vllm.config", "SpeculativeConfig", "draft_model_config"),
        Name("vllm.config", "CompilationConfig.static_forward_context"),
        Name("vllm.v1.worker.lora_model_runner_mixin", "LoRAModelRunnerMixin.add_lora",
             ("self", "lora_request")),
        Name("vllm.lora.worker_manager", "WorkerLoRAManager.list_adapters", ("self",)),
        Name("vllm.lora.model_manager", "LoRAModelManager.get_adapter", ("self", "adapter_id")),
        *_made("vllm.lora.lora_model", "LoRAModel", "loras"),
        Name("vllm.v1.core.kv_cache_utils", "_gen_lora_extra_hash_keys", ("request",)),
        Name("vllm.v1.core.kv_cache_utils", "get_request_block_hasher", None,
             ("request.block_hashes[-1]",)),
        Name(_POOL, "BlockPool.reset_prefix_cache", ("self",)),
    ),
    EVENTS: (
        Name(_BASE, "KVConnectorBase_V1.take_events", ("self",)),
        *(Name(_EVENTS, each) for each in ("KVCacheEvent", "MEDIUM_CPU", "MEDIUM_STORAGE")),
        *_of(_EVENTS, "BlockStored", "lora_name", "group_idx", "kv_cache_spec_kind"),
        *_of(_EVENTS, "BlockRemoved", "medium", "group_idx"),
        Name("vllm.v1.engine", "EngineCoreRequestType.WAKEUP"),
        Name(_INTERFACE, "get_kv_cache_spec_kind", ("kv_cache_spec",)),
        *_of("vllm.config", "KVEventsConfig", "enable_kv_cache_events"),
        *_of("vllm.config", "VllmConfig", "kv_events_config"),
        *_made(_REQUEST, "Request", "prompt_embeds", "all_token_ids"),
    ),
    TRACES: (
        *_of("vllm.config", "VllmConfig", "observability_config"),
        *_of("vllm.config", "ObservabilityConfig", "otlp_traces_endpoint"),
        *_made(_REQUEST, "Request", "trace_headers"),
        Name("vllm.tracing", "extract_trace_context", ("headers",)),
        Name("vllm.tracing", "instrument_manual",
             ("span_name", "start_time", "end_time", "attributes", "context", "kind")),
    ),
    # What is said at the start, that blocks may be claimed, and that vLLM pads with block 0.
    ELASTIC: (
        Name(_BASE, "KVConnectorBase_V1.get_handshake_metadata", ("self",)),
        Name(_BASE, "KVConnectorHandshakeMetadata"),
        Name(_BASE, "KVConnectorBase_V1.set_xfer_handshake_metadata", ("self", "metadata")),
        Name(_BASE, "KVConnectorBase_V1.set_xfer_handshake_metadata_pp_aware", ("self", "metadata")),
        Name(_BASE, "KVConnectorBase_V1.has_pending_push_work", ("self",)),
        Name("vllm.v1.engine.core", "EngineCore", None, ("set_xfer_handshake_metadata_pp_aware(content)",)),
        Name(_INTERFACE, "KVCacheConfig.kv_cache_tensors"),
        Name(_INTERFACE, "KVCacheTensor.layers"),
        Name(_INTERFACE, "KVCacheTensor.layer_stride"),
        Name(_INTERFACE, "KVCacheTensor.block_stride"),
        Name(_INTERFACE, "KVCacheTensor.offset"),
        *_made(_POOL, "BlockPool", "null_block"),
        Name(_POOL, "BlockPool.evict_blocks", ("self", "block_ids")),
        Name("vllm.v1.core.kv_cache_utils", "KVCacheBlock.ref_cnt"),
        Name("vllm.v1.core.kv_cache_utils", "KVCacheBlock.block_hash"),
        Name("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._build_attention_metadata", None,
             ("fill_(NULL_BLOCK_ID)",)),
    ),
    # That each layer's attention asks before and after, and finds its blocks by what the forward context
    # has for it.
    LAYERS: (
        Name(_BASE, "KVConnectorBase_V1.start_load_kv", ("self", "forward_context", "kwargs")),
        Name(_BASE, "KVConnectorBase_V1.wait_for_layer_load", ("self", "layer_name")),
        Name(_BASE, "KVConnectorBase_V1.save_kv_layer",
             ("self", "layer_name", "kv_layer", "attn_metadata", "kwargs")),
        Name(_BASE, "KVConnectorBase_V1.get_block_ids_with_load_errors", ("self",)),
        *_of(_OUTPUT, "SchedulerOutput", "has_sync_kv_loads", "finished_req_ids", "preempted_req_ids"),
        Name(_OUTPUT, "NewRequestData.block_ids"),
        *_of("vllm.forward_context", "ForwardContext", "attn_metadata", "slot_mapping"),
        *_of("vllm.config.cache", "CacheConfig", "kv_cache_memory_bytes", "num_gpu_blocks_override"),
        *_of("vllm.config.scheduler", "SchedulerConfig", "max_num_seqs", "scheduler_cls"),
        Name("vllm.v1.worker.kv_connector_model_runner_mixin", "KVConnectorModelRunnerMixin", None,
             ("not scheduler_output.has_sync_kv_loads",)),
        # That requests whose blocks are lost are computed again, and what a step said of them is forgotten.
        Name(_SCHEDULER, "Scheduler._handle_invalid_blocks", None, ("not self.recompute_kv_load_failures",)),
        Name("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._update_states", None,
             ("num_output_tokens < len(req_state.output_token_ids)",)),
        Name("vllm.model_executor.layers.attention.attention", "unified_kv_cache_update", None,
             ("layer_slot_mapping",)),
        Name("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl.forward", None,
             ("block_table=attn_metadata.block_table",)),
    ),
    # The scheduler classes are not public.
    SCHEDULING: (
        Name("vllm.v1.core.sched.async_scheduler", "AsyncScheduler._update_after_schedule"),
        Name(_SCHEDULER, "Scheduler.schedule", ("self", "throttle_prefills")),
        Name(_SCHEDULER, "Scheduler._preempt_request", ("self", "request", "timestamp", "drop_stale_output")),
        Name("vllm.v1.core.sched.request_queue", "FCFSRequestQueue.pop_request", ("self",)),
        *_made(_SCHEDULER, "Scheduler", "connector", "waiting", "kv_holding_waiting", "running", "requests",
               "max_num_scheduled_tokens", "max_num_active_reqs", "kv_cache_manager", "kv_cache_config",
               "block_size", "scheduler_config", "deferred_frees", "failed_recving_kv_req_ids",
               "_inflight_prefills"),
        Name(_SCHEDULER, "Scheduler.pause_state"),
        Name("vllm.v1.core.sched.interface", "PauseState.UNPAUSED"),
        *_of(_REQUEST, "RequestStatus", "WAITING", "PREEMPTED", "WAITING_FOR_REMOTE_KVS"),
        Name(_MANAGER, "KVCacheManager.get_block_ids", ("self", "request_id")),
        Name(_MANAGER, "KVCacheManager.free", ("self", "request")),
        *_made(_MANAGER, "KVCacheManager", "block_pool"),
        *_made(_POOL, "BlockPool", "blocks", "num_gpu_blocks", "cached_block_hash_to_block"),
        Name(_POOL, "BlockPool.get_num_free_blocks", ("self",)),
        Name(_SCHEDULER, "Scheduler.reset_prefix_cache",
             ("self", "reset_running_requests", "reset_connector")),
    ),
    TIER: (
        Name(_TIERING + ".async_lookup", "AsyncLookupManager.__init__", ("self", "tier_type")),
        Name(_TIERING + ".base", "SecondaryTierManager.lookup", ("self", "key", "req_context")),
        Name(_TIERING + ".base", "SecondaryTierManager.submit_store", ("self", "job_metadata")),
        Name(_TIERING + ".base", "SecondaryTierManager.submit_load", ("self", "job_metadata")),
        Name(_TIERING + ".base", "SecondaryTierManager.get_finished_jobs", ("self",)),
        Name(_TIERING + ".base", "SecondaryTierManager.drain_jobs", ("self",)),
        Name(_TIERING + ".base", "JobResult"),
        Name(_TIERING + ".base", "TransferJob"),
        *(Name("vllm.v1.kv_offload.base", each) for each in (
            "Locality", "LookupResult", "Medium", "RequestOffloadingContext")),
    ),
}  # fmt: skip
NAMES = tuple(name for names in NEEDED.values() for name in names)
# Used where they are there; 0.31 has none of them.
OPTIONAL = (Name("vllm.v1.metrics.cache_hit_source", "CacheHitSource.HOST"),)


def version() -> str:
    """vLLM's own version, without the part that names a build."""
    return str(importlib.import_module("vllm").__version__).split("+")[0]


def look() -> Iterator[Finding]:
    """All findings. Raises ImportError where there is no vLLM. If a vLLM lacks something, a finding
    names it."""
    found = version()
    tested = ", ".join(TESTED_VLLM)
    yield Finding(
        f"vllm {found}", "" if found in TESTED_VLLM else f"not tested; tested with {tested}"
    )
    for level, names in NEEDED.items():
        for name in names:
            fault = _absence_of(name)
            moved = "" if fault else _move_of(name)
            off = level if fault and name.is_called else ""
            yield Finding(f"{name.module}.{name.path}", fault or moved, off)
    for what, fault, level in (
        ("KvdConnector answers all that vLLM asks of a connector", _fault_of_connector(), MEMORY),
        ("KvdScheduler fits in front of vLLM's schedulers", _fault_of_schedulers(), SCHEDULING),
    ):
        yield Finding(what, fault, level if fault else "")


@functools.cache
def what_is_off() -> dict[str, str]:
    """What does not work in this process's vLLM, by its name, and why. Looks only where vLLM has been
    imported already: what it has not loaded it does not call."""
    off: dict[str, str] = {}
    for level, names in NEEDED.items():
        for name in names:
            is_used = name.is_called and name.module in sys.modules and level not in off
            fault = _absence_of(name) if is_used else ""
            if fault:
                off[level] = f"{name.module}.{name.path}: {fault}"
    for level in (BLOCKS, ELASTIC, SCHEDULING, EVENTS, TRACES, LAYERS):
        if MEMORY in off:
            off.setdefault(level, off[MEMORY])
    return off


def _found(name: Name) -> Any:
    """The object of that name. Raises LookupError with what is missing."""
    try:
        found: Any = importlib.import_module(name.module)
    except Exception as fault:  # an unknown vLLM may raise anything when it is imported
        raise LookupError(f"cannot be imported: {fault}") from fault
    for part in name.path.split("."):
        if not hasattr(found, part) and part not in getattr(found, "__dataclass_fields__", {}):
            raise LookupError(f"there is no {part}")
        found = getattr(found, part, None)
    return found


def _absence_of(name: Name) -> str:
    """What this vLLM lacks of it."""
    try:
        found = _found(name)
    except LookupError as fault:
        return str(fault)
    if name.parameters is not None:
        takes = tuple(inspect.signature(found).parameters)
        if takes != name.parameters:
            return f"takes ({', '.join(takes)}), not ({', '.join(name.parameters)})"
    if name.attribute and f"self.{name.attribute}" not in _source_of(found):
        return f"its objects have no {name.attribute}"
    return ""


def _move_of(name: Name) -> str:
    """What nobody has tried: its source is not what it was in a version that is tested."""
    if not name.texts or any(text in _source_of(_found(name)) for text in name.texts):
        return ""
    return f"its source has no {' and no '.join(map(repr, name.texts))}"


@functools.cache
def _source_of(found: Any) -> str:
    return inspect.getsource(inspect.unwrap(found))


def _fault_of_import(error: Exception) -> str:
    return f"this vLLM has not what it needs: {error}"


def _fault_of_connector() -> str:
    """Abstract methods that the connector lacks, and methods whose parameters differ from the
    base's."""
    try:
        from kvd_vllm.connector import KvdConnector
    except Exception as error:
        return _fault_of_import(error)
    missing = sorted(getattr(KvdConnector, "__abstractmethods__", ()))
    if missing:
        return f"it has no {', '.join(missing)}"
    return _fault_of_methods(KvdConnector, KvdConnector.__mro__[1:])


def _fault_of_schedulers() -> str:
    try:
        from kvd_vllm.scheduler import (
            AdmissionQueue, KvdAsyncScheduler, KvdScheduler, KvdSchedulerMixin,
        )  # fmt: skip
    except Exception as error:
        return _fault_of_import(error)
    for kind in (KvdScheduler, KvdAsyncScheduler):
        fault = _fault_of_methods(KvdSchedulerMixin, kind.__mro__[2:], but=("__init__",))
        if fault:
            return fault
    return _fault_of_methods(AdmissionQueue, AdmissionQueue.__mro__[1:])


def _fault_of_methods(kind: Any, bases: Any, but: tuple[str, ...] = ()) -> str:
    """A method of `kind` whose parameters differ from those of the base method that it stands in
    front of."""
    for name, ours in vars(kind).items():
        theirs = next((vars(base)[name] for base in bases if name in vars(base)), None)
        if name not in but and inspect.isfunction(ours) and inspect.isfunction(theirs):
            if list(inspect.signature(ours).parameters) != list(inspect.signature(theirs).parameters):
                return f"{name}{inspect.signature(theirs)} is asked for"
    return ""


def vllms_transfer() -> Any:
    """The kv_transfer_config that the scheduler which makes a connector reads, in its place. A
    MultiConnector gives its connectors a copy."""
    configs = (getattr(owner, "vllm_config", None) for owner in callers())
    transfers = (getattr(config, "kv_transfer_config", None) for config in configs)
    return next((each for each in transfers if each is not None), None)
