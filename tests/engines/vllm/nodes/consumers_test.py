"""What the real vllm-router and Dynamo's indexer know of two nodes by the KV events that vLLM publishes.

All of it runs in a network namespace of its own, as the indexer listens on all addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import unittest
from pathlib import Path
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until
from served import HttpServer, VllmServer
from vllm_process import CONNECTOR, Bench

ROUTERS = os.environ.get("KVDTEST_ROUTERS", "")
BLOCK, PROMPT, TAIL = 32, 330, 20  # tokens
WHOLE = PROMPT // BLOCK * BLOCK
ALL = os.environ.get("KVDTEST_ALL_CONSUMERS") == "1"
PROMPTS, FILLERS, SEED = 20 if ALL else 6, 30, 1
nightly = unittest.skipUnless(ALL, "a minute each: vllm.consumers.AllPrompts runs them")
HITS = "external_prefix_cache_hits_total"
KNOWN_S = 30.0  # the machine may be busy
NEW_NETWORK = 0x40000000
Prompt = list[int]


def enter_own_network() -> bool:
    """For this thread, and what it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK) != 0:
        return False
    return subprocess.run(["ip", "link", "set", "lo", "up"], check=False).returncode == 0


class Node:
    """A kvd with an engine that publishes events."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.kvd = KvdProcess(slabs=32, dram_slabs=128)
        self.start()

    def start(self) -> None:
        published = {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{5550 + self.number}",
            "replay_endpoint": f"tcp://*:{5560 + self.number}",
        }  # fmt: skip
        transfer = {**CONNECTOR, "kv_connector_extra_config": {"step_budget_s": 2.0}}  # the machine may be busy
        self.engine = VllmServer(
            bench, f"engine{self.number}",
            ["--served-model-name", "m", "--kv-transfer-config", json.dumps(transfer), "--kv-events-config", json.dumps(published)],
            port=8000 + self.number, KVD_ENDPOINT=self.kvd.endpoint,
        )  # fmt: skip

    @property
    def stream(self) -> str:
        return f"tcp://127.0.0.1:{5550 + self.number}"

    @property
    def replay(self) -> str:
        return f"tcp://127.0.0.1:{5560 + self.number}"

    def requests(self) -> float:
        return self.engine.metric("request_success_total")


class Indexer(HttpServer):
    """Dynamo's, which follows all nodes."""

    def __init__(self, port: int) -> None:
        command = [f"{ROUTERS}/bin/python", "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
        super().__init__(command, port, {"PATH": os.environ["PATH"]}, bench.folder / f"indexer{port}.log")
        self.wait()
        for node in nodes:
            told = {"instance_id": node.number, "endpoint": node.stream, "replay_endpoint": node.replay}
            status, text = self.ask("POST", "/register", {**told, "model_name": "m", "block_size": BLOCK})
            assert status < 300, text

    def where(self, prompt: Prompt) -> dict[int, tuple[int, int]]:
        """By node: how many tokens it has in the GPU's cache, and beyond these in kvd."""
        _, text = self.ask("POST", "/query", {"token_ids": prompt, "model_name": "m"})
        found: dict[str, dict[str, Any]] = json.loads(text).get("instances", {})
        return {int(at): (each["gpu"], max(each["cpu"], each["disk"]) - each["gpu"]) for at, each in found.items()}

    def knows(self, prompt: Prompt, node: Node, in_kvd: int) -> bool:
        """Whether the node is known to have so much in kvd, and nothing in the GPU's cache."""
        return self.where(prompt).get(node.number, (0, 0)) == (0, in_kvd)


class Router(HttpServer):
    def __init__(self, port: int) -> None:
        command = [f"{ROUTERS}/bin/vllm-router", "--host", "127.0.0.1", "--port", str(port), "--policy", "kv_aware"]
        command += ["--worker-urls", *(node.engine.url for node in nodes)]
        for node in nodes:
            command += ["--kv-event-source", f"{node.engine.url}={node.stream}"]
            command += ["--kv-event-replay-source", f"{node.engine.url}={node.replay}"]
        command += ["--kv-event-block-size", str(BLOCK), "--kv-event-model", "m", "--prometheus-port", str(port + 1)]
        super().__init__(command, port, {"PATH": os.environ["PATH"]}, bench.folder / "router.log")
        self.wait()


def complete(server: HttpServer, prompt: Prompt, **more: Any) -> None:
    body = {"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, **more}
    status, text = server.ask("POST", "/v1/completions", body)
    assert status == 200, text


def tokens(count: int) -> Prompt:
    return [source.randrange(3, 2048) for _ in range(count)]


def push_out(node: Node) -> None:
    """All that the engine's own cache has."""
    for _ in range(FILLERS):
        complete(node.engine, tokens(900))


def cpu_seconds(group: int) -> float:
    """Returns the CPU time of all processes of the group, in seconds."""
    spent = 0.0
    for each in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def setUpModule() -> None:
    global bench, nodes, indexer, router, source
    if not os.path.exists(f"{ROUTERS}/bin/vllm-router"):
        raise unittest.SkipTest("routers are not fetched: sh deploy/ci/routers.sh --fetch, then configure again")
    if not enter_own_network():
        raise unittest.SkipTest("no network namespace of its own: only root may make one")
    print(f"seed {SEED}", flush=True)
    source = random.Random(SEED)
    bench = Bench(engines=False, environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    unittest.addModuleCleanup(bench.close)
    nodes = [Node(1), Node(2)]
    for node in nodes:
        unittest.addModuleCleanup(node.kvd.__exit__, None, None, None)
        unittest.addModuleCleanup(lambda node=node: node.engine.__exit__())
        node.engine.wait()
    indexer, router = Indexer(8090), Router(8080)
    unittest.addModuleCleanup(indexer.__exit__)
    unittest.addModuleCleanup(router.__exit__)


class Consumers(unittest.TestCase):
    def expect_known(self, prompt: Prompt, node: Node, in_kvd: int, at: Indexer | None = None) -> None:
        index = at or indexer
        is_known = poll_until(lambda: index.knows(prompt, node, in_kvd), KNOWN_S)
        self.assertTrue(is_known, f"node {node.number}: {in_kvd} expected, {index.where(prompt)} known")

    def test_1_a_prompt_goes_back_to_where_kvd_has_its_prefix(self) -> None:
        prompts = [tokens(PROMPT) for _ in range(PROMPTS)]
        homes = [nodes[at % 2] for at in range(PROMPTS)]
        for prompt, home in zip(prompts, homes, strict=True):
            complete(home.engine, prompt)
        salted = tokens(PROMPT)
        complete(nodes[0].engine, salted, cache_salt="secret")
        for node in nodes:
            push_out(node)
        for prompt, home in zip(prompts, homes, strict=True):
            self.expect_known(prompt, home, WHOLE)
            other = nodes[2 - home.number]
            self.assertTrue(indexer.knows(prompt, other, 0), "the other node knows nothing of it")
        self.assertTrue(indexer.knows(salted, nodes[0], 0), indexer.where(salted))
        back = found = 0
        for prompt, home in zip(prompts, homes, strict=True):
            requests, hits = home.requests(), home.engine.metric(HITS)
            complete(router, prompt + tokens(TAIL))
            back += home.requests() == requests + 1
            found += home.engine.metric(HITS) == hits + WHOLE
        self.assertEqual((back, found), (PROMPTS, PROMPTS))

    @nightly
    def test_2_what_another_engine_of_the_node_stored_is_announced_by_an_idle_one(self) -> None:
        prompt, node = tokens(PROMPT), nodes[0]
        guest = Node.__new__(Node)
        guest.number, guest.kvd = 3, node.kvd
        guest.start()
        with guest.engine:
            guest.engine.wait()
            complete(guest.engine, prompt)
            self.expect_known(prompt, node, WHOLE)
        self.expect_known(prompt, node, WHOLE)

    def test_3_an_idle_engine_does_not_spin(self) -> None:
        begun = [cpu_seconds(node.engine.process.pid) for node in nodes]
        self.assertFalse(poll_until(lambda: False, 3.0))
        spent = [cpu_seconds(node.engine.process.pid) - was for node, was in zip(nodes, begun, strict=True)]
        print("CPU seconds of idle engines in 3 s:", [round(each, 2) for each in spent], flush=True)
        self.assertLess(max(spent), 1.0)

    @nightly
    def test_4_an_engine_that_starts_again_announces_what_is_still_there(self) -> None:
        prompt, node = tokens(PROMPT), nodes[1]
        complete(node.engine, prompt)
        push_out(node)
        self.expect_known(prompt, node, WHOLE)
        node.engine.kill()
        node.start()
        node.engine.wait()
        with Indexer(8091) as fresh:
            # It hears of a publisher with the next batch.
            complete(node.engine, tokens(40))
            self.expect_known(prompt, node, WHOLE, fresh)

    @nightly
    def test_5_when_kvd_is_gone_all_is_withdrawn(self) -> None:
        prompt, node = tokens(PROMPT), nodes[0]
        complete(node.engine, prompt)
        push_out(node)
        self.expect_known(prompt, node, WHOLE)
        node.kvd.kill()
        self.expect_known(prompt, node, 0)
        node.kvd.start()
        again = tokens(PROMPT)

        def stores() -> bool:
            """The engine looks for kvd, and stores again once it has a window into its pool."""
            complete(node.engine, again)
            push_out(node)
            return poll_until(lambda: indexer.knows(again, node, WHOLE), 2.0)

        self.assertTrue(poll_until(stores, 120.0), indexer.where(again))
        self.assertTrue(indexer.knows(prompt, node, 0))


if __name__ == "__main__":
    ctest.main()
