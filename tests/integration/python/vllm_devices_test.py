"""Which of kvd's devices a worker takes memory of. Needs no vLLM and no GPU."""

from __future__ import annotations

import unittest
import uuid
from types import SimpleNamespace
from typing import Any

import ctest
import kvd_client
from kvd_vllm.devices import client_of_gpu

FIRST, SECOND, OTHER = (uuid.UUID(int=each) for each in (1, 2, 7))


class Kvd:
    """Opens sessions as a kvd with these devices does; None: one that this process does not see."""

    def __init__(self, *gpus: uuid.UUID | None) -> None:
        self._gpus = gpus
        self.open: list[int] = []

    def session(self, number: int) -> Any:
        if number >= len(self._gpus):
            raise kvd_client.InvalidArgument(f"device {number} does not exist")
        if self._gpus[number] is None:
            raise kvd_client.Unsupported("which this process cannot use: CUDA_VISIBLE_DEVICES")
        self.open.append(number)
        facts = SimpleNamespace(device_uuid=self._gpus[number])
        return SimpleNamespace(session=lambda: facts, close=lambda: self.open.remove(number))


class ClientOfGpu(unittest.TestCase):
    def test_takes_each_rank_to_its_own_gpu(self) -> None:
        for gpus in ((FIRST, SECOND), (SECOND, FIRST)):
            for wanted in (FIRST, SECOND):
                kvd = Kvd(*gpus)
                self.assertEqual(client_of_gpu(kvd.session, wanted).session().device_uuid, wanted)
                self.assertEqual(kvd.open, [gpus.index(wanted)], "the sessions on others are closed")

    def test_passes_over_a_gpu_that_the_process_does_not_see(self) -> None:
        kvd = Kvd(None, SECOND)
        self.assertEqual(client_of_gpu(kvd.session, SECOND).session().device_uuid, SECOND)

    def test_names_the_gpus_where_none_is_the_workers(self) -> None:
        kvd = Kvd(FIRST, SECOND)
        with self.assertRaisesRegex(kvd_client.Unsupported, rf"{FIRST}.*{SECOND}.*runs on GPU {OTHER}.*cuda\.device"):
            client_of_gpu(kvd.session, OTHER)
        self.assertEqual(kvd.open, [])

    def test_gives_kvds_own_remedy_where_no_session_could_be_opened(self) -> None:
        with self.assertRaisesRegex(kvd_client.Unsupported, "CUDA_VISIBLE_DEVICES"):
            client_of_gpu(Kvd(None).session, FIRST)
        with self.assertRaises(kvd_client.InvalidArgument):
            client_of_gpu(Kvd().session, FIRST)


if __name__ == "__main__":
    ctest.main()
