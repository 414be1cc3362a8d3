"""When a worker asks kvd for copies: the cost of a kvd that does not answer, and failures that are not kvd's fault."""

from __future__ import annotations

import types
import unittest
from collections.abc import Sequence

import ctest

import kvd_client
from kvd_vllm.copying import Cache, Copier, State
from kvd_vllm.daemon import KvdCache
from kvd_vllm.layout import CacheShape, Piece
from kvd_vllm.transfers import Copy, Kind

PATIENCE_S = 10.0


class SlowCache(Cache):
    """Answers each call after `answer_s` of the clock. Copies end when the test says so."""

    def __init__(self) -> None:
        self.now, self.answer_s = 0.0, 0.0
        self.begun: list[int] = []
        self.over: set[int] = set()

    def clock(self) -> float:
        return self.now

    def store(self, digests: Sequence[bytes], blocks: Sequence[int], park: bool) -> int:
        self.now += self.answer_s
        self.begun.append(blocks[0])
        return blocks[0]

    def load(self, digests: Sequence[bytes], blocks: Sequence[int]) -> int:
        return self.store(digests, blocks, False)

    def poll(self, tickets: Sequence[int]) -> list[State]:
        return [State.DONE if each in self.over else State.PENDING for each in tickets]

    def close(self) -> None:
        """Nothing is open."""


class Copies(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = SlowCache()
        self.copier = Copier(self.kvd, OSError, BlockingIOError, PATIENCE_S, clock=self.kvd.clock)

    def begin(self, *numbers: int) -> None:
        self.copier.begin([Copy(at, Kind.STORE, "r", [b""], [at]) for at in numbers])

    def test_go_on_while_kvd_answers(self) -> None:
        self.begin(1, 2, 3)
        self.begin(4)
        self.assertEqual(self.kvd.begun, [1, 2, 3, 4])

    def test_wait_for_one_that_kvd_was_slow_to_take(self) -> None:
        self.kvd.answer_s = 0.1
        self.begin(1, 2, 3)
        for _ in range(5):
            self.copier.advance()
        self.assertEqual(self.kvd.begun, [1], "a step is held up once")
        self.kvd.answer_s = 0.0
        self.kvd.over = {1}
        self.copier.advance()
        self.copier.advance()
        self.assertEqual(self.kvd.begun, [1, 2, 3])

    def test_are_given_up_with_a_kvd_that_stands_still_for_long(self) -> None:
        self.kvd.answer_s = 0.1
        self.begin(1, 2)
        self.kvd.now += PATIENCE_S - 1
        self.begin(3)
        self.assertIsNone(self.copier.take_ends())
        self.kvd.now += 2
        self.copier.advance()
        ends = self.copier.take_ends()
        assert ends
        self.assertEqual((ends.done, ends.failed), ([], [2, 3]), "kvd may still touch the blocks of 1")
        self.begin(4)
        ends = self.copier.take_ends()
        assert ends
        self.assertEqual((ends.failed, self.kvd.begun), ([4], [1]))

    def test_are_judged_when_the_device_has_done_its_work(self) -> None:
        is_done, is_right = [False], [True]
        fence = types.SimpleNamespace(query=lambda: is_done[0])
        copier = Copier(self.kvd, OSError, BlockingIOError, PATIENCE_S, lambda: fence, self.kvd.clock)
        copier.begin([Copy(1, Kind.STORE, "r", [b""], [1])])
        copier.begin([Copy(2, Kind.STORE, "r", [b""], [2])], lambda _: is_right[0])
        copier.advance()
        self.assertEqual(self.kvd.begun, [])
        is_done[0], is_right[0] = True, False
        copier.advance()
        ends = copier.take_ends()
        assert ends
        self.assertEqual((self.kvd.begun, ends.refused), ([1], [2]))

    def test_that_are_refused_are_no_failures(self) -> None:
        self.copier.refuse([Copy(1, Kind.STORE, "r", [b""], [1]), Copy(2, Kind.LOAD, "s", [b""], [2])])
        ends = self.copier.take_ends()
        assert ends
        self.assertEqual((ends.failed, ends.refused), ([], [1, 2]))
        self.assertEqual(self.copier.take_failed(), {"s"})
        self.assertIsNone(self.copier.take_ends())


class StandingClient:
    """Takes what it is asked for, and says so too late."""

    def __init__(self) -> None:
        self.calls = 0

    def cache(self, *_: object, **__: object) -> StandingClient:
        return self

    def store(self, *_: object, **__: object) -> int:
        self.calls += 1
        late = kvd_client.DeadlineExceeded("no answer")
        late.ticket = self.calls  # type: ignore[attr-defined]
        raise late


class CopiesOfManyCalls(unittest.TestCase):
    def test_wait_once_for_a_kvd_that_stands_still(self) -> None:
        for blocks, calls in ((4096, 1), (4096 * 3, 1)):
            client = StandingClient()
            shape = CacheShape("model", 16, 64, blocks, (0,))
            cache = KvdCache(client, None, shape, [Piece(0, 64, 64)])  # type: ignore[arg-type]
            cache.store([bytes(32)] * blocks, list(range(blocks)), False)
            self.assertEqual(client.calls, calls)


if __name__ == "__main__":
    ctest.main()
