"""What an engine announces of kvd's blocks, with consumers that are as strict as routers are."""

from __future__ import annotations

import os
import random
import threading
import unittest

import ctest
from kvd_process import poll_until
from kvd_vllm import events
from kvd_vllm.copies import Cursor, Labels, Source
from vllm.distributed.kv_events import BlockStored, KVCacheEvent

from kvd_client import Change, Changes

SEED = int(os.environ.get("KVD_TEST_SEED", "20261129"))
HISTORIES = int(os.environ.get("KVD_HISTORIES", "40"))
SIZE = 4  # tokens of a block
BOTH = ("CPU", "STORAGE")


def number(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big")


def digest(at: int) -> bytes:
    return at.to_bytes(32, "big")


def change(at: int, parent: int | None = None, dram: bool = True, disk: bool = False) -> Change:
    tokens = [at] * SIZE if dram or disk else []
    return Change(digest(at), None if parent is None else digest(parent), "", dram, disk, tokens)


class Consumer:
    """Notes each fault that a real consumer would suffer from."""

    def __init__(self) -> None:
        self.has: dict[str, set[int]] = {medium: set() for medium in BOTH}
        self.faults: list[str] = []

    def hear(self, batch: list[KVCacheEvent]) -> None:
        for event in batch:
            has = self.has[event.medium]
            if not isinstance(event, BlockStored):
                self.faults += [f"{each} is removed twice" for each in event.block_hashes if each not in has]
                has.difference_update(event.block_hashes)
                continue
            before = event.parent_block_hash
            if event.token_ids != [each for each in event.block_hashes for _ in range(SIZE)]:
                self.faults.append("other tokens than those of the blocks")
            for each in event.block_hashes:
                if each in has:
                    self.faults.append(f"{each} is stored twice")
                if before is not None and not any(before in tier for tier in self.has.values()):
                    self.faults.append(f"{each} comes before its parent")
                has.add(each)
                before = each


class Kvd(Source):
    """A kvd whose answers the test chooses."""

    def __init__(self) -> None:
        self.up, self.answers, self.asked = True, True, 0
        self.blocks: dict[bytes, Change] = {}
        self.labels: list[Labels] = []
        self.log: list[Change] = []

    @property
    def is_up(self) -> bool:
        return self.up

    def label(self, labels: Labels) -> bool:
        self.asked += 1
        if self.answers:
            self.labels.append(labels)
        return self.answers

    def changes(self, cursor: Cursor) -> Changes | None:
        self.asked += 1
        if not self.answers:
            return None
        begin = cursor[2]
        return Changes((1, 0, len(self.log)), cursor == (0, 0, 0), False, self.log[begin:])


class Following(unittest.TestCase):
    def test_consumers_know_what_a_lookup_finds(self) -> None:
        removed = 0
        for seed in range(SEED, SEED + HISTORIES):
            with self.subTest(seed=seed):
                removed += self.history(random.Random(seed))
        self.assertGreater(removed, 100 * HISTORIES)

    def history(self, source: random.Random) -> int:
        view, consumer, removed = events.View(SIZE, "full_attention"), Consumer(), 0
        parents: dict[int, int | None] = {}
        for at in range(1, 60):
            first = (at - 1) // 12 * 12 + 1
            parents[at] = None if at == first else at - 1 if source.random() < 0.8 else first
        kvd: dict[int, tuple[bool, bool]] = {}

        def found(at: int | None) -> bool:
            return at is None or (any(kvd.get(at, ())) and found(parents[at]))

        for _ in range(300):
            told = [source.randrange(1, 60) for _ in range(source.randrange(1, 12))]
            for at in told:
                kvd[at] = (source.random() < 0.6, source.random() < 0.3)
            over = source.random() < 0.05
            if over:  # a block that is gone is not announced
                told = [at for at, tiers in kvd.items() if any(tiers)]
                source.shuffle(told)
            news = [change(at, parents[at], *kvd[at]) for at in told]
            view.hear(Changes((1, 1, 1), over, False, news))
            removed += sum(not isinstance(each, BlockStored) for each in view.events)
            consumer.hear(view.events)
            view.events = []
            self.assertEqual(consumer.faults, [])
            for tier, medium in enumerate(BOTH):
                expected = {at for at, tiers in kvd.items() if tiers[tier] and found(at)}
                self.assertEqual(consumer.has[medium], expected)
        view.clear()
        consumer.hear(view.events)
        self.assertEqual(consumer.has, {medium: set() for medium in BOTH})
        self.assertNotIn(digest(1), view)
        return removed

    def test_what_is_told_in_parts_is_stale_only_after_the_last(self) -> None:
        view = events.View(SIZE, "full_attention")
        view.hear(Changes((1, 0, 2), True, False, [change(1), change(2, 1), change(3)]))
        view.events = []
        view.hear(Changes((2, 0, 1), True, True, [change(2, 1)]))
        self.assertEqual(view.events, [])
        view.hear(Changes((2, 0, 2), False, False, [change(1)]))
        (gone,) = view.events
        self.assertEqual(gone.block_hashes, [3])

    def test_neighbours_are_one_event_in_the_form_of_vllms_own(self) -> None:
        view = events.View(SIZE, "mla_attention")
        view.hear(Changes((1, 0, 2), True, False, [change(2, 1), change(1), change(7, None, False, True)]))
        chain, disk = view.events
        self.assertEqual((chain.block_hashes, chain.parent_block_hash), ([1, 2], None))
        self.assertEqual((chain.medium, chain.block_size, chain.lora_name), ("CPU", SIZE, None))
        self.assertEqual((chain.group_idx, chain.kv_cache_spec_kind), (0, "mla_attention"))
        self.assertEqual((chain.locality, chain.ownership, chain.extra_keys), (None, None, None))
        self.assertEqual((disk.medium, disk.block_hashes), ("STORAGE", [7]))


class Announcing(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd, self.consumer, self.woken = Kvd(), Consumer(), threading.Event()
        self.announcer = events.Announcer(self.kvd, SIZE, "full_attention", self.woken.set, ask_s=0.002)
        self.addCleanup(self.announcer.close)

    def has(self, *expected: int) -> bool:
        self.consumer.hear(list(self.announcer.take()))
        self.assertEqual(self.consumer.faults, [])
        return self.consumer.has["CPU"] == set(expected)

    def test_an_idle_engine_is_woken_where_there_is_news_alone(self) -> None:
        self.assertTrue(poll_until(lambda: self.kvd.asked > 5))
        self.assertFalse(self.woken.is_set() or self.announcer.has_news())
        self.kvd.log.append(change(1))
        self.assertTrue(self.woken.wait(10))
        self.assertTrue(self.announcer.has_news())
        self.assertTrue(self.has(1))
        self.assertFalse(self.announcer.has_news())

    def test_kvd_gone_all_is_withdrawn_and_told_again_when_it_is_back(self) -> None:
        self.kvd.log += [change(1), change(2, 1)]
        self.assertTrue(poll_until(lambda: self.has(1, 2)))
        self.kvd.up = False
        self.assertTrue(poll_until(lambda: self.has()))
        self.kvd.log = [change(1)]
        self.kvd.up = True
        self.assertTrue(poll_until(lambda: self.has(1)))

    def test_a_kvd_that_is_late_is_not_gone(self) -> None:
        self.kvd.log.append(change(1))
        self.assertTrue(poll_until(lambda: self.has(1)))
        self.kvd.answers, before = False, self.kvd.asked
        self.assertTrue(poll_until(lambda: self.kvd.asked > before + 5))
        self.assertTrue(self.has(1))

    def test_nothing_is_announced_that_this_engine_would_not_find(self) -> None:
        self.kvd.log.append(change(1))
        self.assertTrue(poll_until(lambda: self.has(1)))
        self.announcer.allow(False)
        self.assertTrue(poll_until(lambda: self.has()))

    def test_labels_wait_for_kvd_and_come_in_parts(self) -> None:
        self.kvd.answers = False
        digests = [digest(at) for at in range(1, 1300)]
        self.announcer.label(Labels(digests, list(range(4 * 1299)), digest(9999), "a"))
        self.assertTrue(poll_until(lambda: self.kvd.asked > 0))
        self.kvd.answers = True
        self.assertTrue(poll_until(lambda: sum(len(each.digests) for each in self.kvd.labels) == 1299))
        self.assertEqual([each.parent for each in self.kvd.labels], [digest(9999), digest(512), digest(1024)])
        self.assertEqual([each.tokens[0] for each in self.kvd.labels], [0, 512 * 4, 1024 * 4])
        self.assertEqual({each.lora for each in self.kvd.labels}, {"a"})


if __name__ == "__main__":
    ctest.main()
