"""kvd-engine's KV events, as vLLM's own decoder and encoder see them."""

from __future__ import annotations

import os
import random
import unittest

import ctest
import msgspec
import zmq
from engine_process import BLOCK, PROGRAM, KvdEngine
from kvd_process import KvdProcess, free_port, poll_until
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch

SEED = int(os.environ.get("KVD_TEST_SEED", "1"))
SALTED = [3] * 100
END = (-1).to_bytes(8, "big", signed=True)


def tokens_of(event: BlockStored) -> list[int]:
    return event.token_ids


class Bytes(unittest.TestCase):
    def setUp(self) -> None:
        if not os.path.exists(PROGRAM):
            self.skipTest("kvd-engine is not built")
        self.decoder, self.events, self.last = msgspec.msgpack.Decoder(KVEventBatch), [], 0
        endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        self.subscriber, self.asker = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.subscriber.connect(endpoints[0])
        self.subscriber.subscribe(b"kv")
        self.asker.connect(endpoints[1])
        self.kvd = self.enterContext(KvdProcess(slabs=2, dram_slabs=3))
        options = ["--kv-events", endpoints[0], "--kv-events-replay", endpoints[1], "--kv-events-topic", "kv"]
        self.engine = self.enterContext(KvdEngine(self.kvd, *options))

    def take_in(self, number: bytes, payload: bytes) -> list[KVCacheEvent]:
        batch = self.decoder.decode(payload)
        self.assertEqual(msgspec.msgpack.encode(batch), payload)
        self.assertEqual(batch.data_parallel_rank, 0)
        self.last = int.from_bytes(number, "big")
        return batch.events

    def hears(self, kind: type) -> bool:
        while self.subscriber.poll(0):
            topic, number, payload = self.subscriber.recv_multipart()
            before = self.last
            self.events += self.take_in(number, payload)
            self.assertEqual((topic, before in (0, self.last - 1)), (b"kv", True))
        return any(isinstance(event, kind) for event in self.events)

    def test_are_those_of_vllms_encoder(self) -> None:
        source = random.Random(SEED)
        self.assertTrue(poll_until(lambda: self.hears(AllBlocksCleared)), "what there was at its start")
        prompts = [source.choices(range(2, 255), k=blocks * BLOCK) for blocks in (1, 20, 60)]
        for prompt in prompts:
            self.engine.ask([*prompt, 1], max_tokens=2 * BLOCK)
        self.engine.ask(SALTED, cache_salt="secret")
        mark = [5] * BLOCK
        self.engine.ask([*mark, 1])
        self.assertTrue(poll_until(lambda: self.hears(BlockStored) and mark in map(tokens_of, self.stored())))
        self.assertEqual({event.medium for event in self.stored()}, {"GPU", "CPU"})
        for event in self.stored():
            self.assertNotEqual(event.token_ids[:BLOCK], SALTED[:BLOCK])
            self.assertEqual(len(event.token_ids), BLOCK * len(event.block_hashes))
            self.assertEqual((event.block_size, event.group_idx, event.kv_cache_spec_kind), (BLOCK, 0, "full_attention"))
            unset = event.lora_id, event.lora_name, event.extra_keys, event.locality, event.ownership, event.session_id
            self.assertEqual(set(unset), {None})
        self.kvd.clear_cache()
        self.assertTrue(poll_until(lambda: self.hears(BlockRemoved)))

    def stored(self) -> list[BlockStored]:
        return [event for event in self.events if isinstance(event, BlockStored)]

    def test_of_a_replay_are_those_too(self) -> None:
        prompt = random.Random(SEED).choices(range(2, 255), k=20 * BLOCK)
        self.engine.ask([*prompt, 1])
        self.assertTrue(poll_until(lambda: self.hears(BlockStored)))
        self.asker.send_multipart([b"", (self.last - 1).to_bytes(8, "big")])
        batches = []
        while self.asker.poll(10_000):
            _, topic, number, payload = self.asker.recv_multipart()
            if number == END:
                self.assertEqual((topic, payload), (b"", b""))
                break
            batches.append(self.take_in(number, payload))
        first, *rest = batches
        self.assertIsInstance(first[0], AllBlocksCleared)
        self.assertEqual({event.medium: event.token_ids for event in first[1:]}["GPU"], prompt)
        self.assertGreater(len(rest), 0)
        self.assertFalse(any(rest), "empty ones")


if __name__ == "__main__":
    ctest.main()
