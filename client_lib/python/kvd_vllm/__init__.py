"""vLLM on kvd: an unmodified vLLM keeps its KV cache in kvd's pool.

    vllm serve MODEL --kv-transfer-config '{"kv_connector":"KvdConnector","kv_role":"kv_both"}'

`python -m kvd_vllm doctor` says whether this vLLM and this kvd go together.
"""

CONNECTOR = "KvdConnector"
TESTED_VLLM = ("0.32.0",)


def register() -> None:
    """Gives the connector its short name. vLLM calls it in each of its processes, through the entry
    point `vllm.general_plugins`; a second call in a process changes nothing."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(CONNECTOR, "kvd_vllm.connector", CONNECTOR)
    except ValueError:
        pass  # registered already
