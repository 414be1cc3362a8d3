"""Two nodes, each with a kvd and a real vLLM, share one Redis. What one node's engine computed, the other's finds,
though its model lies in another folder and was written at another time. Sessions move from one to the other in the
middle of their answers. KVDTEST_SESSIONS says how many by a drain, and how many by a kill.
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
from vllm_process import Bench, Engine, largest_difference

BLOCK, BLOCKS, TAIL, ANSWER = 32, 23, 24, 40  # the prompt has BLOCKS full blocks and TAIL tokens more
FULL = BLOCK * BLOCKS
SESSIONS = int(os.environ.get("KVDTEST_SESSIONS", "6"))
AT_ONCE = 25  # sessions of an engine
WHOLE = 200  # tokens of a session's answer
HIT = "external_prefix_cache_hits"
PATIENT = {"step_budget_s": 2.0}  # the machine may be busy
STATS = {"disable_log_stats": False}
LARGE = {**STATS, "kv_cache_memory_bytes": 96 << 20}
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


class Nodes(unittest.TestCase):
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
        kvd = self.enterContext(KvdProcess(slabs=64, dram_slabs=96, extra=self.settings))
        reaches = poll_until(lambda: kvd.get("/v1/remote")["servers"][0]["on"])
        self.assertTrue(reaches, kvd.get("/v1/remote"))
        return kvd


class TwoNodes(Nodes):
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


class Session:
    """A prompt, and its answer as far as it has come."""

    def __init__(self, source: random.Random) -> None:
        self.prompt = [source.randrange(3, 2048) for _ in range(source.randrange(20, 150))]
        self.wanted = source.randrange(1, 25)  # tokens that it has at least when it moves
        self.answer: list[int] = []

    def so_far(self) -> list[int]:
        return self.prompt + self.answer

    def found(self) -> int:
        """What another node can find of it: full blocks, and one token at least has to be computed."""
        return (len(self.so_far()) - 1) // BLOCK * BLOCK


class Moved(Nodes):
    """Sessions that move from an engine in the middle of their answers, AT_ONCE at a time."""

    @classmethod
    def setUpClass(cls) -> None:
        source = random.Random(11)
        all_sessions = [Session(source) for _ in range(SESSIONS)]
        cls.rounds = [all_sessions[at : at + AT_ONCE] for at in range(0, SESSIONS, AT_ONCE)]
        each = [{"prompts": [one.prompt for one in sessions], "same": at > 0} for at, sessions in enumerate(cls.rounds)]
        with bench.engine("unmoved", engine=LARGE, each=each, answer=WHOLE) as engine:
            cls.unmoved = [each["tokens"] for each in engine.answers()]

    def setUp(self) -> None:
        super().setUp()
        for session in (each for sessions in self.rounds for each in sessions):
            session.answer = []

    def begin(self, kvd: KvdProcess, sessions: list[Session]) -> Engine:
        """An engine in the middle of its answers."""
        engine = bench.engine("moves", kvd.endpoint, engine=LARGE, extra=PATIENT, tells=True, answer=WHOLE,
                              prompts=[each.prompt for each in sessions])  # fmt: skip
        self.enterContext(engine)
        for step in engine.told():
            take(sessions, step)
            if all(len(each.answer) >= each.wanted for each in sessions):
                return engine
        self.fail(f"the engine ended: {engine.log[-4000:]}")

    def go_on(self, sessions: list[Session], unmoved: list[list[int]]) -> int:
        """On another node, to the ends of the answers. Returns how many tokens it found."""
        for session in sessions:
            self.assertLess(len(session.answer), WHOLE, "it had ended before it could move")
        second = self.node()
        with bench.engine("goes_on", second.endpoint, engine=LARGE, extra=PATIENT, model=there,
                          prompts=[each.so_far() for each in sessions],
                          answer=[WHOLE - len(each.answer) for each in sessions]) as engine:  # fmt: skip
            answers = engine.answers()[0]
        for session, rest, whole in zip(sessions, answers["tokens"], unmoved, strict=True):
            self.assertEqual(session.answer + rest, whole)
        self.assertEqual(answers["scheduled"], answers["needed"] - answers["counters"][HIT])
        return int(answers["counters"][HIT])

    def drain(self, kvd: KvdProcess, *words: str) -> str:
        token = bench.folder / "token"
        token.write_text(kvd.token)
        said = subprocess.run(
            [f"{os.environ['KVDTEST_BIN_DIR']}/kvdctl", "--url", f"http://127.0.0.1:{kvd.port}",
             "--token-file", token, "drain", "node", "--to-remote", "--deadline", "0", *words],
            capture_output=True, text=True, timeout=60)  # fmt: skip
        self.assertEqual(said.returncode, 0, said.stderr)
        return said.stdout

    def test_after_a_drain_less_than_a_block_of_each_session_is_computed_again(self) -> None:
        """The first node writes nothing by itself, as nobody has asked for a block again."""
        self.settings = self.settings.replace('write = "all"', 'write = "touched"')
        for sessions, unmoved in zip(self.rounds, self.unmoved, strict=True):
            first = self.node()
            engine = self.begin(first, sessions)
            self.drain(first)
            engine.go_on()  # its clients go elsewhere
            for step in engine.told():
                take(sessions, step)
            self.assertEqual(engine.status(), 0, engine.log[-4000:])
            self.assertIn(" 0 left, 0 lost", self.drain(first, "--wait"))
            first.kill()
            found = self.go_on(sessions, unmoved)
            self.assertEqual(found, sum(each.found() for each in sessions))

    def test_a_node_that_is_killed_loses_what_was_on_its_way(self) -> None:
        found = could = 0
        for sessions, unmoved in zip(self.rounds, self.unmoved, strict=True):
            first = self.node()
            engine = self.begin(first, sessions)
            first.kill()
            engine.process.kill()
            for step in engine.told():  # what its clients have got, too
                take(sessions, step)
            found += self.go_on(sessions, unmoved)
            could += sum(each.found() for each in sessions)
        print(f"{SESSIONS} sessions, killed: {found} of {could} tokens found", flush=True)
        self.assertGreater(found, could / 2)


def take(sessions: list[Session], step: list[tuple[int, list[int]]]) -> None:
    for number, tokens in step:
        sessions[number].answer += tokens


if __name__ == "__main__":
    ctest.main()
