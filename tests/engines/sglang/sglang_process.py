"""Real SGLang processes for tests: the model, the folder with kvd's packages, an engine and its answers."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tiny_model
from kvd_process import KvdProcess

HERE = Path(__file__).parent
PACKAGES = HERE.parents[2] / "client_lib/python"
PATIENCE_S = 600.0  # two cores may be busy with other work; a start alone takes twenty seconds of one core
TOKENS, FOUND = 700, 688  # tokens that a prompt has, and those in its whole pages
PAGE, PAGE_BYTES = 16, 4 * 2 * 4 * 64 * 16 * 4
HICACHE = {
    "enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first", "hicache_write_policy": "write_through",
    "hicache_storage_prefetch_policy": "wait_complete",
}  # fmt: skip
KVD = {"backend_name": "kvd", "module_path": "kvd_sglang", "class_name": "KvdStorage", "interface_v1": 1}


def prompt(seed: int) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(3, 2048) for _ in range(TOKENS)]


def stored(kvd: KvdProcess) -> int:
    """Pages that kvd has."""
    return int(kvd.get("/v1/cache")["cached_bytes"]["dram"]) // PAGE_BYTES


def on_kvd(**extra: Any) -> dict[str, Any]:
    """The flags, as arguments of Engine."""
    config = json.dumps({**KVD, "timeout_s": 30, "copy_timeout_s": 30, **extra})
    return {**HICACHE, "hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config": config}


class Bench:
    """A folder with a model, and with the entry point by which SGLang finds the stand-in."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvd-sglang-")
        self.folder = Path(self._folder.name)
        self.model = self.folder / "model"
        tiny_model.write(self.model)
        facts = self.folder / "cpu_stand_in-1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-stand-in\nVersion: 1\n")
        (facts / "entry_points.txt").write_text("[sglang.srt.plugins]\ncpu = cpu_stand_in:register\n")

    def engine(self, name: str, endpoint: str = "", model: Path | None = None, **options: Any) -> Engine:
        """Starts an engine, and does not wait until it is ready."""
        environment = {
            **os.environ, "KVD_ENDPOINT": endpoint,
            "PYTHONPATH": os.pathsep.join(map(str, [self.folder, HERE / "stand_in", PACKAGES])),
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(self.folder / "pages"),
        }  # fmt: skip
        return Engine([str(model or self.model), json.dumps(options)], environment, self.folder / f"{name}.log")

    def close(self) -> None:
        self._folder.cleanup()


class Engine:
    """An engine.py process. A context manager: leaving it ends the process and its children."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py"), *arguments], env=environment, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip
        self._rest = b""
        self._is_ready = False

    def ask(self, prompts: list[list[int]], answer: int = 16, **more: Any) -> dict[str, Any]:
        return self.tell(prompts=prompts, answer=answer, **more)

    def tell(self, **asked: Any) -> dict[str, Any]:
        self.wait_until_ready()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        return self._reply()

    def wait_until_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = bool(self._reply())

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._process.stdout.fileno(), 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError(f"SGLang does not answer: {self.log[-3000:]}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
