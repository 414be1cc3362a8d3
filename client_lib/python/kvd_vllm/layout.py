"""Where a block lies in the KV cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class Piece(NamedTuple):
    """A part that every block has: for block n it lies at offset + n * stride of the region."""

    offset: int
    stride: int
    bytes: int


class CacheShape(NamedTuple):
    """What both sides of a connector tell kvd about the KV cache."""

    model: str  # names its content (identity.py); the worker's side finds it out; "": not yet
    block_tokens: int
    block_bytes: int
    blocks: int
    # For each KV cache group, how many tokens it looks back; 0: to the first.
    windows: tuple[int, ...]


# The scheduler's session has a cache for each worker, and kvd has 16 for a session.
_MOST_WORKERS = 8
# Blocks of these caches are fully written by the time their tokens are computed, and nothing writes
# them after that.
_WHOLE = ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec")


def refusal(config: VllmConfig, cache: KVCacheConfig) -> str:
    """Why blocks of this engine cannot be stored or parked; "": they can be."""
    if reason := _refusal_of_workers(config):
        return reason
    if not cache.kv_cache_groups:
        return "the model has no KV cache"
    unit = getattr(config.cache_config, "prefix_match_unit", None)
    if unit not in (None, config.cache_config.block_size):
        return f"a block has several hashes; take --prefix-match-unit {unit} away"
    if reason := _refusal_behind_a_prefix(config):
        return reason
    for group in cache.kv_cache_groups:
        spec = group.kv_cache_spec
        if getattr(spec, "non_causal", False) or getattr(spec, "prefix_replay_tokens", 0):
            return "a block of it depends on later tokens, or is to be computed again"
        if type(spec).__name__ not in _WHOLE:
            return f"its KV cache is a {type(spec).__name__}, of which a block is not all"
        if spec.block_size != config.cache_config.block_size:
            return "its blocks are not all of one size, or divided over context-parallel workers"
        if group.is_eagle_group and len(cache.kv_cache_groups) > 1:
            return "a draft model has a KV cache group of its own"
    try:
        pieces_planned(cache)
    except ValueError as fault:
        return str(fault)
    return ""


def _refusal_of_workers(config: VllmConfig) -> str:
    """Why the workers of this model cannot store their parts of blocks; "": they can, or there is one.
    """
    parallel = config.parallel_config
    # vLLM makes it 1 where replicas are independent, as those of a dense model.
    if parallel.data_parallel_size > 1:
        return "its replicas compute with each other's experts; take --data-parallel-size away"
    if parallel.world_size == 1:
        return ""
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return (
            "context-parallel workers divide the tokens of a block; take "
            "--decode-context-parallel-size and --prefill-context-parallel-size away"
        )
    if parallel.distributed_executor_backend != "mp" or parallel.nnodes > 1:
        return (
            f"its {parallel.world_size} workers are not started by this process on this node, which was "
            "never tried; take --distributed-executor-backend mp, and --nnodes away"
        )
    if parallel.enable_eplb:
        return "experts move between workers, which was never tried; take --enable-eplb away"
    if parallel.world_size > _MOST_WORKERS:
        return f"it has {parallel.world_size} workers, and more than {_MOST_WORKERS} were never tried"
    if config.lora_config is not None:
        return "LoRA adapters of several workers were never tried; take --enable-lora away"
    return ""


def _refusal_behind_a_prefix(config: VllmConfig) -> str:
    """Why vLLM cannot compute behind tokens whose KV it was given; "": it can. With prefix caching
    vLLM does so itself. If prefix caching is off, the operator may not want it, which does not
    concern kvd; or vLLM has turned it off because it would be wrong. In that case chunked prompts
    are off, too, or vLLM says that the model or the way in which it computes has no prefix caching.
    """
    if config.cache_config.enable_prefix_caching:
        return ""
    if not config.model_config.is_prefix_caching_supported:
        return "vLLM has no prefix caching for this model"
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        return "prefix caching is off, with VLLM_BATCH_INVARIANT"
    if not config.scheduler_config.enable_chunked_prefill:
        return (
            "prefix caching and chunked prefill are off, as vLLM has them where its attention cannot "
            "compute behind a prefix; where it can, turn one of them on"
        )
    return ""


def shape_of(config: VllmConfig, cache: KVCacheConfig) -> CacheShape:
    """The shape of a KV cache that is not refused. A block belongs to one group at a time, and has
    equally many bytes for each."""
    return CacheShape(
        "", config.cache_config.block_size,
        sum(piece.bytes for piece in pieces_planned(cache)), cache.num_blocks,
        tuple(_window_of(group.kv_cache_spec) for group in cache.kv_cache_groups),
    )  # fmt: skip


def _window_of(spec: Any) -> int:
    """vLLM keeps the tokens that the last one looks back at, and for some draft models a few more.
    """
    window = spec.sliding_window if type(spec).__name__ == "SlidingWindowSpec" else 0
    return window + spec.extra_retained_tokens if window else 0


def pieces_of(tensors: Iterable[torch.Tensor], base: int, blocks: int) -> list[Piece]:
    """The parts of a block, in the order of their addresses, with neighbours joined. Raises
    ValueError where a block of a tensor is not one run of bytes."""
    return _joined(_piece_of(tensor, base, blocks) for tensor in tensors)


def pieces_planned(cache: KVCacheConfig) -> list[Piece]:
    """The same, computed from what vLLM is going to allocate in its one allocation. Raises
    ValueError where its groups divide that into different blocks."""
    size = {
        layer: group.kv_cache_spec.page_size_bytes
        for group in cache.kv_cache_groups
        for layer in group.layer_names
    }
    strides = {tensor.block_stride for tensor in cache.kv_cache_tensors}
    if len(cache.kv_cache_groups) > 1 and len(strides) > 1:
        raise ValueError("its KV cache groups divide the same memory into different blocks")
    return _joined(
        Piece(tensor.offset + at * tensor.layer_stride, tensor.block_stride, size[layer])
        for tensor in cache.kv_cache_tensors
        for at, layer in enumerate(tensor.layers)
    )


def _joined(some: Iterable[Piece]) -> list[Piece]:
    """Joins neighbours, and layers of different groups, which share their bytes."""
    joined: list[Piece] = []
    for piece in sorted(set(some)):
        last = joined[-1] if joined else None
        end = piece.offset + piece.bytes
        if last is not None and last.stride == piece.stride \
                and last.offset + last.bytes >= piece.offset \
                and end - last.offset <= last.stride:  # fmt: skip
            joined[-1] = last._replace(bytes=max(last.bytes, end - last.offset))
        else:
            joined.append(piece)
    return joined


def _piece_of(tensor: Any, base: int, blocks: int) -> Piece:
    rows = tensor.shape[0]
    if rows % blocks or not _is_one_run(tensor[0]):
        raise ValueError(f"a KV tensor of shape {tuple(tensor.shape)} has no block in one piece")
    parts, size = rows // blocks, tensor.element_size()
    part = tensor[0].numel() * size
    stride = tensor.stride(0) * size
    if parts > 1 and stride != part:
        raise ValueError(f"a block is {parts} parts of a KV tensor, which are apart")
    return Piece(tensor.data_ptr() - base, stride * parts, part * parts)


def _is_one_run(block: Any) -> bool:
    """Whether its elements fill a run of memory, in any order: some attention backends see the
    heads of a block before its tokens, though they lie in memory the other way round."""
    expected = 1
    for stride, size in sorted(zip(block.stride(), block.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def digest_of(block_hash: bytes) -> bytes:
    """vLLM's hash of a block as the 32 bytes that kvd requires."""
    return block_hash if len(block_hash) == 32 else hashlib.sha256(block_hash).digest()
