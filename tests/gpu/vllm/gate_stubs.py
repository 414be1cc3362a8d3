"""deploy/ci/vllm_stubs.py for more than torch: gate_stubs.py SITE_PACKAGES OBJECT…

vLLM's kernels name the driver's library too, and more of CUDA's functions than torch does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import vllm_stubs

DRIVER = "libcuda.so.1"
# What vllm.distributed.device_communicators.cuda_wrapper looks up by name.
LOOKED_UP = {
    "cudaSetDevice", "cudaDeviceSynchronize", "cudaDeviceReset", "cudaGetErrorString", "cudaMalloc",
    "cudaFree", "cudaMemset", "cudaMemcpy", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle",
}  # fmt: skip


def main() -> None:
    site = Path(sys.argv[1])
    folder = site / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    loading = [*sorted((site / "torch/lib").glob("*.so*")), *map(Path, sys.argv[2:])]
    libraries, names, objects = vllm_stubs.wanted(loading)
    runtime = next(name for name in sorted(libraries) if name.startswith("libcudart"))
    versioned = set().union(*(found for (file, _), found in names.items() if file == runtime))
    names["", ""] |= LOOKED_UP - versioned
    for name in sorted(libraries):
        nodes = {version: found for (file, version), found in names.items() if file == name}
        vllm_stubs.build(folder / name, nodes, names["", ""] if name == runtime else set(), objects)
    vllm_stubs.build(folder / DRIVER, {}, set(), set())  # its functions have no version: the runtime's stub has them


if __name__ == "__main__":
    main()
