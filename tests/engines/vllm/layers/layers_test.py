"""Streamed layers on real vLLM processes: with blocks that its HBM does not hold a vLLM answers as one
that has memory for all, bit for bit where the batches are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
import unittest
from collections.abc import Callable
from typing import Any

import ctest
from kvd_process import KvdProcess
from vllm_process import Bench, largest_difference, on_kvd, scribble_over_dram

PAGE, LAYERS, BLOCK = 64 << 10, 4, 32  # the tiny model's: a block of a layer, and its tokens
FETCHED, STORED, LOST = (f"kvd_layer_blocks_{each}" for each in ("fetched", "stored", "lost"))
PATIENT = {"layers": True, "load_timeout_s": 120}  # the machine may be busy
WITH_COUNTS = {"disable_log_stats": False}
KILLS_S = float(os.environ.get("KVD_TEST_KILLS_S", "0"))
PLENTY = 64 << 20  # stock's memory


def room(pages: int, names: int, requests: int = 6, **more: Any) -> dict[str, Any]:
    """An engine's. `names`: vLLM's blocks, the one that it pads with among them."""
    return {
        "kv_cache_memory_bytes": pages * PAGE, "num_gpu_blocks_override": names, "max_num_seqs": requests,
        **WITH_COUNTS, **more,
    }  # fmt: skip


def stocks(engine: dict[str, Any]) -> dict[str, Any]:
    """The same engine with memory for all requests. Where blocks are so few that requests are preempted, stock has
    equally few."""
    return {**engine, "kv_cache_memory_bytes": PLENTY}


def some_prompts(count: int, tokens: int, shared: int = 0) -> list[list[int]]:
    source = random.Random(41)
    head = [source.randrange(3, 2048) for _ in range(shared)]
    return [head + [source.randrange(3, 2048) for _ in range(tokens - shared)] for _ in range(count)]


# Six requests take 41 blocks, of which 22 fit with all layers.
TIGHT = {"engine": room(88, 50)}
# What fits 1.5 times into the request.
ALONE = {
    "engine": room(4 * 31, 50, requests=1, max_model_len=1536, max_num_batched_tokens=512),
    "prompts": some_prompts(1, 1000), "answer": 500,
}  # fmt: skip
# Twelve of the 24 requests fit, as each has 6 blocks. vLLM has names for all.
MANY = {
    "engine": room(290, 145, requests=24), "prompts": some_prompts(24, 100), "answer": 93,
}  # fmt: skip
CHUNKS = {"engine": room(88, 50, max_num_batched_tokens=72, enable_chunked_prefill=True)}
# Some prompts begin like others: in the same step, and with blocks that nobody used meanwhile.
SHARED = {
    "engine": room(88, 50, enable_prefix_caching=True), "prompts": some_prompts(6, 150, shared=96), "answer": 60,
}  # fmt: skip
AGAIN = {**SHARED, "same": True, "prompts": some_prompts(6, 170, shared=96)[::-1]}
# vLLM has too few blocks, so it preempts; 70 pages are 17 blocks with all layers.
PREEMPTED = {"engine": room(70, 33, max_model_len=1000)}
ROUNDS = {
    "tight": TIGHT, "alone": ALONE, "many": MANY, "chunks": CHUNKS, "shared": SHARED, "again": AGAIN,
    "preempted": PREEMPTED,
}  # fmt: skip


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    rounds = [{**each, "engine": stocks(each["engine"])} for each in ROUNDS.values()]
    stock = dict(zip(ROUNDS, bench.answers("stock", rounds), strict=True))


class Layers(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=40, dram_slabs=48))

    def round(self, name: str, extra: dict[str, Any] = PATIENT, connector: str = "") -> dict[str, Any]:
        """On kvd, with one of the connectors of broken_layers.py where it is named."""
        transfer = on_kvd(extra)["kv_transfer_config"]
        if connector:
            transfer.update(kv_connector=connector, kv_connector_module_path="layers.broken_layers")
        return {**ROUNDS[name], "engine": {**ROUNDS[name]["engine"], "kv_transfer_config": transfer}}

    def answers(self, name: str, rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return bench.answers(name, rounds, self.kvd.endpoint)

    def with_connector(self, name: str, engine: dict[str, Any]) -> dict[str, Any]:
        """The tight round's answers."""
        tight = self.round("tight", connector=name)
        return self.answers(name, [{**tight, "engine": {**tight["engine"], **engine}}])[0]

    def hit(self, pause_at: int, hit: Callable[[], None], given: dict[str, Any], said: str = "") -> dict[str, Any]:
        """The answers of an engine whose kvd is hit while they are being made."""
        with bench.engine("hit", self.kvd.endpoint, each=[given], pause_at=pause_at) as engine:
            engine.wait_for_pause()
            hit()
            engine.go_on()
            found = engine.answers()[0]
            self.assertIn(said, engine.log)
        return found

    def expect_stocks(self, found: dict[str, Any], name: str) -> None:
        self.assertEqual(found["tokens"], stock[name]["tokens"])
        self.assertEqual(found["logprobs"], stock[name]["logprobs"])
        self.assertEqual(found["scheduled"], stock[name]["scheduled"])
        counts = {key: found["counters"].get(key) for key in (FETCHED, STORED, "num_preemptions")}
        print(name, json.dumps(counts), flush=True)

    def test_answers_are_stocks(self) -> None:
        found = dict(zip(ROUNDS, self.answers("layers", [self.round(name) for name in ROUNDS]), strict=True))
        for name, each in found.items():
            with self.subTest(name):
                self.expect_stocks(each, name)
                self.assertGreater(each["counters"][FETCHED], 100)
        for name in ("tight", "alone", "many", "chunks"):
            self.assertEqual(found[name]["counters"]["num_preemptions"], 0)
            self.assertEqual(found[name]["scheduled"], found[name]["needed"])
        self.assertGreater(found["preempted"]["counters"]["num_preemptions"], 0)
        self.assertLess(found["shared"]["scheduled"], found["shared"]["needed"])
        self.assertLess(found["again"]["scheduled"], found["again"]["needed"])
        tokens = {token for answer in stock["tight"]["tokens"] for token in answer}
        self.assertGreater(len(tokens), 100)
        self.assertTrue(self.kvd.all_returned())

    def test_layers_are_placed_and_moved_at_random(self) -> None:
        for name in ("RandomLayers", "NoLayerStays"):
            found = self.with_connector(name, room(400, 60))
            self.expect_stocks(found, "tight")
            self.assertGreater(found["counters"][FETCHED], 5000)

    def test_a_load_that_was_left_out_is_seen(self) -> None:
        found = self.with_connector("LeavesOneOut", TIGHT["engine"])
        self.assertNotEqual(found["logprobs"], stock["tight"]["logprobs"])

    def test_a_window_that_is_written_too_early_is_seen(self) -> None:
        found = self.with_connector("WritesEarly", TIGHT["engine"])
        self.assertNotEqual(found["logprobs"], stock["tight"]["logprobs"])

    def test_what_streams_is_kvds_dram(self) -> None:
        with bench.engine("scribbled", self.kvd.endpoint, PATIENT, **TIGHT, pause_at=100) as engine:
            engine.wait_for_pause()
            scribble_over_dram(self.kvd.process.pid)
            engine.go_on()
            found = engine.answers()[0]
        self.assertNotEqual(found["tokens"], stock["tight"]["tokens"])

    def expect_stocks_tokens(self, found: dict[str, Any], name: str) -> None:
        """Tokens that are computed again are computed in other batches."""
        print(name, found["counters"][LOST], found["scheduled"], found["needed"], flush=True)
        self.assertEqual(found["tokens"], stock[name]["tokens"])
        self.assertLess(largest_difference(found["logprobs"], stock[name]["logprobs"]), 1e-3)
        self.assertGreater(found["counters"][LOST], 0)
        self.assertGreater(found["scheduled"], stock[name]["scheduled"])

    def test_without_kvd_what_was_away_is_computed_again(self) -> None:
        for name, steps in (("tight", 100), ("alone", 200), ("shared", 50), ("chunks", 100)):
            with self.subTest(name):
                found = self.hit(steps, self.kvd.kill, self.round(name), "in this process's own memory")
                self.expect_stocks_tokens(found, name)
            self.kvd.start()

    def test_where_vllm_does_not_hear_of_it_the_tokens_show_it(self) -> None:
        found = self.hit(100, self.kvd.kill, self.round("tight", connector="TellsNothing"))
        self.assertNotEqual(found["tokens"], stock["tight"]["tokens"])

    def test_a_kvd_that_stands_still_harms_nothing(self) -> None:
        given = self.round("tight", {"layers": True, "load_timeout_s": 0.5})
        given["engine"].update(room(130, 50))  # a window may be out of use
        found = self.hit(100, lambda: self.kvd.signal(signal.SIGSTOP), given)
        self.kvd.signal(signal.SIGCONT)
        self.expect_stocks_tokens(found, "tight")

    def test_a_kvd_that_comes_back_is_used_again(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=40, dram_slabs=48, held=True))
        found = self.hit(200, self.kvd.kill_held, self.round("alone"), "lie in kvd again")
        self.expect_stocks_tokens(found, "alone")

    @unittest.skipUnless(KILLS_S, "KVD_TEST_KILLS_S says for how long")
    def test_kills_at_any_time(self) -> None:
        seed = int(os.environ.get("KVD_SEED", time.time_ns()))
        source = random.Random(seed)
        print("seed", seed, flush=True)
        steps = {"tight": 120, "alone": 400, "many": 60, "chunks": 120, "shared": 50, "preempted": 120}
        ends, killed = time.monotonic() + KILLS_S, dict.fromkeys(("kvd", "engine"), 0)
        while time.monotonic() < ends:
            name, who = source.choice(list(steps)), source.choice(list(killed))
            at, wait_s = source.randrange(5, steps[name]), source.random() * 0.1
            killed[who] += 1
            given = self.round(name)
            with self.subTest(name, who=who, at=at), bench.engine(
                "killed", self.kvd.endpoint, each=[given], pause_at=at
            ) as engine:  # fmt: skip
                engine.wait_for_pause()
                engine.go_on()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    engine.process.wait(wait_s)
                if who == "kvd":
                    self.kvd.kill()
                    found = engine.answers()[0]
                    self.assertEqual(found["tokens"], stock[name]["tokens"])
                    self.assertLess(largest_difference(found["logprobs"], stock[name]["logprobs"]), 1e-3)
                    self.kvd.start()
            self.assertTrue(self.kvd.all_returned(), "memory is not returned")
        print("killed", json.dumps(killed), flush=True)

    def test_what_a_full_dram_does_not_take_the_engine_keeps(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=40, dram_slabs=2))
        with bench.engine("full", kvd.endpoint, PATIENT, **TIGHT) as engine:
            self.expect_stocks(engine.answers()[0], "tight")
            self.assertIn("in this process's own memory", engine.log)

    def test_what_cannot_be_streamed_is_refused_at_the_start(self) -> None:
        for name, engine, said in (
            ("many", room(85, 50), "50 blocks and 6 requests take 86 pages"),
            ("names", {}, "--num-gpu-blocks-override"),
            ("scheduler", {**room(88, 50), "scheduler_cls": "kvd_vllm.KvdScheduler"}, "take --scheduler-cls"),
            ("type", {**room(88, 50), "dtype": "bfloat16"}, "--dtype float32"),
        ):
            with self.subTest(name), bench.engine(name, self.kvd.endpoint, PATIENT, engine=engine) as refused:
                self.assertNotEqual(refused.status(), 0)
                self.assertIn("KvdRequired: kvd: layers cannot be streamed", refused.log)
                self.assertIn(said, refused.log)


if __name__ == "__main__":
    ctest.main()
