"""What names the pages of a model: all that their bytes depend on besides their tokens and the
`extra_key` and `cache_salt` of a request, which SGLang's hash of a page begins with.

kvd_vllm.identity says how weights are told apart by content. What cannot be told apart is refused.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import nn

from kvd_vllm.doors.callers import callers
from kvd_vllm.identity import UNEXPECTED, NoIdentity, weights_of, without_origin

# Change this where bytes that were stored by an older version of this package must not be found.
_FORMAT = "kvd_sglang 1"
# The pools whose pages are tried. Of others it is not known that a page is all there is of its tokens.
_POOLS = ("MHATokenToKVPoolHost",)


class Refused(Exception):
    """Says why pages of this engine are neither stored nor found."""


def scheduler_of_caller() -> Any:
    """The scheduler that makes a storage; None: there is none. SGLang gives a storage only its pool,
    and makes it while the scheduler begins or runs a command of its operator."""
    return next((each for each in callers() if hasattr(each, "tp_worker") and hasattr(each, "server_args")), None)


def model_of(scheduler: Any) -> nn.Module:
    """The model that a scheduler's worker has loaded. Raises Refused."""
    runner = getattr(getattr(scheduler, "tp_worker", None), "model_runner", None)
    model = getattr(runner, "model", None)
    if not isinstance(model, nn.Module):
        raise Refused("its model is not where it is looked for")
    return model


def name_of(config: Any, pool: Any, scheduler: Any) -> str:
    """The name that the cache is opened under. `config`: SGLang's HiCacheStorageConfig. Raises
    Refused."""
    model = model_of(scheduler)
    try:
        _check(config, pool, scheduler)
        kind = ",".join(getattr(scheduler.model_config.hf_config, "architectures", None) or ["model"])
        facts = _facts(config, pool, scheduler, model)
        text = json.dumps(facts, sort_keys=True, default=str)
        weights = weights_of({"model": model})
    except (NoIdentity, *UNEXPECTED) as fault:
        raise Refused(f"its content cannot be told: {fault}") from fault
    found = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"{_FORMAT} {kind} weights {weights} config {found} sglang {_version()}"


def _check(config: Any, pool: Any, scheduler: Any) -> None:
    given = scheduler.server_args
    reasons = {
        f"its pool is a {type(pool).__name__}, and tried are {', '.join(_POOLS)}":
            type(pool).__name__ not in _POOLS or pool.layout == "page_unified",
        "LoRA adapters, which SGLang calls by name and path, not by content": given.enable_lora,
        "a model of more than text, whose images a client may name as it likes":
            scheduler.model_config.is_multimodal,
        "a draft model": given.speculative_algorithm is not None,
        "context parallel ranks": config.attn_cp_size > 1 or config.dcp_size > 1,
        "pages split by heads (tp_lcm_size)": config.should_split_heads,
    }  # fmt: skip
    found = [reason for reason, is_so in reasons.items() if is_so]
    if found:
        raise Refused(found[0])


def _facts(config: Any, pool: Any, scheduler: Any, model: nn.Module) -> dict[str, Any]:
    given, runner = scheduler.server_args, scheduler.tp_worker.model_runner
    return {
        "config": without_origin(scheduler.model_config.hf_config.to_dict()),
        "context": scheduler.model_config.context_len,
        "dtype": str(scheduler.model_config.dtype),
        "quantization": str(given.quantization),
        "cache_dtype": [str(given.kv_cache_dtype), str(pool.dtype)],
        # Factors of a quantized KV cache that are not kept in tensors.
        "scales": [
            (name, each.k_scale_float, each.v_scale_float)
            for name, each in model.named_modules()
            if hasattr(each, "k_scale_float")
        ],
        "layout": [
            pool.layout, pool.page_size, pool.layer_num, pool.head_num, pool.head_dim,
            pool.start_layer, pool.end_layer, pool.storage_format_tag,
        ],
        "ranks": [config.tp_rank, config.tp_size, config.pp_rank, config.pp_size],
        "attention": [
            str(getattr(runner, name, None) or given.attention_backend)
            for name in ("prefill_attention_backend_str", "decode_attention_backend_str")
        ],
    }  # fmt: skip


def _version() -> str:
    import sglang

    return str(sglang.__version__)
