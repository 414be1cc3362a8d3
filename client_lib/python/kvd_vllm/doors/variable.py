"""KVD_VLLM=1: an engine without kvd's two flags is started as if it had them.

The scheduler class follows from vLLM's own decision on async scheduling, which is made last of all. So
this stands around the one function that makes vLLM's configuration of its arguments, for the whole process.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

from kvd_vllm import CONNECTOR, options
from kvd_vllm.memory import logger

_TRANSFER = {"kv_connector": CONNECTOR, "kv_role": "kv_both"}


def obey() -> None:
    """Does what KVD_VLLM says; a second call changes nothing. Raises ValueError where it says neither yes
    nor no."""
    if options.is_on("KVD_VLLM", os.environ.get("KVD_VLLM", "")):
        _stand_around()


@functools.cache
def _stand_around() -> None:
    from vllm.engine.arg_utils import EngineArgs

    setattr(EngineArgs, "create_engine_config", _with_kvd(EngineArgs.create_engine_config))


def _with_kvd(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_engine_config(arguments: Any, *rest: Any, **named: Any) -> Any:
        other = _other_connector(arguments)
        if other:
            logger.warning("kvd: KVD_VLLM changes nothing, as %s says otherwise", other)
            return create(arguments, *rest, **named)
        said = []
        if arguments.kv_transfer_config is None:
            arguments.kv_transfer_config = _transfer()
            said.append(f"--kv-transfer-config '{json.dumps(_TRANSFER)}'")
        config = create(arguments, *rest, **named)
        if config.model_config.is_encoder_decoder and said:
            # vLLM refuses such a model with any connector.
            arguments.kv_transfer_config = config.kv_transfer_config = None
            logger.warning("kvd: KVD_VLLM changes nothing, as the model has an encoder and a decoder")
            return config
        scheduling = config.scheduler_config
        if scheduling.policy != "fcfs":
            logger.warning("kvd: vLLM's own scheduler runs, as --scheduling-policy is %s", scheduling.policy)
        elif scheduling.scheduler_cls is None:
            kind = "KvdAsyncScheduler" if scheduling.async_scheduling else "KvdScheduler"
            scheduling.scheduler_cls = f"kvd_vllm.{kind}"
            said.append(f"--scheduler-cls {scheduling.scheduler_cls}")
        logger.info("kvd: KVD_VLLM sets %s", " and ".join(said) or "nothing: the flags name all of it")
        return config

    return create_engine_config


def _other_connector(arguments: Any) -> str:
    """The flag that asks for another connector; "": none does."""
    given = arguments.kv_transfer_config
    if given is not None and given.kv_connector != CONNECTOR:
        return f"--kv-transfer-config with {given.kv_connector}"
    return "--kv-offloading-size" if arguments.kv_offloading_size is not None else ""


def _transfer() -> Any:
    from vllm.config.kv_transfer import KVTransferConfig

    return KVTransferConfig(**_TRANSFER)
