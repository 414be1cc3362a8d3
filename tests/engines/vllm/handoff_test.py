"""Prefill and decode apart: an engine computes a prompt, and another on the same kvd goes on with it.

The first tests have vLLM's scheduler without a model, which sees each byte; the last have real engines, which
are asked as a router asks them: with the parameters that routers pass for NIXL.
"""

from __future__ import annotations

import json
import random
import signal
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import ctest
from kvd_process import KvdProcess, poll_until
from model_free import TOKENS, Rig, write_config
from vllm_process import Bench, on_kvd

import kvd_client
from kvd_vllm import handoffs
from kvd_vllm.scheduler import KvdAsyncScheduler, KvdScheduler

# What a router sends a prefill engine.
PREFILL = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip
WINDOWS = ((0,), (0, 0), (64, 0), (64,))
PATIENT = {"step_budget_s": 2.0}  # the machine may be busy
SEED = 1


class WithoutAModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-handoff-"))
        cls.model = write_config(Path(folder))

    def setUp(self) -> None:
        print(f"seed {SEED}", flush=True)
        self.random = random.Random(SEED)
        self.kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=16))

    def rig(self, windows: tuple[int, ...] = (0,), **given: Any) -> Rig:
        is_async = given.pop("is_async", False)
        scheduler = KvdAsyncScheduler if is_async else KvdScheduler
        given["options"] = {**PATIENT, **given.get("options", {})}
        rig = Rig(self.kvd.endpoint, self.model, scheduler, SEED, blocks=80, windows=windows,
                  is_async=is_async, **given)  # fmt: skip
        self.addCleanup(rig.close)
        return rig

    def prompt(self, tokens: int) -> list[int]:
        return [self.random.randrange(3, 1900) for _ in range(tokens)]

    def prefill(self, rig: Rig, prompt: list[int], **more: Any) -> dict[str, Any] | None:
        name = rig.add(prompt, 1, kv_transfer_params={**PREFILL, **more})
        rig.run_dry()
        return rig.handed[name]

    def decode(self, rig: Rig, prompt: list[int], params: dict[str, Any] | None) -> int:
        """How many tokens of the prompt the engine computed."""
        name = rig.add(prompt, 10, kv_transfer_params=params)
        rig.run_dry(10**7)  # it may wait for something that does not come
        rig.check_answers()
        rig.check_blocks()
        return rig.scheduled[name] - 9

    def test_the_decode_engine_computes_one_token_of_a_prompt_of_any_length(self) -> None:
        for number, windows in enumerate(WINDOWS):
            prefill, decode = self.rig(windows), self.rig(windows, is_async=number % 2 == 1)
            for tokens in (2, TOKENS, TOKENS + 1, 100, 3 * TOKENS, 300):
                prompt = self.prompt(tokens)
                params = self.prefill(prefill, prompt)
                self.assertIsNotNone(params, f"{tokens} tokens, windows {windows}")
                self.assertEqual(self.decode(decode, prompt, params), 1, f"{tokens}, {windows}")
            self.assertEqual(prefill.counts["handed_requests"], 6)
            self.assertEqual(decode.counts["taken_requests"], 6)
            self.assertEqual(decode.counts.get("failed_blocks", 0), 0)

    def test_another_prompt_with_these_parameters_finds_nothing(self) -> None:
        """A router that mixes two up costs the time to compute, and no wrong token."""
        prefill, decode = self.rig(), self.rig(options={"load_timeout_s": 1.0})
        prompt = self.prompt(100)
        params = self.prefill(prefill, prompt)
        other = [*prompt[:-1], prompt[-1] % 1900 + 3]
        self.assertEqual(self.decode(decode, other, params), 100 - 96)
        self.assertEqual(self.decode(decode, prompt[:50] + self.prompt(50), params), 100 - TOKENS)

    def test_parameters_that_nobody_can_mean_are_passed_over(self) -> None:
        prefill, decode = self.rig(), self.rig()
        prompt = self.prompt(40)
        params = self.prefill(prefill, prompt)
        assert params is not None
        secret = params["kvd"]["secret"]
        wrong = [{"secret": given, "tokens": 40} for given in (7, "xy", None, "00", secret + "00")]
        wrong += [{"secret": given, "tokens": 40.0} for given in ("00", secret)]
        wrong += [{**params["kvd"], "tokens": given} for given in (39, "40", True, None)]
        for given in [*wrong, {}, 5, None]:
            decode.connector._planner._forgotten.tell(wait=True)
            computed = self.decode(decode, self.prompt(40), {**params, "kvd": given})
            self.assertEqual(computed, 40, given)
        self.assertEqual(decode.counts.get("taken_requests", 0), 0)

    def test_no_more_is_kept_than_there_are_deadlines_for(self) -> None:
        self.enterContext(mock.patch.object(handoffs, "_MOST_KEPT", 2))
        prefill, decode = self.rig(), self.rig()
        prompts = [self.prompt(50) for _ in range(3)]
        given = [self.prefill(prefill, prompt) for prompt in prompts]
        self.assertEqual([params is None for params in given], [False, False, True])
        self.assertEqual(prefill.counts["handed_requests"], 2)
        computed = [self.decode(decode, *each) for each in zip(prompts, given, strict=True)]
        self.assertEqual(computed, [1, 1, 50 - TOKENS])

    def test_what_nobody_takes_is_kept_until_its_deadline(self) -> None:
        prefill, decode = self.rig(options={"handoff_s": 0.3}), self.rig()
        prompt = self.prompt(50)
        params = self.prefill(prefill, prompt)
        names = [names for _, names in prefill.connector._planner.deadlines._kept]
        self.assertEqual([len(each) for each in names], [1])
        link = decode.connector._link
        decode.run_dry()
        decode.add([5, 6], 2)
        decode.run_dry()  # it has opened its cache
        assert link is not None
        self.assertTrue(poll_until(lambda: link.lookup(names[0]) == 0), "it is kept for ever")
        self.assertEqual(self.decode(decode, prompt, params), 50 - TOKENS)

    def test_what_was_taken_is_let_go(self) -> None:
        prefill, decode = self.rig(), self.rig()
        prompt = self.prompt(50)
        params = self.prefill(prefill, prompt)
        ((_, names),) = prefill.connector._planner.deadlines._kept
        self.assertEqual(self.decode(decode, prompt, params), 1)
        link = decode.connector._link
        assert link is not None
        self.assertEqual(link.lookup(names), 0)

    def test_a_kvd_that_dies_in_between_costs_the_prompt(self) -> None:
        prefill, decode = self.rig(), self.rig()
        prompt = self.prompt(100)
        params = self.prefill(prefill, prompt)
        self.assertIsNotNone(params)
        self.kvd.kill()
        self.assertEqual(self.decode(decode, prompt, params), 100)

    def test_one_thread_looks_for_kvd_whoever_lost_it(self) -> None:
        """The scheduler's thread asks kvd, and so does the one that drops what nobody took."""
        rig = self.rig()
        rig.add(self.prompt(50), 2)
        rig.run_dry()  # it has opened its cache
        link = rig.connector._link
        assert link is not None
        self.kvd.kill()
        together = threading.Barrier(2)

        def ask(*_: Any, **__: Any) -> None:
            together.wait(30)
            raise kvd_client.PeerGone("kvd is gone")

        with mock.patch.object(type(link._caches[0]), "drop", ask):
            asking = [threading.Thread(target=link.drop, args=([bytes(32)],)) for _ in range(2)]
            for each in asking:
                each.start()
            for each in asking:
                each.join(60)
        finders = [each for each in threading.enumerate() if each.name == "kvd-finder"]
        self.assertEqual(len(finders), 1)
        self.kvd.start()
        self.assertTrue(poll_until(lambda: link.lookup([bytes(32)]) == 0), "it was not found again")
        finders[0].join(60)
        self.assertFalse(finders[0].is_alive())
        self.kvd.kill()
        self.assertIsNone(link.lookup([bytes(32)]))
        self.kvd.start()
        self.assertTrue(poll_until(lambda: link.lookup([bytes(32)]) == 0), "it was lost for good")

    def test_only_prompts_that_another_engine_goes_on_with_are_kept(self) -> None:
        rig = self.rig()
        name = rig.add(self.prompt(50), 1)
        rig.run_dry()
        self.assertIsNone(rig.handed[name])
        self.assertIsNone(self.prefill(rig, self.prompt(50), do_remote_decode="yes"))
        self.assertEqual(rig.counts.get("handed_requests", 0), 0)


