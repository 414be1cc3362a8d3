"""Ranks on two GPUs each get memory of their own: kvd with two devices on the fake driver. Needs no vLLM."""

from __future__ import annotations

import functools
import unittest
import uuid

import ctest
import kvd_client
from kvd_process import KvdProcess, poll_until
from kvd_vllm.devices import client_of_gpu

TWO = '[[device]]\ngpu = "0"\n[[device]]\ngpu = "1"\n'


class TwoGpus(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(extra=TWO))
        self.open = functools.partial(kvd_client.Client, self.kvd.endpoint, memory=kvd_client.Memory.CUDA)
        self.gpus = []
        for number in (0, 1):
            with self.open(device=number) as client:
                self.gpus.append(client.session().device_uuid)

    def of_gpu(self, wanted: uuid.UUID) -> kvd_client.Client:
        return client_of_gpu(lambda number: self.open(device=number), wanted)

    def test_lend_to_each_rank_what_lies_on_its_own(self) -> None:
        self.assertNotEqual(*self.gpus)
        for number, gpu in enumerate(self.gpus):
            with self.of_gpu(gpu) as client, client.allocate(4 << 20) as region:
                self.assertEqual(client.session().device_uuid, gpu)
                self.assertEqual(region.device, number)

    def test_ask_for_none_where_they_map_nothing(self) -> None:
        with kvd_client.Client(self.kvd.endpoint, device=1, memory=kvd_client.Memory.UNMAPPED) as client:
            self.assertEqual(client.session().device_uuid, self.gpus[1])
            self.assertEqual(client.session().device, -1, "a GPU was looked for")
            with self.assertRaisesRegex(kvd_client.InvalidArgument, "opened to map no memory"):
                client.allocate(4 << 20)
            mapped = "what cannot be mapped is given back"
            self.assertTrue(poll_until(lambda: self.kvd.engines()[0]["region_bytes"] == 0), mapped)

    def test_are_named_where_neither_is_the_workers(self) -> None:
        with self.assertRaisesRegex(kvd_client.Unsupported, f"{self.gpus[1]}.*runs on GPU {uuid.UUID(int=7)}.*device"):
            self.of_gpu(uuid.UUID(int=7))
        self.assertEqual(self.kvd.engines(), [], "no session is left behind")


if __name__ == "__main__":
    ctest.main()
