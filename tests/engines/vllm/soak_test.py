"""Random load on two vLLM engines and one kvd, all of which are killed at random: no wrong token, no
leak, no hang. Answers are compared with an untouched vLLM's, each wait has a deadline, and at the end
kvd has all its memory back. Once kvd is alone and forgets all that it had; once kvd-holder keeps its
memory, a disk is behind it, the next kvd adopts what the last one cached, and a llama.cpp is there, too.

KVD_SOAK_S: seconds of load; KVD_SEED: the seed, else one of the time of day. It is printed, and decides
the model, what is asked and what is killed, though not what the machine does between. KVD_SOAK_MODEL: the
model instead, small or windows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import unittest
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ctest
from kvd_process import KvdProcess, poll_until, pool_ranges
from llama_process import PLUGIN, Llama
from vllm_process import Bench, on_kvd

import kvd_client

# Taken out: kvd refuses variables that it does not know.
SOAK_S = float(os.environ.pop("KVD_SOAK_S", "60"))
SEED = int(os.environ.pop("KVD_SEED", "0")) or time.time_ns() % 1_000_000
MODEL = os.environ.pop("KVD_SOAK_MODEL", "") or random.Random(SEED).choice(["small", "windows"])
PROMPTS, ANSWER = 160, 96
# The least logprob by which stock's choice must beat its second one. What other batches change is below 1e-4.
MARGIN = 2e-3
AT_ONCE = 10
PATIENCE_S = 120.0  # for an answer, a start and an end
ROOM = {
    # With windows a block has half the layers, and each token is in two blocks.
    "num_gpu_blocks_override": 48 if MODEL == "windows" else 24, "kv_cache_memory_bytes": 8 << 20, "max_model_len": 480,
    "max_num_seqs": 16,
}  # fmt: skip
SLABS, DRAM_SLABS = 40, 24
DISK = "kvd-soak-disk-"  # part of its folder's name
# What a process may have more of than when it had just begun. An engine's own memory grows with what
# torch keeps for each shape, untouched or not: by 0.3 GB in the first minute.
MORE_DESCRIPTORS, MORE_MAPPINGS = 24, 12
MORE_OF_KVD, MORE_OF_ENGINE = 64 << 20, 1 << 30
TOLD_EACH_S = 60.0


class WrongToken(AssertionError):
    """An answer that stock did not give."""


class Hang(AssertionError):
    """Raised when something did not come by its deadline."""


class Leak(AssertionError):
    """Something that is left over."""


class Asked(NamedTuple):
    prompt: list[int]
    tokens: list[int]  # stock's answer


class Outstanding(NamedTuple):
    asked: Asked
    answer: int
    deadline: float


class Held(NamedTuple):
    """Counts for one process: open descriptors except those of files on the disk, mappings of kvd's pools, and bytes
    of its own memory."""

    descriptors: int
    mappings: int
    memory: int


def held_by(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    memory = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    mappings = Path(f"/proc/{pid}/maps").read_text().count("memfd:kvd-")
    descriptors = [each for each in Path(f"/proc/{pid}/fd").iterdir() if not links_to(each, DISK)]
    return Held(len(descriptors), mappings, int(memory.split()[1]) << 10)


def links_to(descriptor: Path, folder: str) -> bool:
    try:
        return folder in os.readlink(descriptor)
    except OSError:  # closed meanwhile
        return True


class Server:
    """A soak_engine.py process. A context manager: leaving it kills the process."""

    def __init__(self, bench: Bench, name: str, endpoint: str | None, options: dict[str, Any],
                 extra: dict[str, Any] | None = None) -> None:  # fmt: skip
        self.name = name
        self.outstanding: dict[str, Outstanding] = {}
        self.is_ready = False
        self.first: Held | None = None
        self._log = bench.folder / f"{name}.log"
        if endpoint is not None:
            options = {**options, **on_kvd(extra or {})}
        arguments = [str(bench.model), json.dumps(options)]
        self.process = bench.start("soak_engine.py", arguments, self._log, endpoint)
        self.deadline = time.monotonic() + PATIENCE_S
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with contextlib.suppress(json.JSONDecodeError):  # the last one of a killed process
                    self.lines.put(json.loads(line))

    def ask(self, given: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(given) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """In order. Raises Hang."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            status = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Hang(f"{self.name} does not end: {self.log[-4000:]}") from None
        if status != 0:
            raise AssertionError(f"{self.name} ended with {status}: {self.log[-4000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def stocks_answers(bench: Bench) -> list[Asked]:
    """Prompts, some with the same beginning, to which an untouched vLLM's answer is clear."""
    source = random.Random(7)
    word = lambda: source.randrange(3, 2048)  # noqa: E731
    heads = [[word() for _ in range(160)] for _ in range(4)]
    prompts = [
        source.choice(heads)[: source.choice([0, 0, 64, 100, 160])]
        + [word() for _ in range(source.randrange(20, 160))]
        for _ in range(PROMPTS)
    ]
    room = {"kv_cache_memory_bytes": 128 << 20, "max_num_seqs": 32}
    found: list[Asked] = []
    with Server(bench, "stock", None, room) as stock:
        for number, prompt in enumerate(prompts):
            stock.ask({"name": str(number), "prompt": prompt, "answer": ANSWER, "margins": True})
        for _ in prompts:
            answer = next_line(stock, PATIENCE_S)
            if "ready" in answer:
                answer = next_line(stock, PATIENCE_S)
            if min(answer["margins"]) > MARGIN:
                found.append(Asked(prompts[int(answer["name"])], answer["tokens"]))
        stock.end()
    return found


def next_line(server: Server, patience: float) -> dict[str, Any]:
    try:
        return server.lines.get(timeout=patience)
    except queue.Empty:
        raise Hang(f"{server.name} says nothing: {server.log[-4000:]}") from None


def setUpModule() -> None:
    global bench, stock
    bench = Bench(shape=MODEL)
    unittest.addModuleCleanup(bench.close)
    stock = stocks_answers(bench)
    print(f"{MODEL}: {len(stock)} prompts of {PROMPTS}, seed {SEED}, {SOAK_S:g} s", flush=True)


class Soak:
    """Engines under random load, and what happens to them. A context manager."""

    def __init__(self, kvd: KvdProcess, seed: int, engines: int = 2, patience: float = PATIENCE_S) -> None:
        self.kvd = kvd
        self.random = random.Random(seed)
        self.patience = patience
        self.counts: Counter[str] = Counter()
        self._names = itertools.count()
        self._begun = time.monotonic()
        self._kvd_at_first = held_by(kvd.pid)
        self.back_s: list[float] = []  # from the end of a held kvd until the next one is ready
        self.adopted = 0  # bytes, in all returns
        self._kvd_begins: float | None = None  # when it is started again; None: it runs
        self._stopped_until = 0.0
        self.servers = [self.start(f"engine{at}") for at in range(engines)]
        self.llama: Llama | None = None

    # ---- what may happen ----

    def start(self, name: str) -> Server:
        pick = self.random
        scheduler = pick.choice(["kvd_vllm.KvdScheduler"] * 2 + ["rotating.Rotating", "rotating.StockOrder"])
        caching = pick.random() < 0.5
        extra = {
            "step_budget_s": pick.choice([0.002, 0.05, 1.0]),
            "prefixes": pick.random() < 0.8, "timeout_s": 5.0,
        }  # fmt: skip
        self.say(f"start {name}: {scheduler}, prefix caching {caching}, {extra}")
        options = {**ROOM, "scheduler_cls": scheduler, "enable_prefix_caching": caching}
        self.counts["engines started"] += 1
        return Server(bench, name, self.kvd.endpoint, options, extra)

    def kill_engine(self) -> None:
        at = self.random.randrange(len(self.servers))
        if self.servers[at].is_ready:
            self.say(f"kill {self.servers[at].name}")
            self.counts["engines killed"] += 1
            self.servers[at].kill()
            self.servers[at] = self.start(self.servers[at].name)

    def kill_llama(self) -> None:
        if self.llama is not None:
            self.say("kill llama.cpp")
            self.counts["llama.cpp killed"] += 1
            self.llama.kill()
            self.llama.begin()

    def kill_kvd(self) -> None:
        if self.kvd.is_held:
            self.replace_kvd("kvd killed", self.kvd.kill_held)
        elif self._kvd_begins is None:
            self.say("kill kvd")
            self.counts["kvd killed"] += 1
            self.kvd.kill()
            self._kvd_begins = time.monotonic() + self.random.choice([0.0, 0.5, 3.0, 8.0])

    def end_kvd(self) -> None:
        """In order."""
        if self.kvd.is_held:
            self.replace_kvd("kvd ended", self.kvd.upgrade_held)
        elif self._kvd_begins is None:
            self.say("end kvd")
            self.counts["kvd ended"] += 1
            self.kvd.signal(signal.SIGTERM)
            self.kvd.signal(signal.SIGCONT)  # it may stand still
            try:
                self.kvd.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise Hang("kvd does not end") from None
            self._kvd_begins = time.monotonic()

    def replace_kvd(self, what: str, replace: Callable[[], None]) -> None:
        """Its holder starts another one, which adopts what was cached."""
        if self._stopped_until:
            self._stopped_until = 0.0
            self.kvd.signal(signal.SIGCONT)
        self.counts["rows from disk"] += self.kvd.get("/v1/cache")["disk"]["loads"]
        begun = time.monotonic()
        replace()
        self.back_s.append(time.monotonic() - begun)
        self.adopted += sum(self.kvd.get("/v1/status")["cached_bytes"].values())
        self.counts[what] += 1
        self.say(f"{what}: another one after {self.back_s[-1]:.2f} s")

    def stop_kvd(self) -> None:
        if self._kvd_begins is None:
            self.say("stop kvd for a while")
            self.counts["kvd stopped"] += 1
            self.kvd.signal(signal.SIGSTOP)
            self._stopped_until = time.monotonic() + self.random.choice([0.05, 0.5, 2.0])

    def abort_some(self) -> None:
        for server in self.servers:
            for name in list(server.outstanding):
                if server.is_ready and self.random.random() < 0.3:
                    self.counts["aborted"] += 1
                    del server.outstanding[name]
                    server.ask({"abort": name})

    # ---- load ----

    def play(self, seconds: float, events: dict[float, Callable[[], None]] | None = None) -> None:
        """Plays until then, and until all questions are answered. `events`: when things happen, instead of at random.
        """
        end = time.monotonic() + seconds
        fixed = sorted((time.monotonic() + at, what) for at, what in (events or {}).items())
        whims = [self.kill_kvd] * 5 + [self.end_kvd, self.stop_kvd, self.stop_kvd] \
            + [self.kill_engine] * 2 + [self.abort_some] * 2 + [self.kill_llama]  # fmt: skip
        next_whim, next_look = self._soon(), time.monotonic() + TOLD_EACH_S
        while (now := time.monotonic()) < end or any(each.outstanding for each in self.servers):
            self.mend(now)
            if now > next_look:
                next_look = now + TOLD_EACH_S
                self.say(f"{dict(self.counts)}")
                self.check_engines()
            for server in self.servers:
                self.look(server, now)
                if server.is_ready and now < end:
                    self.fill(server)
            self.look_at_llama()
            if events is not None:
                while fixed and fixed[0][0] <= now:
                    fixed.pop(0)[1]()
            elif now > next_whim and now < end:
                self.random.choice(whims)()
                next_whim = self._soon()
        while self._kvd_begins is not None or self._stopped_until:
            self.mend(time.monotonic())
            self._pause()

    def _soon(self) -> float:
        return time.monotonic() + self.random.expovariate(1 / 4)

    def _pause(self) -> None:
        """Waits a little while until an engine sends something."""
        with contextlib.suppress(queue.Empty):
            first = self.servers[0].lines if self.servers else queue.Queue()
            first.put(first.get(timeout=0.02))

    def mend(self, now: float) -> None:
        """What was killed or stopped comes back."""
        if self._kvd_begins is not None and now >= self._kvd_begins:
            self._kvd_begins = None
            self.kvd.start()
            self.say("kvd is there again")
        if self._stopped_until and now >= self._stopped_until:
            self._stopped_until = 0.0
            if self._kvd_begins is None:
                self.kvd.signal(signal.SIGCONT)

    def fill(self, server: Server) -> None:
        while len(server.outstanding) < AT_ONCE:
            asked, pick = self.random.choice(stock), self.random
            name = f"r{next(self._names)}"
            answer = pick.choice([1, 8, 32, ANSWER, ANSWER])
            goals = pick.choice([{}, {"kvd_ttft_s": 0.5, "kvd_tbt_s": 0.02}, {"kvd_slo_class": "chat"}])
            server.outstanding[name] = Outstanding(asked, answer, time.monotonic() + self.patience)
            server.ask({"name": name, "prompt": asked.prompt, "answer": answer, "arguments": goals,
                        "salt": pick.choice([None, None, None, "other"])})  # fmt: skip

    def look(self, server: Server, now: float) -> None:
        """Takes in what the engine sent. Raises whatever is wrong with it."""
        with contextlib.suppress(queue.Empty):
            line = server.lines.get(timeout=0.02)
            while True:
                self.take(server, line)
                line = server.lines.get_nowait()
        if server.process.poll() is not None:
            raise AssertionError(f"{server.name} ended: {server.log[-4000:]}")
        if not server.is_ready and now > server.deadline:
            raise Hang(f"{server.name} does not start: {server.log[-4000:]}")
        late = [name for name, each in server.outstanding.items() if now > each.deadline]
        if late:
            raise Hang(f"{server.name}: no answer to {late}: {server.log[-4000:]}")

    def look_at_llama(self) -> None:
        """The next answer, after a look at the last one."""
        if self.llama is None or self.llama.process.poll() is None:
            return
        if self.llama.process.returncode == 0 or self.llama.has_answered():
            if self.llama.differs():
                raise WrongToken("llama.cpp answers otherwise than alone, or has failed")
            self.counts["answers of llama.cpp"] += 1
        self.llama.begin()  # it does not begin while kvd is away

    def take(self, server: Server, line: dict[str, Any]) -> None:
        if "ready" in line:
            server.is_ready = True
            return
        wanted = server.outstanding.pop(line["name"], None)
        if wanted is None:
            return  # it was aborted when its answer was on the way
        self.counts["answers"] += 1
        right = wanted.asked.tokens[: wanted.answer]
        if line["tokens"] != right:
            at = next((at for at, pair in enumerate(zip(line["tokens"], right)) if pair[0] != pair[1]), -1)
            raise WrongToken(f"{server.name}, {line['name']}: token {at} of {len(right)}, prompt of "
                             f"{len(wanted.asked.prompt)}: {server.log[-3000:]}")  # fmt: skip
        if server.first is None:
            server.first = held_by(server.process.pid)

    # ---- the end ----

    def check_engines(self) -> None:
        """Checks that nothing grows with each kvd that came and went."""
        for server in self.servers:
            if server.first is None:
                continue
            now = held_by(server.process.pid)
            self.say(f"{server.name}: at first {server.first}, now {now}")
            if now.descriptors > server.first.descriptors + MORE_DESCRIPTORS \
                    or now.mappings > server.first.mappings + MORE_MAPPINGS \
                    or now.memory > server.first.memory + MORE_OF_ENGINE:  # fmt: skip
                raise Leak(f"{server.name}: at first {server.first}, now {now}")

    def end_engines(self) -> None:
        for server in self.servers:
            server.end()
            server.kill()
        self.servers = []

    def check_kvd(self, patience: float = PATIENCE_S) -> None:
        """Once the engines are gone nothing is theirs: what DRAM has is cached, and may go any time."""
        status: dict[str, Any] = {}

        def left() -> list[str]:
            status.update(self.kvd.get("/v1/status"))
            hbm, dram = status["pools"]
            dram_used = dram["capacity_bytes"] - dram["free_bytes"] - status["cached_bytes"]["dram"]
            found = {
                "engines": status["engines"], "orphaned bytes": status["orphaned_bytes"],
                "bytes of HBM": hbm["capacity_bytes"] - hbm["free_bytes"],
                "bytes of DRAM that are not cached": dram_used, **status["requests"],
            }  # fmt: skip
            return [f"{count} {what}" for what, count in found.items() if count != 0]

        if not poll_until(lambda: not left(), patience):
            raise Leak(f"kvd keeps {', '.join(left())}: {json.dumps(status)}")
        now = held_by(self.kvd.pid)
        self.say(f"kvd: at first {self._kvd_at_first}, now {now}")
        if now.descriptors > self._kvd_at_first.descriptors + 12 \
                or now.memory > self._kvd_at_first.memory + MORE_OF_KVD:  # fmt: skip
            raise Leak(f"kvd: at first {self._kvd_at_first}, now {now}")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:7.1f} {text}", flush=True)

    def __enter__(self) -> Soak:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stopped_until and self.kvd.process.poll() is None:
            self.kvd.signal(signal.SIGCONT)
        for server in self.servers:
            server.kill()
        print(dict(self.counts), flush=True)
        if self.back_s:
            least, middle, most = min(self.back_s), statistics.median(self.back_s), max(self.back_s)
            print(f"kvd is back after {least:.2f}/{middle:.2f}/{most:.2f} s (min/median/max), "
                  f"with {self.adopted >> 20} MiB in all", flush=True)  # fmt: skip


