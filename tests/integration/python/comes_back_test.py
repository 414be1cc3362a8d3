"""A level-1 engine whose kvd is killed or upgraded under kvd-holder: the next kvd takes it back, with the
same slabs as the same region, and without a copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import unittest
from collections.abc import Callable

import ctest
from kvd_process import SLAB, KvdProcess, poll_until, pool_ranges

import kvd_client

BLOCK = 64 << 10
SLABS, HELD = 10, 8  # the region has 80 % of HBM


class ComesBack(unittest.TestCase):
    def check(self, end: Callable[[KvdProcess], None]) -> None:
        kvd = self.enterContext(KvdProcess(slabs=SLABS, held=True))
        client = kvd_client.Client(kvd.endpoint)
        region = client.allocate(HELD * SLAB)
        view = region.view()
        self.addCleanup(view.release)
        options = dict(
            block_tokens=16, block_bytes=BLOCK, region=region, blocks=HELD,
            pieces=[kvd_client.Piece(0, BLOCK, BLOCK)],
        )  # fmt: skip
        view[:BLOCK] = b"\x07" * BLOCK
        cache = client.cache("model", **options)  # type: ignore[arg-type]
        digest = bytes(range(32))
        self.assertEqual(cache.wait([cache.store([digest], [0])]), [kvd_client.TicketState.DONE])
        ranges = pool_ranges(os.getpid())
        for _ in range(2):  # it stays the same region, whichever daemon granted it
            end(kvd)
            self.assert_is_back(kvd)
        hbm = next(each for each in kvd.get("/v1/pools")["pools"] if each["tier"] == "hbm")
        self.assertEqual(hbm["region_bytes"], HELD * SLAB)
        self.assertEqual(pool_ranges(os.getpid()), ranges, "other memory is mapped")
        again = client.cache("model", **options)  # type: ignore[arg-type]
        # kvd may have been killed before it had written down what was stored
        self.assertEqual(again.wait([again.store([digest], [0])]), [kvd_client.TicketState.DONE])
        self.assertEqual(again.wait([again.load([digest], [1])]), [kvd_client.TicketState.DONE])
        self.assertEqual(view[BLOCK : 2 * BLOCK], b"\x07" * BLOCK)

    def assert_is_back(self, kvd: KvdProcess) -> None:
        def is_back() -> bool:
            return [each["orphaned_bytes"] for each in kvd.engines()] == [0]

        self.assertTrue(poll_until(is_back), "its memory counts as another kvd's")
        self.assertEqual(kvd.engines()[0]["region_bytes"], HELD * SLAB)

    def test_a_region_that_grows(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=SLABS, held=True))
        client = kvd_client.Client(kvd.endpoint)
        region = client.reserve(SLABS * SLAB)
        region.grow([0, 3])
        part = region.grow(list(range(4, 4 + HELD - 2)))
        kvd.kill_held()
        self.assert_is_back(kvd)
        region.shrink(part)
        region.grow([1])
        region.free()
        self.assertTrue(kvd.all_returned())

    def test_without_its_engine_the_memory_is_everybodys(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=SLABS, held=True))
        hold = f"import kvd_client; kvd_client.Client({kvd.endpoint!r}).allocate({HELD * SLAB}); print(); input()"
        command = [sys.executable, "-c", hold]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
            assert engine.stdout is not None
            engine.stdout.readline()
            engine.send_signal(signal.SIGSTOP)  # it does not attach again
            kvd.kill_held()
            engine.kill()
        self.assertTrue(kvd.all_returned())

    def test_after_a_kill(self) -> None:
        self.check(KvdProcess.kill_held)

    def test_after_an_upgrade(self) -> None:
        self.check(KvdProcess.upgrade_held)


if __name__ == "__main__":
    ctest.main()
