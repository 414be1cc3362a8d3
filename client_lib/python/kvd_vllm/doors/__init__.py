"""Where vLLM comes in: what it finds under the names of the connector and the schedulers, and KVD_VLLM."""
