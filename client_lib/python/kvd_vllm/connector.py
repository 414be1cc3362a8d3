"""KvdConnector: what vLLM makes of `"kv_connector":"KvdConnector"`.

Level 1: the KV cache lies in kvd's pool. No tokens come from elsewhere yet: every question about
external tokens is answered with none, and nothing is saved.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, SupportsHMA,
)  # fmt: skip

from kvd_vllm import checks, options
from kvd_vllm.memory import KvMemory, logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


class NoTransfers(KVConnectorMetadata):
    """What the scheduler's side has for the workers in a step."""


class KvdConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM makes one for the scheduler and one for each worker; only a worker attaches to kvd.

    All KV cache groups of a model lie in the one region, so hybrid models need nothing of their own.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        extra = transfer.kv_connector_extra_config if transfer is not None else {}
        self._memory = KvMemory(options.parse(extra))

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
        self._memory.check(_tensors_of(kv_caches.values()))

    def shutdown(self) -> None:
        self._memory.release()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Nothing is loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    # ---- the scheduler's side ----

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """No tokens are loaded into the blocks."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return NoTransfers()

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None


def _tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors of a layer: one, or several for a recurrent one."""
    found: list[torch.Tensor] = []
    for value in values:
        found += [value] if isinstance(value, torch.Tensor) else _tensors_of(value)
    return found
