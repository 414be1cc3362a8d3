"""Blocks that go by way of a window, on a real kvd and without a model: in parts, and a part that is lost is
seen.
"""

from __future__ import annotations

import os
import unittest
import unittest.mock
from collections.abc import Sequence

import ctest
from kvd_process import KvdProcess, poll_until

import kvd_client
from kvd_vllm.copying import Cache, State
from kvd_vllm.daemon import KvdCache, NoCache
from kvd_vllm.lasting import LastingCache, WindowCache
from kvd_vllm.layout import CacheShape, Piece

PART = 64 << 10  # each block has two parts
BLOCKS, SLOTS = 16, 3
SHAPE = CacheShape("model", blocks=SLOTS, block_tokens=16, block_bytes=2 * PART, windows=(0,))
PIECES = [Piece(at * BLOCKS * PART, PART, PART) for at in range(2)]


class ByWayOfTheWindow(unittest.TestCase):
    def setUp(self) -> None:
        # A part of three blocks takes a tenth of a second.
        self.kvd = self.enterContext(KvdProcess(bandwidth="4MiB/s"))
        client = self.enterContext(kvd_client.Client(self.kvd.endpoint))
        window = client.allocate(SLOTS * SHAPE.block_bytes)
        whole = [Piece(0, SHAPE.block_bytes, SHAPE.block_bytes)]
        self.kv = memoryview(bytearray(os.urandom(BLOCKS * SHAPE.block_bytes)))
        self.cache = WindowCache(
            KvdCache(client, window, SHAPE, whole), self.kv, window.view(), PIECES, SLOTS
        )
        self.digests = [os.urandom(32) for _ in range(BLOCKS // 2)]
        self.stored = [self.block(at) for at in range(BLOCKS // 2)]
        ticket = self.cache.store(self.digests, range(BLOCKS // 2), park=True)
        self.assertEqual(self.end_of(ticket), State.DONE)

    def block(self, at: int) -> list[bytes]:
        begins = [piece.offset + at * piece.stride for piece in PIECES]
        return [bytes(self.kv[begin : begin + PART]) for begin in begins]

    def load(self, count: int) -> int:
        """Loads the first stored blocks into the second half."""
        return self.cache.load(self.digests[:count], range(BLOCKS // 2, BLOCKS // 2 + count))

    def end_of(self, ticket: int) -> State:
        found = State.PENDING

        def is_over() -> bool:
            nonlocal found
            (found,) = self.cache.poll([ticket])
            return found != State.PENDING

        self.assertTrue(poll_until(is_over), "a copy does not end")
        return found

    def test_more_blocks_than_it_has_room_for_come_back_in_parts(self) -> None:
        self.assertNotEqual(self.block(BLOCKS // 2), self.stored[0])
        self.assertEqual(self.end_of(self.load(BLOCKS // 2)), State.DONE)
        found = [self.block(at) for at in range(BLOCKS // 2, BLOCKS)]
        self.assertEqual(found, self.stored)

    def test_several_share_its_room(self) -> None:
        tickets = [self.load(5), self.cache.store([os.urandom(32)] * 4, range(4), park=False)]
        self.assertEqual([self.end_of(each) for each in tickets], [State.DONE] * 2)
        self.assertEqual(self.block(BLOCKS // 2 + 4), self.stored[4])

    def test_a_load_of_one_part_that_kvd_does_not_end_has_failed(self) -> None:
        before = bytes(self.kv)
        ticket = self.load(SLOTS)
        self.kvd.kill()
        self.assertEqual(self.end_of(ticket), State.FAILED)
        self.assertEqual(bytes(self.kv), before)

    def test_a_load_whose_last_part_kvd_does_not_end_has_failed(self) -> None:
        ticket = self.load(SLOTS + 2)
        move = self.cache._moves[ticket]
        in_last_part = lambda: self.cache.poll([ticket]) and len(move.blocks) == 2  # noqa: E731
        self.assertTrue(poll_until(in_last_part))
        self.kvd.kill()
        self.assertEqual(self.end_of(ticket), State.FAILED)
        self.assertEqual(self.block(BLOCKS // 2), self.stored[0], "the first part had come")

    def test_a_store_that_kvd_does_not_end_has_failed(self) -> None:
        ticket = self.cache.store([os.urandom(32)], [0], park=False)
        self.kvd.kill()
        self.assertEqual(self.end_of(ticket), State.FAILED)


class Lasting(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        self.enterContext(unittest.mock.patch("kvd_vllm.lasting._FIRST_RETRY_S", 0.01))

    def cache(self, device: int, first: Cache | None = None) -> LastingCache:
        """The memory is the host's, whatever it is said to be."""
        client = self.enterContext(kvd_client.Client(self.kvd.endpoint))
        region = client.allocate(BLOCKS * SHAPE.block_bytes)
        region.device = device
        shape = SHAPE._replace(blocks=BLOCKS)

        def open_cache(region: kvd_client.Region, blocks: int, pieces: Sequence[Piece]) -> Cache:
            return KvdCache(client, region, shape._replace(blocks=blocks), pieces)

        cache = LastingCache(first or open_cache(region, BLOCKS, PIECES), client, region, shape,
                             PIECES, open_cache)  # fmt: skip
        self.addCleanup(cache.close)
        return cache

    def stores(self, cache: LastingCache) -> bool:
        try:
            ticket = cache.store([os.urandom(32)], [0], park=False)
        except kvd_client.KvdError:
            return False
        over: list[State] = []
        is_over = lambda: over.extend(cache.poll([ticket])) or over.pop() != State.PENDING  # noqa: E731
        return poll_until(is_over)

    def test_a_cache_that_kvd_did_not_open_is_opened_later(self) -> None:
        for device in (-1, 0):
            cache = self.cache(device, first=NoCache())
            self.assertFalse(self.stores(cache))
            self.assertTrue(poll_until(lambda cache=cache: self.stores(cache)))
            self.assertIsNone(cache._window)

    def test_after_another_start_there_is_a_window_but_not_on_a_gpu(self) -> None:
        host, gpu = self.cache(-1), self.cache(0)
        self.assertTrue(self.stores(host) and self.stores(gpu))
        self.kvd.kill()
        self.assertFalse(self.stores(host) or self.stores(gpu))
        with self.assertLogs("vllm.kvd_vllm", "WARNING") as log:
            self.kvd.start()
            self.assertTrue(poll_until(lambda: self.stores(host)))
            self.assertTrue(poll_until(gpu._closed.is_set))
            self.assertFalse(self.stores(gpu))
        self.assertIsNotNone(host._window)
        self.assertIn("until vLLM is restarted", "".join(log.output))


if __name__ == "__main__":
    ctest.main()
