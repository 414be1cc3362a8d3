"""An elastic KV cache without vLLM and without kvd: how blocks are divided into chunks, which are
claimed and let go, and what the worker's side makes of kvd's answers.
"""

from __future__ import annotations

import random
import types
import unittest
from collections.abc import Iterable
from typing import Any

import ctest

import kvd_client
from kvd_vllm.elastic.balloon import Balloon, Demand, Need, News, Orders
from kvd_vllm.elastic.chunks import Geometry, geometry_of
from kvd_vllm.layout import Piece
from kvd_vllm.elastic.mapping import Mapper, back_the_base

SLAB, TOKENS = 64, 4


def layers(count: int, blocks: int, size: int, offset: int = 0) -> list[Piece]:
    """Lays layers out as vLLM does: one after the other."""
    return [Piece(offset + at * blocks * size, size, size) for at in range(count)]


def divided(pieces: list[Piece], blocks: int, slab: int = SLAB) -> Geometry | None:
    size = max(piece.offset + piece.stride * blocks for piece in pieces)
    return geometry_of(pieces, blocks, slab, -(-size // slab))


class TheGeometry(unittest.TestCase):
    def test_of_layers_that_begin_with_a_slab_keeps_one_chunk(self) -> None:
        found = divided(layers(2, 32, 16), 32)
        assert found is not None
        self.assertEqual((found.chunk_blocks, len(found.chunks)), (4, 8))
        self.assertEqual(found.base, (0, 8))
        self.assertEqual(found.chunks[0], ())
        self.assertEqual(found.chunks[7], (7, 15))
        self.assertEqual(found.elastic, [1, 2, 3, 4, 5, 6, 7])
        self.assertEqual((found.kept_blocks, found.kept_bytes), (3, 2 * SLAB))
        self.assertEqual(found.grain_bytes, 2 * SLAB)

    def test_of_blocks_in_one_run_has_chunks_of_one_run(self) -> None:
        found = divided([Piece(0, 96, 96)], 40)  # two blocks are three slabs
        assert found is not None
        self.assertEqual((found.chunk_blocks, found.chunks[1]), (2, (3, 4, 5)))

    def test_of_layers_that_begin_within_slabs_takes_larger_chunks_where_they_keep_less(self) -> None:
        found = divided(layers(2, 130, 16), 130)  # the second layer begins in the middle of a slab
        assert found is not None
        self.assertGreater(found.chunk_blocks, 4)
        self.assertLess(found.kept_bytes, 130 * 16 * 2 * 0.4)

    def test_of_too_few_blocks_is_none(self) -> None:
        self.assertIsNone(divided(layers(2, 12, 16), 12))
        self.assertIsNotNone(divided(layers(2, 16, 16), 16))
        # A chunk would be one slab, but no chunk begins where a slab does.
        self.assertIsNone(divided([Piece(1, 64, 64)], 4))

    def test_never_shares_a_slab_whatever_the_layout(self) -> None:
        for seed in range(200):
            pick = random.Random(seed)
            size = pick.choice([8, 16, 24, 48, 64, 100, 128])
            blocks, offset = pick.randrange(4, 200), pick.randrange(0, 100)
            pieces = layers(pick.randrange(1, 4), blocks, size, offset)
            found = divided(pieces, blocks)
            if found is None:
                continue
            have = sorted([*found.base, *(at for own in found.chunks for at in own)])
            self.assertEqual(have, list(range(len(have))), f"seed {seed}: a position is missing")
            for chunk in found.elastic:
                mine = set(found.blocks_of(chunk))
                for at in range(blocks):
                    if at not in mine:
                        touched = {
                            slab for piece in pieces
                            for slab in range((piece.offset + at * size) // SLAB,
                                              -(-(piece.offset + at * size + size) // SLAB))
                        }  # fmt: skip
                        self.assertFalse(touched & set(found.chunks[chunk]), f"seed {seed}")

    def test_keeps_whole_chunks_more_for_what_is_to_be_kept(self) -> None:
        found = divided(layers(2, 32, 16), 32)
        assert found is not None
        kept = found.keeping(3 * SLAB)
        self.assertEqual((kept.base, kept.elastic), ((0, 1, 8, 9), [2, 3, 4, 5, 6, 7]))
        self.assertEqual(kept.kept_blocks, 7)
        self.assertEqual(found.keeping(0), found)
        self.assertEqual(found.keeping(10**9).elastic, [])


class Block:
    def __init__(self) -> None:
        self.ref_cnt = 0
        self.block_hash: str | None = None


class Pool:
    """vLLM's BlockPool, as far as it is used."""

    def __init__(self, count: int) -> None:
        self.blocks = [Block() for _ in range(count)]
        self.blocks[0].ref_cnt = 1

    def evict_blocks(self, ids: Iterable[int]) -> None:
        for at in ids:
            self.blocks[at].block_hash = None

    def touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            assert block.ref_cnt > 0
            block.ref_cnt -= 1

    def free(self) -> list[int]:
        return [at for at, block in enumerate(self.blocks) if block.ref_cnt == 0]

    def use(self, at: int) -> None:
        assert self.blocks[at].ref_cnt == 0, f"block {at} is in use"
        self.blocks[at].ref_cnt = 1

    def drop(self, at: int) -> None:
        self.blocks[at].ref_cnt -= 1


class Counts(dict[str, int]):
    def add(self, name: str, count: int = 1) -> None:
        self[name] = self.get(name, 0) + count

    def set(self, name: str, value: int) -> None:
        self[name] = value


def request(name: str, tokens: int, most: int = 8, made: int = 0, **goals: Any) -> Any:
    return types.SimpleNamespace(
        request_id=name, num_tokens=tokens + made, num_prompt_tokens=tokens, max_tokens=most,
        num_output_tokens=made, sampling_params=types.SimpleNamespace(extra_args=goals),
    )  # fmt: skip


GEOMETRY = divided(layers(2, 32, 16), 32)  # chunks of 4 blocks, of which 7 come and go
QUIET = News([], [], [], None, 0, False)


class TheSchedulersSide(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 100.0
        self.counts = Counts()
        self.pool: Any = Pool(32)
        self.balloon = Balloon(TOKENS, lambda: self.now, self.counts)
        self.balloon.bind(self.pool)

    def opened(self, *granted: int, allowed: int | None = None) -> Balloon:
        assert GEOMETRY is not None
        self.balloon.open(GEOMETRY)
        self.hear(grown=list(granted), allowed=len(granted) if allowed is None else allowed)
        return self.balloon

    def hear(self, **facts: Any) -> None:
        self.balloon.hear(QUIET._replace(**facts))

    def step(self, *requests: Any) -> Orders:
        self.now += 0.05
        orders = self.balloon.step(requests)
        assert orders is not None
        return orders

    def test_nothing_is_free_before_the_worker_has_spoken(self) -> None:
        self.assertEqual(self.pool.free(), [])
        with self.assertRaisesRegex(RuntimeError, "`elastic`"):
            self.balloon.step([])

    def test_without_an_elastic_cache_everything_is_vllms(self) -> None:
        self.balloon.open(None)
        self.assertEqual(len(self.pool.free()), 31)
        self.assertIsNone(self.balloon.step([]))
        self.assertFalse(self.balloon.has_work())
        self.assertFalse(self.balloon.has_room_coming())

    def test_what_is_kept_is_free_and_what_was_granted(self) -> None:
        self.opened()
        self.assertEqual(self.pool.free(), [1, 2, 3])
        self.hear(grown=[1, 3], allowed=2)
        self.assertEqual(self.pool.free(), [1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15])
        self.assertEqual(self.balloon.granted_blocks, 11)
        self.assertEqual(self.counts, {"granted_blocks": 11, "grown_blocks": 8})

    def test_demand_is_what_the_requests_are_going_to_use(self) -> None:
        self.opened()
        # 5 blocks and 2 more, but an answer of 2 tokens ends in the sixth: 3 of them are kept.
        self.assertEqual(self.step(request("a", 20, most=2)).demand[:3], (1, 1, 1e-3))
        both = request("a", 20), request("b", 40)
        self.assertEqual(self.step(*both).demand[:2], (1, 4))
        self.assertAlmostEqual(self.step(*both).demand.age_s, 0.1)
        self.assertEqual(self.step(both[1]).demand[:2], (2, 3))
        self.assertAlmostEqual(self.step(both[1]).demand.age_s, 0.15)
        self.assertEqual(self.step(request("c", 4000)).demand.wanted, 7)
        self.assertEqual(self.step().demand, Demand(0, 0, 0.0))

    def test_demand_tells_goals_apart_and_who_has_begun(self) -> None:
        self.opened()
        chat, batch = {"kvd_ttft_s": 5}, {"kvd_ttft_s": "600"}
        first = [request("a", 20, **batch), request("b", 20, most=2, **chat)]
        self.step(*first)
        demand = self.step(*first, request("c", 40, made=1, **batch), request("d", 8, **batch),
                           request("e", 4, kvd_ttft_s=-1)).demand  # fmt: skip
        S = 1_000_000_000
        self.assertEqual(
            [(each.blocks, each.least, each.ttft_ns, each.begun) for each in demand.needs],
            [(11, 1, 600 * S, False), (6, 1, 5 * S, False), (12, 3, 600 * S, True), (3, 0, 0, False)],
        )
        self.assertEqual([round(each.age_s, 3) for each in demand.needs], [0.05, 0.05, 1e-3, 1e-3])
        self.assertEqual(demand[:2], (1, 7))

    def test_demand_tells_a_few_goals_apart(self) -> None:
        self.opened()
        needs = self.step(*(request(str(at), 4, kvd_ttft_s=at) for at in range(1, 40))).demand.needs
        self.assertEqual(len(needs), kvd_client.MOST_NEEDS)
        self.assertEqual(sum(each.blocks for each in needs), 39 * 3)

    def test_under_pressure_chunks_that_nobody_uses_leave_first(self) -> None:
        self.opened(1, 2, 3, 4)
        self.pool.use(4)  # of chunk 1
        self.pool.blocks[9].block_hash = "x"  # of chunk 2
        self.hear(allowed=2)
        self.assertEqual(self.step(request("a", 4)).leave, [3, 4])
        self.assertEqual(self.pool.free(), [1, 2, 3, 5, 6, 7, 8, 9, 10, 11])
        self.hear(gone=[3, 4], allowed=1)
        self.assertEqual(self.step(request("a", 4)).leave, [2])
        self.assertIsNone(self.pool.blocks[9].block_hash)
        self.assertEqual(self.counts["given_back_blocks"], 8)

    def test_then_those_retire_with_the_fewest_used_blocks_and_no_more_than_asked_for(self) -> None:
        self.opened(1, 2, 3)
        for at in (4, 5, 8, 12, 13):
            self.pool.use(at)
        self.hear(allowed=2)
        self.assertEqual(self.step(request("a", 4)).leave, [])
        self.assertEqual(self.pool.free(), [1, 2, 3, 6, 7, 14, 15])  # 9 to 11 are claimed
        self.assertEqual(self.balloon.granted_blocks, 12)
        self.pool.drop(8)
        self.balloon.sweep()
        self.assertNotIn(8, self.pool.free())
        self.assertEqual(self.step(request("a", 4)).leave, [2])

    def test_a_chunk_that_nobody_uses_any_more_leaves_in_place_of_one_that_retires(self) -> None:
        self.opened(1, 2)
        for at in (4, 8, 9):
            self.pool.use(at)
        self.hear(allowed=1)
        self.assertEqual(self.step(request("a", 4)).leave, [])
        self.assertNotIn(5, self.pool.free())
        self.pool.drop(8)
        self.pool.drop(9)
        self.assertEqual(self.step(request("a", 4)).leave, [2])
        self.assertIn(5, self.pool.free())

    def test_pressure_that_ends_lets_go_of_what_was_claimed(self) -> None:
        self.opened(1)
        self.pool.use(4)
        self.hear(allowed=0)
        self.step(request("a", 4))
        self.assertEqual(self.pool.free(), [1, 2, 3])
        self.hear(allowed=1)
        self.step(request("a", 4))
        self.assertEqual(self.pool.free(), [1, 2, 3, 5, 6, 7])

    def test_a_chunk_that_retires_for_long_is_in_the_way(self) -> None:
        self.opened(1)
        self.pool.use(4)
        self.hear(allowed=0)
        self.step(request("a", 4))
        self.assertFalse(self.balloon.is_in_the_way([1, 4]))
        self.now += 0.06
        self.assertTrue(self.balloon.is_in_the_way([1, 4]))
        self.assertFalse(self.balloon.is_in_the_way([1, 2]))

    def test_an_idle_engine_gives_everything_back_and_makes_steps_until_it_has(self) -> None:
        self.opened(1, 2, allowed=7)
        self.assertTrue(self.balloon.has_work())
        self.assertEqual(self.step().leave, [1, 2])
        self.assertTrue(self.balloon.has_work())
        self.hear(gone=[1, 2], allowed=7, told=2)
        self.assertTrue(self.balloon.has_work(), "kvd does not know that nothing is wanted")
        self.hear(allowed=7, told=0)
        self.assertFalse(self.balloon.has_work())

    def test_an_engine_that_falls_idle_at_once_says_first_that_nothing_is_wanted(self) -> None:
        """The worker has not answered yet: it may be about to grow."""
        self.opened()
        self.assertGreater(self.step(request("a", 40)).demand.wanted, 0)
        self.assertTrue(self.balloon.has_work())
        self.assertEqual(self.step().demand.wanted, 0)
        self.assertFalse(self.balloon.has_work())

    def test_an_idle_engine_gives_back_what_a_copy_held_for_long(self) -> None:
        self.opened(1)
        self.pool.use(4)
        self.step()
        self.now += 11
        self.pool.blocks[4].ref_cnt = 0
        self.balloon.sweep()
        self.assertTrue(self.balloon.has_work())
        self.assertEqual(self.step().leave, [1])

    def test_an_idle_engine_does_not_make_steps_for_ever(self) -> None:
        self.opened(1)
        self.pool.use(4)
        self.step()
        self.now += 11
        self.assertFalse(self.balloon.has_work())

    def test_without_kvd_what_there_is_stays(self) -> None:
        self.opened(1, 2)
        self.pool.use(4)
        self.hear(allowed=0)
        self.assertEqual(self.step(request("a", 4)).leave, [2])
        self.hear(stayed=[2], is_down=True)
        self.step(request("a", 4))
        self.assertEqual(self.pool.free(), [1, 2, 3, 5, 6, 7, 8, 9, 10, 11])
        self.assertEqual(self.step().leave, [])
        self.assertFalse(self.balloon.has_work())
        self.assertFalse(self.balloon.has_room_coming())

    def test_a_step_waits_for_growth_that_is_likely_but_not_for_long(self) -> None:
        self.opened(1)
        self.assertTrue(self.balloon.has_room_coming(), "kvd has not heard of it")
        self.assertEqual(self.step(request("a", 4)).demand.wanted, 2)
        self.now += 0.06
        self.assertFalse(self.balloon.has_room_coming())
        self.hear(allowed=3, told=2)
        self.assertTrue(self.balloon.has_room_coming())
        self.now += 0.45
        self.assertFalse(self.balloon.has_room_coming())

    def test_a_step_does_not_wait_where_kvd_said_no(self) -> None:
        self.opened(1)
        self.hear(allowed=1, told=2)
        self.assertFalse(self.balloon.has_room_coming())

    def test_lets_go_of_all_for_a_moment(self) -> None:
        self.opened(1)
        self.pool.use(4)
        before = self.pool.free()
        with self.balloon.let_go():
            self.assertEqual(len(self.pool.free()), 30)
        self.assertEqual(self.pool.free(), before)


class Memory:
    """kvd, with room for a given number of slabs."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.share_of = 10**9  # bytes
        self.parts: dict[int, tuple[int, ...]] = {}
        self.asked: list[dict[str, Any]] = []
        self.fault: Exception | None = None
        self.made = 0

    def grow(self, positions: Iterable[int], timeout: float = 0) -> int:
        asked = tuple(positions)
        if len(asked) > self.room:
            raise kvd_client.OutOfMemory("no room")
        assert not set(asked) & {at for part in self.parts.values() for at in part}
        self.room -= len(asked)
        self.made += 1
        self.parts[self.made] = asked
        return self.made

    def shrink(self, part: int, timeout: float = 0, *, idle: bool = False) -> None:
        assert idle, "the device was waited for already"
        self.room += len(self.parts.pop(part))

    def share(self, timeout: float = 0, **demand: Any) -> int:
        if self.fault is not None:
            raise self.fault
        self.asked.append(demand)
        return self.share_of


class TheWorkersSide(unittest.TestCase):
    def setUp(self) -> None:
        assert GEOMETRY is not None
        self.memory = Memory(room=16)
        back_the_base(self.memory, GEOMETRY, 1.0)
        self.mapper = Mapper(self.memory, GEOMETRY)

    def round(self, least: int, wanted: int, *leave: int) -> News:
        needs = (Need(7, least, 0.5, 5, 6, True),)
        self.mapper.begin(Orders(Demand(least, wanted, 0.5, needs), list(leave)))
        self.mapper.work()
        news = self.mapper.take_news()
        assert news is not None
        return news

    def test_grows_by_the_lowest_chunks_as_far_as_it_may(self) -> None:
        self.memory.share_of = (2 + 3 * 2) * SLAB
        self.assertEqual(self.round(1, 5).grown, [1, 2, 3])
        self.assertEqual(self.memory.parts[2], (1, 9))
        self.assertEqual(
            self.memory.asked[-1],
            {"kept": 2 * SLAB, "least": 4 * SLAB, "wanted": 12 * SLAB, "grain": 2 * SLAB,
             "age_s": 0.5, "needs": [kvd_client.Need(7 * 32, 4 * SLAB, 0.5, 5, 6, True)]},
        )  # fmt: skip
        self.assertEqual(self.round(1, 2), News([], [], [], 3, 2, False))
        self.assertIsNone(self.mapper.take_news())

    def test_takes_away_what_nobody_uses_and_grows_there_again(self) -> None:
        self.round(0, 3)
        self.assertEqual(self.round(0, 1, 2, 3).gone, [2, 3])
        self.assertEqual(len(self.memory.parts), 2)
        self.assertEqual(self.round(0, 2).grown, [2])

    def test_a_last_chunk_that_is_smaller_comes_with_all_of_them(self) -> None:
        geometry = divided([Piece(0, 16, 16)], 30)
        assert geometry is not None
        self.assertEqual((len(geometry.elastic), geometry.grain_bytes), (7, SLAB))
        geometry = divided([Piece(0, 96, 96)], 17)  # chunks of two blocks, three slabs; then one of one
        assert geometry is not None
        self.assertEqual(geometry.chunks[-1], (24, 25))
        self.memory = Memory(room=26)
        back_the_base(self.memory, geometry, 1.0)
        self.mapper = Mapper(self.memory, geometry)
        self.memory.share_of = 26 * SLAB
        self.assertEqual(self.round(0, 8).grown, [1, 2, 3, 4, 5, 6, 7, 8])

    def test_where_there_is_no_room_it_asks_again(self) -> None:
        self.memory.room = 3
        self.assertEqual(self.round(0, 2).grown, [1])
        self.memory.room = 2
        self.assertEqual(self.round(0, 2).grown, [2])

    def test_a_kvd_that_is_slow_changes_nothing(self) -> None:
        self.round(0, 2)
        self.memory.fault = kvd_client.DeadlineExceeded("late")
        self.mapper.begin(Orders(Demand(0, 0, 0.0), [1]))
        self.assertGreater(self.mapper.work(), 0.1)
        self.assertIsNone(self.mapper.take_news())
        self.memory.fault = None
        self.assertEqual(self.round(0, 0).gone, [1])

    def test_without_kvd_all_stays(self) -> None:
        self.round(0, 2)
        self.memory.fault = kvd_client.Unavailable("gone")
        self.assertEqual(self.round(0, 0, 1), News([], [], [1], None, 0, True))
        self.assertEqual(len(self.memory.parts), 3)
        self.memory.fault = None
        self.assertFalse(self.round(0, 2).is_down)

    def test_leaves_a_chunk_alone_of_which_it_is_not_known_whether_it_has_memory(self) -> None:
        grow, refused = self.memory.grow, [kvd_client.InvalidArgument("already")]

        def late(positions: Iterable[int], timeout: float = 0) -> int:
            if refused:
                raise refused.pop()
            return grow(positions)

        self.memory.grow = late  # type: ignore[method-assign]
        self.assertEqual(self.round(0, 2).grown, [2, 3])

    def test_on_a_device_memory_is_taken_away_once_that_is_done_with_it(self) -> None:
        assert GEOMETRY is not None
        done = [False]
        event = types.SimpleNamespace(query=lambda: done[0])
        self.mapper = Mapper(self.memory, GEOMETRY, fence=lambda: event)
        self.round(0, 1)
        self.assertEqual(self.round(0, 0, 1).gone, [])
        done[0] = True
        self.assertEqual(self.round(0, 0).gone, [1])

    def test_its_thread_does_the_same(self) -> None:
        import kvd_process

        self.mapper.start()
        self.mapper.begin(Orders(Demand(0, 2, 0.0), []))
        grown: list[int] = []

        def has_grown() -> bool:
            news = self.mapper.take_news()
            grown.extend(news.grown if news is not None else [])
            return grown == [1, 2]

        self.assertTrue(kvd_process.poll_until(has_grown))
        self.mapper.close()

    def test_its_thread_gives_back_without_steps_when_kvd_is_there_again(self) -> None:
        import kvd_process

        self.round(0, 2)
        self.memory.fault = kvd_client.DeadlineExceeded("late")
        self.mapper.begin(Orders(Demand(0, 0, 0.0), [1, 2]))
        self.mapper.start()
        self.addCleanup(self.mapper.close)
        self.assertTrue(kvd_process.poll_until(lambda: self.mapper._leaving == [1, 2]))
        self.memory.fault = None
        self.assertTrue(kvd_process.poll_until(lambda: len(self.memory.parts) == 1))

    def test_what_grew_for_an_engine_that_is_idle_goes_back(self) -> None:
        """No step learns of it."""
        share, self.memory.share = self.memory.share, self.idle_meanwhile  # type: ignore[method-assign]
        self.mapper.begin(Orders(Demand(0, 2, 0.5), []))
        self.mapper.work()
        self.assertEqual(len(self.memory.parts), 3)
        self.memory.share = share  # type: ignore[method-assign]
        self.mapper.work()
        self.assertEqual(len(self.memory.parts), 1)
        news = self.mapper.take_news()
        assert news is not None
        self.assertEqual((news.grown, news.gone), ([], []))
        self.assertEqual(self.round(0, 2).grown, [1, 2])

    def idle_meanwhile(self, **_: Any) -> int:
        self.mapper.begin(Orders(Demand(0, 0, 0.0), []))
        return 10**9

    def test_what_is_kept_is_waited_for(self) -> None:
        assert GEOMETRY is not None
        memory, now = Memory(room=1), [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds
            if now[0] > 0.5:
                memory.room = 2

        back_the_base(memory, GEOMETRY, 1.0, lambda: now[0], sleep)
        self.assertEqual(memory.parts, {1: (0, 8)})
        self.assertGreater(memory.asked[-1]["age_s"], 0.4)
        memory = Memory(room=0)
        with self.assertRaises(kvd_client.OutOfMemory):
            back_the_base(memory, GEOMETRY, 1.0, lambda: now[0], lambda s: now.__setitem__(0, now[0] + s))


if __name__ == "__main__":
    ctest.main()
