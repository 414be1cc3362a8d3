"""Engines that place their blocks themselves, where another cache was seen to say that blocks are there
which are not, to block for seconds, to forget all, or to lose what it had acknowledged: when the
process that stored is killed, when kvd is, and when memory is short."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable

import ctest
from kvd_process import PATIENCE_S, KvdProcess, poll_until

import kvd_client

BLOCK = 64 << 10
SLOTS = 16
MANY = 24  # blocks, for a process that is killed in the middle
AT_ONCE_S = 3.0  # the other cache blocked for 4.3; 60 s are given


def digest(number: int) -> bytes:
    return number.to_bytes(8, "little") * 4


def content(number: int) -> bytes:
    return (number + (1 << 60)).to_bytes(8, "little") * (BLOCK // 8)


class Engine:
    """Block n says n in every eight bytes."""

    def __init__(self, endpoint: str) -> None:
        self.client = kvd_client.Client(endpoint)
        region = self.client.allocate(BLOCK * SLOTS)
        self.memory = region.view()
        self.cache = self.client.cache(
            "model", block_tokens=16, block_bytes=BLOCK, region=region, blocks=SLOTS,
            pieces=[kvd_client.Piece(0, BLOCK, BLOCK)],
        )  # fmt: skip

    def store(self, number: int, park: bool = False) -> None:
        self.memory[:BLOCK] = content(number)
        self.done(self.cache.store([digest(number)], [0], park=park))

    def is_said_to_be_there(self, number: int) -> bool:
        return self.cache.lookup([digest(number)]) == 1

    def loads(self, number: int) -> bool:
        """The block is there with all its bytes, at a place that was empty before."""
        self.memory[BLOCK : 2 * BLOCK] = bytes(BLOCK)
        self.done(self.cache.load([digest(number)], [1]))
        return self.memory[BLOCK : 2 * BLOCK] == content(number)

    def done(self, ticket: int) -> None:
        states = self.cache.wait([ticket], PATIENCE_S)
        if states != [kvd_client.TicketState.DONE]:
            raise AssertionError(f"the copy is {states}")


def store_without_end(endpoint: str) -> None:
    """The process that is killed. It reports what is stored, block by block, and overwrites each block while the next
    one is stored."""
    engine = Engine(endpoint)
    for number in range(1, 1000):
        engine.store(number)
        print(number, flush=True)
        engine.memory[:BLOCK] = bytes(BLOCK)


class CacheFaults(unittest.TestCase):
    def test_what_a_killed_engine_stored_is_there_whole_or_not_said_to_be(self) -> None:
        kvd = self.enterContext(KvdProcess(bandwidth="16MiB/s"))
        looking = Engine(kvd.endpoint)
        stored = 0
        with subprocess.Popen(
            [sys.executable, __file__, kvd.endpoint], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            while stored < MANY:
                stored = int(process.stdout.readline())
            process.kill()
            stored = max([stored, *map(int, process.stdout.read().split())])
        for number in range(1, stored + 1):
            self.assertTrue(looking.is_said_to_be_there(number), f"{number} was stored")
            self.assertTrue(looking.loads(number), number)
        for number in range(stored + 1, stored + 4):
            if looking.is_said_to_be_there(number):
                self.assertTrue(looking.loads(number), number)

    def test_no_call_waits_for_a_dead_kvd(self) -> None:
        kvd = self.enterContext(KvdProcess())
        engine = Engine(kvd.endpoint)
        engine.store(1)
        kvd.kill()
        for _ in range(3):
            for name, call in self.calls(engine, PATIENCE_S):
                begin = time.monotonic()
                with self.subTest(name), self.assertRaises(kvd_client.Unavailable):
                    call()
                self.assertLess(time.monotonic() - begin, AT_ONCE_S, name)

    def test_every_call_to_a_kvd_that_stands_still_ends_by_its_deadline(self) -> None:
        kvd = self.enterContext(KvdProcess())
        engine = Engine(kvd.endpoint)
        engine.store(1)
        kvd.signal(signal.SIGSTOP)
        for name, call in self.calls(engine, 0.3):
            begin = time.monotonic()
            with self.subTest(name), self.assertRaises(kvd_client.DeadlineExceeded):
                call()
            self.assertLess(time.monotonic() - begin, PATIENCE_S / 6, name)
        kvd.signal(signal.SIGCONT)
        engine.store(2)
        self.assertTrue(engine.loads(2))

    def test_what_was_stored_is_found_after_a_kill_where_a_holder_keeps_it(self) -> None:
        kvd = self.enterContext(KvdProcess(held=True))
        engine = Engine(kvd.endpoint)
        for number in range(SLOTS):
            engine.store(number)
        # A block is written down a moment after it is stored, so the first kills may come too soon.
        for _ in range(20):
            kvd.kill_held()
            engine = self.attached_again(kvd)
            found = [number for number in range(SLOTS) if engine.is_said_to_be_there(number)]
            self.assertTrue(all(engine.loads(number) for number in found))
            if len(found) == SLOTS:
                return
            for number in range(SLOTS):
                engine.store(number)
        self.fail(f"{len(found)} of {SLOTS} outlive kvd")

    def test_without_one_nothing_is_said_to_be_there(self) -> None:
        kvd = self.enterContext(KvdProcess())
        engine = Engine(kvd.endpoint)
        engine.store(1)
        kvd.kill()
        kvd.start()
        engine = Engine(kvd.endpoint)
        self.assertFalse(engine.is_said_to_be_there(1))
        with self.assertRaises(kvd_client.NotFound):
            engine.loads(1)

    def test_what_was_acknowledged_to_stay_stays_and_the_rest_is_right_or_gone(self) -> None:
        kvd = self.enterContext(KvdProcess(dram_slabs=2))  # 64 blocks
        engine = Engine(kvd.endpoint)
        for number in range(100):
            engine.store(1000 + number)
        parked, refused = self.parked(engine, range(60))
        self.assertEqual((len(parked), refused), (60, []), "the others make way")
        for number in range(100):
            engine.store(2000 + number)
        more, refused = self.parked(engine, range(60, 70))
        self.assertTrue(more and refused, "memory is short")
        self.assertTrue(all(engine.loads(number) for number in parked + more))
        self.assertFalse(any(engine.is_said_to_be_there(number) for number in refused))
        rest = [n for n in range(1000, 2100) if engine.is_said_to_be_there(n)]
        self.assertTrue(all(engine.loads(number) for number in rest))

    def attached_again(self, kvd: KvdProcess) -> Engine:
        engines: list[Engine] = []

        def attached() -> bool:
            with contextlib.suppress(kvd_client.Unavailable):
                engines.append(Engine(kvd.endpoint))
            return bool(engines)

        self.assertTrue(poll_until(attached))
        return engines[0]

    def parked(self, engine: Engine, numbers: range) -> tuple[list[int], list[int]]:
        """The numbers that kvd acknowledged, and the numbers that it refused."""
        acknowledged, refused = [], []
        for number in numbers:
            try:
                engine.store(number, park=True)
                acknowledged.append(number)
            except kvd_client.OutOfMemory:
                refused.append(number)
        return acknowledged, refused

    def calls(self, engine: Engine, timeout: float) -> list[tuple[str, Callable[[], object]]]:
        cache, one = engine.cache, [digest(1)]
        return [
            ("lookup", lambda: cache.lookup(one, timeout)),
            ("load", lambda: cache.load(one, [1], timeout=timeout)),
            ("store", lambda: cache.store([digest(9)], [0], timeout=timeout)),
            ("drop", lambda: cache.drop([digest(8)], timeout)),
        ]


if __name__ == "__main__":
    if len(sys.argv) == 2 and os.path.exists(sys.argv[1]):
        store_without_end(sys.argv[1])
    else:
        ctest.main()
