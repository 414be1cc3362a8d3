"""What goes to kvd with the next call: lookups whose answer is there when it is asked for, and drops."""

from __future__ import annotations

import os
import unittest

import ctest
from kvd_process import KvdProcess

import kvd_client

BLOCK, BLOCKS = 4096, 8


class WhatPeopleAreTold(unittest.TestCase):
    def test_is_what_the_blocks_of_each_cache_are_of(self) -> None:
        kvd = self.enterContext(KvdProcess())
        client = self.enterContext(kvd_client.Client(kvd.endpoint, engine_name="some"))
        models = ["weights 1234", "weights\n\x1b[1m " + "é" * 200]
        for model in models:
            client.cache(model, block_tokens=16, block_bytes=BLOCK)
        rows = kvd.get("/v1/cache")["open"]
        self.assertEqual([row["name"] for row in rows], ["some", "some"])
        self.assertEqual([row["block_bytes"] for row in rows], [BLOCK, BLOCK])
        shown = [row["model"] for row in rows]
        self.assertEqual(shown[0], models[0])
        self.assertEqual(shown[1], "weights??[1m ".ljust(191, "?"))


class Labels(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())

    def open(self, with_region: bool) -> kvd_client.Cache:
        client = self.enterContext(kvd_client.Client(self.kvd.endpoint))
        if not with_region:
            return client.cache("model", block_tokens=16, block_bytes=BLOCK)
        return client.cache(
            "model", block_tokens=16, block_bytes=BLOCK, region=client.allocate(BLOCK * BLOCKS),
            blocks=BLOCKS, pieces=[kvd_client.Piece(0, BLOCK, BLOCK)],
        )  # fmt: skip

    def test_tell_every_engine_of_the_cache_what_blocks_are_of_and_where(self) -> None:
        engine, other = self.open(True), self.open(False)
        first, second, bare = (os.urandom(32) for _ in range(3))
        tokens = list(range(32))
        self.assertEqual(other.changes().all, [])
        self.assertEqual(engine.label([first, second], tokens, lora="adapter"), 2)
        engine.wait([engine.store([first, second, bare], range(3))])
        told = other.changes()
        self.assertEqual((told.over, told.more), (True, False))
        self.assertEqual(
            {each.digest: each for each in told.all},
            {
                first: kvd_client.Change(first, None, "adapter", True, False, tokens[:16]),
                second: kvd_client.Change(second, first, "adapter", True, False, tokens[16:]),
            },
        )
        engine.drop([first])
        then = other.changes(told.cursor)
        self.assertFalse(then.over)
        self.assertEqual(then.all, [kvd_client.Change(first, None, "adapter", False, False, [])])
        self.assertEqual(other.changes(then.cursor).all, [])

    def test_many_come_part_by_part(self) -> None:
        cache = self.open(True)
        digests = [os.urandom(32) for _ in range(BLOCKS)]
        for at in range(0, 3000, 600):
            cache.label([os.urandom(32) for _ in range(600)], range(at, at + 600 * 16), parent=digests[0])
        cache.label(digests, range(BLOCKS * 16))
        cache.wait([cache.store(digests, range(BLOCKS))])
        told = cache.changes()
        self.assertEqual({each.digest for each in told.all}, set(digests))

    def test_what_cannot_be_is_refused(self) -> None:
        cache = self.open(False)
        digest = os.urandom(32)
        for call in (
            lambda: cache.label([digest], range(15)),
            lambda: cache.label([digest] * 1025, range(16 * 1025)),
            lambda: cache.label([], []),
            lambda: cache.label([digest], range(16), parent=b"short"),
            lambda: cache.label([digest], range(16), lora="x" * 64),
            lambda: cache.label([digest], range(16), lora="\x1b"),
        ):
            with self.assertRaises(kvd_client.InvalidArgument):
                call()

    def test_another_kvd_starts_over(self) -> None:
        told = self.open(True).changes()
        self.assertFalse(self.open(True).changes(told.cursor).over)
        self.kvd = self.enterContext(KvdProcess())
        self.assertTrue(self.open(True).changes(told.cursor).over)


class Posted(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())

    def open(self, transport: kvd_client.Transport) -> kvd_client.Cache:
        self.client = self.enterContext(kvd_client.Client(self.kvd.endpoint, transport=transport))
        region = self.client.allocate(BLOCK * BLOCKS)
        self.digests = [os.urandom(32) for _ in range(BLOCKS)]
        return self.client.cache(
            "model", block_tokens=16, block_bytes=BLOCK, region=region, blocks=BLOCKS,
            pieces=[kvd_client.Piece(0, BLOCK, BLOCK)],
        )  # fmt: skip

    def store(self, cache: kvd_client.Cache) -> None:
        states = cache.wait([cache.store(self.digests, range(BLOCKS))])
        self.assertEqual(states, [kvd_client.TicketState.DONE])

    def test_a_lookup_has_the_answer_of_when_it_was_posted_once(self) -> None:
        for transport in kvd_client.Transport:
            with self.subTest(transport=transport.name):
                cache = self.open(transport)
                cache.post_lookup(self.digests)
                self.client.ping()  # with which it goes
                self.store(cache)
                self.assertEqual(cache.lookup(self.digests), 0)
                self.assertEqual(cache.lookup(self.digests), BLOCKS)

    def test_it_answers_for_the_first_ones_too_and_for_no_others(self) -> None:
        for transport in kvd_client.Transport:
            with self.subTest(transport=transport.name):
                cache = self.open(transport)
                self.store(cache)
                cache.post_lookup(self.digests)
                self.assertEqual(cache.lookup([os.urandom(32), *self.digests]), 0)
                self.assertEqual(cache.lookup(self.digests[:3]), 3)

    def test_without_a_call_between_the_lookup_sends_it(self) -> None:
        for transport in kvd_client.Transport:
            with self.subTest(transport=transport.name):
                cache = self.open(transport)
                self.store(cache)
                cache.post_lookup(self.digests)
                self.assertEqual(cache.lookup(self.digests), BLOCKS)

    def test_a_drop_goes_with_the_next_call(self) -> None:
        for transport in kvd_client.Transport:
            with self.subTest(transport=transport.name):
                cache = self.open(transport)
                self.store(cache)
                cache.post_drop(self.digests[2:])
                self.client.ping()
                self.assertEqual(cache.lookup(self.digests), 2)

    def test_posts_that_nobody_takes_up_end_no_session(self) -> None:
        for transport in kvd_client.Transport:
            with self.subTest(transport=transport.name):
                cache = self.open(transport)
                self.store(cache)
                posted = 0
                for _ in range(20):
                    for _ in range(100):
                        try:
                            cache.post_lookup(self.digests[:1])
                            posted += 1
                        except kvd_client.WouldBlock:
                            break
                    self.client.ping()
                self.assertGreater(posted, 500)
                self.assertEqual(cache.lookup(self.digests), BLOCKS)

    def test_after_the_daemon_a_post_says_so(self) -> None:
        cache = self.open(kvd_client.Transport.RING)
        self.kvd.kill()
        with self.assertRaises(kvd_client.Unavailable):
            self.client.ping(1.0)
        with self.assertRaises(kvd_client.Unavailable):
            cache.post_lookup(self.digests)


if __name__ == "__main__":
    ctest.main()
