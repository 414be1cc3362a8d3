"""The operator's choices, in the JSON of SGLang's --hicache-storage-backend-extra-config, or variables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvd_vllm.options import bytes_of, name_of, seconds_of, text_of

# What SGLang itself reads of this JSON.
_SGLANGS = (
    "backend_name", "module_path", "class_name", "interface_v1", "allocator", "tp_lcm_size",
    "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
)  # fmt: skip


class Options(NamedTuple):
    """An option of the JSON overrides its variable."""

    endpoint: str | None = None  # KVD_ENDPOINT; None: the daemon's default socket
    engine_name: str = "sglang"  # KVD_SGLANG_ENGINE_NAME; in status and metrics, at most 31 bytes
    timeout_s: float = 5.0  # KVD_SGLANG_TIMEOUT_S; for the attach at the start
    copy_timeout_s: float = 2.0  # KVD_SGLANG_COPY_TIMEOUT_S; a copy that takes longer is given up
    window_bytes: int = 64 << 20  # KVD_SGLANG_WINDOW_BYTES; kvd's memory that pages go through


_VALUES: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "endpoint": ("KVD_ENDPOINT", text_of),
    "engine_name": ("KVD_SGLANG_ENGINE_NAME", name_of),
    "timeout_s": ("KVD_SGLANG_TIMEOUT_S", seconds_of),
    "copy_timeout_s": ("KVD_SGLANG_COPY_TIMEOUT_S", seconds_of),
    "window_bytes": ("KVD_SGLANG_WINDOW_BYTES", bytes_of),
}


def parse(extra: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Options:
    """Raises ValueError for an option that does not exist, or for a value that does not fit."""
    unknown = sorted(set(extra) - set(_VALUES) - set(_SGLANGS))
    if unknown:
        raise ValueError(
            f"hicache-storage-backend-extra-config: KvdStorage has no {', '.join(unknown)}; "
            f"it has {', '.join(_VALUES)}"
        )
    values = {}
    for option, (variable, value_of) in _VALUES.items():
        if option in extra:
            values[option] = value_of(f"hicache-storage-backend-extra-config: {option}", extra[option])
        elif environment.get(variable):
            values[option] = value_of(variable, environment[variable])
    return Options(**values)
