"""kvd_client on a real kvd: memory, requests, errors, and what happens to them when processes end."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import ctest
import kvd_client
from kvd_client import (
    Client, DeadlineExceeded, Direction, ElasticRegion, HoldReason, InvalidArgument, KvdError,
    NotFound, PeerGone, Report, Request, Run, RunFlag, Shape, Step, Unavailable, WouldBlock,
)  # fmt: skip
from kvd_process import KvdProcess, poll_until, pool_bytes_mapped

SHAPE = Shape(layers=2, layers_per_block=1, block_tokens=16, bytes_per_token_per_layer=4096)
BLOCK = 16 * 4096


class Regions(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        self.client = self.enterContext(Client(self.kvd.endpoint, engine_name="python"))

    def test_are_zeroed_aligned_and_counted_by_daemon_and_kernel(self) -> None:
        region = self.client.allocate(self.kvd.slab + 1)
        self.assertEqual(region.bytes, 2 * self.kvd.slab)
        self.assertEqual(region.address % region.granularity, 0)
        self.assertEqual(region.device, -1)
        self.assertFalse(any(region.view()))
        self.assertEqual(pool_bytes_mapped(os.getpid()), region.bytes)
        self.assertTrue(self.kvd.comes_to_serve(os.getpid(), region.bytes))
        self.assertEqual(self.client.stats().region_bytes, region.bytes)
        region.free()
        self.assertTrue(self.kvd.all_returned())

    def test_are_one_memory_through_every_view(self) -> None:
        region = self.client.allocate(1)
        first, second = region.view(), region.view()
        first[5:8] = b"kvd"
        self.assertEqual(bytes(second[5:8]), b"kvd")
        self.assertEqual(ctypes.string_at(region.address + 5, 3), b"kvd")

    def test_cannot_be_freed_while_something_views_them(self) -> None:
        region = self.client.allocate(1)
        view = region.view()
        part = view[10:20]
        with self.assertRaisesRegex(WouldBlock, "delete them first"):
            region.free()
        del view
        with self.assertRaises(WouldBlock):
            region.free()
        del part
        region.free()
        with self.assertRaises(NotFound):
            region.free()

    def test_of_a_dlpack_capsule_that_nobody_took_can_be_freed(self) -> None:
        region = self.client.allocate(1)
        self.assertEqual(region.__dlpack_device__(), (1, 0))
        capsule = region.__dlpack__()
        self.assertIn("dltensor", repr(capsule))
        with self.assertRaises(WouldBlock):
            region.free()
        del capsule
        region.free()

    def test_are_freed_where_their_block_ends(self) -> None:
        with self.client.allocate(1) as region:
            self.assertFalse(hasattr(region, "__cuda_array_interface__"))
        self.assertTrue(self.kvd.all_returned())

    def test_go_back_when_the_client_closes(self) -> None:
        self.client.allocate(1)
        self.client.close()
        self.client.close()
        self.assertTrue(self.kvd.all_returned())

    def test_go_back_when_nobody_holds_the_client(self) -> None:
        other = Client(self.kvd.endpoint)
        other.allocate(1)
        del other
        gc.collect()
        self.assertTrue(self.kvd.all_returned())

    def test_outlive_a_daemon_and_a_restarted_one_lends_new_ones(self) -> None:
        region = self.client.allocate(1)
        view = region.view()
        view[0:3] = b"kvd"
        before = self.client.session()
        self.kvd.kill()
        with self.assertRaises((Unavailable, PeerGone)):
            self.client.ping()
        self.assertEqual(bytes(view[0:3]), b"kvd")
        self.kvd.start()
        self.assertTrue(poll_until(self._answers))
        after = self.client.session()
        self.assertNotEqual(before.boot_id, after.boot_id)
        self.client.allocate(1).free()
        del view
        region.free()

    def test_of_a_killed_process_go_back(self) -> None:
        hold = (
            "import kvd_client, signal\n"
            "region = kvd_client.Client().allocate(1)\nprint('held', flush=True)\nsignal.pause()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", hold],
            stdout=subprocess.PIPE,
            env={**os.environ, "KVD_ENDPOINT": self.kvd.endpoint},
        ) as child:
            assert child.stdout is not None
            self.assertEqual(child.stdout.readline(), b"held\n")
            self.assertTrue(self.kvd.comes_to_serve(child.pid, self.kvd.slab))
            child.kill()
        self.assertTrue(self.kvd.all_returned())

    def _answers(self) -> bool:
        try:
            self.client.ping()
        except kvd_client.KvdError:
            return False
        return True



class ElasticRegions(unittest.TestCase):
    """The pool has 8 slabs."""

    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        self.client = self.enterContext(Client(self.kvd.endpoint, engine_name="elastic"))
        self.region = self.client.reserve(6 * self.kvd.slab - 1)

    def share(self, region: ElasticRegion, kept: int, wanted: int, age_s: float = 0.0) -> int:
        """In slabs."""
        slab = self.kvd.slab
        found = region.share(kept=kept * slab, least=kept * slab, wanted=wanted * slab, grain=slab,
                             age_s=age_s)  # fmt: skip
        return found // slab

    def test_have_memory_where_they_grew(self) -> None:
        slab, region = self.kvd.slab, self.region
        self.assertEqual((region.bytes, region.granularity), (6 * slab, slab))
        self.assertEqual(pool_bytes_mapped(os.getpid()), 0)
        part = region.grow([4, 1])
        self.assertEqual(pool_bytes_mapped(os.getpid()), 2 * slab)
        self.assertTrue(self.kvd.comes_to_serve(os.getpid(), 2 * slab))
        view = region.view()
        self.assertEqual(len(view), 6 * slab)
        self.assertFalse(any(view[4 * slab : 5 * slab]))
        view[slab : slab + 3] = b"kvd"
        other = region.grow([0])
        region.shrink(part)
        self.assertEqual(pool_bytes_mapped(os.getpid()), slab)
        region.grow([1])
        self.assertEqual(bytes(view[slab : slab + 3]), bytes(3), "zeroed")
        region.shrink(other)
        del view
        region.free()
        self.assertTrue(self.kvd.all_returned())

    def test_refuse_what_cannot_be(self) -> None:
        self.region.grow([2])
        for positions in ([2], [3, 3], [6]):
            with self.assertRaises(InvalidArgument):
                self.region.grow(positions)
        with self.assertRaises(NotFound):
            self.region.shrink(12345)
        with self.client.allocate(6 * self.kvd.slab), self.assertRaises(KvdError):
            self.region.grow([3, 4], timeout=0.05)
        self.region.free()

    def test_are_told_what_they_may_have(self) -> None:
        other = self.client.reserve(6 * self.kvd.slab)
        self.assertEqual(self.share(self.region, 1, 6, 1.0), 6)
        part = self.region.grow(range(6))
        self.assertEqual(self.share(other, 1, 6, 1.0), 4)
        self.assertEqual(self.share(self.region, 1, 6, 2.0), 4)
        self.region.shrink(part)
        self.assertEqual(self.share(other, 1, 2), 2)

    def test_belong_to_the_kvd_that_they_were_reserved_with(self) -> None:
        part = self.region.grow([0])
        view = self.region.view()
        view[0] = 7
        self.kvd.kill()
        self.kvd.start()
        with self.assertRaises(Unavailable):
            self.share(self.region, 1, 2)
        with self.assertRaises(Unavailable):
            self.region.grow([1])
        self.assertEqual(view[0], 7)
        del view
        self.region.shrink(part)
        self.region.free()


class Calls(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())

    def test_say_what_is_wrong_and_what_helps(self) -> None:
        with self.assertRaisesRegex(Unavailable, "start it or set KVD_ENDPOINT"):
            Client("/nonexistent/attach.sock")
        client = self.enterContext(Client(self.kvd.endpoint))
        with self.assertRaisesRegex(InvalidArgument, "larger pool.hbm") as caught:
            client.allocate(1 << 40)
        self.assertEqual(caught.exception.status, kvd_client.Status.INVALID_ARGUMENT)
        with self.assertRaises(InvalidArgument):
            client.ping(timeout=-1)
        client.close()
        with self.assertRaisesRegex(InvalidArgument, "closed"):
            client.ping()

    def test_leave_other_threads_running(self) -> None:
        """The daemon stands still until this thread runs: were the GIL held, the ping would fail."""
        client = self.enterContext(Client(self.kvd.endpoint))
        self.kvd.signal(signal.SIGSTOP)
        entering = threading.Event()
        faults: list[Exception] = []

        def ping() -> None:
            entering.set()
            try:
                client.ping(timeout=20)
            except Exception as fault:
                faults.append(fault)

        thread = threading.Thread(target=ping)
        thread.start()
        entering.wait()
        self.kvd.signal(signal.SIGCONT)
        thread.join()
        self.assertEqual(faults, [])

    def test_of_a_forked_child_are_refused_and_harm_nobody(self) -> None:
        client = self.enterContext(Client(self.kvd.endpoint))
        region = client.allocate(1)
        child = os.fork()
        if child == 0:
            try:
                client.ping()
            except PeerGone:
                client.close()
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        client.ping()
        region.view()[0] = 1
        region.free()

    def test_status_is_what_the_daemon_says(self) -> None:
        command = [sys.executable, "-m", "kvd_client", "status", "--json"]
        run = subprocess.run([*command, "--endpoint", self.kvd.endpoint], capture_output=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        found = json.loads(run.stdout)
        self.assertEqual(found["boot_id"], self.kvd.get("/v1/status")["boot_id"])
        self.assertEqual(found["slab_bytes"], self.kvd.slab)
        self.assertEqual(found["memory"], "host")
        self.assertGreater(found["round_trip_s"], 0)
        absent = subprocess.run([*command, "--endpoint", "/nonexistent"], capture_output=True)
        self.assertEqual(absent.returncode, 3)
        self.assertIn(b"start it", absent.stderr)


class Level3(unittest.TestCase):
    """One request of 20 tokens, in two blocks of 16 for each of two layers."""

    def test_a_request_finds_what_another_one_computed(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        tokens = list(range(100, 164))
        for model, tokens_found in (("m", 0), ("m", 48), ("other", 0)):
            client = self.enterContext(Client(self.kvd.endpoint, shape=SHAPE, model=model))
            self.finished = 0
            with self.assertRaisesRegex(InvalidArgument, "64 tokens are given"):
                client.submit(Request(7, prompt_tokens=9, max_new_tokens=4, tokens=tokens))
            client.submit(Request(7, prompt_tokens=64, max_new_tokens=20, tokens=tokens))
            run = self.run_of(client)
            self.assertEqual((run.tokens_present, run.tokens), (tokens_found, 64 - tokens_found))
            self.run_of(client, [Report(7, 64)])
            client.append_tokens(7, range(16))
            client.finish(7)
            client.close()

    def test_a_request_is_named_by_its_engine(self) -> None:
        client = self.open("unlimited", model="m")
        self.run_of(client)
        client.name_blocks(7, 0, [b"d" * 32])
        with self.assertRaisesRegex(InvalidArgument, "32 bytes"):
            client.name_blocks(7, 1, [b"short"])

    def open(self, bandwidth: str, model: str | None = None) -> Client:
        self.kvd = self.enterContext(KvdProcess(bandwidth=bandwidth))
        client = self.enterContext(Client(self.kvd.endpoint, shape=SHAPE, model=model))
        client.submit(Request(7, prompt_tokens=20, max_new_tokens=4, ttft_slo=5, tbt_slo=0.1))
        self.finished = 0
        return client

    def test_a_request_runs_rotates_and_keeps_its_bytes(self) -> None:
        client = self.open("unlimited")
        info = client.session()
        self.assertEqual((info.layer_groups, info.block_bytes), (2, BLOCK))

        run = self.run_of(client)
        self.assertEqual((run.request, run.tokens_present, run.tokens), (7, 0, 20))
        self.assertIn(RunFlag.PREFILL, run.flags)
        ctypes.memmove(client.block_addresses(run.row, 0, 2)[1], b"kvd", 3)
        with self.assertRaises(NotFound):
            client.block_addresses(run.row, 0, 100)
        self.run_of(client, [Report(7, 20)])

        self.rotate_out_and_in(client)
        run = self.run_of(client)
        client.wait(run.ticket)
        self.assertEqual((run.tokens_present, run.tokens), (20, 1))
        self.assertEqual(ctypes.string_at(client.block_addresses(run.row, 0, 2)[1], 3), b"kvd")
        self.assertEqual(client.stats().rotations_in, 1)
        self.assertEqual([entry.request for entry in client.place().entries], [7])
        client.finish(7)

    def test_a_signal_interrupts_a_wait(self) -> None:
        """It waits for a ticket that is not issued yet, so nothing but the signal ends it in time."""
        client = self.open("unlimited")
        self.run_of(client)
        self.run_of(client, [Report(7, 20)])
        self.rotate_out_and_in(client)
        run = self.run_of(client)

        def interrupt(*_: object) -> None:
            raise InterruptedError

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begin = time.monotonic()
        with self.assertRaises(InterruptedError):
            client.wait(run.ticket + 1000, timeout=20)
        self.assertLess(time.monotonic() - begin, 10)
        with self.assertRaises(DeadlineExceeded):
            client.wait(run.ticket + 1000, timeout=0.15)

    def rotate_out_and_in(self, client: Client) -> None:
        client.rotate(7, Direction.OUT)
        held = self.step(client).hold
        self.assertEqual([hold.reason for hold in held], [HoldReason.FORCED])
        self.assertTrue(poll_until(lambda: self.comes_back(client)))

    def comes_back(self, client: Client) -> bool:
        """Refused until the request is out."""
        try:
            client.rotate(7, Direction.IN)
        except InvalidArgument:
            self.step(client)
            return False
        return True

    def run_of(self, client: Client, reports: list[Report] | None = None) -> Run:
        """Steps until the request runs."""
        step = self.step(client, reports)
        for _ in range(10_000):
            if step.run:
                return step.run[0]
            client.wait_for_room()
            step = self.step(client)
        self.fail("the request does not run")

    def step(self, client: Client, reports: list[Report] | None = None) -> Step:
        step = client.step(reports or [], finished=self.finished)
        self.finished = step.iteration
        return step


if __name__ == "__main__":
    ctest.main()
