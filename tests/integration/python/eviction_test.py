"""What a cache full of others' blocks finds again: chats in turns whose users leave, and a conversation that
is new among them, against a real kvd. They are played by an engine that places its blocks itself (level 2),
and by kvd-engine, whose requests kvd schedules (level 3)."""

from __future__ import annotations

import os
import random
import unittest

import ctest
from engine_process import PROGRAM, KvdEngine
from kvd_process import PATIENCE_S, SLAB, KvdProcess

import kvd_client

BLOCK = 16384
IN_SLAB = SLAB // BLOCK
CHUNK = 8  # blocks that are computed, and stored, at once


def digests(blocks: range | list[int]) -> list[bytes]:
    return [block.to_bytes(8, "little") * 4 for block in blocks]


class Engine:
    """Its prompts are lists of blocks; nothing is computed."""

    def __init__(self, kvd: KvdProcess, slabs: int = 1) -> None:
        self.client = kvd_client.Client(kvd.endpoint)
        blocks = slabs * IN_SLAB
        self.cache = self.client.cache(
            "model", block_tokens=16, block_bytes=BLOCK, region=self.client.allocate(slabs * SLAB),
            blocks=blocks, pieces=[kvd_client.Piece(0, BLOCK, BLOCK)],
        )  # fmt: skip

    def found(self, prompt: list[int]) -> int:
        return self.cache.lookup(digests(prompt))

    def load(self, prompt: list[int]) -> None:
        self.done(self.cache.load(digests(prompt), range(len(prompt)), timeout=PATIENCE_S))

    def store(self, prompt: list[int], first: int = 0) -> None:
        for begin in range(first, len(prompt), CHUNK):
            end = min(begin + CHUNK, len(prompt))
            self.done(self.cache.store(digests(prompt[begin:end]), range(begin, end)))

    def ask(self, prompt: list[int]) -> int:
        """A turn. Returns how many blocks were not computed."""
        found = self.found(prompt)
        if found > 0:
            self.load(prompt[:found])
        self.store(prompt, found)
        return found

    def done(self, ticket: int) -> None:
        states = self.cache.wait([ticket], PATIENCE_S)
        if states != [kvd_client.TicketState.DONE]:
            raise AssertionError(f"the copy is {states}")


def chats(seats: int, turns: int) -> list[list[int]]:
    """Prompts in the order of their time. At each seat one chat follows another; each has six turns, and
    two blocks more each turn."""
    randoms = random.Random(3)
    rows: list[tuple[float, list[int]]] = []
    block = 0
    for _ in range(seats):
        now = randoms.random() * 6
        for _ in range(turns // 6):
            prompt = list(range(block, block + 6))
            block += 6
            for _ in range(6):
                rows.append((now, list(prompt)))
                prompt += [block, block + 1]
                block += 2
                now += 0.5 + randoms.random()
    return [prompt for _, prompt in sorted(rows, key=lambda row: row[0])]


class AFullCache(unittest.TestCase):
    def start(self, slabs: int, eviction: str = "default") -> KvdProcess:
        extra = f'[cache]\neviction = "{eviction}"\n'
        return self.enterContext(KvdProcess(dram_slabs=slabs, extra=extra))

    def hit_rate(self, slabs: int, eviction: str) -> float:
        engine = Engine(self.start(slabs, eviction))
        prompts = chats(seats=30, turns=24)
        found = sum(engine.ask(prompt) for prompt in prompts)
        return found / sum(map(len, prompts))

    def test_finds_the_chats_that_are_there_and_not_those_that_have_left(self) -> None:
        for slabs in (2, 3, 4, 6):  # 480 blocks are in use: the room is .5 to 1.6 of them
            lru, ours = (self.hit_rate(slabs, policy) for policy in ("lru", "default"))
            print(f"room for {slabs * IN_SLAB / 480:.2f} of the chats: lru {lru:.3f}, default {ours:.3f}")
            self.assertGreaterEqual(ours, lru - 0.02)
            self.assertGreater(ours, 0.7 if slabs >= 4 else 0.1)

    def test_finds_a_new_conversation_after_its_second_turn(self) -> None:
        engine = Engine(self.start(slabs=4))
        others = [[1000 * chat + block for block in range(64)] for chat in range(1, 9)]
        for _ in range(6):
            for prompt in others:
                engine.ask(prompt)
        new = list(range(64))
        self.assertEqual(engine.ask(new[:32]), 0)
        self.assertEqual(engine.ask(new), 32)
        self.assertEqual(engine.found(new), 64)

    def test_keeps_the_head_of_a_prompt_that_is_longer_than_the_room(self) -> None:
        engine = Engine(self.start(slabs=4), slabs=5)
        engine.ask([1000 + block for block in range(4 * IN_SLAB)])
        prompt = list(range(5 * IN_SLAB))
        self.assertEqual(engine.found(prompt), 0)
        with self.assertRaisesRegex(kvd_client.OutOfMemory, "no room"):
            engine.store(prompt)
        self.assertEqual(engine.found(prompt), 4 * IN_SLAB)


def turn(engine: KvdEngine, prompt: list[int]) -> int:
    """Returns how many blocks were not computed."""
    blocks = [random.Random(block).choices(range(1, 255), k=16) for block in prompt]
    return engine.ask([*(token for block in blocks for token in block), 255]) // 16


class AFullCacheOfRequests(unittest.TestCase):
    def test_finds_the_chats_that_are_there_and_not_those_that_have_left(self) -> None:
        if not os.path.exists(PROGRAM):
            self.skipTest("kvd-engine is not built")
        prompts = chats(seats=12, turns=18)
        extra = '[load]\npolicy = "always"\n'
        with KvdProcess(slabs=1, dram_slabs=6, extra=extra) as kvd, KvdEngine(kvd) as engine:
            rate = sum(turn(engine, prompt) for prompt in prompts) / sum(map(len, prompts))
        print(f"room for all chats: found {rate:.3f}")
        self.assertGreater(rate, 0.7)


if __name__ == "__main__":
    ctest.main()
