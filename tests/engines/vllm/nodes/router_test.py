"""Prefill and decode apart by the real vllm-router, with two `vllm serve` on one kvd.

`held` is what kvd keeps in DRAM beside the blocks that anybody finds: hand-offs that nobody has taken yet.
KVDTEST_PROMPTS: how many prompts; with more than a few, each part also dies while they are under way.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ctest
from kvd_process import KvdProcess, free_port, poll_until
from served import HttpServer, VllmServer
from vllm_process import CONNECTOR, Bench, scribble_over_dram

PROGRAM = f"{os.environ.get('KVDTEST_ROUTERS', '')}/bin/vllm-router"
PROMPTS, ANSWER, AT_A_TIME, SEED = int(os.environ.get("KVDTEST_PROMPTS", "20")), 16, 4, 1
STORMS = 3 if PROMPTS >= 100 else 0
HANDOFF_S, SLACK_S = 3.0, 3.0
OPTIONS = {"step_budget_s": 2.0, "handoff_s": HANDOFF_S}  # the machine may be busy
Answer = list[int]


class Router(HttpServer):
    """vllm-router, in front of a prefill and a decode engine."""

    def __init__(self, port: int, prefill: HttpServer, decode: HttpServer) -> None:
        command = [
            PROGRAM, "--host", "127.0.0.1", "--port", str(port), "--vllm-pd-disaggregation",
            "--prefill", prefill.url, "--decode", decode.url, "--kv-connector", "nixl",
            "--prometheus-port", str(free_port()),
        ]  # fmt: skip
        super().__init__(command, port, {"PATH": os.environ["PATH"]}, bench.folder / "router.log")
        self.wait()


def complete(server: HttpServer, prompt: list[int]) -> Answer | None:
    """The answer's tokens; None if there is no answer, because the server or one that it asks is gone."""
    body = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    try:
        status, text = server.ask("POST", "/v1/completions", {"model": str(bench.model), **body})
    except (OSError, http.client.HTTPException):
        return None
    if status != 200:
        print(f"{server.url}: {status} {text[:500]}", flush=True)
        return None
    tokens: Answer = json.loads(text)["choices"][0]["token_ids"]
    return tokens


class Cast:
    """All processes of the test. One that is missing is started again, at the same address."""

    def __init__(self) -> None:
        self.kvd = KvdProcess(slabs=32, dram_slabs=64)
        self._ports = {name: free_port() for name in ("prefill", "decode", "router")}
        self.prefill, self.decode = self._engine("prefill"), self._engine("decode")
        self.prefill.wait()
        self.decode.wait()
        self.router = Router(self._ports["router"], self.prefill, self.decode)

    def _engine(self, name: str) -> VllmServer:
        flag = json.dumps({**CONNECTOR, "kv_connector_extra_config": OPTIONS})
        return VllmServer(
            bench, name, ["--kv-transfer-config", flag], port=self._ports[name], KVD_ENDPOINT=self.kvd.endpoint,
            VLLM_HTTP_TIMEOUT_KEEP_ALIVE="600",  # longer than it may stand still
        )  # fmt: skip

    def kill(self, victim: str) -> None:
        {"kvd": self.kvd, "prefill engine": self.prefill, "router": self.router}[victim].kill()

    def complete(self) -> None:
        """A process that was killed comes back, and prompts are handed over again."""
        is_whole = all(each.process.poll() is None for each in (self.kvd, self.prefill, self.router))
        if is_whole:
            return
        if self.kvd.process.poll() is not None:
            self.kvd.start()
        if self.prefill.process.poll() is not None:
            self.prefill = self._engine("prefill")
            self.prefill.wait()
        if self.router.process.poll() is not None:
            self.router = Router(self._ports["router"], self.prefill, self.decode)
        assert poll_until(self._hands_over), "engines do not come back to a kvd that has started again"

    def _hands_over(self) -> bool:
        """Whether the decode engine takes a prompt. Engines look for kvd when they need it."""
        taken = self.decode.metric("kvd_taken_requests_total")
        assert complete(self.router, prompts[0]) == stock[0]
        return self.decode.metric("kvd_taken_requests_total") == taken + 1

    def close(self) -> None:
        for each in (self.router, self.prefill, self.decode, self.kvd):
            each.__exit__()

    def held_bytes(self) -> int:
        """The bytes of DRAM that kvd's figures leave over, besides the cache and what is free."""
        pool = next(each for each in self.kvd.get("/v1/status")["pools"] if each["tier"] == "dram")
        used = pool["capacity_bytes"] - pool["free_bytes"]
        return int(used - self.kvd.get("/v1/cache")["cached_bytes"]["dram"])

    def ask(self, prompt: list[int]) -> Answer | None:
        """Asks as a user does: through the router, and the decode engine itself if that fails."""
        found = complete(self.router, prompt)
        return found if found is not None else complete(self.decode, prompt)

    @contextlib.contextmanager
    def between(self, prompt: list[int]) -> Iterator[Future[Answer | None]]:
        """At this point the prompt's KV is in kvd, and the decode engine has not asked for it yet."""
        handed = self.prefill.metric("kvd_handed_requests_total")
        self.decode.signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            try:
                answer = pool.submit(complete, self.router, prompt)
                is_handed = poll_until(lambda: self.prefill.metric("kvd_handed_requests_total") > handed)
                assert is_handed, self.prefill.log[-4000:]
                assert poll_until(lambda: self.held_bytes() > 0), "nothing is held"
                yield answer
            finally:
                self.decode.signal(signal.SIGCONT)


