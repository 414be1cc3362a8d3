"""Lets HiCache run without a GPU: SGLang calls register() in each of its processes, by the entry point
`sglang.srt.plugins`. Pages are copied by torch, host memory is not pinned, streams and events have nothing
to wait for, and pools need not leave 10 GB free.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def register() -> None:
    from sglang.srt.mem_cache.pool_host import mha
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target in ("common._cuda_host_register", "common._cuda_host_unregister"):
        HookRegistry.register(f"sglang.srt.mem_cache.pool_host.{target}", _nothing, HookType.REPLACE)
    HookRegistry.register(
        "sglang.srt.mem_cache.pool_host.base.host_memory_budget_bytes",
        functools.partial(_constant, 1 << 40), HookType.REPLACE,
    )  # fmt: skip
    mha.transfer_kv_direct = _transfer_kv_direct
    for kind in (torch.cpu.Stream, torch.cpu.Event):
        for name in ("record", "record_event", "synchronize", "wait", "wait_event", "wait_stream"):
            if not hasattr(kind, name):
                setattr(kind, name, _nothing)
    for name, value in (("query", True), ("elapsed_time", 0.0)):
        setattr(torch.cpu.Event, name, functools.partial(_constant, value))
    for name in ("empty", "full", "ones", "tensor", "zeros"):
        setattr(torch, name, _unpinned(getattr(torch, name)))


def _transfer_kv_direct(
    src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Copies tokens between pools, layer by layer."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices.long()] = source[src_indices.long()]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _constant(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*given: Any, pin_memory: bool = False, **more: Any) -> Any:
        return make(*given, **more)

    return made
