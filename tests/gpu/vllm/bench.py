"""What the items work with: a kvd, engines on it and beside it, kvd's experiments."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kvd_random
from engine import Load

HERE = Path(__file__).parent
CONNECTOR = {"kv_connector": "KvdConnector", "kv_role": "kv_both"}


class Sizes(NamedTuple):
    """How large everything is. `room`: requests of the pressure load that the KV cache holds."""

    model: str
    hbm: str
    dram: str
    slab: str
    kv_bytes: int
    longest: int
    first: Load
    prefix: Load
    pressure: Load
    long_prefix: Load
    decode: Load
    streamed: Load
    staging: int  # blocks
    engine: dict[str, Any]
    scheduler: str


GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}
ON_GPU = {
    "dtype": "bfloat16", "max_num_seqs": 48, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.1,
    "compilation_config": GRAPHS,
}  # fmt: skip
ON_CPU = {
    "dtype": "float32", "max_num_seqs": 16, "max_num_batched_tokens": 512, "enforce_eager": True,
    "block_size": 32,
}  # fmt: skip


def sizes(gpu: bool, model: str = "3b") -> Sizes:
    if not gpu:
        return Sizes(
            "tiny", "96MiB", "192MiB", "2MiB", 24 * 32 * kvd_random.token_bytes(kvd_random.SHAPES["tiny"]),
            640, Load(4, 48, 16), Load(1, 40, 16, seed=2, shared=512), Load(8, 96, 80, seed=3),
            Load(1, 40, 4, seed=5), Load(4, 32, 32, seed=4),
            Load(1, 520, 24, seed=6), 20, ON_CPU, "KvdScheduler",
        )  # fmt: skip
    words = kvd_random.SHAPES[model].words
    room = 12 * (4096 + 256) * kvd_random.token_bytes(kvd_random.SHAPES[model])
    return Sizes(
        model, "32GiB", "32GiB", "auto", room, 32768, Load(16, 128, 64, words=words),
        Load(1, 64, 32, seed=2, shared=24576, words=words), Load(48, 4096, 256, seed=3, rate=8, words=words),
        Load(1, 64, 4, seed=5, shared=24576, words=words), Load(12, 256, 512, seed=4, words=words),
        Load(1, 16384, 64, seed=6, words=words), 160, ON_GPU, "KvdAsyncScheduler",
    )  # fmt: skip


class Child:
    """A process with a log, in a process group of its own."""

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], log: Path, output: Any = subprocess.PIPE
    ) -> None:
        self.name = name
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=file,
                text=True, start_new_session=True,
            )  # fmt: skip

    def end(self, patience_s: float = 0.0) -> None:
        """In order where it has time, else at once."""
        if patience_s:
            self.ask_to_end()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


    def ask_to_end(self) -> None:
        self.process.terminate()


class Engine(Child):
    """An engine.py process. Where its orders end, what it stores is stored to the end."""

    def ask_to_end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def heard(self) -> dict[str, Any]:
        """Its next line. Raises RuntimeError where it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine {self.name} ended with {self.process.wait()}: see the log")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.heard()

    def play(self, load: Load) -> dict[str, Any]:
        return self.ask({"do": "run", "load": load._asdict()})

    def reset(self) -> None:
        self.ask({"do": "reset"})

    def scale(self, by: float) -> None:
        self.ask({"do": "scale", "by": by})


def without_ours() -> dict[str, str]:
    """The environment without what configures a kvd or a vLLM."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("KVD_", "VLLM_"))}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Kvd(Child):
    def __init__(self, bench: Bench, name: str, hbm: str, dram: str, slab: str) -> None:
        self.folder = bench.work / f"{name}-{len(list(bench.work.iterdir()))}"
        self.folder.mkdir()
        self.endpoint = str(self.folder / "attach.sock")
        self.port = free_port()
        keys = {
            "backend": "cuda" if bench.gpu else "host", "pool.hbm": hbm, "pool.dram": dram, "pool.slab": slab,
            "paths.runtime_dir": str(self.folder), "admin.port": str(self.port), "metrics.address": "",
        }  # fmt: skip
        flags = [word for key, value in keys.items() for word in (f"--{key}", value)]
        with bench.log(name).open("ab") as log:
            super().__init__(name, [str(bench.bin / "kvd"), *flags], without_ours(), bench.log(name), log)

    def wait(self) -> None:
        """Waits until the server is ready, at most until the item's deadline. Raises RuntimeError if it has ended."""
        while not Path(self.endpoint).exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: see its log")
            time.sleep(0.05)


