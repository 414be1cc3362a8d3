"""The one command that is right for this kvd, this GPU and this vLLM: python -m kvd_vllm flags.

vLLM takes 0.92 of the GPU for itself and refuses to start where less is free, before it asks any
plug-in. kvd's pool is not free, so the share has to be given. So has the scheduler class, which
must match vLLM's way of scheduling.
"""

from __future__ import annotations

import json
import os
import shlex
import urllib.error
import urllib.request
from typing import Any, NamedTuple

import kvd_client

from kvd_vllm import CONNECTOR

# The memory that other processes, and the context that vLLM makes, may take between this look and
# vLLM's own.
MARGIN_BYTES = 1 << 30
# The smallest part of a GPU that weights and activations of an engine fit into.
LEAST_SHARE = 0.02
# vLLM's kernels for CPUs refuse vLLM's own default.
CPU_BLOCK_TOKENS = 32
_GIB = float(1 << 30)


class NoFlags(Exception):
    """Says why no flags are right here, with the remedy."""


class Gpu(NamedTuple):
    name: str
    total: int
    free: int  # besides kvd's pool and everything else that runs


class Pool(NamedTuple):
    """What the kvd that answers lends."""

    memory: kvd_client.Memory
    slab: int
    free: int | None  # bytes that it can still lend; None: its admin interface did not say


class Flag(NamedTuple):
    name: str
    value: str
    why: str


def share_of(gpu: Gpu, engines: int) -> float:
    """--gpu-memory-utilization: vLLM requires that this part of the whole GPU is free when it
    starts. Rounded down. Each engine finds what the engines before it have taken."""
    share = int(100 * (gpu.free - MARGIN_BYTES) / engines / gpu.total) / 100
    if share < LEAST_SHARE:
        raise NoFlags(
            f"only {gpu.free / _GIB:.1f} of {gpu.total / _GIB:.1f} GiB of {gpu.name} are free, which has to hold "
            f"weights and activations of {engines}: make kvd's pool.hbm smaller, or end what else has memory there"
        )
    return share


def cache_bytes(lent: Pool, engines: int) -> int | None:
    """--kv-cache-memory-bytes: an equal part of the pool's free memory, in whole slabs."""
    if lent.free is None:
        return None
    count = lent.free // lent.slab // engines * lent.slab
    if count == 0:
        raise NoFlags(
            f"kvd's pool has {lent.free} bytes free, less than a slab of {lent.slab} for each of {engines}: end "
            "an engine, make pool.hbm larger or pool.slab smaller"
        )
    return count


def flags_for(gpu: Gpu | None, lent: Pool, is_async: bool, engines: int = 1) -> list[Flag]:
    """`gpu`: the GPU that kvd lends memory of; None: vLLM computes on CPUs."""
    if (gpu is None) != (lent.memory == kvd_client.Memory.HOST):
        kind = "host memory" if gpu is not None else "memory of a GPU"
        backend = "cuda" if gpu is not None else "host"
        raise NoFlags(f"kvd lends {kind} and this vLLM computes elsewhere: start kvd with --backend {backend}")
    transfer = json.dumps({"kv_connector": CONNECTOR, "kv_role": "kv_both"}, separators=(",", ":"))
    kind = "KvdAsyncScheduler" if is_async else "KvdScheduler"
    found = [
        Flag("--kv-transfer-config", transfer, "the KV cache lies in kvd, with blocks first where vLLM's attention can"),
        Flag("--scheduler-cls", f"kvd_vllm.{kind}", f"async scheduling is {'on' if is_async else 'off'}"),
    ]
    if gpu is not None:
        share = share_of(gpu, engines)
        why = f"{gpu.free / _GIB:.1f} of {gpu.total / _GIB:.1f} GiB are free beside kvd's pool"
        found.append(Flag("--gpu-memory-utilization", f"{share:.2f}", why))
    else:
        found.append(Flag("--block-size", str(CPU_BLOCK_TOKENS), "vLLM refuses 16 on a CPU"))
    count = cache_bytes(lent, engines)
    if count is not None:
        of = f"all that is free in kvd's pool, in slabs of {lent.slab}"
        found.append(Flag("--kv-cache-memory-bytes", str(count), of if engines == 1 else f"a part in {engines} of {of}"))
    return found


def command(model: str, flags: list[Flag], endpoint: str | None) -> str:
    """The command as one types it."""
    lines = [f"vllm serve {shlex.quote(model)}"]
    lines += [f"  {flag.name} {shlex.quote(flag.value)}" for flag in flags]
    if endpoint:
        lines.insert(0, f"KVD_ENDPOINT={shlex.quote(endpoint)}")
    return " \\\n".join(lines)


def pool_of(session: kvd_client.SessionInfo) -> Pool:
    """Asks kvd's admin interface what kvd can still lend (KVD_ADMIN_URL, as kvdctl does)."""
    url = os.environ.get("KVD_ADMIN_URL") or "http://127.0.0.1:8470"
    free = None
    try:
        with urllib.request.urlopen(f"{url}/v1/status", timeout=5) as answer:
            free = int(json.load(answer)["pools"][0]["free_bytes"])
    except (OSError, ValueError, LookupError):
        pass
    return Pool(session.memory, session.slab_bytes, free)


def gpu_of(session: kvd_client.SessionInfo) -> Gpu | None:
    """The GPU that kvd lends memory of, as torch sees it."""
    import torch

    if not torch.cuda.is_available():
        return None
    for number in range(torch.cuda.device_count()):
        facts: Any = torch.cuda.get_device_properties(number)
        if session.device < 0 or str(facts.uuid) == str(session.device_uuid):
            free, total = torch.cuda.mem_get_info(number)
            return Gpu(facts.name, total, free)
    raise NoFlags(
        f"kvd lends memory of GPU {session.device_uuid}, which this process does not see: CUDA_VISIBLE_DEVICES"
    )


def schedules_async(model: str | None, gpu: Gpu | None) -> bool:
    """Decides as vLLM itself does for that model, or by vLLM's defaults where none is named."""
    if model is None:
        return gpu is not None
    from vllm.engine.arg_utils import EngineArgs

    sizes = {} if gpu is not None else {"block_size": CPU_BLOCK_TOKENS}
    config = EngineArgs(model=model, skip_tokenizer_init=True, **sizes).create_engine_config()
    return bool(config.scheduler_config.async_scheduling)
