"""What names the blocks of vLLM's CPU tier: everything that their bytes depend on besides vLLM's hashes.

vLLM makes a tier in the scheduler's process and gives it neither weights nor configuration. So the engine
that makes it is looked for, and its workers are asked, as each has a part of the weights.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from kvd_vllm.doors.callers import callers
from kvd_vllm.identity import UNEXPECTED, NoIdentity, identity_of, private
from kvd_vllm.loaded import models_of
from kvd_vllm.memory import logger

# Change this where bytes that were stored by an older version of this package must not be found.
_FORMAT = "kvd_vllm tier 1"
# Fields of vLLM's OffloadingConfig, and of its part about workers, that the bytes of a block do not depend on.
_NO_MATTER = (
    "engine_id", "extra_config", "enable_kv_cache_events", "model",
    "rank", "data_parallel_index", "data_parallel_rank_local",
)  # fmt: skip


def engine_of_caller() -> Any:
    """vLLM's engine that makes a tier; None: there is none."""
    return next((each for each in callers() if hasattr(each, "model_executor") and hasattr(each, "vllm_config")), None)


def name_of(config: Any, engine: Any) -> str:
    """The name that the cache is opened under, which no other engine has where content cannot be told.
    `config`: vLLM's OffloadingConfig."""
    try:
        _check(engine)
        # vLLM gives an answer that comes after a timeout to who asks next, so there is none.
        answers = engine.model_executor.collective_rpc(name_of_worker)
        if reasons := [reason for _, reason in answers if reason]:
            raise NoIdentity(reasons[0])
        ranks = [name for name, _ in answers]
        facts = _facts(asdict(config))
        facts["parallel"] = _facts(facts["parallel"])
        text = json.dumps([ranks, facts], sort_keys=True, default=str)
    except (NoIdentity, TimeoutError, *UNEXPECTED) as fault:
        name = private(str(fault))
        logger.warning("kvd: no block of the CPU tier is shared beyond this engine: %s", fault)
    else:
        name = f"{_FORMAT} {hashlib.sha256(text.encode()).hexdigest()[:32]} of {len(ranks)}"
    logger.info("kvd: blocks of the CPU tier are those of %s", name)
    return name


def name_of_worker(worker: Any) -> tuple[str, str]:
    """What a worker says that it computes with, or why it cannot. vLLM calls it in the worker's process, and
    takes an exception there for the end of the worker."""
    try:
        runner = worker.model_runner
        return identity_of(worker.vllm_config, runner.kv_cache_config, models_of(runner)).name(), ""
    except Exception as fault:
        return "", f"{type(fault).__name__}: {fault}"


def _facts(some: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in some.items() if key not in _NO_MATTER}


def _check(engine: Any) -> None:
    """Raises NoIdentity where vLLM's hashes, or the weights of the workers that are asked, do not say all
    that a block depends on."""
    if engine is None:
        raise NoIdentity("vLLM's engine is not where it is looked for")
    given = engine.vllm_config
    reasons = {
        "LoRA adapters, which vLLM calls by name and path, not by content": given.lora_config is not None,
        "a model of more than text, whose images a client may name as it likes":
            given.model_config.is_multimodal_model,
        "weights that come once it runs": given.load_config.load_format == "dummy"
            or getattr(given, "weight_transfer_config", None) is not None
            or bool(getattr(given.parallel_config, "worker_extension_cls", "")),
        "replicas that compute with each other's experts": given.parallel_config.data_parallel_size > 1,
    }  # fmt: skip
    found = [reason for reason, is_so in reasons.items() if is_so]
    if found:
        raise NoIdentity(found[0])
