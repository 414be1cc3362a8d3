"""Two nodes, each with a kvd and a real vLLM, share one Redis. What one node's engine computed, the other's finds,
though its model lies in another folder and was written at another time.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until
from redis_process import FOLDER, MISSING, RedisProcess
from vllm_process import Bench, largest_difference

BLOCK, BLOCKS, TAIL, ANSWER = 32, 23, 24, 40  # the prompt has BLOCKS full blocks and TAIL tokens more
FULL = BLOCK * BLOCKS
MOVED = 30  # tokens that a session has when it moves
HIT = "external_prefix_cache_hits"
PATIENT = {"step_budget_s": 2.0}  # the machine may be busy
STATS = {"disable_log_stats": False}
SCHEDULERS = (None, "kvd_vllm.KvdScheduler")


def prompt() -> list[int]:
    source = random.Random(7)
    return [source.randrange(3, 2048) for _ in range(FULL + TAIL)]


def setUpModule() -> None:
    global bench, there, stock
    if not FOLDER:
        raise unittest.SkipTest(MISSING)
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    there = Path(shutil.copytree(bench.model, bench.folder / "elsewhere" / "another name"))
    for file in there.iterdir():
        os.utime(file, (1e9, 1e9))
    with bench.engine("stock", prompts=[prompt()], answer=ANSWER) as engine:
        stock = engine.answers()[0]


class TwoNodes(unittest.TestCase):
    def setUp(self) -> None:
        self.redis = self.enterContext(RedisProcess())
        secret = bench.folder / "secret"
        secret.write_text("s" * 64)
        secret.chmod(0o600)
        self.settings = (
            f'[remote]\nservers = "{self.redis.address}"\nsecret_file = "{secret}"\n'
            'write = "all"\nbudget = "unlimited"\n[load]\npolicy = "always"\n'
        )

    def node(self) -> KvdProcess:
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=32, extra=self.settings))
        reaches = poll_until(lambda: kvd.get("/v1/remote")["servers"][0]["on"])
        self.assertTrue(reaches, kvd.get("/v1/remote"))
        return kvd

    def ask(self, kvd: KvdProcess, model: Path, scheduler: str | None = None) -> dict[str, Any]:
        engine = {**STATS, **({"scheduler_cls": scheduler} if scheduler else {})}
        with bench.engine("asked", kvd.endpoint, engine=engine, extra=PATIENT, model=model,
                          prompts=[prompt()], answer=ANSWER) as running:  # fmt: skip
            return running.answers()[0]

    def fill(self) -> None:
        """The first node computes the prompt, and its blocks go to the server."""
        first = self.node()
        found = self.ask(first, bench.model)
        self.assertEqual(found["scheduled"], found["needed"], "there is nothing to find")
        stored = poll_until(lambda: len(self.redis.keys()) >= BLOCKS)
        self.assertTrue(stored, f"{self.redis.keys()} {first.get('/v1/remote')}")

    def expect_stock(self, found: dict[str, Any]) -> None:
        self.assertEqual(found["tokens"], stock["tokens"])
        self.assertLess(largest_difference(found["logprobs"], stock["logprobs"]), 1e-4)

    def test_the_second_node_finds_all_full_blocks_at_its_first_request(self) -> None:
        self.fill()
        for scheduler in SCHEDULERS:
            second = self.node()
            found = self.ask(second, there, scheduler)
            self.expect_stock(found)
            self.assertEqual(found["counters"][HIT], FULL, scheduler)
            self.assertEqual(found["scheduled"], found["needed"] - FULL, scheduler)
            self.assertEqual(second.get("/v1/remote")["loads"], BLOCKS, scheduler)

    def test_an_answer_goes_on_at_another_node_after_a_drain(self) -> None:
        """The first node writes nothing by itself, as nobody has asked for a block again."""
        self.settings = self.settings.replace('write = "all"', 'write = "touched"')
        first = self.node()
        with bench.engine("moves", first.endpoint, engine=STATS, extra=PATIENT, prompts=[prompt()], answer=ANSWER,
                          pause_at=MOVED + 2) as engine:  # fmt: skip
            engine.wait_for_pause()
            self.assertEqual(self.redis.keys(), [])
            token = bench.folder / "token"
            token.write_text(first.token)
            said = subprocess.run(
                [f"{os.environ['KVDTEST_BIN_DIR']}/kvdctl", "--url", f"http://127.0.0.1:{first.port}",
                 "--token-file", token, "drain", "node", "--to-remote", "--deadline", "0"],
                capture_output=True, text=True, timeout=60)  # fmt: skip
            self.assertEqual(said.returncode, 0, said.stderr)
            done = poll_until(lambda: first.get("/v1/drain")["node"]["to_remote"]["left"] == 0)
            self.assertTrue(done, first.get("/v1/drain"))
        so_far = prompt() + stock["tokens"][0][:MOVED]
        found = (len(so_far) - 1) // BLOCK * BLOCK
        self.assertGreater(found, FULL, "a block of the answer")
        second = self.node()
        with bench.engine("goes_on", second.endpoint, engine=STATS, extra=PATIENT, model=there, prompts=[so_far],
                          answer=ANSWER - MOVED) as running:  # fmt: skip
            answer = running.answers()[0]
        self.assertEqual(answer["tokens"][0], stock["tokens"][0][MOVED:])
        self.assertEqual(answer["counters"][HIT], found)
        self.assertEqual(answer["scheduled"], answer["needed"] - found)

    def test_a_flipped_byte_is_a_miss(self) -> None:
        self.fill()
        for key in self.redis.keys():
            bit = int(self.redis.say("GETBIT", key, "160007")[1])
            self.redis.say("SETBIT", key, "160007", str(1 - bit))
        second = self.node()
        found = self.ask(second, there)
        self.expect_stock(found)
        self.assertEqual(found["scheduled"], found["needed"])
        self.assertEqual(second.get("/v1/remote")["loads"], 0)
        self.assertGreater(second.get("/v1/remote")["load_failures"], 0)

    def test_nothing_is_there_for_a_node_with_another_secret(self) -> None:
        """The control of the first test: what it finds comes by the server."""
        self.fill()
        secret = bench.folder / "secret"
        secret.write_text("t" * 64)
        found = self.ask(self.node(), there)
        self.expect_stock(found)
        self.assertEqual(found["scheduled"], found["needed"])


if __name__ == "__main__":
    ctest.main()
