"""vLLM's scheduler with KvdConnector on a real kvd, thousands of random steps, without a model: no
token is computed twice, no block leaks, none is handed out while kvd copies it, every answer is right.

KVD_SEED plays one seed, KVD_STEPS says how many steps there are in all. With KVDTEST_DEVICE=cuda the KV
cache and kvd's pool are on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import random
import signal
import tempfile
import types
import unittest
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ctest
from kvd_process import DEVICE, KvdProcess, poll_until
from model_free import LAYERS, PAGE, TOKENS, Rig, WrongBytes, write_config

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole, KVConnectorTransferResults,
)  # fmt: skip
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

import kvd_client
from kvd_vllm import planning
from kvd_vllm.connector import KvdConnector
from kvd_vllm.doors.connector import absent
from kvd_vllm.naming import Names
from kvd_vllm.copies import Copies, NotYet
from kvd_vllm.planning import Planner
from kvd_vllm.scheduler import KvdAsyncScheduler, KvdScheduler
from kvd_vllm.transfers import Ends, Transfers

# Taken out: kvd refuses variables that it does not know.
STEPS = int(os.environ.pop("KVD_STEPS", "4000"))
SEEDS = [int(each) for each in os.environ.pop("KVD_SEED", "1 2 3 4 5").split()]
PARK_ONLY = {"prefixes": False}
BLOCK, PART = LAYERS * PAGE, 64  # bytes of a block; blocks of another engine's copy
SLOT = 4096  # what a block takes in kvd
# The sets of windows of KV cache groups: one looks back at all tokens and one at 64, as in most models
# that have windows; several of both kinds; windows alone; none.
WINDOWS = ((64, 0), (64, 0, 100, 0), (64,), (0, 0))


class Whims:
    """Random decisions instead of kvd's. They must never lead to wrong answers either."""

    kvd_random = random.Random()
    kvd_share = 0.3  # share of steps in which a request is preempted

    def kvd_ask(self) -> kvd_client.Decision | None:
        here: Any = self
        here.kvd_describe()
        pick = self.kvd_random
        victims = [here.kvd_number_of(each) for each in here.running if pick.random() < 0.5]
        victims = victims[:2] if pick.random() < self.kvd_share else []
        admit = [here.kvd_number_of(each) for each in here.waiting if pick.random() < 0.6]
        pick.shuffle(admit)
        return kvd_client.Decision(victims, admit, pick.choice([None, None, 16, 64]))

    def kvd_has_a_say(self) -> bool:
        return True


class RandomScheduler(Whims, KvdScheduler):
    pass


class RandomAsyncScheduler(Whims, KvdAsyncScheduler):
    pass


def some_heads(pick: random.Random) -> list[list[int]]:
    """What prompts may begin with."""
    return [[pick.randrange(3, 1900) for _ in range(160)] for _ in range(3)]


def make_connector(self: Any, cache: Any) -> MultiConnector:
    """Replaces the connector's metadata as vLLM's scheduler, `self`, makes it."""
    return MultiConnector(self.vllm_config, KVConnectorRole.SCHEDULER, cache)


class NoModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-no-model-"))
        cls.model = write_config(Path(folder))

    def kvd(self, bandwidth: str = "unlimited") -> KvdProcess:
        return self.enterContext(KvdProcess(slabs=16, dram_slabs=16, bandwidth=bandwidth))

    def rig(self, kvd: KvdProcess, scheduler: Any, seed: int, **given: Any) -> Rig:
        print(f"seed {seed}", flush=True)
        Whims.kvd_random = random.Random(seed)
        rig = Rig(kvd.endpoint, self.model, scheduler, seed, **given)
        self.addCleanup(rig.close)
        return rig

    def play(
        self,
        rig: Rig,
        steps: int,
        shared: bool = False,
        events: dict[int, Callable[[], None]] | None = None,
    ) -> None:
        """Plays random load for a number of steps, with events at some of them, and then on to the end of all
        requests."""
        heads = some_heads(rig.random) if shared else [[]]
        while rig.steps < steps:
            (events or {}).get(rig.steps, lambda: None)()
            self.step_under_load(rig, heads)
        rig.run_dry()
        rig.check_answers()
        rig.check_blocks()
        self.assertGreater(rig.preemptions, 0)

    def step_under_load(self, rig: Rig, heads: list[list[int]]) -> None:
        pick = rig.random
        if pick.random() < 0.2 and len(rig.unfinished) < 24:
            head = pick.choice(heads)[: pick.randrange(160)]
            tail = [pick.randrange(3, 1900) for _ in range(pick.randrange(1, 200))]
            rig.add(head + tail, pick.randrange(2, 60))
        if rig.unfinished and pick.random() < 0.01:
            rig.abort(pick.choice(sorted(rig.unfinished)))
        rig.step()

    def test_a_connector_that_is_off_is_made_as_any_other(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], options={"required": False})
        made = absent("it is made up")(
            vllm_config=rig.worker._vllm_config, role=KVConnectorRole.WORKER,
            kv_cache_config=rig.worker._cache_config,
        )  # fmt: skip
        self.assertEqual(made.get_num_new_matched_tokens(None, 0), (0, False))

    def test_random_rotation_computes_nothing_twice(self) -> None:
        kvd = self.kvd()
        for seed in SEEDS:
            rig = self.rig(kvd, RandomScheduler, seed, options=PARK_ONLY)
            self.play(rig, STEPS // len(SEEDS))
            self.assertEqual(rig.computed_twice(), {})

    def test_with_async_scheduling_too(self) -> None:
        kvd = self.kvd()
        for seed in SEEDS:
            rig = self.rig(kvd, RandomAsyncScheduler, seed, is_async=True, options=PARK_ONLY)
            self.play(rig, STEPS // len(SEEDS))
            self.assertEqual(rig.computed_twice(), {})

    def test_copies_that_take_many_steps_change_nothing(self) -> None:
        kvd = self.kvd(bandwidth="1MiB/s")
        rig = self.rig(kvd, RandomScheduler, SEEDS[0], options=PARK_ONLY)
        self.play(rig, STEPS // 10)
        self.assertEqual(rig.computed_twice(), {})

    def test_with_prefixes_of_kvd_and_of_vllm(self) -> None:
        kvd = self.kvd()
        for seed in SEEDS:
            engine = {"enable_prefix_caching": seed % 2 == 0}
            rig = self.rig(kvd, RandomScheduler, seed, engine=engine)
            self.play(rig, STEPS // len(SEEDS), shared=True)
            self.assertEqual(rig.computed_twice(), {})
            needed = sum(len(rig.truth[n]) - 1 for n in rig.truth if n not in rig.aborted)
            scheduled = sum(rig.scheduled[n] for n in rig.truth if n not in rig.aborted)
            self.assertLess(scheduled, needed, "no prefix was ever found")

    def test_kvd_decides(self) -> None:
        """The same with kvd's own decisions."""
        kvd = self.kvd()
        for seed in SEEDS:
            rig = self.rig(kvd, KvdScheduler, seed, blocks=24, options=PARK_ONLY)
            self.play(rig, STEPS // len(SEEDS) // 2)
            self.assertEqual(rig.computed_twice(), {})
            self.assertEqual(rig.counts.get("stock_steps", 0), 0)

    def test_kvd_hears_the_longest_gap_of_a_request_from_every_kvd(self) -> None:
        kvd = self.kvd()
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=16, options=PARK_ONLY)

        def gaps() -> list[float]:
            return sorted(each["gap_goal_s"] for each in kvd.get("/v1/requests")["requests"])

        for extra in ({"kvd_gap_s": 0.25}, {"kvd_gap_s": -1}, {}):
            rig.add([rig.random.randrange(3, 1900) for _ in range(200)], 400, **extra)
        self.assertTrue(poll_until(lambda: rig.step() or gaps() == [0.25, 1.0, 1.0]), gaps())
        kvd.kill()
        rig.step()
        kvd.start()
        for _ in range(2):  # a request waits, so there is something to ask
            rig.add([rig.random.randrange(3, 1900) for _ in range(200)], 400)
        self.assertTrue(poll_until(lambda: rig.step() or gaps()[:2] == [0.25, 1.0]), gaps())

    def test_where_nothing_happens_every_other_step_is_asked_about(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], blocks=16, options=PARK_ONLY)
        patient = {"kvd_ttft_s": 600.0, "kvd_tbt_s": 60.0}  # nobody is late on a busy machine
        asked: list[int] = []
        ask = rig.scheduler.kvd_ask
        rig.scheduler.kvd_ask = lambda: asked.append(rig.steps) or ask()
        for _ in range(4):
            rig.add([rig.random.randrange(3, 1900) for _ in range(130)], 60, **patient)  # room for two
        for _ in range(10):
            rig.step()
        self.assertGreater(len(rig.scheduler.waiting), 0)
        asked.clear()
        for _ in range(20):
            rig.step()
        self.assertEqual(len(asked), 10)
        if asked[-1] != rig.steps:  # the next one would be asked about anyway
            rig.step()
        rig.add([5, 6, 7], 4)
        rig.step()
        self.assertEqual(asked[-1], rig.steps, "somebody came")
        rig.run_dry()
        rig.check_answers()

    def test_what_is_forgotten_is_told_together(self) -> None:
        rig = self.rig(self.kvd(), RandomScheduler, SEEDS[0], options=PARK_ONLY)
        planner, link = rig.connector._planner, rig.connector._link
        assert planner is not None and link is not None
        planner._forgotten._clock = lambda: 1.0
        told: list[int] = []
        drop = link.drop
        link.drop = lambda digests, wait: told.append(len(digests)) or drop(digests, wait)
        self.play(rig, 400)
        self.assertGreater(sum(told), 100)
        less_than_half_a_cache = [each for each in told if 2 * each < rig.blocks]
        self.assertLess(len(less_than_half_a_cache), 20)
        self.assertEqual(planner._forgotten._names, [])
        self.assertEqual(rig.computed_twice(), {})

    def test_what_an_agent_comes_back_for_is_retained(self) -> None:
        """Gives goals through the API's vllm_xargs, or through an orchestrator's hint."""
        kvd = self.kvd()
        retained = lambda: kvd.get("/v1/cache")["retained"]["bytes"]  # noqa: E731
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        prompt = [rig.random.randrange(3, 1900) for _ in range(200)]
        hint = types.SimpleNamespace(action_type="retain", payload={"ttl_s": 60})
        other = types.SimpleNamespace(action_type="share", payload={"with": "all"})
        for at, (said, hints) in enumerate(
            (({"kvd_retain_s": 60}, None), ({}, [other, hint]), ({"kvd_retain_s": 60}, [hint]))
        ):
            before = retained()
            name = rig.add([at + 3, *prompt], 10, **said)
            rig.scheduler.requests[name].kv_hints = hints and types.SimpleNamespace(actions=hints)
            rig.run_dry()
            self.assertTrue(poll_until(lambda: rig.counts.get("retained_blocks", 0) == 6 * (at + 1)), rig.counts)  # noqa: B023
            self.assertTrue(poll_until(lambda: retained() > before), "kvd retains nothing")  # noqa: B023
        all_of_them = retained()
        for said in ({}, {"kvd_retain_s": -1}, {"kvd_retain_s": "soon"}):
            rig.add([5, *prompt], 10, **said)
            rig.run_dry()
        self.assertEqual(rig.counts["retained_blocks"], 18, "nothing was asked")
        for at in range(3):
            rig.add([at + 3, *prompt], 10, kvd_retain_s=0)  # its last turn
            rig.run_dry()
        self.assertGreater(all_of_them, 0)
        self.assertTrue(poll_until(lambda: retained() == 0), "they are not let go")
        self.assertEqual(rig.counts.get("unretained_blocks", 0), 0)
        rig.check_answers()

    def test_prompts_are_pinned_demoted_and_prefetched(self) -> None:
        """By the API's vllm_xargs, or by an orchestrator's hint."""
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-hints-"))
        disk = f'[disk]\npath = "{folder}"\nsize = "64MiB"\nfloor = "0"\n[load]\npolicy = "always"\n'
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=1, extra=disk))
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        shown = lambda: kvd.get("/v1/cache")  # noqa: E731
        prompt = [rig.random.randrange(3, 1900) for _ in range(200)]

        def ask(first: int, *actions: str, **said: Any) -> None:
            name = rig.add([first, *prompt], 10, **said)
            hints = [types.SimpleNamespace(action_type=each, payload={}) for each in actions]
            rig.scheduler.requests[name].kv_hints = types.SimpleNamespace(actions=hints)
            rig.run_dry()

        for pin, unpin in (({"kvd_pin": 1}, {"kvd_pin": 0}), ("pin", "unpin")):
            before = rig.counts.get("retained_blocks", 0)
            ask(3, **pin) if isinstance(pin, dict) else ask(3, pin)
            self.assertTrue(poll_until(lambda: shown()["retained"]["bytes"] == 6 * SLOT), "not pinned")
            self.assertEqual(rig.counts["retained_blocks"], before + 6)
            ask(3, **unpin) if isinstance(unpin, dict) else ask(3, unpin)
            self.assertTrue(poll_until(lambda: shown()["retained"]["bytes"] == 0), "not let go")
        ask(4, kvd_demote=True)
        self.assertTrue(poll_until(lambda: shown()["disk"]["stores"] >= 6), "not written")
        for first in range(10, 10 + 2 * (2 << 20) // SLOT // 6):
            ask(first)
        loads = shown()["disk"]["loads"]
        ask(4, kvd_prefetch_s=60)
        self.assertTrue(poll_until(lambda: shown()["retained"]["bytes"] == 6 * SLOT), "not there in time")
        self.assertGreaterEqual(shown()["disk"]["loads"], loads + 6)
        rig.check_answers()

    def test_what_has_no_share_is_counted_and_nothing_waits_for_kvd(self) -> None:
        kvd = self.enterContext(
            KvdProcess(slabs=16, dram_slabs=16, extra="[cache]\nretain_share = 0\n")
        )
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        prompt = [rig.random.randrange(3, 1900) for _ in range(200)]
        rig.add(prompt, 10, kvd_retain_s=60)
        rig.run_dry()
        self.assertEqual(rig.counts["unretained_blocks"], 6)
        kvd.kill()
        rig.add(prompt[::-1], 10, kvd_retain_s=60)
        rig.run_dry()
        self.assertFalse(rig.connector.has_pending_push_work())
        rig.check_answers()

    def test_kvd_killed_and_started_again_costs_no_answer(self) -> None:
        """Copies are under way when it dies: what they were for is computed again."""
        kvd = self.kvd("1MiB/s")
        rig = self.rig(kvd, RandomScheduler, SEEDS[0])
        steps = STEPS // 10
        self.play(rig, steps, events={steps // 3: kvd.kill, steps // 2: kvd.start})
        self.assertGreater(rig.counts["unanswered_calls"], 0)
        self.assertTrue(poll_until(lambda: rig.ask() is not None), "kvd is not asked again")

    def test_a_kvd_that_was_started_again_has_blocks_again(self) -> None:
        """kvd does not know the region, so blocks go by way of a window, in parts where it is small."""
        kvd = self.kvd()

        def start_again() -> None:
            kvd.kill()
            kvd.start()

        cache = self.check_blocks_after(kvd, start_again)
        self.assertIsNotNone(cache._window)

    @unittest.skipIf(DEVICE == "cuda", "HBM of a GPU is not taken over in place")
    def test_a_kvd_that_takes_the_region_back_has_blocks_again(self) -> None:
        """With a keeper of its memory: nothing is copied through a window."""
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=16, held=True))
        cache = self.check_blocks_after(kvd, kvd.kill_held)
        self.assertIsNone(cache._window)

    def check_blocks_after(self, kvd: KvdProcess, start_again: Callable[[], None]) -> Any:
        rig = self.rig(kvd, RandomScheduler, SEEDS[0])
        cache = rig.worker._copier._cache
        self.play(rig, STEPS // 20)
        start_again()
        self.assertTrue(poll_until(lambda: rig.ask() is not None), "not asked again")
        self.play(rig, rig.steps + 100)  # kvd is seen to be gone
        is_found = lambda: cache._next is not None or not cache._lost  # noqa: E731
        self.assertTrue(poll_until(is_found), "no cache")
        before = dict(rig.counts)
        rig.connector._planner.copies._paused_until = 0.0  # after what failed it would rest for long
        self.play(rig, rig.steps + STEPS // 20)
        more = {name: count - before.get(name, 0) for name, count in rig.counts.items()}
        for each in ("stored_blocks", "parked_blocks", "loaded_blocks"):
            self.assertGreater(more[each], 0, each)
        self.assertEqual(more.get("failed_blocks", 0), 0)
        self.assertEqual(more.get("recomputed_requests", 0), 0)
        return cache

    def test_a_worker_whose_cache_kvd_opens_late_has_blocks_later(self) -> None:
        """The scheduler's side knows nothing of it: it has to load what another engine stored."""
        for windows in ((0,), (0, 0), (64, 0)):
            kvd = self.kvd()
            prompt = list(range(5, 205))
            other = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60, windows=windows)
            other.add(prompt, 10)
            other.run_dry()
            late = unittest.mock.Mock(side_effect=[kvd_client.DeadlineExceeded("busy")])
            with unittest.mock.patch("kvd_vllm.connector.KvdCache", late):
                rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60, windows=windows)
            name = rig.add(prompt, 10)
            rig.run_dry()
            self.assertEqual(rig.scheduled[name], len(rig.truth[name]) - 1)
            self.assertGreater(rig.counts["failed_blocks"], 0)

            def is_loaded(rig: Rig = rig) -> bool:
                rig.connector._planner.copies._paused_until = 0.0
                rig.add(prompt, 10)
                rig.run_dry()
                return rig.counts.get("loaded_blocks", 0) > 0

            self.assertTrue(poll_until(is_loaded), "nothing is loaded")
            rig.check_answers()

    def test_an_engine_that_began_without_kvd_asks_it_for_no_block(self) -> None:
        """It computes in memory of its own, and the kvd that comes later has what it needs."""
        kvd = self.kvd()
        prompt = list(range(5, 205))
        other = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        other.add(prompt, 10)
        other.run_dry()
        kvd.kill()
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60, options={"required": False})
        kvd.start()
        other = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        other.add(prompt, 10)
        other.run_dry()
        self.assertGreater(other.counts["stored_blocks"], 0)
        self.assertTrue(poll_until(lambda: rig.ask() is not None), "kvd is not asked who runs")
        rig.add(prompt, 10)
        rig.run_dry()
        rig.check_answers()
        self.assertEqual(rig.counts.get("failed_blocks", 0), 0)

    def test_kvd_killed_in_load_after_load_costs_no_answer(self) -> None:
        """From the second time on they go by way of a window."""
        self.hurry()
        kvd = self.kvd("256KiB/s")
        for windows in ((0,), (64, 0)):
            rig = self.rig(kvd, RandomScheduler, SEEDS[0], blocks=30 * len(windows), windows=windows,
                           engine={"enable_prefix_caching": True})  # fmt: skip
            cache = rig.worker._copier._cache
            for _ in range(max(3, STEPS // 3000)):
                last = cache._window
                self.kill_in_a_load(kvd, rig)
                kvd.start()

                def has_another(rig: Rig = rig, cache: Any = cache, last: Any = last) -> bool:
                    self.play(rig, rig.steps + 20, shared=True)
                    return cache._window not in (None, last)  # none: kvd is gone, and there is no other

                self.assertTrue(poll_until(has_another), "no window")

    def test_a_load_that_was_given_up_and_comes_all_the_same_harms_nothing(self) -> None:
        """kvd stood still: what it copies afterwards is the request's state when it was parked."""
        for windows in ((0,), (64, 0)):
            kvd = self.kvd()
            rig = self.rig(
                kvd, KvdScheduler, SEEDS[0], blocks=60, windows=windows,
                options={**PARK_ONLY, "load_timeout_s": 0.1},
            )  # fmt: skip
            planner = rig.connector._planner
            assert planner is not None
            name = rig.add(list(range(5, 105)), 60)
            self.decide(rig, admit=name)
            steps_to = lambda count, rig=rig, name=name: self.steps_until(  # noqa: E731
                rig, lambda: len(rig.given[name]) >= count
            )
            steps_to(5)
            self.decide(rig, preempt=name)
            self.steps_until(rig, lambda planner=planner: not planner.copies)
            self.assertGreater(planner.parked(name)[0], 100)
            kvd.signal(signal.SIGSTOP)
            self.decide(rig, admit=name)
            steps_to(12)
            self.assertEqual(len(planner.copies._open), 1, "the load is under way")
            kvd.signal(signal.SIGCONT)
            self.steps_until(rig, lambda planner=planner: not planner.copies)
            rig.run_dry()
            rig.check_answers()
            rig.check_blocks()

    def decide(self, rig: Rig, preempt: str = "", admit: str = "") -> None:
        """From now on this answers in place of kvd."""
        here = rig.scheduler

        def ask() -> kvd_client.Decision:
            here.kvd_describe()
            numbers = [
                [here.kvd_number_of(here.requests[name])] if name in here.requests else []
                for name in (preempt, admit)
            ]
            return kvd_client.Decision(*numbers, None)

        here.kvd_ask, here.kvd_has_a_say = ask, lambda: True

    def steps_until(self, rig: Rig, condition: Callable[[], bool]) -> None:
        def is_so() -> bool:
            rig.step()
            return condition()

        self.assertTrue(poll_until(is_so))

    def test_two_engines_beside_a_kvd_that_dies_and_stands_still(self) -> None:
        self.hurry()
        for windows in ((64, 0), (0,)):
            kvd = self.kvd("1MiB/s")
            rigs = [
                self.rig(kvd, RandomScheduler, SEEDS[0] + at, blocks=24 * len(windows),
                         windows=windows, engine={"enable_prefix_caching": True})
                for at in range(2)
            ]  # fmt: skip
            pick, heads = random.Random(SEEDS[0]), some_heads(random.Random(SEEDS[0]))
            for _ in range(max(5, STEPS // 2000)):
                dies, begin, end = pick.random() < 0.7, pick.randrange(200), pick.randrange(200, 400)
                for step in range(400):
                    if step == begin:
                        kvd.kill() if dies else kvd.signal(signal.SIGSTOP)
                    if step == begin + 2 and not dies:  # calls of two steps came to nothing
                        kvd.signal(signal.SIGCONT)
                    if step == end and dies:
                        kvd.start()
                    for rig in rigs:
                        self.step_under_load(rig, heads)
            for rig in rigs:
                rig.run_dry()
                rig.check_answers()
                rig.check_blocks()
                self.assertGreater(rig.counts["loaded_blocks"], 0)
                rig.close()

    def hurry(self) -> None:
        """After a fault kvd is asked, and looked for, again at once."""
        for name in ("copies._PAUSE_S", "copies._LONGEST_PAUSE_S", "lasting._FIRST_RETRY_S"):
            self.enterContext(unittest.mock.patch(f"kvd_vllm.{name}", 0.01))

    def kill_in_a_load(self, kvd: KvdProcess, rig: Rig) -> None:
        cache = rig.worker._copier._cache._cache
        copies = getattr(cache, "_inner", cache)
        load = copies.load

        def load_and_die(*given: Any) -> int:
            copies.load = load
            ticket = load(*given)
            kvd.kill()
            return ticket

        copies.load = load_and_die
        is_dead = lambda: self.play(rig, rig.steps + 20, shared=True) or copies.load == load  # noqa: E731
        self.assertTrue(poll_until(is_dead), "nothing is loaded")

    def test_a_kvd_that_stands_still_holds_up_no_step(self) -> None:
        kvd = self.kvd()
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=24, options={"step_budget_s": 0.002})
        steps = STEPS // 10
        stop, go = signal.SIGSTOP, signal.SIGCONT
        events = {steps // 3: lambda: kvd.signal(stop), 2 * steps // 3: lambda: kvd.signal(go)}
        self.play(rig, steps, events=events)
        self.assertGreater(rig.counts["unanswered_calls"], 0)

    def test_a_kvd_that_stands_still_is_asked_for_one_copy(self) -> None:
        kvd = self.kvd()
        rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=60)
        kvd.signal(signal.SIGSTOP)
        self.addCleanup(kvd.signal, signal.SIGCONT)
        cache = rig.worker._copier._cache
        store = cache.store
        calls: list[int] = []
        cache.store = lambda *given: calls.append(rig.steps) or store(*given)
        self.load_a_little(rig)
        self.assertEqual(len(calls), 1)
        kvd.signal(signal.SIGCONT)
        self.steps_until(rig, lambda: len(calls) > 1 and not rig.connector._planner.copies)
        rig.run_dry()
        rig.check_answers()

    def test_a_copy_that_the_worker_refuses_is_no_fault_of_kvd(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], blocks=60)
        planner = rig.connector._planner
        assert planner is not None
        refuses = unittest.mock.patch.object(
            rig.worker._loaded, "judge", lambda: lambda copy: not copy.shared
        )
        with refuses:
            self.load_a_little(rig)
            self.assertGreater(rig.counts["failed_blocks"], 0)
            self.assertFalse(planner.copies.is_paused)
            self.assertTrue(planner.can_park)

    def load_a_little(self, rig: Rig) -> None:
        for first in range(4):
            rig.add(list(range(5 + first, 205 + first)), 10)
        for _ in range(40):
            rig.step()

    def test_parks_that_are_over_make_way_for_others(self) -> None:
        """DRAM has room for all that may be parked at a time, and for little of what was before."""
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=1))
        self.fill_dram(kvd, free=320)
        for seed in SEEDS:
            rig = self.rig(kvd, RandomScheduler, seed, options=PARK_ONLY)
            self.play(rig, STEPS // len(SEEDS) // 2)
            self.assertEqual(rig.computed_twice(), {})
            self.assertEqual(rig.counts.get("failed_blocks", 0), 0)
            rig.close()

    def fill_dram(self, kvd: KvdProcess, free: int) -> None:
        """Another engine parks blocks of the rig's size until there is room for only a given number of them."""
        client = self.enterContext(kvd_client.Client(kvd.endpoint))
        region = self.enterContext(client.allocate(BLOCK * PART))
        cache = self.enterContext(
            client.cache("other", block_tokens=TOKENS, block_bytes=BLOCK, region=region,
                         blocks=PART, pieces=[kvd_client.Piece(0, BLOCK, BLOCK)])
        )  # fmt: skip
        parts: list[list[bytes]] = []
        with contextlib.suppress(kvd_client.OutOfMemory):
            while True:
                part = [os.urandom(32) for _ in range(PART)]
                cache.wait([cache.store(part, range(PART), park=True)])
                parts.append(part)
        for part in parts[: free // PART]:
            cache.drop(part)

    def test_a_block_that_is_not_held_while_it_is_copied_is_seen(self) -> None:
        """The control: without the touch the copies are of other requests' bytes."""

        class Careless(Copies):
            def _hold(self, copy: Any) -> None: ...
            def _release(self, copy: Any) -> None: ...

        rig = self.careless(Careless)
        with self.assertRaises(WrongBytes):
            self.play(rig, STEPS)

    def test_a_park_that_is_not_waited_for_is_seen(self) -> None:
        """The control: a request that comes back before its park is complete computes again."""

        class Hasty(Planner):
            def _is_under_way(self, park: Any) -> bool:
                return False

        rig = self.careless(Hasty)
        try:
            self.play(rig, STEPS // 10)
        except WrongBytes:
            return
        self.assertNotEqual(rig.computed_twice(), {})

    def test_what_another_connector_has_not_loaded_yet_is_not_stored(self) -> None:
        """It runs beside kvd in a MultiConnector: vLLM counts such tokens as computed at once."""
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0])
        prompt = [rig.random.randrange(3, 1900) for _ in range(100)]
        rig.add([5, *prompt], 5)
        rig.run_dry()
        connector, planner = rig.connector, rig.connector._planner
        admit = lambda request, blocks, _: planner.admit(request, blocks.get_block_ids(), 0)  # noqa: E731
        with unittest.mock.patch.multiple(
            connector, get_num_new_matched_tokens=lambda *_: (96, True), update_state_after_alloc=admit
        ):
            name = rig.add(prompt, 5)
            rig.step()
        self.assertFalse(planner.copies)
        rig.abort(name)
        self.assertFalse(planner.copies, "a copy of blocks that nobody has written")
        received = KVConnectorTransferResults(finished_recving={name})
        with unittest.mock.patch.object(rig.worker, "get_transfer_results", lambda _: received):
            rig.step()
        rig.run_dry()
        rig.check_blocks()

    def test_in_a_multi_connector_nothing_is_loaded_where_vllm_fails_such_requests(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0])
        request = rig.scheduler.requests[rig.add([5] * 100, 5)]
        for policy, answer in (("fail", (0, False)), ("recompute", (96, True))):
            here = types.SimpleNamespace(vllm_config=copy.copy(rig.connector._vllm_config))
            inner = here.vllm_config.kv_transfer_config
            given = {name: getattr(inner, name) for name in
                     ("kv_connector", "kv_connector_module_path", "kv_role", "kv_connector_extra_config")}  # fmt: skip
            here.vllm_config.kv_transfer_config = KVTransferConfig(
                kv_connector="MultiConnector", kv_role="kv_both", kv_load_failure_policy=policy,
                kv_connector_extra_config={"connectors": [given]},
            )  # fmt: skip
            child = make_connector(here, rig.connector._cache_config).sub_connectors[0]
            assert isinstance(child, KvdConnector) and child._planner
            child.bind_gpu_block_pool(rig.scheduler.kv_cache_manager.block_pool)
            child._planner.names.ask(Transfers(), True)
            child._planner.names.hear(Ends(model="model", named_by="A", weights="A"))
            child._planner._index = unittest.mock.Mock(lookup=len)
            child.on_new_request(request)
            self.assertEqual(child.get_num_new_matched_tokens(request, 0), answer)
            child.shutdown()
        rig.run_dry()

    def test_groups_that_look_back_at_a_window_are_parked_and_found(self) -> None:
        kvd = self.kvd()
        for windows in WINDOWS:
            for seed in SEEDS[:2]:
                for given in (PARK_ONLY, {}):
                    is_found = given is not PARK_ONLY
                    engine = {"enable_prefix_caching": is_found and seed % 2 == 0}
                    rig = self.rig(
                        kvd, RandomScheduler, seed, blocks=30 * len(windows), options=given,
                        engine=engine, windows=windows,
                    )  # fmt: skip
                    self.play(rig, STEPS // len(SEEDS) // 4, shared=is_found)
                    self.assertEqual(rig.computed_twice(), {})
                    self.assertGreater(rig.counts["parked_blocks"], 0)
                    self.assertEqual(rig.counts.get("failed_blocks", 0), 0)
                    if is_found:
                        self.assertGreater(rig.counts["stored_blocks"], 0)

    def test_groups_with_windows_and_async_scheduling(self) -> None:
        kvd = self.kvd()
        for windows in WINDOWS:
            rig = self.rig(
                kvd, RandomAsyncScheduler, SEEDS[0], blocks=30 * len(windows), is_async=True,
                windows=windows,
            )  # fmt: skip
            self.play(rig, STEPS // len(SEEDS), shared=True)
            self.assertEqual(rig.computed_twice(), {})

    def test_kvd_decides_for_groups_with_windows(self) -> None:
        kvd = self.kvd()
        for windows in WINDOWS[:2]:
            rig = self.rig(kvd, KvdScheduler, SEEDS[0], blocks=20 * len(windows), options=PARK_ONLY,
                           windows=windows)  # fmt: skip
            self.play(rig, STEPS // len(SEEDS) // 2)
            self.assertEqual(rig.computed_twice(), {})
            self.assertEqual(rig.counts.get("stock_steps", 0), 0)

    def test_a_prefix_is_found_wherever_it_ends_in_a_chunk(self) -> None:
        """Blocks before a window are given up with the next step, so they are stored before that."""
        for windows in WINDOWS:
            rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], blocks=80, windows=windows)
            prompt = [rig.random.randrange(3, 1900) for _ in range(250)]  # one step
            rig.add(prompt, 10)
            rig.run_dry()
            for shared in (32, 96, 160, 224):
                name = rig.add([*prompt[:shared], *range(5, 30)], 10)
                rig.run_dry()
                self.assertEqual(rig.scheduled[name], len(rig.truth[name]) - 1 - shared)
            rig.check_answers()
            rig.check_blocks()

    def test_a_prefix_ends_where_kvd_has_its_windows(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], blocks=80, windows=(64, 0))
        planner = rig.connector._planner
        assert planner is not None
        prompt = [rig.random.randrange(3, 1900) for _ in range(250)]
        rig.add(prompt, 10)
        rig.run_dry()
        request = rig.scheduler.requests[rig.add(prompt, 10)]
        planner._index.drop(planner.names.digests(request, [(0, 4)]))
        # Going on from block 4 needs blocks 2 and 3 of the window; going on from block 5 or 6 also needs block 4.
        for local, tokens in ((0, 7 * 32), (0, 4 * 32)):
            planner._requests[request.request_id].found = None
            self.assertEqual(rig.connector.get_num_new_matched_tokens(request, local), (tokens, True))
            planner._index.drop(planner.names.digests(request, [(0, 6)]))
        rig.run_dry()
        rig.check_answers()

    def test_a_request_waits_while_remote_servers_are_asked(self) -> None:
        rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], blocks=80)
        prompt = [rig.random.randrange(3, 1900) for _ in range(100)]
        rig.add(prompt, 20)
        rig.run_dry()
        planner = rig.connector._planner
        assert planner is not None
        lookup = planner._index.lookup
        for answers, found in (([NotYet, NotYet], 96), (itertools.repeat(NotYet), 0)):
            left = iter(answers)

            def ask(digests: Sequence[bytes], left: Iterator[Any] = left) -> int | None:
                for fault in left:
                    raise fault
                return lookup(digests)

            with unittest.mock.patch.object(planner._index, "lookup", ask), \
                    unittest.mock.patch.object(planning, "_REMOTE_S", 0.05):  # fmt: skip
                name = rig.add(prompt, 20)
                rig.run_dry()
            self.assertEqual(rig.scheduled[name], len(rig.truth[name]) - 1 - found)
        rig.check_answers()
        rig.check_blocks()

    def test_a_load_that_fails_is_computed_by_its_request(self) -> None:
        for windows in WINDOWS:
            rig = self.rig(self.kvd(), KvdScheduler, SEEDS[0], blocks=80, windows=windows)
            prompt = [rig.random.randrange(3, 1900) for _ in range(100)]
            rig.add(prompt, 20)
            rig.run_dry()
            cache = rig.worker._copier._cache
            cache.load = unittest.mock.Mock(side_effect=kvd_client.NotFound("gone"))
            name = rig.add(prompt, 20)
            rig.run_dry()
            cache.load.assert_called_once()
            self.assertEqual(rig.scheduled[name], len(rig.truth[name]) - 1)
            rig.check_answers()
            rig.check_blocks()

    def test_kvd_killed_beside_groups_with_windows_costs_no_answer(self) -> None:
        kvd = self.kvd("1MiB/s")
        rig = self.rig(kvd, RandomScheduler, SEEDS[0], blocks=60, windows=(64, 0))
        steps = STEPS // 10
        self.play(rig, steps, events={steps // 3: kvd.kill, steps // 2: kvd.start})
        self.assertGreater(rig.counts["unanswered_calls"], 0)

    def test_groups_of_one_name_are_seen(self) -> None:
        """The control: each group finds the bytes of another."""

        class Nameless(Names):
            def digests(self, request: Any, places: Any) -> list[bytes]:
                return super().digests(request, [(0, at) for _, at in places])

        rig = self.rig(self.kvd(), RandomScheduler, SEEDS[0], blocks=60, windows=(64, 0))
        assert rig.connector._planner is not None
        rig.connector._planner.names.__class__ = Nameless
        with self.assertRaises(WrongBytes):
            self.play(rig, STEPS, shared=True)

    def careless(self, kind: type[Planner] | type[Copies]) -> Rig:
        """Copies are so slow that their blocks are wanted meanwhile."""
        if DEVICE == "cuda":
            self.skipTest("a GPU's copies have no link.bandwidth to be slowed by")
        rig = self.rig(self.kvd("1MiB/s"), RandomScheduler, SEEDS[0], options=PARK_ONLY)
        assert rig.connector._planner is not None
        planner = rig.connector._planner
        (planner.copies if issubclass(kind, Copies) else planner).__class__ = kind
        return rig


if __name__ == "__main__":
    ctest.main()
