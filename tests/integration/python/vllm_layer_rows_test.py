"""Rows of streamed layers without vLLM: what becomes of them where kvd is full, gone or late."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import ctest
import kvd_client
from kvd_client import TicketState

from kvd_vllm.layers.rows import Rows
from kvd_vllm.layers.table import Copy

PATIENCE_S = 3.0


class Page:
    def __init__(self, word: int) -> None:
        self.word = word

    def clone(self) -> Page:
        return Page(self.word)

    def copy_(self, other: Page) -> None:
        self.word = other.word


class Kvd:
    """A daemon and its cache. It refuses with `fault`; while it `stands`, it takes copies and makes none.
    While it is `deaf` it answers nothing, and refuses later what it was asked for meanwhile."""

    def __init__(self, pages: list[Page]) -> None:
        self.pages = pages
        self.rows: dict[bytes, Page] = {}
        self.fault: kvd_client.KvdError | None = None
        self.stands = self.deaf = False
        self.session = 1
        self.opened = 0
        self.unheard: list[int] = []  # tickets
        self.calls = 0
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.states: list[TicketState] = []

    def session_now(self) -> int:
        self.answer()
        return self.session

    def open(self, timeout: float = 0) -> Any:
        self.opened += 1  # and nobody reads the answer
        self.answer()
        return self

    def close(self, timeout: float) -> None:
        if self.opened == 0:
            raise kvd_client.NotFound("it is closed")
        self.opened -= 1
        self.answer()

    def answer(self) -> None:
        self.calls += 1
        if self.deaf:
            raise kvd_client.DeadlineExceeded("no answer")
        if self.fault is not None:
            raise self.fault

    def store(self, digests: Sequence[bytes], pages: Sequence[int], park: bool, timeout: float) -> int:
        rows = {digest: self.pages[page].clone() for digest, page in zip(digests, pages, strict=True)}
        return self.begin(lambda: self.rows.update(rows))

    def load(self, digests: Sequence[bytes], pages: Sequence[int], timeout: float) -> int:
        def copy() -> None:
            for digest, page in zip(digests, pages, strict=True):
                self.pages[page].copy_(self.rows[digest])

        return self.begin(copy, all(digest in self.rows for digest in digests))

    def begin(self, copy: Callable[[], None], is_there: bool = True) -> int:
        try:
            self.answer()
        except kvd_client.DeadlineExceeded as fault:
            self.states.append(TicketState.PENDING)
            self.unheard.append(len(self.states))
            fault.ticket = len(self.states)  # type: ignore[attr-defined]
            raise
        for ticket in self.unheard:
            self.states[ticket - 1] = TicketState.FAILED
        self.unheard = []
        if not is_there:
            raise kvd_client.NotFound("no such block")
        self.states.append(TicketState.PENDING)
        self.waiting.append((len(self.states), copy))
        if not self.stands:
            self.go_on()
        return len(self.states)

    def go_on(self) -> None:
        self.stands = False
        for ticket, copy in self.waiting:
            copy()
            self.states[ticket - 1] = TicketState.DONE
        self.waiting = []

    def wait(self, tickets: Sequence[int], timeout: float) -> list[TicketState]:
        self.answer()
        if TicketState.PENDING in self.poll(tickets):
            raise kvd_client.DeadlineExceeded("it is not over yet")
        return self.poll(tickets)

    def poll(self, tickets: Sequence[int]) -> list[TicketState]:
        return [self.states[ticket - 1] for ticket in tickets]

    def drop(self, digests: Sequence[bytes], timeout: float) -> None:
        self.answer()
        for digest in digests:
            self.rows.pop(digest, None)


class TheRows(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 100.0
        clock = mock.patch("kvd_vllm.layers.rows.time").start()
        self.addCleanup(mock.patch.stopall)
        clock.monotonic = lambda: self.now
        clock.sleep = self.wait
        self.pages = [Page(word) for word in range(10)]
        self.kvd = Kvd(self.pages)
        self.said: list[str] = []
        self.rows = Rows(self.kvd.open, self.kvd.session_now, self.pages, PATIENCE_S, self.said.append)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def load(self, copies: list[Copy]) -> list[Copy]:
        return self.rows.wait(self.rows.load(copies))

    def test_are_kvds(self) -> None:
        self.rows.store([Copy(1, 4), Copy(2, 5)])
        self.assertEqual(len(self.kvd.rows), 2)
        self.assertEqual(self.load([Copy(1, 7), Copy(2, 8)]), [])
        self.assertEqual([self.pages[7].word, self.pages[8].word], [4, 5])
        self.rows.drop([1, 2])
        self.assertEqual((self.kvd.rows, self.said), ({}, []))

    def test_are_this_processs_where_kvd_is_full(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.kvd.fault = kvd_client.OutOfMemory("no room")
        self.rows.store([Copy(2, 2)])
        self.rows.store([Copy(3, 3)])
        self.kvd.fault = None
        self.assertEqual(self.load([Copy(1, 4), Copy(2, 5), Copy(3, 6)]), [])
        self.assertEqual([each.word for each in self.pages[4:7]], [1, 2, 3])
        self.assertEqual(len(self.said), 1)
        self.rows.drop([1, 2, 3])
        self.assertEqual((self.kvd.rows, self.rows._own), ({}, {}))

    def test_are_asked_for_again_where_kvd_has_no_time(self) -> None:
        self.kvd.fault = kvd_client.WouldBlock("not now")
        began = self.now
        self.rows.store([Copy(1, 1)])
        self.assertGreater(self.now, began + PATIENCE_S)
        self.assertEqual(self.load([Copy(1, 4)]), [])
        began = self.now
        self.rows.store([Copy(2, 2)])
        self.assertEqual(self.now, began, "each call waits as long")

    def test_are_lost_with_kvd(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.kvd.fault = kvd_client.Unavailable("nobody is there")
        self.assertEqual(self.load([Copy(1, 4)]), [Copy(1, 4)])
        calls = self.kvd.calls
        self.rows.store([Copy(2, 2)])
        self.assertEqual(self.load([Copy(1, 4), Copy(2, 5)]), [Copy(1, 4)])
        self.assertEqual(self.pages[5].word, 2)
        self.rows.drop([1])
        self.assertEqual(self.rows.begin_step(), set())
        self.assertEqual(self.kvd.calls, calls, "a kvd that is gone is asked for something")

    def test_are_kvds_again_once_it_is_back(self) -> None:
        self.kvd.fault = kvd_client.PeerGone("it hung up")
        self.rows.store([Copy(1, 1)])
        self.wait(60)
        self.rows.begin_step()
        self.kvd.fault = None
        self.rows.store([Copy(2, 2)])
        self.assertEqual(self.kvd.rows, {}, "it is used though it is away")
        self.wait(60)
        self.rows.begin_step()
        self.rows.store([Copy(3, 3)])
        self.assertEqual(len(self.kvd.rows), 1)
        self.assertEqual(self.load([Copy(1, 4), Copy(2, 5), Copy(3, 6)]), [])
        self.assertEqual([each.word for each in self.pages[4:7]], [1, 2, 3])

    def test_lose_no_others_with_them(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.restart()
        self.rows.store([Copy(2, 2)])
        self.assertEqual(self.load([Copy(1, 4), Copy(2, 5)]), [Copy(1, 4)])
        self.assertEqual(self.pages[5].word, 2)

    def test_that_are_gone_are_not_kept_in_mind(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.kvd.fault = kvd_client.Unavailable("nobody is there")
        self.rows.store([Copy(row, 2) for row in range(2, 100)])
        self.rows.drop(range(1, 100))
        self.assertEqual((self.rows._dead, self.rows._own), ([1], {}))
        self.kvd.fault = None
        self.restart()
        self.assertEqual((self.rows._dead, self.rows._kvds), ([], set()))

    def test_are_dropped_late_where_kvd_was_only_late(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.kvd.fault = kvd_client.DeadlineExceeded("no answer")
        self.rows.drop([1])
        self.kvd.fault = None
        self.wait(60)
        self.rows.begin_step()
        self.rows.drop([])
        self.assertEqual(self.kvd.rows, {})

    def test_open_no_cache_that_nobody_hears_of(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.kvd.deaf = True
        self.rows.drop([1])
        calls = self.kvd.calls
        for _ in range(200):
            self.wait(1)
            self.rows.begin_step()
        self.assertLess(self.kvd.calls, calls + 15, "a kvd that is gone is asked too often")
        self.kvd.deaf = False
        self.wait(60)
        self.rows.begin_step()
        self.rows.store([Copy(2, 2)])
        self.assertEqual((len(self.kvd.rows), self.kvd.opened), (2, 1))

    def restart(self) -> None:
        self.kvd.rows.clear()
        self.kvd.session += 1
        self.kvd.fault = kvd_client.Unavailable("it is another one")
        self.rows.store([Copy(1000, 1)])
        self.kvd.fault = None
        self.wait(60)
        self.rows.begin_step()

    def pause(self) -> float:
        """How long kvd is left alone when it goes away now and is back at once."""
        self.kvd.fault = kvd_client.PeerGone("it hung up")
        began = self.now
        self.rows.store([Copy(1, 1)])
        self.kvd.fault, calls = None, self.kvd.calls
        while self.kvd.calls == calls:
            self.wait(0.9)
            self.rows.begin_step()
        return self.now - began

    def test_are_told_of_once_each_time_that_it_goes_away(self) -> None:
        for times in (1, 2):
            self.pause()
            self.assertEqual(len([each for each in self.said if "own memory" in each]), times)

    def test_are_seldom_kvds_where_it_goes_away_often(self) -> None:
        pauses = [self.pause() for _ in range(13)]
        self.assertLess(pauses[0], 2)
        self.assertGreater(pauses[5], 10 * pauses[0])
        self.assertLess(max(pauses), 602)
        self.wait(601 * 10)
        self.assertLess(self.pause(), 2)
        self.assertEqual(self.kvd.opened, 1, "a cache is left open")

    def test_leave_the_pages_of_a_late_load_alone(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.kvd.stands = True
        self.assertEqual(self.load([Copy(1, 4)]), [Copy(1, 4)])
        self.wait(60)
        self.assertEqual(self.rows.begin_step(), {4})
        calls = self.kvd.calls
        self.rows.store([Copy(2, 2)])
        self.assertEqual(self.load([Copy(2, 5)]), [])
        self.assertEqual(self.kvd.calls, calls, "a kvd that is late is asked for something")
        began = self.now
        self.assertEqual(self.rows.begin_step(wait=True), {4})
        self.assertGreater(self.now, began + PATIENCE_S)
        self.kvd.go_on()
        self.wait(60)
        self.assertEqual(self.rows.begin_step(), set())
        self.rows.store([Copy(3, 3)])
        self.assertEqual(len(self.kvd.rows), 2)

    def test_are_kvds_again_where_it_refused_too_late(self) -> None:
        self.rows.store([Copy(1, 1)])
        self.kvd.deaf = True
        self.assertEqual(self.load([Copy(1, 4)]), [Copy(1, 4)])
        for _ in range(5):
            self.wait(60)
            self.assertEqual(self.rows.begin_step(), {4})
        self.assertEqual(len(self.kvd.states), 2, "tickets are used up")
        self.kvd.deaf = False
        for _ in range(2):
            self.wait(60)
            self.rows.begin_step()
        self.assertEqual(self.rows.begin_step(), set())
        self.rows.store([Copy(2, 2)])
        self.assertEqual(len(self.kvd.rows), 2)

    def test_leave_the_pages_of_a_load_that_failed_alone_for_a_moment(self) -> None:
        self.rows.store([Copy(1, 1)])
        for is_late in (False, True):
            with self.subTest(is_late=is_late):
                self.kvd.stands = True
                parts = self.rows.load([Copy(1, 4)])
                if is_late:
                    self.assertEqual(self.rows.wait(parts), [Copy(1, 4)])
                self.kvd.states[-1] = TicketState.FAILED
                if not is_late:
                    self.assertEqual(self.rows.wait(parts), [Copy(1, 4)])
                self.assertEqual(self.rows.begin_step(), {4})
                began = self.now
                self.assertEqual(self.rows.begin_step(wait=True), set())
                self.assertLess(self.now, began + 2)

    def test_are_stored_here_where_a_store_is_late(self) -> None:
        self.kvd.stands = True
        self.rows.store([Copy(1, 1)])
        self.assertEqual(self.rows.begin_step(), set())
        self.pages[1].word = 9
        self.kvd.go_on()
        self.assertEqual(self.load([Copy(1, 4)]), [])
        self.assertEqual(self.pages[4].word, 1)


if __name__ == "__main__":
    ctest.main()