class RealEngines(unittest.TestCase):
    def start(self, name: str, kvd: KvdProcess | None) -> Any:
        log = bench.folder / f"{name}.log"
        log.write_text("")
        options = {"enable_prefix_caching": True, **(on_kvd(PATIENT) if kvd is not None else {})}
        endpoint = kvd.endpoint if kvd is not None else None
        process = bench.start("handoff_engine.py", [str(bench.model), json.dumps(options)], log, endpoint)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def ask(self, process: Any, prompt: list[int], answer: int, params: Any = None) -> dict[str, Any]:
        line = json.dumps({"prompt": prompt, "answer": answer, "params": params})
        process.stdin.write(line + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith('{"tokens"'):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"{process} ended")

    def test_answer_as_one_engine_does(self) -> None:
        print(f"seed {SEED}", flush=True)
        source = random.Random(SEED)
        kvd = self.enterContext(KvdProcess(slabs=32, dram_slabs=32))
        stock, prefill = self.start("stock", None), self.start("prefill", kvd)
        decode = self.start("decode", kvd)
        for tokens in (40, 64, 200, 333):
            prompt = [source.randrange(3, 2048) for _ in range(tokens)]
            expected = self.ask(stock, prompt, 24)
            first = self.ask(prefill, prompt, 1, PREFILL)
            self.assertEqual(first["tokens"], expected["tokens"][:1])
            found = self.ask(decode, prompt, 24, first["params"])
            self.assertEqual(found["tokens"], expected["tokens"], f"{tokens} tokens")
            self.assertEqual(found["computed"], 24)

        prompts = [[source.randrange(3, 2048) for _ in range(200)] for _ in range(2)]
        expected = [self.ask(stock, prompt, 24)["tokens"] for prompt in prompts]
        firsts = [self.ask(prefill, prompt, 1, PREFILL) for prompt in prompts]
        prefill.send_signal(signal.SIGKILL)
        prefill.wait(60)
        found = self.ask(decode, prompts[0], 24, firsts[0]["params"])
        self.assertEqual(found["tokens"], expected[0])
        kvd.kill()
        found = self.ask(decode, prompts[1], 24, firsts[1]["params"])
        self.assertEqual(found["tokens"], expected[1])


def setUpModule() -> None:
    global bench
    bench = Bench()
    unittest.addModuleCleanup(bench.close)


if __name__ == "__main__":
    ctest.main()
