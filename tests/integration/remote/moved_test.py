"""Sessions that move: answers begin on one node, the node ends, and another one goes on with them. Each node is a
kvd and a kvd-engine, and both share a Redis. KVDTEST_SESSIONS says how many sessions move at a time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import unittest
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ctest
from kvd_client import Client
from kvd_process import PATIENCE_S, KvdProcess, free_port, poll_until
from redis_process import FOLDER, MISSING, RedisProcess

BIN = os.environ["KVDTEST_BIN_DIR"]
SESSIONS = int(os.environ.get("KVDTEST_SESSIONS", "24"))
BLOCK, ANSWER = 16, 160
MODEL = "layers=4,hidden=64,heads=4,kv_heads=4,vocab=2048,context=1024"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Engine:
    """A kvd-engine. A context manager."""

    def __init__(self, *words: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.process = subprocess.Popen(
            [f"{BIN}/kvd-engine", "--random", MODEL, "--port", str(port), "--max-requests", "128",
             "--threads", "1", *words], stdout=subprocess.DEVNULL)  # fmt: skip
        if not poll_until(self._answers):
            self.process.kill()
            raise RuntimeError("kvd-engine did not start")

    def _answers(self) -> bool:
        try:
            return bool(OPENER.open(f"{self.url}/health", timeout=PATIENCE_S).status == 200)
        except OSError:
            return False

    def ask(self, prompt: list[int], tokens: int) -> Iterator[dict[str, Any]]:
        """What its stream says, up to its end, which may come early."""
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        call = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(),
                                      {"Content-Type": "application/json"})  # fmt: skip
        try:
            with OPENER.open(call, timeout=PATIENCE_S) as stream:
                for line in stream:
                    if line.startswith(b"data: {"):
                        yield json.loads(line[len(b"data: ") :])
        except OSError:
            return

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


class Session:
    """A prompt, and its answer as far as it has come."""

    def __init__(self, prompt: list[int], wanted: int) -> None:
        self.prompt, self.wanted = prompt, wanted
        self.answer: list[int] = []
        self.found = 0  # tokens of the prompt and the answer so far that the last engine had not to compute
        self.has_begun = threading.Event()

    def run(self, engine: Engine) -> None:
        for said in engine.ask(self.prompt + self.answer, ANSWER - len(self.answer)):
            for choice in said.get("choices", []):
                self.answer += choice.get("token_ids", [])
            if said.get("usage"):
                self.found = said["usage"]["prompt_tokens_details"]["cached_tokens"]
            if len(self.answer) >= self.wanted:
                self.has_begun.set()


def run_all(sessions: list[Session], engine: Engine) -> list[threading.Thread]:
    threads = [threading.Thread(target=session.run, args=(engine,)) for session in sessions]
    for thread in threads:
        thread.start()
    return threads


class Moved(unittest.TestCase):
    def setUp(self) -> None:
        if not FOLDER:
            self.skipTest(MISSING)
        self.redis = self.enterContext(RedisProcess())
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-moved-")))
        secret = self.folder / "secret"
        secret.write_text("s" * 64)
        secret.chmod(0o600)
        self.settings = f'[remote]\nservers = "{self.redis.address}"\nsecret_file = "{secret}"\n'

    def node(self, settings: str = "") -> tuple[KvdProcess, Engine]:
        extra = f'{self.settings}{settings}\n[load]\npolicy = "always"\n'
        kvd = self.enterContext(KvdProcess(slabs=32, dram_slabs=64, extra=extra))
        reaches = poll_until(lambda: kvd.get("/v1/remote")["servers"][0]["on"])
        self.assertTrue(reaches, kvd.get("/v1/remote"))
        engine = Engine("--endpoint", kvd.endpoint, "--block-tokens", str(BLOCK), "--iteration-ms", "20")
        return kvd, self.enterContext(engine)

    def sessions(self) -> list[Session]:
        source = random.Random(11)
        return [
            Session([source.randrange(3, 2048) for _ in range(source.randrange(20, 90))], source.randrange(1, 40))
            for _ in range(SESSIONS)
        ]

    def begun(self, engine: Engine) -> tuple[list[Session], list[threading.Thread]]:
        """Sessions in the middle of their answers."""
        sessions = self.sessions()
        threads = run_all(sessions, engine)
        for session in sessions:
            self.assertTrue(session.has_begun.wait(PATIENCE_S), "it has no answer yet")
        return sessions, threads

    def go_on(self, sessions: list[Session], threads: list[threading.Thread]) -> tuple[int, int]:
        """The answers end on another node. Returns how many tokens it could find, and how many it found."""
        for thread in threads:
            thread.join(PATIENCE_S)
        for session in sessions:
            self.assertLess(len(session.answer), ANSWER, "it had ended before its node did")
        could = [(len(s.prompt) + len(s.answer) - 1) // BLOCK * BLOCK for s in sessions]
        _, other = self.node()
        for thread in run_all(sessions, other):
            thread.join(PATIENCE_S)
        whole = self.sessions()
        with Engine("--no-kvd") as alone:
            for thread in run_all(whole, alone):
                thread.join(PATIENCE_S)
        for session, expected in zip(sessions, whole, strict=True):
            self.assertEqual(len(expected.answer), ANSWER)
            self.assertEqual(session.answer, expected.answer)
        return sum(could), sum(s.found for s in sessions)

    def drain(self, kvd: KvdProcess, *words: str, code: int = 0) -> str:
        token = self.folder / "token"
        token.write_text(kvd.token)
        done = subprocess.run(
            [f"{BIN}/kvdctl", "--url", f"http://127.0.0.1:{kvd.port}", "--token-file", token, "drain", *words],
            capture_output=True, text=True, timeout=PATIENCE_S)  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_a_drain_writes_what_sessions_have_and_another_node_computes_less_than_a_block_of_each(self) -> None:
        kvd, engine = self.node()
        sessions, threads = self.begun(engine)
        said = self.drain(kvd, "node", "--to-remote", "--deadline", "0", "--wait")
        self.assertIn(" 0 left, 0 lost", said)
        could, found = self.go_on(sessions, threads)
        self.assertEqual(found, could)

    def test_kvd_that_is_told_to_end_writes_first(self) -> None:
        kvd, engine = self.node('[drain]\nto_remote = "60s"')
        sessions, threads = self.begun(engine)
        kvd.process.send_signal(signal.SIGTERM)
        self.assertEqual(kvd.process.wait(PATIENCE_S), 0)
        engine.process.kill()
        could, found = self.go_on(sessions, threads)
        self.assertEqual(found, could)

    def test_a_node_that_is_killed_loses_what_was_on_its_way(self) -> None:
        kvd, engine = self.node('write = "all"\nbudget = "unlimited"')
        sessions, threads = self.begun(engine)
        kvd.kill()
        engine.process.kill()
        could, found = self.go_on(sessions, threads)
        print(f"{len(sessions)} sessions, killed: {found} of {could} tokens found", flush=True)
        self.assertGreater(found, could / 2)

    def test_a_drain_says_what_it_could_not_write(self) -> None:
        kvd, engine = self.node()
        _, threads = self.begun(engine)
        self.redis.__exit__()
        said = self.drain(kvd, "node", "--to-remote", "--deadline", "0", "--wait", code=1)
        self.assertRegex(said, r" 0 blocks stored, 0 left, [1-9]\d* lost")
        self.assertIn("kvdctl remote", said)
        for thread in threads:
            thread.join(PATIENCE_S)

    def test_a_cancelled_drain_writes_by_the_rule_again(self) -> None:
        kvd, engine = self.node()
        self.drain(kvd, "node", "--to-remote", "--wait")
        self.drain(kvd, "node", "--cancel")
        for thread in run_all(self.sessions()[:4], engine):
            thread.join(PATIENCE_S)
        self.assertEqual(self.redis.keys(), [])

    def test_the_doctor_says_why_a_node_finds_nothing_of_another(self) -> None:
        def opened(settings: str, model: str = "tiny, weights 1") -> KvdProcess:
            kvd = self.enterContext(KvdProcess(extra=settings))
            client = self.enterContext(Client(kvd.endpoint, engine_name="python"))
            self.enterContext(client.cache(model, block_tokens=16, block_bytes=4096))
            return kvd

        here = opened(self.settings)
        other_secret = self.folder / "other"
        other_secret.write_text("t" * 64)
        other_secret.chmod(0o600)
        for there, said in {
            opened(self.settings): "both nodes find each other's blocks",
            opened(self.settings.replace("secret\"", "other\"")): "the secrets differ",
            opened(""): "has no remote servers",
            opened(self.settings, "tiny, weights 2"): 'on the other node: "tiny, weights 2"',
        }.items():
            file = self.folder / "there.json"
            self.assertTrue(poll_until(lambda there=there: len(there.get("/v1/cache")["open"]) == 1))
            file.write_text(json.dumps(there.get("/v1/cache")))
            run = [f"{BIN}/kvdctl", "--url", f"http://127.0.0.1:{here.port}", "doctor", "--beside", file]
            asked = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertIn(said, asked.stdout, asked.stderr)

    def test_what_cannot_be_is_refused(self) -> None:
        kvd, _ = self.node()
        self.assertIn("drain node", self.drain(kvd, "1", "--to-remote", code=2))
        lonely = self.enterContext(KvdProcess())
        self.assertIn("remote.servers", self.drain(lonely, "node", "--to-remote", code=1))


if __name__ == "__main__":
    ctest.main()
