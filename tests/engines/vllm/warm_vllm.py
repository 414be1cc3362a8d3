"""What a process imports that engines are forked from (warm_process.py): vLLM with what an engine of the
tests loads of it, and nothing of kvd. No thread, no engine, no memory of a device.
"""

from __future__ import annotations

import gc
import importlib
import sys

# The same path that a fresh engine has: the folder of its script, PYTHONPATH, and what Python itself adds.
PATH = sys.path[1:]

for name in (
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.entrypoints.llm",
):
    importlib.import_module(name)

# An engine's garbage collections then look at its own objects only, and leave these pages shared.
gc.collect()
gc.freeze()
sys.stdout.flush()
