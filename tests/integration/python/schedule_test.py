"""schedule() of kvd_client on a real kvd: what an engine that places its blocks itself is told, and
what it gets where the daemon does not answer."""

from __future__ import annotations

import signal
import time
import unittest

import ctest
from kvd_client import (
    Client, DeadlineExceeded, Decision, InvalidArgument, ScheduleBatch, ScheduleState, Shape,
    Transport, Unavailable, slo_class,
)  # fmt: skip
from kvd_process import KvdProcess, poll_until

S = 1_000_000_000


def ask(client: Client, batch: ScheduleBatch, free: int = 10, timeout: float = 5.0) -> Decision:
    return client.schedule(
        batch, free_blocks=free, total_blocks=100, block_tokens=16, last_step_ns=S // 100,
        last_step_decodes=4, timeout=timeout,
    )  # fmt: skip


def runs(batch: ScheduleBatch, id: int, blocks: int) -> None:
    """Eleven tokens, one a millisecond, the last just now."""
    prompt = blocks * 16 - 18
    batch.add(
        id, ScheduleState.RUNNING, prompt, prompt + 10, 11, 100, blocks, 0, 5 * S, S // 90, 1
    )  # fmt: skip


def waits(batch: ScheduleBatch, id: int, prompt: int, age: float, **goals: int) -> None:
    batch.add(id, ScheduleState.WAITING, prompt, 0, 0, 100, 0, 0, int(age * S), **goals)


class Scheduling(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        self.batch = ScheduleBatch(64)

    def open(self, transport: Transport = Transport.RING) -> Client:
        return self.enterContext(Client(self.kvd.endpoint, transport=transport))

    def test_takes_the_longest_gaps_of_requests(self) -> None:
        client = self.open()
        runs(self.batch, 1, 45)
        runs(self.batch, 2, 45)
        ask(client, self.batch)
        client.set_gaps({2: 0.25, 9: 1.0}, timeout=5.0)
        ask(client, self.batch)
        requests = self.kvd.get("/v1/requests")["requests"]
        self.assertEqual([each["gap_goal_s"] for each in requests], [1.0, 0.25])
        with self.assertRaises(InvalidArgument):
            client.set_gaps({2: 3601.0}, timeout=5.0)

    def test_is_answered_over_either_transport(self) -> None:
        for transport in Transport:
            client = self.open(transport)
            self.batch.clear()
            runs(self.batch, 1, 45)
            runs(self.batch, 2, 45)
            waits(self.batch, 3, 16 * 40, 3)
            waits(self.batch, 4, 16, 1)
            decision = ask(client, self.batch)
            self.assertEqual(len(decision.preempt), 1)
            self.assertEqual(decision.admit, [3, 4])
            self.batch.clear()
            runs(self.batch, 1, 45)
            self.assertEqual(ask(client, self.batch), Decision([], [], None))

    def test_shows_the_engine_and_its_requests(self) -> None:
        client = self.open()
        runs(self.batch, 1, 45)
        waits(self.batch, 3, 16, 1)
        ask(client, self.batch)
        engines = self.kvd.engines
        self.assertTrue(poll_until(lambda: any(e["places"] == "engine" for e in engines())))
        self.assertEqual([e["requests"] for e in engines() if e["places"] == "engine"], [2])
        states = {r["request"]: r["state"] for r in self.kvd.get("/v1/requests")["requests"]}
        self.assertEqual(states, {1: "running", 3: "prefill"})  # it was let in

    def test_goals_may_be_those_of_a_class(self) -> None:
        self.assertNotEqual(slo_class("default"), slo_class("batch"))
        client = self.open()
        runs(self.batch, 1, 90)
        waits(self.batch, 3, 16 * 40, 0.5, slo_class=slo_class("default"))
        self.assertEqual(ask(client, self.batch).preempt, [], "half a second of five")
        self.batch.clear()
        runs(self.batch, 1, 90)
        waits(self.batch, 3, 16 * 40, 0.5, ttft_ns=S * 4 // 5)
        self.assertEqual(ask(client, self.batch).preempt, [1])

    def test_what_cannot_be_is_refused(self) -> None:
        client = self.open()
        waits(self.batch, 3, 16, 1)
        waits(self.batch, 3, 16, 1)
        with self.assertRaisesRegex(InvalidArgument, "named twice"):
            ask(client, self.batch)
        with self.assertRaises(InvalidArgument):
            waits(self.batch, 1, -1, 1)
        with self.assertRaises(InvalidArgument):
            ScheduleBatch(4096)
        full = ScheduleBatch(1)
        waits(full, 1, 1, 1)
        with self.assertRaisesRegex(InvalidArgument, "end of the queue"):
            waits(full, 2, 1, 1)
        shape = Shape(layers=2, bytes_per_token_per_layer=4096)
        with Client(self.kvd.endpoint, shape=shape) as shaped:
            with self.assertRaisesRegex(InvalidArgument, "without a shape"):
                ask(shaped, full)

    def test_ends_by_its_timeout_and_goes_on_with_the_same_session(self) -> None:
        client = self.open()
        generation = client.session().generation
        waits(self.batch, 3, 16, 1)
        ask(client, self.batch)
        self.kvd.signal(signal.SIGSTOP)
        begin = time.monotonic()
        with self.assertRaises(DeadlineExceeded):
            ask(client, self.batch, timeout=0.01)
        self.assertLess(time.monotonic() - begin, 5.0)
        self.kvd.signal(signal.SIGCONT)
        self.assertEqual(ask(client, self.batch).admit, [3])
        self.assertEqual(client.session().generation, generation)

    def test_of_a_daemon_that_is_gone_fails_at_once_until_somebody_attaches_again(self) -> None:
        client = self.open()
        waits(self.batch, 3, 16, 1)
        ask(client, self.batch)
        self.kvd.kill()

        def is_gone() -> bool:
            try:
                ask(client, self.batch)
            except Unavailable:
                return True
            return False

        self.assertTrue(poll_until(is_gone))
        self.kvd.start()
        with self.assertRaisesRegex(Unavailable, "a ping attaches again"):
            ask(client, self.batch)
        client.ping()
        self.assertEqual(ask(client, self.batch).admit, [3])


if __name__ == "__main__":
    ctest.main()