class RandomKills(unittest.TestCase):
    def play(self, with_llama: bool = False, **given: Any) -> Soak:
        kvd = self.enterContext(KvdProcess(slabs=SLABS + 4 * with_llama, dram_slabs=DRAM_SLABS, **given))
        soak = self.enterContext(Soak(kvd, SEED))
        if with_llama and PLUGIN.exists():
            folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
            soak.llama = self.enterContext(Llama(kvd.endpoint, folder, "--step-ms", "20"))
        soak.play(SOAK_S / 2)
        if soak.llama is not None:
            answers = soak.counts["answers of llama.cpp"]
            self.assertTrue(poll_until(lambda: soak.look_at_llama() or soak.counts["answers of llama.cpp"] > answers))
            soak.llama.kill()
        soak.check_engines()
        soak.end_engines()
        soak.check_kvd()
        self.assertGreater(soak.counts["answers"], 20)
        self.assertGreater(soak.counts["kvd killed"] + soak.counts["kvd ended"], 0)
        return soak

    def test_cost_no_token_and_leave_nothing(self) -> None:
        self.play()

    def test_of_a_held_kvd_with_a_disk_cost_no_token_and_leave_nothing(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix=DISK))
        disk = f'[disk]\npath = "{folder}"\nsize = "64MiB"\nfloor = "0"\ntouches = 1\n'
        soak = self.play(with_llama=True, held=True, extra=disk)
        self.assertGreater(soak.adopted, 0)
        self.assertGreater(soak.kvd.get("/v1/cache")["cached_bytes"]["disk"], 0)