def setUpModule() -> None:
    global bench, cast, prompts, stock
    if not os.path.exists(PROGRAM):
        raise unittest.SkipTest("vllm-router is not fetched: sh deploy/ci/routers.sh --fetch, then configure again")
    print(f"seed {SEED}", flush=True)
    source = random.Random(SEED)
    prompts = [[source.randrange(3, 2048) for _ in range(source.randrange(2, 500))] for _ in range(PROMPTS + 4)]
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    with bench.engine("stock", prompts=prompts, answer=ANSWER) as engine:
        cast = Cast()
        unittest.addModuleCleanup(cast.close)
        stock = engine.answers()[0]["tokens"]


class Apart(unittest.TestCase):
    def setUp(self) -> None:
        cast.complete()

    def expect_nothing_held(self) -> None:
        self.assertTrue(poll_until(lambda: cast.held_bytes() == 0, HANDOFF_S + SLACK_S), cast.held_bytes())

    def expect_answers(self, ask: Callable[[list[int]], Answer | None], count: int) -> None:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for number, found in enumerate(pool.map(ask, prompts[:count])):
                self.assertEqual(found, stock[number], f"prompt {number} of {len(prompts[number])} tokens")


class AllAreThere(Apart):
    def test_the_decode_engine_computes_one_token_of_each_prompt(self) -> None:
        def counts() -> list[float]:
            names = ("prompt_tokens_by_source_total.*local_compute", "kvd_taken_requests_total")
            return [*map(cast.decode.metric, names), cast.prefill.metric("kvd_handed_requests_total")]

        before = counts()
        self.expect_answers(lambda prompt: complete(cast.router, prompt), PROMPTS)
        after = counts()
        self.assertEqual([b - a for a, b in zip(before, after, strict=True)], [PROMPTS] * 3)
        self.expect_nothing_held()

    def test_other_bytes_are_another_answer(self) -> None:
        """The control: the decode engine goes on with what kvd has."""
        with cast.between(prompts[-1]) as answer:
            scribble_over_dram(cast.kvd.pid)
        found = answer.result()
        self.assertIsNotNone(found)
        self.assertNotEqual(found, stock[-1])
        cast.kvd.kill()  # with what was scribbled over


class KilledInBetween(Apart):
    def test_kvd(self) -> None:
        with cast.between(prompts[-2]) as answer:
            cast.kill("kvd")
        self.assertEqual(answer.result(), stock[-2])
        cast.complete()
        self.expect_nothing_held()

    def test_router(self) -> None:
        with cast.between(prompts[-3]) as answer:
            cast.kill("router")
        self.assertIsNone(answer.result())
        self.expect_nothing_held()
        cast.complete()
        self.assertEqual(complete(cast.router, prompts[-3]), stock[-3])
        self.expect_nothing_held()

    def test_the_prefill_engine(self) -> None:
        with cast.between(prompts[-4]) as answer:
            cast.kill("prefill engine")
        self.assertEqual(answer.result(), stock[-4])
        self.expect_nothing_held()
        self.assertIsNone(complete(cast.router, prompts[1]), "this router now asks the decode engine by itself?")
        self.assertEqual(cast.ask(prompts[1]), stock[1])

    @unittest.skipUnless(STORMS, "the nightly run's")
    def test_while_prompts_are_under_way(self) -> None:
        source = random.Random(SEED)
        for victim in ("kvd", "router", "prefill engine") * STORMS:
            cast.complete()
            timer = threading.Timer(source.uniform(0.1, 3.0), cast.kill, [victim])
            began = time.monotonic()
            timer.start()
            self.expect_answers(cast.ask, PROMPTS)
            timer.join()
            print(f"{victim} killed: {PROMPTS} answers in {time.monotonic() - began:.1f} s", flush=True)
            cast.complete()
            self.expect_nothing_held()


if __name__ == "__main__":
    ctest.main()
