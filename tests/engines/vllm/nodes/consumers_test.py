"""What the real vllm-router and Dynamo's indexer know of two nodes by the KV events that vLLM publishes.

All of it runs in a network namespace of its own, as the indexer listens on all addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import unittest
from pathlib import Path
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until
from routers import Indexer, Router, Stream, enter_own_network
from served import HttpServer, VllmServer
from vllm_process import CONNECTOR, Bench

BLOCK, PROMPT, TAIL = 32, 330, 20  # tokens
WHOLE = PROMPT // BLOCK * BLOCK
ALL = os.environ.get("KVDTEST_ALL_CONSUMERS") == "1"
PROMPTS, FILLERS, SEED = 20 if ALL else 6, 30, 1
nightly = unittest.skipUnless(ALL, "a minute each: vllm.consumers.AllPrompts runs them")
HITS = "external_prefix_cache_hits_total"
KNOWN_S = 30.0  # the machine may be busy
Prompt = list[int]


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
    def stream(self) -> Stream:
        events, replay = f"tcp://127.0.0.1:{5550 + self.number}", f"tcp://127.0.0.1:{5560 + self.number}"
        return Stream(self.number, self.engine.url, events, replay)

    def requests(self) -> float:
        return self.engine.metric("request_success_total")


def knows(index: Indexer, prompt: Prompt, node: Node, in_kvd: int) -> bool:
    """Whether the node is known to have so much in kvd, and nothing in the GPU's cache."""
    return index.where(prompt).get(node.number, (0, 0)) == (0, in_kvd)


def complete(server: HttpServer, prompt: Prompt, **more: Any) -> None:
    body = {"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, **more}
    status, text = server.ask("POST", "/v1/completions", body)
    assert status == 200, text


def tokens(count: int) -> Prompt:
    return [source.randrange(3, 2048) for _ in range(count)]


def push_out(node: Node) -> None:
    """All blocks that the engine's own cache has."""
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
    enter_own_network()
    print(f"seed {SEED}", flush=True)
    source = random.Random(SEED)
    bench = Bench(engines=False, environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    unittest.addModuleCleanup(bench.close)
    nodes = [Node(1), Node(2)]
    for node in nodes:
        unittest.addModuleCleanup(node.kvd.__exit__, None, None, None)
        unittest.addModuleCleanup(lambda node=node: node.engine.__exit__())
        node.engine.wait()
    streams = [node.stream for node in nodes]
    indexer = Indexer(8090, streams, BLOCK, bench.folder)
    router = Router(8080, streams, BLOCK, bench.folder)
    unittest.addModuleCleanup(indexer.__exit__)
    unittest.addModuleCleanup(router.__exit__)


class Consumers(unittest.TestCase):
    def expect_known(self, prompt: Prompt, node: Node, in_kvd: int, at: Indexer | None = None) -> None:
        index = at or indexer
        is_known = poll_until(lambda: knows(index, prompt, node, in_kvd), KNOWN_S)
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
            self.assertTrue(knows(indexer, prompt, other, 0), "the other node knows nothing of it")
        self.assertTrue(knows(indexer, salted, nodes[0], 0), indexer.where(salted))
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
        with Indexer(8091, [each.stream for each in nodes], BLOCK, bench.folder) as fresh:
            # It learns of a publisher with the next batch.
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
            return poll_until(lambda: knows(indexer, again, node, WHOLE), 2.0)

        self.assertTrue(poll_until(stores, 120.0), indexer.where(again))
        self.assertTrue(knows(indexer, prompt, node, 0))


if __name__ == "__main__":
    ctest.main()
