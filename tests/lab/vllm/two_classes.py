"""Chat beside a batch: what the time to chat's first token suffers from another engine of the same kvd.

    two_classes.py BIN FOLDER [--json] [--rounds N] [--model MODEL]   --model: vLLMs instead of kvd-engines

BIN is the folder of kvd's programs. Chat (goal 5 s) is one user who asks again and again; the batch (goal
600 s) is as many requests at a time as want about twice the memory that there is. Each is an engine of its
own on one kvd: two kvd-engines, or two vLLMs whose KV caches are elastic. A third engine plays the same
batch in memory of its own, as the CPUs are shared whatever kvd does: chat beside that one is the floor that
no memory manager can be below. Chat alone, beside the batch in memory of its own, and beside the batch on
kvd come in turn, several times, so that what else the machine does falls on all three.

Prints rows as kvd-bench does: value, floor, and ratio = value / floor.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TARGET = 1.5
CHAT = {"kvd_ttft_s": 5.0}
BATCH = {"kvd_ttft_s": 600.0}
PATIENCE_S = 300.0


class Load(NamedTuple):
    chat_prompt: int
    chat_answer: int
    batch_prompt: int
    batch_answer: int
    batch_at_once: int
    words: int  # prompts are of token ids below it


class Answer(NamedTuple):
    begun: float
    tokens: list[float]  # when each token came

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.begun

    @property
    def longest_gap(self) -> float:
        return max((b - a for a, b in zip(self.tokens, self.tokens[1:])), default=0.0)


class Engine:
    """A process that serves OpenAI's completions at a port. A context manager."""

    def __init__(self, command: list[str], log: Path, goals_in: str | None, **variables: str) -> None:
        self.port = int(command[command.index("--port") + 1])
        self._goals_in = goals_in
        with log.open("w") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **variables}
            )
        self._log = log

    def wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"an engine does not serve: see {self._log}")
            time.sleep(0.1)

    def answer(
        self, prompt: list[int], tokens: int, goals: dict[str, float], stop: threading.Event | None = None
    ) -> Answer:
        """The answer as far as it had come when it had to stop."""
        asked: dict[str, Any] = {
            "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True,
            "temperature": 0, **({self._goals_in: goals} if self._goals_in else goals),
        }  # fmt: skip
        found = Answer(time.monotonic(), [])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(asked),
                               {"Content-Type": "application/json"})  # fmt: skip
            reply = connection.getresponse()
            if reply.status != 200:
                raise RuntimeError(f"{reply.status}: {reply.read(500)!r}")
            for line in reply:
                if line.startswith(b"data: {") and b'"choices":[]' not in line:
                    found.tokens.append(time.monotonic())
                if stop is not None and stop.is_set():
                    break
        return found

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


class Batch:
    """Keeps a fixed number of requests open, each followed by another one, until it is stopped."""

    def __init__(self, engine: Engine, load: Load, seed: int) -> None:
        self._engine, self._load = engine, load
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.answers: list[Answer] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(seed * 1000 + at),))
            for at in range(load.batch_at_once)
        ]

    def __enter__(self) -> Batch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, source: random.Random) -> None:
        while not self._stop.is_set():
            prompt = [source.randrange(3, self._load.words) for _ in range(self._load.batch_prompt)]
            found = self._engine.answer(prompt, self._load.batch_answer, BATCH, self._stop)
            with self._lock:
                self.answers.append(found)

    def tokens_between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for each in self.answers for at in each.tokens)


class Seen(NamedTuple):
    chat: list[Answer]
    batch_tokens: int
    batch_gap: float
    seconds: float


def chat(engine: Engine, load: Load, source: random.Random, count: int) -> list[Answer]:
    found = []
    for _ in range(count):
        time.sleep(source.uniform(0.1, 0.5))
        prompt = [source.randrange(3, load.words) for _ in range(load.chat_prompt)]
        found.append(engine.answer(prompt, load.chat_answer, CHAT))
    return found


def play(user: Engine, beside: Engine | None, load: Load, seed: int, count: int) -> Seen:
    """No prompt comes twice: otherwise its answer would begin with what is cached."""
    source = random.Random(seed)
    with contextlib.ExitStack() as stack:
        batch = None
        if beside is not None:
            batch = stack.enter_context(Batch(beside, load, seed))
            time.sleep(3.0)  # by now it has taken all there is
        begun = time.monotonic()
        answers = chat(user, load, source, count)
        ended = time.monotonic()
    if batch is None:
        return Seen(answers, 0, 0.0, ended - begun)
    gap = max((each.longest_gap for each in batch.answers), default=0.0)
    time.sleep(1.0)  # what it had goes back
    return Seen(answers, batch.tokens_between(begun, ended), gap, ended - begun)


def p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def rows_of(name: str, runs: dict[str, list[Seen]]) -> list[dict[str, Any]]:
    def first(way: str) -> float:
        return p95([each.ttft for run in runs[way] for each in run.chat])

    def gap(way: str) -> float:
        return max(each.longest_gap for run in runs[way] for each in run.chat)

    def speed(way: str) -> float:
        return sum(run.batch_tokens for run in runs[way]) / sum(run.seconds for run in runs[way])

    def row(what: str, value: float, floor: float, unit: str) -> dict[str, Any]:
        ratio = value / floor if floor > 0 else None
        return {"name": f"{name}_{what}", "value": value, "floor": floor, "ratio": ratio, "unit": unit}

    batch_gap = {way: max(run.batch_gap for run in runs[way]) for way in ("own", "shared")}
    return [
        row("chat_p95_ttft", first("shared"), first("alone"), "s"),
        row("chat_p95_ttft_cpu", first("own"), first("alone"), "s"),
        row("chat_p95_ttft_kvd", first("shared"), first("own"), "s"),
        row("chat_longest_gap", gap("shared"), gap("own"), "s"),
        row("batch_tokens_per_s", speed("shared"), speed("own"), "/s"),
        row("batch_longest_gap", batch_gap["shared"], batch_gap["own"], "s"),
    ]


