"""What `python -m kvd_vllm doctor` runs: vLLM's own scheduler on kvd, without a model."""
