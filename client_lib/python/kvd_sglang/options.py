"""The operator's choices, in the JSON of SGLang's --hicache-storage-backend-extra-config, or variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kvd_vllm.tier.pages import VALUES, Options, options_of

_WHERE = "hicache-storage-backend-extra-config"
# What SGLang itself reads of this JSON.
_SGLANGS = (
    "backend_name", "module_path", "class_name", "interface_v1", "allocator", "tp_lcm_size",
    "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
)  # fmt: skip
# An option of the JSON overrides its variable.
_VARIABLES = {
    "endpoint": "KVD_ENDPOINT",
    "engine_name": "KVD_SGLANG_ENGINE_NAME",
    "timeout_s": "KVD_SGLANG_TIMEOUT_S",
    "copy_timeout_s": "KVD_SGLANG_COPY_TIMEOUT_S",
    "window_bytes": "KVD_SGLANG_WINDOW_BYTES",
}


def parse(extra: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Options:
    """Raises ValueError for an option that does not exist, or for a value that does not fit."""
    own = {option: each for option, each in extra.items() if option not in _SGLANGS}
    given = options_of(_WHERE, "KvdStorage", {"engine_name": "sglang", **own})
    set_there = {
        option: VALUES[option](variable, environment[variable])
        for option, variable in _VARIABLES.items()
        if environment.get(variable) and option not in own
    }
    return given._replace(**set_there)
