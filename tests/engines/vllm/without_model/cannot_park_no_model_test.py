"""vLLM's scheduler with KvdConnector on a real kvd, without a model, where requests cannot be parked, or
what is parked is to be forgotten: nothing is computed that vLLM alone would not compute.
"""

from __future__ import annotations

import os
import random
import tempfile
import unittest
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctest
from kvd_process import KvdProcess
from model_free import Rig, write_config
from no_model_test import (
    PARK_ONLY, SEEDS, WINDOWS, RandomAsyncScheduler, RandomScheduler, Whims, some_heads,
)  # fmt: skip
from vllm.v1.core.sched.scheduler import Scheduler

import kvd_client
from kvd_vllm import layout
from kvd_vllm.scheduler import KvdScheduler
from kvd_vllm.transfers import Opened

POLICIES = ("unified", "lvf")
# With these goals, and steps of a millisecond, some request is always about to be late.
HURRIED = {"kvd_ttft_s": 0.01, "kvd_tbt_s": 0.004}


class CannotPark(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-no-model-"))
        cls.model = write_config(Path(folder))

    def kvd(self, policy: str = "unified", **given: Any) -> KvdProcess:
        return self.enterContext(
            KvdProcess(slabs=16, dram_slabs=16, extra=f'[rotation]\npolicy = "{policy}"\n', **given)
        )

    def rig(self, kvd: KvdProcess, scheduler: Any, seed: int = SEEDS[0], **given: Any) -> Rig:
        print(f"seed {seed}", flush=True)
        Whims.kvd_random = random.Random(seed)
        rig = Rig(kvd.endpoint, self.model, scheduler, seed, **given)
        self.addCleanup(rig.close)
        return rig

    def play(self, rig: Rig, **asked: Any) -> int:
        """Room for four, and 24 that come at once. Returns the tokens that were scheduled."""
        pick = random.Random(1)
        for _ in range(24):
            prompt = [pick.randrange(3, 1900) for _ in range(pick.randrange(30, 120))]
            rig.add(prompt, pick.randrange(60, 160), **HURRIED, **asked)
        rig.run_dry()
        rig.check_answers()
        rig.check_blocks()
        return sum(rig.scheduled.values())

    def compare(
        self, change: Callable[[Rig], None] = lambda rig: None, options: dict[str, Any] | None = None,
        **asked: Any,
    ) -> None:  # fmt: skip
        """Whatever kvd's policy, no more is computed, and no request preempted more often, than by vLLM alone."""
        given = {"blocks": 24, "options": options or PARK_ONLY}
        stock = self.rig(self.kvd(), Scheduler, **given)
        most = self.play(stock, **asked)
        self.assertGreater(stock.preemptions, 0)
        for policy in POLICIES:
            rig = self.rig(self.kvd(policy), KvdScheduler, **given)
            change(rig)
            self.assertLessEqual(self.play(rig, **asked), most, policy)
            self.assertLessEqual(rig.preemptions, stock.preemptions, policy)
            self.assertEqual(rig.counts.get("parked_requests", 0), 0, policy)
            self.assertEqual(rig.counts.get("stock_steps", 0), 0, "kvd did not decide")

    def test_requests_of_which_each_prompt_token_is_wanted(self) -> None:
        """vLLM takes nothing from a connector for them."""
        self.compare(prompt_logprobs=1)

    def test_with_parking_off(self) -> None:
        self.compare(options={"prefixes": False, "parking": False})

    def test_models_and_engines_whose_blocks_are_not_copied(self) -> None:
        several = unittest.mock.patch("kvd_vllm.connector.refusal", lambda *_: "several workers")
        with several:
            self.compare()

    def test_a_cache_whose_copies_fail(self) -> None:
        """After a failure one trial is made, and no more until another copy has ended well."""

        def fail(rig: Rig) -> None:
            planner = rig.connector._planner
            assert planner is not None
            planner.copies._pause_s, planner._prefixes = 2.0, True  # a copy has failed, and is not tried anew
            rig.worker._copier._cache.store = unittest.mock.Mock(side_effect=kvd_client.OutOfMemory("full"))

        self.compare(fail)

    def test_control_those_who_can_be_parked_are(self) -> None:
        for policy in POLICIES:
            rig = self.rig(self.kvd(policy), KvdScheduler, blocks=24, options=PARK_ONLY)
            self.play(rig)
            self.assertGreater(rig.counts["parked_requests"], 0, policy)
            self.assertEqual(rig.computed_twice(), {}, policy)

    def test_all_is_forgotten_in_the_midst_of_everything(self) -> None:
        """Copies are under way, requests load and are parked: running requests are reset each time."""
        kvd = self.kvd(bandwidth="1MiB/s")
        open_copies = loads = 0
        for scheduler, is_async in ((RandomScheduler, False), (RandomAsyncScheduler, True)):
            for windows in WINDOWS:
                rig = self.rig(kvd, scheduler, blocks=30 * len(windows), windows=windows,
                               is_async=is_async, engine={"enable_prefix_caching": True})  # fmt: skip
                pick, heads = random.Random(SEEDS[0]), some_heads(rig.random)
                for _ in range(400):
                    self.step_under_load(rig, heads)
                    planner = rig.connector._planner
                    assert planner is not None
                    if pick.random() < 0.05:
                        open_copies += len(planner.copies._open)
                        loads += len(rig.scheduler.kv_holding_waiting)
                        self.assertTrue(rig.scheduler.reset_prefix_cache(True, pick.random() < 0.5))
                        self.assertEqual(rig.scheduler.running, [])
                        self.assertFalse([each for each in planner._requests.values() if each.park])
                rig.run_dry()
                rig.check_answers()
                rig.check_blocks()
        self.assertGreater(open_copies, 0)
        self.assertGreater(loads, 0)

    def step_under_load(self, rig: Rig, heads: list[list[int]]) -> None:
        pick = rig.random
        if pick.random() < 0.3 and len(rig.unfinished) < 24:
            head = pick.choice(heads)[: pick.randrange(160)]
            tail = [pick.randrange(3, 1900) for _ in range(pick.randrange(1, 200))]
            rig.add(head + tail, pick.randrange(2, 60))
        rig.step()

    def test_what_is_reset_together_with_the_connector_is_not_loaded(self) -> None:
        """The weights may be others: what a load brings is of those before."""
        rig = self.rig(self.kvd(bandwidth="256KiB/s"), KvdScheduler)
        prompt = [rig.random.randrange(3, 1900) for _ in range(250)]
        rig.add(prompt, 10)
        rig.run_dry()
        name = rig.add(prompt, 10)
        rig.step()
        self.assertEqual(len(rig.scheduler.kv_holding_waiting), 1, "it does not load")
        self.assertTrue(rig.scheduler.reset_prefix_cache(True, True))
        rig.run_dry()
        self.assertEqual(rig.scheduled[name], len(rig.truth[name]) - 1)
        rig.check_blocks()

    def test_a_model_without_a_kv_cache(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, windows=())
        for _ in range(20):
            rig.add([5, 6, 7], 4)
        rig.run_dry()
        rig.check_answers()

    def test_a_pipeline_of_workers_begins(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, options=PARK_ONLY)
        opened = {(stage, 0): Opened(None, False) for stage in range(2)}
        rig.connector.set_xfer_handshake_metadata_pp_aware(opened)
        self.assertFalse(rig.connector.can_park, "one of them copies nothing")

    def test_where_vllm_cannot_compute_behind_a_prefix_nothing_is_copied(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler)
        cache, config = rig.scheduler.kv_cache_config, rig.scheduler.vllm_config
        refused = lambda: layout.refusal(config, cache)  # noqa: E731
        self.assertFalse(config.cache_config.enable_prefix_caching)
        self.assertEqual(refused(), "", "as the operator wants it: it still can")
        with unittest.mock.patch.object(config.scheduler_config, "enable_chunked_prefill", False):
            self.assertIn("cannot compute behind a prefix", refused())
            config.cache_config.enable_prefix_caching = True
            self.assertEqual(refused(), "")
            config.cache_config.enable_prefix_caching = False
        with unittest.mock.patch.dict(os.environ, VLLM_BATCH_INVARIANT="1"):
            self.assertIn("VLLM_BATCH_INVARIANT", refused())
        unsupported = unittest.mock.PropertyMock(return_value=False)
        with unittest.mock.patch.object(
            type(config.model_config), "is_prefix_caching_supported", unsupported
        ):
            self.assertIn("for this model", refused())


if __name__ == "__main__":
    ctest.main()
