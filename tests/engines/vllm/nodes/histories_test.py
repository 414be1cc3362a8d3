"""What the real vllm-router and Dynamo's indexer know by the KV events of two kvd-engines on one kvd, after
random histories: prompts of all kinds, a full cache and a full disk, cleared ones, lost batches, and engines, kvd
and consumers that are killed and start again. What they know has to be what a lookup finds.

KVDTEST_HISTORIES: how many. KVD_TEST_SEED: the first one's seed.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import shutil
import tempfile
import threading
import time
import unittest
from collections import Counter
from pathlib import Path

import ctest
import zmq
from engine_process import BLOCK, PROGRAM, KvdEngine
from kvd_process import KvdProcess, poll_until
from routers import Indexer, Router, Stream, enter_own_network

HISTORIES = int(os.environ.get("KVDTEST_HISTORIES", "20"))
SEED = int(os.environ.get("KVD_TEST_SEED", "1"))
KNOWN_S, PATIENCE_S = 2.0, 60.0  # other tests may keep the machine busy
IS_ALONE = HISTORIES >= 1000
SLABS, DRAM_SLABS, DISK = 2, 3, "16MiB"  # a slab holds 32 blocks, the disk some 200
LONGEST = 20  # blocks of a prompt
Prompt = list[int]


class Relay:
    """Stands between the events of an engine and its consumers, and loses some."""

    def __init__(self, source: str, endpoint: str) -> None:
        self.to_lose = self.lost = 0
        context = zmq.Context.instance()
        self._from, self._to = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
        self._to.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._from.connect(source)
        self._to.bind(endpoint)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._from, zmq.POLLIN)
        poller.register(self._to, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._to in ready:
                self._from.send(self._to.recv())  # a subscription
            if self._from not in ready:
                continue
            batch = self._from.recv_multipart()
            if self.to_lose > 0:
                self.to_lose -= 1
                self.lost += 1
            else:
                self._to.send_multipart(batch)


class Worker(http.server.BaseHTTPRequestHandler):
    """What the router takes for an engine, so that asking the router changes nothing in kvd."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer({"id": "c", "object": "text_completion", "model": "m", "choices": []})

    def _answer(self, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


class World:
    """Two kvd-engines on one kvd, and both consumers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = folder / "disk"
        disk = f'[disk]\npath = "{self._disk}"\nsize = "{DISK}"\nfloor = "0"\ntouches = 1\n'
        self.kvd = KvdProcess(slabs=SLABS, dram_slabs=DRAM_SLABS, extra=f'[load]\npolicy = "always"\n{disk}')
        self.engines, self.streams, self.relays = [], [], []
        for number in (1, 2):
            ports = {name: f"tcp://127.0.0.1:{port + number}" for name, port in (("events", 5550), ("replay", 5560))}
            self.engines.append(
                KvdEngine(self.kvd, "--kv-events", ports["events"], "--kv-events-replay", ports["replay"])
            )
            worker = http.server.ThreadingHTTPServer(("127.0.0.1", 9000 + number), Worker)
            threading.Thread(target=worker.serve_forever, daemon=True).start()
            relayed = f"tcp://127.0.0.1:{5570 + number}"
            self.relays.append(Relay(ports["events"], relayed))
            self.streams.append(Stream(number, f"http://127.0.0.1:{9000 + number}", relayed, ports["replay"]))
        for engine in self.engines:
            engine.wait()
        self.start_indexer()
        self.start_router()

    def start_indexer(self) -> None:
        self.indexer = Indexer(8090, self.streams, BLOCK, self._folder)

    def start_router(self) -> None:
        plain = ("--kv-penalty-host", "1", "--kv-penalty-disk", "1", "--log-level", "debug")
        self.router = Router(8080, self.streams, BLOCK, self._folder, *plain)

    def restart_kvd(self) -> None:
        """The disk is empty, because what lay there would be announced only when somebody finds it again."""
        self.kvd.kill()
        shutil.rmtree(self._disk)
        self.kvd.start()

    def close(self) -> None:
        for each in (self.indexer, self.router, *self.engines):
            each.kill()
        self.kvd.__exit__()

    def known(self, prompt: Prompt) -> set[int]:
        """How many tokens of the prompt each engine has computed, as the consumers believe."""
        found = self.indexer.found(prompt)
        return {found.get(str(number), {"longest_matched": 0})["longest_matched"] for number in (1, 2)}


class Histories(unittest.TestCase):
    world: World
    happened: Counter[str] = Counter()
    took: list[float] = []  # seconds until both consumers knew
    found = 0

    @classmethod
    def setUpClass(cls) -> None:
        if not os.path.exists(PROGRAM):
            raise unittest.SkipTest("kvd-engine is not built")
        enter_own_network()
        folder = tempfile.TemporaryDirectory(prefix="kvd-histories-")
        cls.addClassCleanup(folder.cleanup)
        cls.world = World(Path(folder.name))
        cls.addClassCleanup(cls.world.close)

    def test_consumers_know_what_a_lookup_finds(self) -> None:
        for seed in range(SEED, SEED + HISTORIES):
            with self.subTest(seed=seed):
                self.history(random.Random(seed))
        lost = sum(relay.lost for relay in self.world.relays)
        print(f"seeds {SEED} to {SEED + HISTORIES - 1}: {dict(self.happened)}, {lost} batches lost")
        late = [round(took, 2) for took in self.took if took > KNOWN_S]
        print(f"{self.found} tokens found in {len(self.took)} lookups; known after {max(self.took):.2f} s at the latest")
        self.assertGreater(self.found, 16 * HISTORIES)
        if IS_ALONE:
            self.assertLessEqual(len(late), len(self.took) // 100, late)

    # ---- one history ----

    def history(self, source: random.Random) -> None:
        for _ in range(source.randrange(4, 12)):
            kinds, weights = zip(*self.OPERATIONS.items(), strict=True)
            kind = source.choices(kinds, weights)[0]
            self.happened[kind.__name__] += 1
            kind(self, source)
        for prompt in (self.prompt(source), self.prompt(source)):
            self.compare(source, prompt)

    def compare(self, source: random.Random, prompt: Prompt) -> None:
        """Events keep their order: who knows of the mark knows all that was before it."""
        world, mark = self.world, self.fresh(source, 1)
        for relay in world.relays:
            relay.to_lose = int(source.random() < 0.1)  # a consumer notices by the next batch, which is empty
        engine, deadline = self.engine(source), time.monotonic() + PATIENCE_S
        is_known = is_asked = False
        while not is_known and time.monotonic() < deadline:
            stuck = world.indexer.free_stuck() if is_asked else 0
            self.happened["stuck"] += stuck
            if engine.ask([*mark, 1]) == 0 or stuck:  # kvd need not have kept it the first time
                since = time.monotonic()
            is_asked = True
            is_known = poll_until(
                lambda: world.known(mark) == {BLOCK} and world.router.credited([*mark, 1]) == BLOCK, PATIENCE_S / 6
            )
        self.took.append(time.monotonic() - since)
        self.assertTrue(is_known, self.what_they_say(mark))
        views = world.known(prompt), world.router.credited([*prompt, 1])
        found = self.engine(source).ask([*prompt, 1])
        Histories.found += found
        self.assertEqual(views, ({found}, found))

    def what_they_say(self, mark: Prompt) -> str:
        """What both know of a block, and what they said before."""
        world = self.world
        said = f"indexer {world.indexer.found(mark)}, router {world.router.credited([*mark, 1])}"
        events = [line for line in world.router.log.splitlines() if "decision" not in line and "/health" not in line]
        return "\n".join([said, *events[-60:], *world.indexer.log.splitlines()[-60:]])

    def engine(self, source: random.Random) -> KvdEngine:
        return source.choice(self.world.engines)

    @staticmethod
    def fresh(source: random.Random, blocks: int) -> Prompt:
        return source.choices(range(2, 255), k=blocks * BLOCK)

    @staticmethod
    def prompt(source: random.Random) -> Prompt:
        """One of a few documents, or a fork of one: up to the fork, others may have asked for it."""
        document, fork = source.randrange(8), source.randrange(3)
        tokens = random.Random(document).choices(range(2, 255), k=LONGEST * BLOCK)
        if fork > 0:
            at = 4 * fork * BLOCK
            tokens[at:] = random.Random(1000 * document + fork).choices(range(2, 255), k=len(tokens) - at)
        return tokens[: source.randrange(1, LONGEST + 1) * BLOCK]

    # ---- what may happen ----

    def store(self, source: random.Random) -> None:
        self.engine(source).ask([*self.prompt(source), source.randrange(2, 255)], max_tokens=source.randrange(1, 40))

    def store_salted(self, source: random.Random) -> None:
        self.engine(source).ask([*self.prompt(source), 1], cache_salt="secret")

    def fill(self, source: random.Random) -> None:
        for _ in range(source.randrange(2, 8)):
            self.engine(source).ask(self.fresh(source, LONGEST))

    def clear(self, _: random.Random) -> None:
        self.world.kvd.clear_cache()

    def lose(self, source: random.Random) -> None:
        source.choice(self.world.relays).to_lose = source.randrange(1, 4)
        self.store(source)

    def restart_engine(self, source: random.Random) -> None:
        engine = self.engine(source)
        engine.kill()
        engine.start()
        engine.wait()

    def restart_kvd(self, _: random.Random) -> None:
        self.world.restart_kvd()

    def restart_indexer(self, _: random.Random) -> None:
        self.world.indexer.kill()
        self.world.start_indexer()

    def restart_router(self, _: random.Random) -> None:
        self.world.router.kill()
        self.world.start_router()

    OPERATIONS = {
        store: 40, store_salted: 4, fill: 8, clear: 3, lose: 10, restart_engine: 4, restart_kvd: 3,
        restart_indexer: 2, restart_router: 1,
    }  # fmt: skip


if __name__ == "__main__":
    ctest.main()
