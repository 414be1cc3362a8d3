"""What a request feels of a remote server that fails: a table, and whether kvd keeps what docs/nodes.md says.

    faults.py [--prompts 100] [--servers redis,valkey] [--faults "none,50 ms,…"]

One node fills the server. For each fault two fresh nodes then answer the same prompts in turn, one of them with
the server, one without: so whatever else this machine does, it does to both. Each prompt is asked five times: first
where only the server has it, then where the node itself has it, which writes it to the server, and three times more
for the column "local": the median of how the two nodes' times for a prompt, one right after the other, compare.
Answers are compared by the digest of each token's logits.

A column that misses its bound has an asterisk. The exit status is 1 where an answer is wrong, the server goes off or
comes back late, or half of the first tokens come late; the 99th percentile and "local" need a machine that does
nothing else. Needs root, for a network namespace of its own; Redis and nft by deploy/ci/redis.sh, Valkey by
deploy/ci/routers.sh.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import math
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvd_process import KvdProcess, free_port, poll_until
from redis_process import FOLDER as REDIS, LIBRARIES

VALKEY = f"{os.environ.get('KVDTEST_ROUTERS', '')}/bin/valkey-server"
PROGRAMS = {"redis": f"{REDIS}/usr/bin/redis-server", "valkey": VALKEY}
MODEL, TOKENS, BLOCK, SEED = "layers=4,hidden=256,heads=8,kv_heads=4,context=1024,seed=7", 200, 16, 5
PORT, PASSWORD = 6379, "right"
OPEN_S, CLOSED_S, TTFT, LOCAL = 1.0, 10.0, 1.1, 1.02
SEEN_S = 0.15  # how old what kvd shows may be, and how often it is looked at
PASSES = 3  # so often the prompts are sent for the column "local"
BEFORE = 0.1  # a share of the prompts: so many more come first where a fault begins in the middle


class Space:
    """A network namespace with one server's address, to lose packets in and to be slow."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self.name, self._out = f"kvd-faults-{os.getpid()}", f"kvdf{os.getpid()}"
        self.address = f"10.79.{number}.2"
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self._out, "type", "veth", "peer", "name", "in", "netns", self.name)
        run("ip", "addr", "add", f"10.79.{number}.1/30", "dev", self._out)
        run("ip", "link", "set", self._out, "up")
        self._inside("ip", "addr", "add", f"{self.address}/30", "dev", "in")
        for device in ("in", "lo"):
            self._inside("ip", "link", "set", device, "up")

    def exec(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def lose(self, percent: int) -> None:
        """Loses so many packets, either way; 0: none."""
        hooks = "\n".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; numgen random mod 100 < {percent} drop; }}"
            for hook in ("input", "output")
        )
        self._nft("flush ruleset\n" + (f"table inet t {{\n{hooks}\n}}" if percent else ""))

    def limit(self, rate: str) -> None:
        """Slows both ways down to a rate as tc writes it; empty: to none."""
        for at, device in ((self._inside, "in"), (run, self._out)):
            if rate:
                at("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
            else:
                at("tc", "qdisc", "del", "dev", device, "root")

    def close(self) -> None:
        run("ip", "netns", "del", self.name)

    def _inside(self, *command: str) -> None:
        run(*self.exec(*command))

    def _nft(self, rules: str) -> None:
        command = self.exec("env", f"LD_LIBRARY_PATH={LIBRARIES}", f"{REDIS}/usr/sbin/nft", "-f", "-")
        subprocess.run(command, input=rules, text=True, check=True)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Server:
    """Redis or Valkey in the space."""

    def __init__(self, space: Space, kind: str) -> None:
        self._space = space
        self.address = f"{space.address}:{PORT}"
        self.password = PASSWORD
        self._command = space.exec(
            "env", f"LD_LIBRARY_PATH={LIBRARIES}", PROGRAMS[kind], "--bind", space.address, "--port", str(PORT),
            "--protected-mode", "no", "--save", "", "--appendonly", "no", "--requirepass", PASSWORD,
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        if not poll_until(self._answers):
            raise RuntimeError("the server did not start")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.say("PING") == b"PONG"
        return False

    def say(self, *words: str | bytes) -> Any:
        return self.say_all([words])[0]

    def say_all(self, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        with socket.create_connection((self._space.address, PORT), timeout=60) as connection:
            stream = connection.makefile("rb")
            answers = []
            for words in [("AUTH", self.password), *commands]:
                parts = [word.encode() if isinstance(word, str) else word for word in words]
                framed = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
                connection.sendall(b"*%d\r\n%s" % (len(parts), framed))
                answers.append(read_reply(stream))
            return answers[1:]

    def keys(self) -> list[bytes]:
        found: list[bytes] = sorted(self.say("KEYS", "kvd1:*"))
        return found

    def keep(self) -> None:
        """What it has now is what restore() brings back."""
        self.say("CONFIG", "SET", "maxmemory", "0")
        self.say_all([("COPY", key, key, "DB", "1", "REPLACE") for key in self.keys()])

    def restore(self) -> None:
        self.say_all([("CONFIG", "SET", "maxmemory", "0"), ("FLUSHDB",)])
        kept = self.say_all([("SELECT", "1"), ("KEYS", "*")])[1]
        self.say_all([("SELECT", "1"), *(("COPY", key, key, "DB", "0", "REPLACE") for key in kept)])

    def change_password(self, password: str) -> None:
        """Whoever is connected comes in no more."""
        self.say_all([("CONFIG", "SET", "requirepass", password), ("CLIENT", "KILL", "TYPE", "normal")])
        self.password = password

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def read_reply(stream: Any) -> Any:
    line = stream.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    if kind == b"$":
        return stream.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
    if kind == b"*":
        return [read_reply(stream) for _ in range(int(rest))]
    if kind == b":":
        return int(rest)
    if kind == b"-":
        raise RuntimeError(rest.decode())
    return rest


class Proxy:
    """Before the server: what it says is late, or is -MOVED."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.delay_s = 0.0
        self.moved = False
        self._server = server
        self._loop = asyncio.new_event_loop()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            server, forth = await asyncio.open_connection(*self._server)
        except OSError:
            back.close()
            return
        await asyncio.gather(self._pass(client, forth), self._answer(server, back))

    async def _pass(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 18):
                to.write(data)
                await to.drain()
        to.close()

    async def _answer(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 18):
                said = b"-MOVED 1 10.0.0.1:6379\r\n" if self.moved else data
                self._loop.call_later(self.delay_s, to.write, said)
        self._loop.call_later(self.delay_s, to.close)


class Node:
    """kvd and an engine."""

    def __init__(self, remote: str = "") -> None:
        self.kvd = KvdProcess(slabs=32, dram_slabs=96, extra=remote)
        self._port = free_port()
        command = [
            f"{os.environ['KVDTEST_BIN_DIR']}/kvd-engine", "--random", MODEL, "--port", str(self._port),
            "--endpoint", self.kvd.endpoint, "--threads", "1", "--block-tokens", str(BLOCK),
        ]  # fmt: skip
        self._engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not poll_until(self._answers):
            raise RuntimeError("kvd-engine did not start")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException), self._connect() as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False

    def _connect(self) -> Any:
        return contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60))

    def ask(self, prompt: list[int]) -> Answer:
        body = {
            "prompt": prompt, "max_tokens": 3, "stream": True, "kvd_digest": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        with self._connect() as connection:
            began = time.monotonic()
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            first, said = 0.0, []
            for line in reply:
                if line.startswith(b"data: {"):
                    first = first or time.monotonic() - began
                    said.append(json.loads(line[6:]))
        digests = [each for one in said for choice in one["choices"] for each in choice.get("kvd_logits_digest", [])]
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in said if one.get("usage")]
        return Answer(first, tuple(digests), cached[0])

    def remote(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kvd.get("/v1/remote")
        return found

    def is_on(self) -> bool:
        return bool(self.remote()["servers"][0]["on"])

    def close(self) -> None:
        self._engine.kill()
        self._engine.wait()
        self.kvd.__exit__()


class Answer(NamedTuple):
    first_s: float
    digests: tuple[str, ...]
    cached: int


class World:
    """The space, the server with what a node has computed, and the prompts."""

    def __init__(self, kind: str, prompts: int, stack: contextlib.ExitStack) -> None:
        self.kind = kind
        source = random.Random(SEED)
        self.before = int(BEFORE * prompts)
        self.prompts = [[source.randrange(3, 250) for _ in range(TOKENS)] for _ in range(self.before + prompts)]
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvd-faults-")))
        for name, text in (("secret", "s" * 64), ("password", PASSWORD)):
            (self._folder / name).write_text(text)
            (self._folder / name).chmod(0o600)
        self.space = Space()
        stack.callback(self.space.close)
        self.server = Server(self.space, kind)
        stack.callback(lambda: self.server.kill())
        self.proxy = Proxy((self.space.address, PORT))
        self._fill()

    def remote(self, address: str, more: str = "") -> str:
        return (
            f'[remote]\nservers = "{address}"\nsecret_file = "{self._folder}/secret"\n'
            f'password_file = "{self._folder}/password"\n{more}'
        )

    def _fill(self) -> None:
        node = Node(self.remote(self.server.address, 'write = "all"\nbudget = "unlimited"\n'))
        try:
            assert poll_until(node.is_on), node.remote()
            for prompt in self.prompts:
                node.ask(prompt)
            blocks = len(self.prompts) * (TOKENS // BLOCK)
            filled = poll_until(lambda: len(self.server.keys()) >= blocks)
            assert filled, f"{len(self.server.keys())} of {blocks}: {node.remote()}"
        finally:
            node.close()
        self.server.keep()


class Fault(NamedTuple):
    name: str
    begin: Callable[[World], Any] = lambda _: None
    end: Callable[[World], Any] = lambda _: None
    opens: bool = False  # the breaker
    hits: bool = False  # what the server has is found all the same
    by_proxy: bool = False
    from_start: bool = True  # else it begins in the middle


def spoil(how: Callable[[bytes, bytes], Sequence[str | bytes]]) -> Callable[[World], None]:
    """Each key, by a command of it and the key after it."""

    def do(world: World) -> None:
        keys = world.server.keys()
        world.server.say_all([how(key, keys[at - 1]) for at, key in enumerate(keys)])

    return do


def truncate(world: World) -> None:
    keys = world.server.keys()
    halves = world.server.say_all([("GETRANGE", key, "0", "9999") for key in keys])
    world.server.say_all([("SET", key, half) for key, half in zip(keys, halves, strict=True)])


def mistype(world: World) -> None:
    keys = world.server.keys()
    world.server.say_all([("DEL", *keys), *(("LPUSH", key, "a") for key in keys)])


def fill_up(world: World) -> None:
    world.server.say_all([("CONFIG", "SET", "maxmemory", "1mb")])


def set_proxy(**given: Any) -> Callable[[World], None]:
    def do(world: World) -> None:
        for name, value in given.items():
            setattr(world.proxy, name, value)

    return do


FAULTS = (
    Fault("none", hits=True),
    Fault("50 ms", set_proxy(delay_s=0.05), set_proxy(delay_s=0.0), by_proxy=True),
    Fault("5 % loss", lambda w: w.space.lose(5), lambda w: w.space.lose(0)),
    Fault("100 Mbit/s", lambda w: w.space.limit("100mbit"), lambda w: w.space.limit("")),
    Fault("SIGSTOP", lambda w: w.server.signal(signal.SIGSTOP), lambda w: w.server.signal(signal.SIGCONT),
          opens=True, from_start=False),
    Fault("full", fill_up, hits=True),
    Fault("empty", lambda w: w.server.say("FLUSHDB")),
    Fault("wrong type", mistype),
    Fault("truncated", truncate),
    Fault("a byte", spoil(lambda key, _: ("SETRANGE", key, "9000", "!"))),
    Fault("another's value", spoil(lambda key, other: ("COPY", other, key, "REPLACE"))),
    Fault("wrong password", lambda w: w.server.change_password("other"),
          lambda w: w.server.change_password(PASSWORD), opens=True, from_start=False),
    Fault("MOVED", set_proxy(moved=True), set_proxy(moved=False), opens=True, by_proxy=True, from_start=False),
    Fault("kill", lambda w: w.server.kill(), lambda w: w.server.start(), opens=True, from_start=False),
)  # fmt: skip


class Row(NamedTuple):
    found: float  # share of the prompts' tokens that came from the server
    p99_s: tuple[float, float]  # with the server, without it
    p50_s: tuple[float, float]
    local_s: float  # the median, where the node itself has the prompt
    local: float  # and how much more than without the server, in the median of all pairs
    wrong: int  # answers
    off_s: float | None  # None: it is not to go off
    on_s: float | None


COLUMNS = (
    "server ", "fault          ", "found", "P99 ms", "without", "ratio ", "P50   ", "local ms", "ratio ", "wrong",
    "off s ", "on s  ",
)  # fmt: skip


def cells(row: Row) -> tuple[list[str], bool]:
    """What stands in the table, and whether all that a busy machine can show is as it should be."""

    def bound(value: float | None, most: float, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}{'*' if value > most else ' '}"

    def ratio(pair: tuple[float, float]) -> float:
        return pair[0] / pair[1]

    shown = [
        f"{row.found:.0%}", f"{1e3 * row.p99_s[0]:.1f}", f"{1e3 * row.p99_s[1]:.1f}", bound(ratio(row.p99_s), TTFT, 2),
        bound(ratio(row.p50_s), TTFT, 2), f"{1e3 * row.local_s:.2f}", bound(row.local, LOCAL, 3),
        f"{row.wrong}{'*' if row.wrong else ' '}", bound(row.off_s, OPEN_S + SEEN_S, 2),
        bound(row.on_s, CLOSED_S + SEEN_S, 2),
    ]  # fmt: skip
    return shown, not any("*" in shown[each] for each in (4, 7, 8, 9))


class Watch:
    """When a server goes off, or on again, since a moment."""

    def __init__(self, node: Node, on: bool) -> None:
        self.took_s: float | None = None
        self._node, self._on, self._began = node, on, time.monotonic()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        if poll_until(lambda: self._node.is_on() is self._on, 3 * CLOSED_S):
            self.took_s = time.monotonic() - self._began

    def end(self) -> float | None:
        self._thread.join()
        return self.took_s


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so many are not above (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def measure(world: World, fault: Fault) -> Row:
    world.server.restore()
    address = world.proxy.address if fault.by_proxy else world.server.address
    nodes = [Node(world.remote(address)), Node()]
    try:
        assert poll_until(nodes[0].is_on), nodes[0].remote()
        if fault.from_start:
            fault.begin(world)
        opened: Watch | None = None
        first: list[list[Answer]] = [[], []]
        touched: list[list[Answer]] = [[], []]
        again: list[list[Answer]] = [[], []]
        start = 0 if fault.from_start else world.before
        for at, prompt in enumerate(world.prompts):
            if at == start and not fault.from_start:
                fault.begin(world)
                opened = Watch(nodes[0], False)
            for which in (at % 2, 1 - at % 2):
                first[which].append(nodes[which].ask(prompt))
        for answers in (touched, *[again] * PASSES):
            for at, prompt in enumerate(world.prompts):
                for which in (at % 2, 1 - at % 2):
                    answers[which].append(nodes[which].ask(prompt))
        open_s = opened.end() if opened else None
        if fault.opens and open_s is None:
            open_s = float("inf")
        fault.end(world)
        closed_s = Watch(nodes[0], True).end()
        closed_s = float("inf") if closed_s is None else closed_s
        wrong = sum(a.digests != b.digests for each in (first, touched, again) for a, b in zip(*each, strict=True))
        times = [[each.first_s for each in part[start:]] for part in first]
        pairs = [(a.first_s, b.first_s) for a, b in zip(*again, strict=True)]
        return Row(
            sum(each.cached for each in first[0][start:]) / (TOKENS * len(times[0])),
            (percentile(times[0], 0.99), percentile(times[1], 0.99)),
            (percentile(times[0], 0.5), percentile(times[1], 0.5)),
            statistics.median(a for a, _ in pairs), statistics.median(a / b for a, b in pairs),
            wrong, open_s, closed_s if fault.opens else None,
        )  # fmt: skip
    finally:
        for node in nodes:
            node.close()


def main() -> None:
    if not REDIS or not Path(VALKEY).exists() or os.geteuid() != 0:
        print(f"{sys.argv[0]}: Skipped\nit needs root, Redis and Valkey: sh deploy/ci/redis.sh --fetch, and routers.sh")
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--servers", default="redis,valkey")
    parser.add_argument("--faults", default=",".join(each.name for each in FAULTS))
    given = parser.parse_args()
    good = True
    print(*COLUMNS)
    for kind in given.servers.split(","):
        with contextlib.ExitStack() as stack:
            world = World(kind, given.prompts, stack)
            for fault in FAULTS:
                if fault.name in given.faults.split(","):
                    shown, is_good = cells(measure(world, fault))
                    good &= is_good
                    row = zip([kind, fault.name, *shown], COLUMNS, strict=True)
                    print(*(f"{cell:{len(head)}}" for cell, head in row), flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
