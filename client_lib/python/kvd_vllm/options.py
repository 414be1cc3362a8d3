"""The operator's choices: kv_connector_extra_config of vLLM's --kv-transfer-config, or variables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Options(NamedTuple):
    """An option of kv_connector_extra_config overrides its variable."""

    endpoint: str | None = None  # KVD_ENDPOINT; None: the daemon's default socket
    engine_name: str = "vllm"  # KVD_VLLM_ENGINE_NAME; in status and metrics, at most 31 bytes
    required: bool = False  # KVD_VLLM_REQUIRED; without kvd's memory the engine does not start
    timeout_s: float = 30.0  # KVD_VLLM_TIMEOUT_S; for the attach, and for the memory
    prefixes: bool = True  # KVD_VLLM_PREFIXES; full blocks are stored in kvd and found there
    parking: bool = True  # KVD_VLLM_PARKING; preempted requests are parked, with KvdScheduler
    step_budget_s: float = 0.002  # KVD_VLLM_STEP_BUDGET_S; the longest that a step waits for an answer
    load_timeout_s: float = 10.0  # KVD_VLLM_LOAD_TIMEOUT_S; a copy that takes longer is given up
    handoff_s: float = 60.0  # KVD_VLLM_HANDOFF_S; how long a prompt is kept for a decode engine
    elastic: bool = False  # KVD_VLLM_ELASTIC; the KV cache grows and shrinks with what is wanted
    elastic_kept_bytes: int = 0  # KVD_VLLM_ELASTIC_KEPT_BYTES; what it never gives back
    layers: bool = False  # KVD_VLLM_LAYERS; layers that HBM lacks are fetched from DRAM in each step


_VARIABLES = {
    "endpoint": "KVD_ENDPOINT",
    "engine_name": "KVD_VLLM_ENGINE_NAME",
    "required": "KVD_VLLM_REQUIRED",
    "timeout_s": "KVD_VLLM_TIMEOUT_S",
    "prefixes": "KVD_VLLM_PREFIXES",
    "parking": "KVD_VLLM_PARKING",
    "step_budget_s": "KVD_VLLM_STEP_BUDGET_S",
    "load_timeout_s": "KVD_VLLM_LOAD_TIMEOUT_S",
    "handoff_s": "KVD_VLLM_HANDOFF_S",
    "elastic": "KVD_VLLM_ELASTIC",
    "elastic_kept_bytes": "KVD_VLLM_ELASTIC_KEPT_BYTES",
    "layers": "KVD_VLLM_LAYERS",
}
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def parse(extra: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Options:
    """Raises ValueError for an option that does not exist, or for a value that does not fit: a slip
    in `required` must not start an engine that should have been refused."""
    unknown = sorted(set(extra) - set(_VARIABLES))
    if unknown:
        raise ValueError(
            f"kv_connector_extra_config: KvdConnector has no {', '.join(unknown)}; "
            f"it has {', '.join(_VARIABLES)}"
        )
    given: dict[str, tuple[str, Any]] = {}
    for option, variable in _VARIABLES.items():
        if environment.get(variable):
            given[option] = (variable, environment[variable])
        if option in extra:
            given[option] = (f"kv_connector_extra_config: {option}", extra[option])
    values = {option: _VALUES[option](where, value) for option, (where, value) in given.items()}
    return Options(**values)


def text_of(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {value!r} is no text")
    return value


def name_of(where: str, value: Any) -> str:
    if len(text_of(where, value).encode()) > 31:
        raise ValueError(f"{where}: {value!r} is longer than 31 bytes")
    return str(value)


def is_on(where: str, value: Any) -> bool:
    """Raises ValueError for what says neither yes nor no."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in _YES + _NO:
        return str(value).lower() in _YES
    raise ValueError(f"{where}: {value!r} is neither true nor false")


def seconds_of(where: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"{where}: {value!r} is no time in seconds above 0")
    return seconds


def bytes_of(where: str, value: Any) -> int:
    try:
        count = int(value) if not isinstance(value, (bool, float)) else -1
    except (TypeError, ValueError):
        count = -1
    if count < 0:
        raise ValueError(f"{where}: {value!r} is no whole number of bytes, 0 or more")
    return count


_VALUES: dict[str, Callable[[str, Any], Any]] = {
    "endpoint": text_of,
    "engine_name": name_of,
    "required": is_on,
    "timeout_s": seconds_of,
    "prefixes": is_on,
    "parking": is_on,
    "step_budget_s": seconds_of,
    "load_timeout_s": seconds_of,
    "handoff_s": seconds_of,
    "elastic": is_on,
    "elastic_kept_bytes": bytes_of,
    "layers": is_on,
}
