"""vLLM on kvd: an unmodified vLLM keeps its KV cache in kvd's pool, finds there what was computed
before, and is scheduled by kvd.

    KVD_VLLM=1 vllm serve MODEL

which is

    vllm serve MODEL --kv-transfer-config '{"kv_connector":"KvdConnector","kv_role":"kv_both",
        "kv_load_failure_policy":"recompute"}' --scheduler-cls kvd_vllm.KvdScheduler

`python -m kvd_vllm doctor` says whether this vLLM and this kvd go together.
"""

from typing import Any

CONNECTOR = "KvdConnector"
SCHEDULERS = ("KvdScheduler", "KvdAsyncScheduler")
TESTED_VLLM = ("0.31.0", "0.32.0", "0.33.0")


def register() -> None:
    """Gives the connector its short name, and obeys KVD_VLLM. vLLM calls this in each of its processes,
    through the entry point `vllm.general_plugins`; a second call in a process changes nothing."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kvd_vllm.doors import variable

    try:
        KVConnectorFactory.register_connector(CONNECTOR, "kvd_vllm.doors.connector", CONNECTOR)
    except ValueError:
        pass  # registered already
    variable.obey()


def __getattr__(name: str) -> Any:
    """The scheduler classes, which vLLM looks up as kvd_vllm.KvdScheduler. They import vLLM, so
    they load only then. Where vLLM lacks what they need, these are vLLM's own."""
    if name in SCHEDULERS:
        from kvd_vllm.doors import schedulers

        return schedulers.find(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
