"""Where vLLM finds the connector. In a vLLM that lacks what it needs there is one that does nothing, so
that the engine starts as stock vLLM, and the log says why."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata,
)  # fmt: skip

from kvd_vllm import options
from kvd_vllm.checks import MEMORY, version, what_is_off
from kvd_vllm.memory import KvdRequired, logger


def absent(reason: str) -> type[KVConnectorBase_V1]:
    """A connector that stores and finds nothing. Raises KvdRequired when it is made, where the
    operator wants no engine without kvd."""

    def make(self: Any, vllm_config: Any, *rest: Any, **named: Any) -> None:
        KVConnectorBase_V1.__init__(self, vllm_config, *rest, **named)
        transfer = vllm_config.kv_transfer_config
        text = f"kvd is off: vLLM {version()} lacks what it needs: {reason}"
        if options.parse(transfer.kv_connector_extra_config if transfer else {}).required:
            raise KvdRequired(text)
        logger.warning("%s; `python -m kvd_vllm doctor` says more", text)

    def nothing(*_: Any, **__: Any) -> None: ...

    body: dict[str, Any] = dict.fromkeys(KVConnectorBase_V1.__abstractmethods__, nothing)
    body |= {
        "__init__": make,
        "get_num_new_matched_tokens": lambda *_: (0, False),
        "build_connector_meta": lambda *_: KVConnectorMetadata(),
    }
    return type("KvdConnector", (KVConnectorBase_V1,), body)


def find() -> type[KVConnectorBase_V1]:
    try:
        from kvd_vllm.connector import KvdConnector as found
    except Exception as fault:  # an unknown vLLM may raise anything
        return absent(str(fault))
    off = what_is_off()
    return absent(off[MEMORY]) if MEMORY in off else found


KvdConnector = find()
