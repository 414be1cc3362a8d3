"""Where a block lies in the KV cache, and what names a model whose blocks are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Moves where bytes that were stored by an older version of this package must not be found.
_FORMAT = "kvd_vllm 1"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


class Piece(NamedTuple):
    """A part of every block: block n's lies at offset + n * stride of the region."""

    offset: int
    stride: int
    bytes: int


class CacheShape(NamedTuple):
    """What both sides of a connector tell kvd of the KV cache."""

    model: str  # a fingerprint: all that the bytes of a block depend on beside its tokens
    block_tokens: int
    block_bytes: int
    blocks: int


def refusal(config: VllmConfig, cache: KVCacheConfig) -> str:
    """Why blocks of this engine cannot be stored or parked; "": they can."""
    parallel = config.parallel_config
    if parallel.world_size > 1:
        return f"{parallel.world_size} workers share a model; one is what works"
    if len(cache.kv_cache_groups) != 1:
        return f"the model has {len(cache.kv_cache_groups)} KV cache groups; one is what works"
    spec = cache.kv_cache_groups[0].kv_cache_spec
    if type(spec).__name__ not in ("FullAttentionSpec", "MLAAttentionSpec"):
        return f"its KV cache is a {type(spec).__name__}, of which a block is not all"
    if spec.block_size != config.cache_config.block_size:
        return "its blocks are divided over context-parallel workers"
    return ""


def shape_of(config: VllmConfig, cache: KVCacheConfig) -> CacheShape:
    group = cache.kv_cache_groups[0]
    spec = group.kv_cache_spec
    return CacheShape(
        fingerprint(config, cache), spec.block_size,
        spec.page_size_bytes * len(group.layer_names), cache.num_blocks,
    )  # fmt: skip


def fingerprint(config: VllmConfig, cache: KVCacheConfig) -> str:
    """Equal for two engines whose blocks of the same tokens hold the same bytes. vLLM's own block
    hashes hold the rest: tokens, LoRA adapter, images, cache_salt."""
    model = config.model_config
    spec = cache.kv_cache_groups[0].kv_cache_spec
    facts = {
        "format": _FORMAT,
        "model": str(model.model),
        "revision": model.revision,
        "weights": _weights(Path(str(model.model))),
        "config": model.hf_config.to_json_string(),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "seed": model.seed if config.load_config.load_format == "dummy" else None,
        "cache_dtype": str(config.cache_config.cache_dtype),
        "hash": str(config.cache_config.prefix_caching_hash_algo),
        "layers": sorted(cache.kv_cache_groups[0].layer_names),
        "spec": repr(spec),
        "layout": str(cache.kv_cache_layout),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _weights(folder: Path) -> list[tuple[str, int, int]]:
    """What tells a retrained model in the same folder apart: name, size and time of its weights."""
    if not folder.is_dir():
        return []
    found = sorted(path for pattern in _WEIGHTS for path in folder.glob(pattern))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found]


def pieces_of(tensors: Iterable[torch.Tensor], base: int, blocks: int) -> list[Piece]:
    """The parts of a block, in the order of their addresses; neighbours are one. Raises ValueError
    where a block of a tensor is not one run of bytes."""
    return _joined(_piece_of(tensor, base, blocks) for tensor in tensors)


def pieces_planned(cache: KVCacheConfig) -> list[Piece]:
    """The same by what vLLM is going to allocate, in its one allocation. Of one group."""
    size = cache.kv_cache_groups[0].kv_cache_spec.page_size_bytes
    return _joined(
        Piece(tensor.offset + at * tensor.layer_stride, tensor.block_stride, size)
        for tensor in cache.kv_cache_tensors
        for at in range(len(tensor.layers))
    )


def _joined(some: Iterable[Piece]) -> list[Piece]:
    pieces = sorted(some)
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.stride == piece.stride \
                and last.offset + last.bytes == piece.offset \
                and last.bytes + piece.bytes <= last.stride:  # fmt: skip
            joined[-1] = last._replace(bytes=last.bytes + piece.bytes)
        else:
            joined.append(piece)
    return joined


def _piece_of(tensor: Any, base: int, blocks: int) -> Piece:
    rows = tensor.shape[0]
    if rows % blocks or not tensor[0].is_contiguous():
        raise ValueError(f"a KV tensor of shape {tuple(tensor.shape)} has no block in one piece")
    parts, size = rows // blocks, tensor.element_size()
    part = tensor[0].numel() * size
    stride = tensor.stride(0) * size
    if parts > 1 and stride != part:
        raise ValueError(f"a block is {parts} parts of a KV tensor, which are apart")
    return Piece(tensor.data_ptr() - base, stride * parts, part * parts)


def digest_of(block_hash: bytes) -> bytes:
    """vLLM's hash of a block as 32 bytes, which kvd asks for."""
    return block_hash if len(block_hash) == 32 else hashlib.sha256(block_hash).digest()
