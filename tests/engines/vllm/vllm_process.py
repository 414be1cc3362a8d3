"""Real vLLM processes for tests: the model, the wheel with kvd's packages, an engine and its answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tiny_model
import warm_process

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MOST_ROUNDS = 20  # of one process
SIGN_FLIPPED = bytes(byte ^ 0x80 for byte in range(256))
CONNECTOR = {"kv_connector": "KvdConnector", "kv_role": "kv_both"}
Process = subprocess.Popen[str] | warm_process.WarmProcess


def on_kvd(extra: dict[str, Any]) -> dict[str, Any]:
    """The flag, as an argument of LLM, with options of the connector."""
    return {"kv_transfer_config": {**CONNECTOR, "kv_connector_extra_config": extra}}


def largest_difference(some: Any, others: Any) -> float:
    """The largest difference between two engines' logprobs of the same tokens."""
    worst = 0.0
    for a, b in zip(some, others, strict=True):
        for one, other in zip(a, b, strict=True):
            both = dict(map(tuple, one)).keys() & dict(map(tuple, other)).keys()
            left, right = dict(map(tuple, one)), dict(map(tuple, other))
            worst = max([worst, *(abs(left[token] - right[token]) for token in both)])
    return worst


def scribble_over_dram(pid: int) -> None:
    """Over all that kvd caches and parks, from outside."""
    line = re.compile(r"([0-9a-f]+)-([0-9a-f]+) .w.. .*/memfd:kvd-dram")
    hits = [line.match(each) for each in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    ranges = [(int(hit[1], 16), int(hit[2], 16)) for hit in hits if hit]
    assert ranges, "kvd has no DRAM pool"
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for begin, end in ranges:
            memory.seek(begin)
            data = bytearray(memory.read(end - begin))
            data[3::4] = data[3::4].translate(SIGN_FLIPPED)  # the sign of every float
            memory.seek(begin)
            memory.write(data)


class Bench:
    """A folder with a model and the installed packages, and the environment of engines; where there
    will be engines, also the server that they are forked from."""

    log = ""

    def __init__(
        self, engines: bool = True, shape: str = "small", environment: dict[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvd-vllm-")
        self.folder = Path(self._folder.name)
        self.model = self.folder / "model"
        packages = self.folder / "packages"
        packages.mkdir()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("KVD_", "VLLM_"))},
            "PYTHONPATH": str(packages),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HOME": str(self.folder / "hub"),
            **(environment or {}),
        }
        if engines:
            warm_process.prepare(self.environment)
        tiny_model.write(self.model, size=shape)
        self._install()

    def _install(self) -> None:
        """The wheel, so that vLLM finds the entry point as a user's would; not into the cache."""
        build = {"BUILD": str(Path(os.environ["KVD_CLIENT_LIBRARY"]).parents[1])}
        made = subprocess.run(
            [ROOT / "deploy/package/wheel.sh", self.folder / "dist"],
            env={**os.environ, **build, "PYTHON": os.environ["KVDTEST_PYTHON"]},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
             "--target", self.folder / "packages", made.stdout.strip()],
            check=True,
        )  # fmt: skip

    def engine(
        self,
        name: str,
        endpoint: str | None = None,
        extra: dict[str, Any] | None = None,
        fresh: bool = False,
        model: Path | None = None,
        environment: dict[str, str] | None = None,
        **given: Any,
    ) -> Engine:
        """Starts an engine, on kvd where an endpoint is given. `model`: another one than the bench's; `environment`:
        more variables of KVD_'s."""
        options = {**given, "engine": dict(given.get("engine", {}))}
        if endpoint is not None:
            options["engine"].update(on_kvd(extra or {}))
        out, log = self.folder / f"{name}.json", self.folder / f"{name}.log"
        log.write_text("")
        arguments = [str(model or self.model), str(out), json.dumps(options)]
        return Engine(self.start("engine.py", arguments, log, endpoint, fresh, environment), out, log)

    def start(
        self, script: str | Path, arguments: list[str], log: Path, endpoint: str | None, fresh: bool = False,
        more: dict[str, str] | None = None,
    ) -> Process:  # fmt: skip
        """A process with vLLM; a fresh one is a Python of its own from beginning to end, as users have
        it. What it says on stderr is appended to the log."""
        environment = {**self.environment, **(more or {})}
        if endpoint is not None:
            environment["KVD_ENDPOINT"] = endpoint
        if not fresh:
            return warm_process.WarmProcess(HERE / script, arguments, environment, log)
        with log.open("a") as stderr:
            return subprocess.Popen(
                [sys.executable, str(HERE / script), *arguments],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
            )  # fmt: skip

    def stock_answers(self, engine: dict[str, Any], seeds: Sequence[int]) -> dict[int, dict[str, Any]]:
        """By seed, of untouched engines."""
        rounds = [{"seed": seed} for seed in seeds]
        return dict(zip(seeds, self.answers("stock", rounds, engine=engine), strict=True))

    def answers(
        self, name: str, rounds: Sequence[dict[str, Any]], endpoint: str | None = None, **given: Any
    ) -> list[dict[str, Any]]:
        """The answers of all rounds. So many processes run one after the other that each stays within its time. `log`
        then has what they printed."""
        found: list[dict[str, Any]] = []
        self.log = ""
        for at in range(0, len(rounds), MOST_ROUNDS):
            part = rounds[at : at + MOST_ROUNDS]
            with self.engine(name, endpoint, each=part, **given) as engine:
                found += engine.answers()
                self.log += engine.log
        return found

    def run(self, arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], env={**self.environment, **environment},
            cwd=self.folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def warm(
        self, source: str, endpoint: str, arguments: Sequence[str] = (), **environment: str
    ) -> str:
        """What a script prints that runs where vLLM is imported already."""
        script, log = self.folder / "script.py", self.folder / "script.log"
        script.write_text(source)
        log.write_text("")
        process = self.start(script, list(arguments), log, endpoint, more=environment)
        printed, _ = process.communicate(timeout=300)
        assert process.returncode == 0, log.read_text()[-4000:]
        return printed

    def close(self) -> None:
        self._folder.cleanup()


class Engine:
    """An engine.py process. A context manager: leaving it ends the process."""

    def __init__(self, process: Process, out: Path, log: Path) -> None:
        self.process = process
        self._out = out
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text() + self._printed

    _printed = ""
    names: list[bytes]  # kvd's, of the blocks of a request, since the last pause

    def wait_for_pause(self) -> list[tuple[int, int]]:
        """Address and size of each KV tensor, once the engine stands still."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"event": "paused"'):
                paused = json.loads(line)
                self.names = [bytes.fromhex(each) for each in paused["names"]]
                return [(at, size) for at, size in paused["tensors"]]
            self._printed += line
        raise AssertionError(f"the engine ended: {self.log[-4000:]}")

    def told(self) -> Iterator[list[tuple[int, list[int]]]]:
        """By step, until it ends: what tokens of which requests came."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"event": "told"') and line.endswith("\n"):
                yield json.loads(line)["tokens"]
            else:
                self._printed += line

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def status(self) -> int:
        """How it ended. What it printed goes to the log."""
        printed, _ = self.process.communicate(timeout=900)
        self._printed += printed
        return self.process.wait()

    def answers(self) -> list[dict[str, Any]]:
        """Waits for the end and returns the rounds' answers."""
        if self.status() != 0:
            raise AssertionError(f"the engine failed: {self.log[-4000:]}")
        rounds: list[dict[str, Any]] = json.loads(self._out.read_text())
        return rounds

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