class Bench:
    """Everything that is started here is ended here. Engines and kvds stay for the items after."""

    def __init__(self, programs: Path, packages: list[Path], python: str, gpu: bool, work: Path, logs: Path) -> None:
        self.bin, self.tests = programs / "bin", programs / "tests"
        self.python, self.gpu, self.work, self.logs = python, gpu, work, logs
        self.sizes = sizes(gpu, os.environ.get("QUARTER_MODEL", "3b"))
        self.model = kvd_random.write_config(work / "model", self.sizes.model)
        self._packages = packages
        self._engines: dict[str, Engine] = {}
        self._ready: set[str] = set()
        self._kvds: dict[str, Kvd] = {}

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def kvd(self, name: str = "kvd", slab: str = "", hbm: str = "", dram: str = "") -> Kvd:
        """The one of that name; started where there is none."""
        found = self._kvds.get(name)
        if found is None or found.process.poll() is not None:
            given = self.sizes
            found = Kvd(self, name, hbm or given.hbm, dram or given.dram, slab or given.slab)
            self._kvds[name] = found
        found.wait()
        return found

    def start(self, name: str, environment: dict[str, str] | None = None, **given: Any) -> None:
        """An engine, unless it is there; ready() waits for it."""
        if name in self._engines and self._engines[name].process.poll() is None:
            return
        self._ready.discard(name)
        arguments = {
            "model": str(self.model), "load_format": kvd_random.LOAD_FORMAT, "skip_tokenizer_init": True,
            "max_model_len": self.sizes.longest, "kv_cache_memory_bytes": self.sizes.kv_bytes,
            "enable_prefix_caching": True, "disable_log_stats": False, "seed": 0, **self.sizes.engine, **given,
        }  # fmt: skip
        command = [self.python, str(HERE / "engine.py"), json.dumps(arguments)]
        self._engines[name] = Engine(name, command, self._environment(environment or {}), self.log(name))

    def start_on_kvd(
        self, name: str, kvd: Kvd, extra: dict[str, Any] | None = None, environment: dict[str, str] | None = None,
        **given: Any,
    ) -> None:  # fmt: skip
        transfer = {**CONNECTOR, "kv_connector_extra_config": {"required": True, "engine_name": name, **(extra or {})}}
        self.start(
            name, {"KVD_ENDPOINT": kvd.endpoint, **(environment or {})}, kv_transfer_config=transfer,
            scheduler_cls=f"kvd_vllm.{self.sizes.scheduler}", **given,
        )  # fmt: skip

    def ready(self, name: str) -> Engine:
        engine = self._engines[name]
        if name not in self._ready:
            engine.heard()
            self._ready.add(name)
        return engine

    def end_engine(self, name: str) -> None:
        if name in self._engines:
            self._engines.pop(name).end(patience_s=10)

    def end_engines(self) -> None:
        """At once: what they were asked has no answer any more."""
        for engine in self._engines.values():
            engine.end()
        self._engines.clear()

    def close(self) -> None:
        self.end_engines()
        for kvd in self._kvds.values():
            kvd.end(patience_s=10)

    def region_bytes(self, kvd: Kvd, engine: str) -> int:
        """As kvdctl shows them; 0: there is no such engine."""
        url = f"http://127.0.0.1:{kvd.port}"
        said = subprocess.run(
            [self.bin / "kvdctl", "--json", "--url", url, "engines"], capture_output=True, text=True, timeout=20
        )
        rows = json.loads(said.stdout)["engines"] if said.returncode == 0 else []
        return sum(row["region_bytes"] for row in rows if row["name"] == engine)

    def experiments(self, ids: str, seconds: int, out: Path) -> dict[str, Any]:
        """kvd-gpu-report's, by id."""
        command = [self.bin / "kvd-gpu-report", "--out", out, "--only", ids, "--seconds", str(seconds)]
        with self.log("kvd-gpu-report").open("ab") as log:
            subprocess.run(command, stdout=log, stderr=log, timeout=seconds + 20)
        report = json.loads((out / "gpu-report.json").read_text())
        return {each["id"]: each for each in report["experiments"]}

    def doctor(self, kvd: Kvd) -> dict[str, Any]:
        """What python -m kvd_vllm doctor says of this vLLM and that kvd."""
        command = [self.python, "-m", "kvd_vllm", "doctor", "--json"]
        with self.log("doctor").open("ab") as log:
            said = subprocess.run(
                command, env=self._environment({"KVD_ENDPOINT": kvd.endpoint}), stdout=subprocess.PIPE, stderr=log,
                text=True, timeout=100,
            )  # fmt: skip
        report: dict[str, Any] = json.loads(said.stdout)
        return report

    def run(self, name: str, command: list[str], seconds: float) -> int:
        """A program with a log; its exit status, 124 where its time was over."""
        with self.log(name).open("ab") as log:
            child = Child(name, command, dict(os.environ, OUT=str(self.work / name)), self.log(name), log)
        try:
            return child.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            child.end()

    @contextlib.contextmanager
    def traffic(self, seconds: int) -> Iterator[None]:
        """kvd's copies both ways at full rate, by a process of their own, from the first to the last moment.
        Raises RuntimeError where they did not last: then nothing was measured beside them."""
        out = self.work / "traffic"
        command = [str(self.bin / "kvd-gpu-report"), "--out", str(out), "--only", "X8", "--seconds", str(seconds)]
        child = Child("traffic", command, dict(os.environ), self.log("traffic"))
        assert child.process.stdout is not None
        try:
            if "X8 copies\n" not in child.process.stdout:  # until the item's deadline
                raise RuntimeError("kvd's copies did not begin: see the log of traffic")
            yield
            if child.process.poll() is not None:
                raise RuntimeError("kvd's copies ended before what was measured beside them")
        finally:
            child.end()

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = without_ours()
        common = {
            "PYTHONPATH": os.pathsep.join(map(str, [HERE, *self._packages])), "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(self.work / "cache"),
        }  # fmt: skip
        cpu = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        gpu = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
        libraries = [str(each) for each in self._packages if (each / "libzmq.so.5").exists()]
        found = os.pathsep.join([*libraries, *filter(None, [kept.get("LD_LIBRARY_PATH", "")])])
        return {**kept, **common, **(gpu if self.gpu else cpu), **({"LD_LIBRARY_PATH": found} if found else {}), **more}


def scribble(kvd: Kvd, stride: int = 64 << 10) -> int:
    """A few bytes in every 64 KiB of what kvd caches and parks; how many places."""
    places, noise = 0, os.urandom(64)
    ranges = []
    for line in Path(f"/proc/{kvd.process.pid}/maps").read_text().splitlines():
        if "/memfd:kvd-dram" in line and " rw" in line:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            ranges.append((begin, end))
    with open(f"/proc/{kvd.process.pid}/mem", "r+b", buffering=0) as memory:
        for begin, end in ranges:
            for at in range(begin, end, stride):
                os.pwrite(memory.fileno(), noise, at)
                places += 1
    return places