class Controls(unittest.TestCase):
    """What the test above looks for is seen where it is."""

    def test_a_wrong_token_a_hang_and_a_leak_are_seen(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=SLABS, dram_slabs=DRAM_SLABS))
        soak = self.enterContext(Soak(kvd, 1, engines=1, patience=30.0))
        soak.play(1.0, {})
        (server,) = soak.servers

        def zero_the_pool() -> None:
            with open(f"/proc/{server.process.pid}/mem", "wb", buffering=0) as memory:
                for begin, end in pool_ranges(server.process.pid):
                    memory.seek(begin)
                    memory.write(bytes(end - begin))

        with self.assertRaisesRegex(WrongToken, "engine0, r[0-9]+: token [0-9]+ of"):
            soak.play(60.0, {at / 5: zero_the_pool for at in range(1, 200)})
        server.outstanding.clear()
        soak.patience = 1.0
        server.process.send_signal(signal.SIGSTOP)
        with self.assertRaisesRegex(Hang, "engine0: no answer to"):
            soak.play(30.0, {})
        server.kill()
        soak.servers = []
        soak.check_kvd()
        with kvd_client.Client(kvd.endpoint) as client, client.allocate(1):
            self.assertTrue(poll_until(lambda: kvd.get("/v1/status")["engines"] == 1))
            with self.assertRaisesRegex(Leak, "kvd keeps 1 engines, 2097152 bytes of HBM"):
                soak.check_kvd(patience=1.0)
        soak.check_kvd()


if __name__ == "__main__":
    ctest.main()
