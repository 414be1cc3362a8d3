"""Real vLLM processes whose requests cannot be parked, or which have nothing to store: no more is computed
than by vLLM alone, and every answer is vLLM's own.
"""

from __future__ import annotations

import random
import unittest
from typing import Any

import ctest
import other_models
from kvd_process import KvdProcess
from vllm_process import Bench, on_kvd

ROOM = {"num_gpu_blocks_override": 16, "max_model_len": 480, "max_num_seqs": 8}
HURRIED = {"kvd_ttft_s": 0.3, "kvd_tbt_s": 0.02}
KVD = {"scheduler_cls": "kvd_vllm.KvdScheduler"}
POLICIES = ("unified", "lvf")
PATIENT = {"step_budget_s": 2.0}  # the machine may be busy


def setUpModule() -> None:
    global bench
    bench = Bench()
    unittest.addModuleCleanup(bench.close)


class CannotPark(unittest.TestCase):
    def kvd(self, policy: str = "unified") -> KvdProcess:
        extra = f'[rotation]\npolicy = "{policy}"\n'
        return self.enterContext(KvdProcess(slabs=16, dram_slabs=32, extra=extra))

    def rounds(self, **options: Any) -> list[dict[str, Any]]:
        """Runs vLLM alone, then kvd with each policy."""
        kvds = [self.kvd(policy).endpoint for policy in POLICIES]
        given = [{**PATIENT, "endpoint": endpoint, **options} for endpoint in kvds]
        return [{}, *({"engine": {**on_kvd(each), **KVD}} for each in given)]

    def expect_no_more_than_stock(self, found: list[dict[str, Any]]) -> None:
        stock, *others = found
        self.assertGreater(stock["scheduled"], stock["needed"], "it had room for all")
        for policy, each in zip(POLICIES, others, strict=True):
            self.assertEqual(each["tokens"], stock["tokens"], policy)
            self.assertLessEqual(each["scheduled"], stock["scheduled"], policy)

    def test_with_prompt_logprobs_and_with_parking_off(self) -> None:
        logprobs = [{**each, "prompt_logprobs": 1} for each in self.rounds(prefixes=False)]
        off = self.rounds(prefixes=False, parking=False)
        with bench.engine("apart", engine=ROOM, arguments=HURRIED, each=logprobs + off) as engine:
            found = engine.answers()
        self.expect_no_more_than_stock(found[:3])
        self.expect_no_more_than_stock(found[3:])

    def test_a_model_that_cannot_compute_behind_a_prefix(self) -> None:
        """MLA on a CPU, asked the same twice: the second time all would be found in kvd."""
        model = bench.folder / "latent"
        other_models.write_latent(model)
        pick = random.Random(1)
        asked = [[pick.randrange(3, 2048) for _ in range(200)] for _ in range(4)]
        given = {"prompts": asked, "answer": 40, "model": model, "engine": {"max_model_len": 480}}
        on = {"engine": {**on_kvd({**PATIENT, "endpoint": self.kvd().endpoint}), **KVD}}
        with bench.engine("latent", **given, each=[{}, on, {"same": True}]) as engine:
            stock, *others = engine.answers()
        for found in others:
            self.assertEqual(found["tokens"], stock["tokens"])
        self.assertIn("cannot compute behind a prefix", engine.log)

    def test_a_model_without_a_kv_cache(self) -> None:
        model = bench.folder / "encoder"
        other_models.write_encoder(model)
        pick = random.Random(1)
        asked = [[pick.randrange(3, 2048) for _ in range(50)] for _ in range(4)]
        engine = {"runner": "pooling", "load_format": "dummy", "max_model_len": 480,
                  "skip_tokenizer_init": False}  # fmt: skip
        on = {"engine": {**on_kvd({**PATIENT, "endpoint": self.kvd().endpoint}), **KVD}}
        with bench.engine("encoder", model=model, prompts=asked, embed=True, engine=engine,
                          each=[{}, on]) as running:  # fmt: skip
            stock, found = running.answers()
        self.assertEqual(found, stock)


if __name__ == "__main__":
    ctest.main()
