"""kvd below vLLM's own CPU tier, for models that KvdConnector refuses: vLLM's OffloadingConnector with
TieringOffloadingSpec keeps blocks in host memory of its own, and has copies of them in kvd's DRAM and on
kvd's disk. `secondary_tiers` names it by "type": "KvdTier" and "module_path": "kvd_vllm.tier".
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """The class that vLLM looks up here. It imports vLLM, so it loads only then."""
    if name == "KvdTier":
        from kvd_vllm.tier.manager import KvdTier

        return KvdTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
