"""Agents whose tools run between their turns, with DRAM for half of them: what the turns find of their
context, with and without Cache.retain(), and the other hints, against a real kvd."""

from __future__ import annotations

import random
import tempfile
import unittest
from typing import NamedTuple

import ctest
from eviction_test import BLOCK, IN_SLAB, Engine, digests
from kvd_process import KvdProcess, poll_until

import kvd_client

SESSIONS, TURNS = 20, 30
FIRST, MORE = 12, 2  # blocks of a first turn, and more of each one after it
SLABS = 6  # DRAM has room for about half of what all sessions have in the end
TOOL_S = 300.0  # longer than all of this takes


class Turn(NamedTuple):
    context: int  # blocks of the turns before
    found: int  # how many of these kvd had
    kept: bool  # they were retained


def play(kvd: KvdProcess, retains: bool) -> list[Turn]:
    """All turns but each first. Each session has its next turn once in each round, in any order: its tool
    takes up to two rounds."""
    engine = Engine(kvd)
    pick = random.Random(5)
    prompts = [list(range(1000 * each, 1000 * each + FIRST)) for each in range(SESSIONS)]
    kept = [False] * SESSIONS
    turns = []
    for turn in range(TURNS):
        for session in pick.sample(range(SESSIONS), SESSIONS):
            prompt, context = prompts[session], len(prompts[session]) - MORE
            there = engine.ask(prompt)
            if turn > 0:
                turns.append(Turn(context, min(there, context), kept[session]))
            if retains:
                seconds = TOOL_S if turn + 1 < TURNS else 0.0
                kept[session] = engine.cache.retain(digests(prompt), seconds) == len(prompt)
            prompts[session] = [*prompt, *range(prompt[-1] + 1, prompt[-1] + 1 + MORE)]
    return turns


def found(turns: list[Turn]) -> float:
    return sum(each.found for each in turns) / sum(each.context for each in turns)


class Agents(unittest.TestCase):
    def start(self, eviction: str = "default", share: float = 0.5, slabs: int = SLABS) -> KvdProcess:
        extra = f'[cache]\neviction = "{eviction}"\nretain_share = {share}\n'
        return self.enterContext(KvdProcess(dram_slabs=slabs, extra=extra))

    def test_whose_context_is_retained_find_it_and_more_find_theirs(self) -> None:
        room = SLABS * IN_SLAB / (SESSIONS * (FIRST + MORE * (TURNS - 1)))
        lru, default = (play(self.start(each), retains=False) for each in ("lru", "default"))
        print(f"room for {room:.2f} of the sessions; found of the context: lru {found(lru):.3f}, "
              f"default {found(default):.3f}")  # fmt: skip
        for share in (0.5, 0.9):
            ours = play(self.start(share=share), retains=True)
            kept = [each for each in ours if each.kept]
            same = [by_lru for each, by_lru in zip(ours, lru, strict=True) if each.kept]
            print(f"retain_share {share}: {found(ours):.3f}; in the {len(kept)} of {len(ours)} turns whose context "
                  f"was retained {found(kept):.3f}, by lru {found(same):.3f}")  # fmt: skip
            self.assertGreaterEqual(found(kept), 0.95)
            self.assertGreater(len(kept), len(ours) / 2)
            self.assertGreater(found(kept), found(same) + 0.1)
            self.assertGreater(found(ours), found(lru) + 0.1)

    def test_what_is_retained_is_shown_and_let_go_in_time(self) -> None:
        kvd = self.start()
        engine = Engine(kvd)
        prompt = list(range(16))
        engine.ask(prompt)

        def retained() -> int:
            return int(kvd.get("/v1/cache")["retained"]["bytes"])

        self.assertEqual(engine.cache.retain(digests(prompt), 600.0), 16)
        self.assertTrue(poll_until(lambda: retained() == 16 * BLOCK), "not shown")
        self.assertEqual(engine.cache.retain(digests(prompt[8:]), 0.0), 0)
        self.assertTrue(poll_until(lambda: retained() == 8 * BLOCK), "not let go")
        self.assertEqual(engine.cache.retain(digests(prompt), 0.05), 16)
        self.assertTrue(poll_until(lambda: retained() == 0), "not let go in time")
        self.assertEqual(engine.found(prompt), 16, "it is still there")

    def test_a_share_and_a_time_bound_it(self) -> None:
        engine = Engine(self.start(slabs=2), slabs=2)
        engine.ask(list(range(2 * IN_SLAB)))
        half = digests(list(range(IN_SLAB)))
        self.assertEqual(engine.cache.retain(half, 600.0), IN_SLAB)
        self.assertEqual(engine.cache.retain(digests([IN_SLAB]), 600.0), 0, "half of it is retained")
        with self.assertRaisesRegex(kvd_client.InvalidArgument, "24 hours"):
            engine.cache.retain(half, 90_000.0)

    def test_pins_demotions_and_prefetches_from_disk(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-agents-"))
        extra = f'[disk]\npath = "{folder}"\nsize = "64MiB"\nfloor = "0"\n[load]\npolicy = "always"\n'
        kvd = self.enterContext(KvdProcess(dram_slabs=2, extra=extra))
        engine = Engine(kvd, slabs=2)
        system, ended = list(range(8)), list(range(100, 132))
        engine.ask(system)
        self.assertEqual(engine.cache.pin(digests(system)), 8)
        with self.assertRaisesRegex(kvd_client.QuotaExceeded, "cache.retain_share"):
            engine.ask(list(range(2000, 2000 + IN_SLAB)))
            engine.cache.pin(digests([*system, *range(2000, 2000 + IN_SLAB)]))
        engine.ask(ended)
        self.assertEqual(engine.cache.demote(digests(ended)), 32)
        self.assertTrue(poll_until(lambda: kvd.get("/v1/cache")["disk"]["stores"] == 32), "not written")
        for begin in range(3000, 3000 + 4 * IN_SLAB, 32):
            engine.ask(list(range(begin, begin + 32)))
        before = kvd.get("/v1/cache")["disk"]["loads"]
        self.assertEqual(engine.found(system), 8, "pinned")
        self.assertEqual(before, 0)
        self.assertEqual(engine.cache.prefetch(digests([*ended, 99999]), 600.0), 32)

        def prefetched() -> int:
            return int(kvd.get("/v1/cache")["retained"]["prefetched_bytes"])

        self.assertTrue(poll_until(lambda: prefetched() == 32 * BLOCK), "not all has come")
        for begin in range(9000, 9000 + 4 * IN_SLAB, 32):
            engine.ask(list(range(begin, begin + 32)))
        engine.load(ended)
        self.assertEqual(kvd.get("/v1/cache")["disk"]["loads"], 32, "it was there, and stayed")
        engine.cache.unpin(digests([*system, *ended]))
        self.assertTrue(poll_until(lambda: kvd.get("/v1/cache")["retained"]["bytes"] == 0), "not let go")
        with self.assertRaisesRegex(kvd_client.InvalidArgument, "for how long"):
            engine.cache.prefetch(digests(ended), 0.0)

    def test_none_is_where_the_share_is_nothing(self) -> None:
        engine = Engine(self.start(share=0.0))
        engine.ask([1, 2])
        self.assertEqual(engine.cache.retain(digests([1, 2]), 600.0), 0)


if __name__ == "__main__":
    ctest.main()