def measure(
    name: str, user: Engine, own: Engine, shared: Engine, load: Load, rounds: int, count: int
) -> list[dict[str, Any]]:
    for engine in (user, own, shared):
        engine.wait()
    for engine in (user, own, shared):
        chat(engine, load, random.Random(0), 2)  # to warm up
    seeds = itertools.count(1)
    runs: dict[str, list[Seen]] = {"alone": [], "own": [], "shared": []}
    for number in range(1, rounds + 1):
        for way, beside in (("alone", None), ("own", own), ("shared", shared)):
            runs[way].append(play(user, beside, load, next(seeds), count))
            worst = max(each.ttft for each in runs[way][-1].chat)
            print(f"{name}, round {number}, {way}: slowest first token {worst:.3f} s", file=sys.stderr)
    return rows_of(name, runs)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.contextmanager
def kvd(bin: Path, folder: Path, hbm: str, dram: str) -> Iterator[str]:
    """Runs a daemon. Yields its attach socket."""
    endpoint = folder / "attach.sock"
    command = [
        str(bin / "kvd"), "--backend", "host", "--pool.hbm", hbm, "--pool.dram", dram, "--pool.slab",
        "2MiB", "--paths.runtime_dir", str(folder), "--admin.address", "", "--metrics.address", "",
    ]  # fmt: skip
    with (folder / "kvd.log").open("w") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not endpoint.exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"kvd did not start: see {folder}/kvd.log")
            time.sleep(0.05)
        yield str(endpoint)
    finally:
        daemon.terminate()
        daemon.wait()


def kvd_engines(bin: Path, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Iterations take 20 ms, so that there is CPU to spare, as beside a GPU."""

    def engine(name: str, *words: str) -> Engine:
        command = [
            str(bin / "kvd-engine"), "--random", "layers=4,hidden=64,vocab=512", "--engine-name", name,
            "--port", free_port(), "--threads", "1", "--iteration-ms", "20", *words,
        ]  # fmt: skip
        return Engine(command, folder / f"{name}.log", None)

    load = Load(200, 24, 100, 500, 16, 256)
    with kvd(bin, folder, "12MiB", "256MiB") as endpoint, \
            engine("chat", "--endpoint", endpoint) as user, engine("own", "--no-kvd") as own, \
            engine("batch", "--endpoint", endpoint) as shared:  # fmt: skip
        return measure("kvd_engine", user, own, shared, load, rounds, 10)


def vllms(bin: Path, folder: Path, model: str, rounds: int) -> list[dict[str, Any]]:
    def engine(name: str, endpoint: str | None) -> Engine:
        command = [
            str(Path(sys.executable).with_name("vllm")), "serve", model, "--served-model-name", name,
            "--skip-tokenizer-init", "--host", "127.0.0.1", "--port", free_port(), "--block-size", "32",
            "--kv-cache-memory-bytes", str(64 << 20), "--max-model-len", "1280", "--max-num-seqs", "16",
            "--max-num-batched-tokens", "512", "--dtype", "float32", "--disable-log-stats", "--enforce-eager",
        ]  # fmt: skip
        variables = {"OMP_NUM_THREADS": "1"}
        if endpoint is not None:
            connector = {"kv_connector": "KvdConnector", "kv_role": "kv_both",
                         "kv_connector_extra_config": {"elastic": True, "required": True}}  # fmt: skip
            command += ["--kv-transfer-config", json.dumps(connector)]
            command += ["--scheduler-cls", "kvd_vllm.KvdScheduler"]
            variables |= {"KVD_ENDPOINT": endpoint, "KVD_VLLM_ENGINE_NAME": name}
        return Engine(command, folder / f"{name}.log", "vllm_xargs", **variables)

    load = Load(1100, 24, 300, 300, 24, 2000)
    with kvd(bin, folder, "64MiB", "512MiB") as endpoint, engine("chat", endpoint) as user, \
            engine("own", None) as own, engine("batch", endpoint) as shared:  # fmt: skip
        return measure("vllm", user, own, shared, load, rounds, 10)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    words.add_argument("bin", type=Path)
    words.add_argument("folder", type=Path)
    words.add_argument("--json", action="store_true")
    words.add_argument("--rounds", type=int, default=4)
    words.add_argument("--model")
    given = words.parse_args()
    folder = given.folder / ("vllm" if given.model else "kvd-engine")
    folder.mkdir(parents=True, exist_ok=True)
    rows = (vllms(given.bin, folder, given.model, given.rounds) if given.model
            else kvd_engines(given.bin, folder, given.rounds))  # fmt: skip
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'name':<28} {'value':>10} {'floor':>10} {'ratio':>7}  unit")
    for row in rows:
        ratio = f"{row['ratio']:.3f}" if row["ratio"] is not None else "-"
        print(f"{row['name']:<28} {row['value']:>10.4g} {row['floor']:>10.4g} {ratio:>7}  {row['unit']}")
    met = rows[0]["ratio"] <= TARGET
    print(f"chat's p95 beside the batch is at most {TARGET} times that alone: {'met' if met else 'missed'}")


if __name__ == "__main__":
    main()
