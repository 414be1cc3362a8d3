"""In gate.sh's environment: vLLM's operators are there, its GPU side imports, and it takes the arguments of
quarter.sh's engines. Exit status 0: all of it."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench
import kvd_random

# What a step on a Hopper GPU calls, by library.
OPERATORS = {
    "_C": ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding"),
    "_C_cache_ops": ("reshape_and_cache_flash",),
    "_moe_C": ("topk_softmax",),
    "_vllm_fa3_C": ("fwd",),
}
MODULES = """
    vllm vllm.config vllm.engine.arg_utils vllm.v1.engine.core vllm.v1.core.sched.async_scheduler
    vllm.v1.worker.gpu_worker vllm.v1.worker.gpu.model_runner vllm.v1.worker.gpu.kv_connector
    vllm.v1.worker.gpu.warmup vllm.v1.worker.gpu_model_runner vllm.v1.attention.backends.flash_attn
    vllm.v1.attention.backends.triton_attn vllm.vllm_flash_attn vllm.compilation.backends
    vllm.compilation.decorators vllm.compilation.piecewise_backend vllm.compilation.cuda_graph
    vllm.compilation.breakable_cudagraph vllm.model_executor.models.llama vllm.model_executor.models.qwen3
    vllm.v1.sample.sampler vllm.v1.kv_offload.cpu.gpu_worker
    vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector
    vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector vllm.entrypoints.llm
    vllm.entrypoints.openai.api_server vllm.device_allocator.cumem vllm.model_executor.model_loader
""".split()


def pretend_hopper() -> None:
    """What import time asks of the GPU: that there is one, and what it can do."""
    import torch
    import triton.backends

    triton.backends.backends["nvidia"].driver.is_active = staticmethod(lambda: True)
    facts = SimpleNamespace(multi_processor_count=132, total_memory=80 << 30, name="H100", major=9, minor=0)
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda *_: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_properties = lambda *_: facts
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    NonNvmlCudaPlatform.get_device_capability = classmethod(lambda *_, **__: DeviceCapability(9, 0))
    vllm.platforms._current_platform = NonNvmlCudaPlatform()


def configure(kvd: bool) -> None:
    """An engine of quarter.sh, as far as vLLM decides without a GPU what it is to be. Raises what vLLM says."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_kv_connector_cache_layout
    from vllm.engine.arg_utils import EngineArgs

    kvd_random.register()
    sizes = bench.sizes(gpu=True)
    given: dict[str, Any] = {
        "load_format": kvd_random.LOAD_FORMAT, "skip_tokenizer_init": True, "max_model_len": sizes.longest,
        "kv_cache_memory_bytes": sizes.kv_bytes, **sizes.engine,
    }  # fmt: skip
    if kvd:
        import kvd_vllm

        kvd_vllm.register()
        given |= {"kv_transfer_config": bench.CONNECTOR, "scheduler_cls": f"kvd_vllm.{sizes.scheduler}"}
    with tempfile.TemporaryDirectory() as folder:
        model = kvd_random.write_config(Path(folder), sizes.model)
        config = EngineArgs(model=str(model), **given).create_engine_config()
    assert config.use_v2_model_runner and config.scheduler_config.async_scheduling
    assert not kvd or get_kv_connector_cache_layout(config) == "BLNHC"


def fault_of(action: Any) -> str:
    try:
        action()
    except BaseException as fault:  # noqa: B036  whatever a module that is not whole does
        return f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"
    return ""


def main() -> int:
    pretend_hopper()
    import torch

    faults = {module: fault_of(lambda m=module: importlib.import_module(m)) for module in MODULES}
    for library, names in OPERATORS.items():
        for name in names:
            faults[f"{library}.{name}"] = fault_of(lambda s=library, n=name: getattr(getattr(torch.ops, s), n))
    for name, kvd in (("stock", False), ("kvd", True)):
        faults[f"an engine: {name}"] = fault_of(lambda k=kvd: configure(k))
    found = packages_distributions()
    tops = {module.split(".")[0] for module in sys.modules}
    used = sorted({dist for top in tops for dist in found.get(top, [])})
    for what, fault in faults.items():
        print(f"{'no ' if fault else 'yes'} {what} {fault}")
    print(json.dumps({"passed": not any(faults.values()), "packages": used}))
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
