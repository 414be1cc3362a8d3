"""Regions as numpy arrays and torch tensors, which the environment of vLLM has, and KV tensors as pieces
of blocks."""

from __future__ import annotations

import gc
import unittest

import numpy
import torch

import ctest
from kvd_client import Client, InvalidArgument, WouldBlock
from kvd_process import KvdProcess

from kvd_vllm.layout import Piece, pieces_of


class Arrays(unittest.TestCase):
    def setUp(self) -> None:
        kvd = self.enterContext(KvdProcess())
        self.client = self.enterContext(Client(kvd.endpoint))
        self.region = self.client.allocate(1)

    def test_share_the_memory_of_the_region(self) -> None:
        tensor, array = self.region.torch(), self.region.numpy("float32")
        self.assertEqual(tensor.data_ptr(), self.region.address)
        tensor.view(torch.float32)[3] = 1.5
        self.assertEqual(array[3], 1.5)
        array[4] = 2.5
        self.assertEqual(torch.from_dlpack(self.region).view(torch.float32)[4], 2.5)
        self.assertEqual(numpy.from_dlpack(self.region).nbytes, self.region.bytes)

    def test_of_a_part_end_where_it_does(self) -> None:
        tensor = self.region.torch(1000)
        self.assertEqual((tensor.numel(), tensor.untyped_storage().nbytes()), (1000, 1000))
        for count in (0, self.region.bytes + 1):
            with self.assertRaises(InvalidArgument):
                self.region.torch(count)

    def test_keep_the_region_through_views_of_views(self) -> None:
        view = self.region.torch().view(torch.int8)[10:20].clone, self.region.torch()[5:]
        del view
        part = self.region.torch().view(torch.float16)[8:16]
        array = self.region.numpy()[3:]
        for _ in range(2):
            gc.collect()
            with self.assertRaises(WouldBlock):
                self.region.free()
            part = None
        del array
        gc.collect()
        self.region.free()
        self.assertIsNone(part)


class Pieces(unittest.TestCase):
    """Layers have 6 blocks of 4 tokens, 2 heads and 8 numbers."""

    def setUp(self) -> None:
        self.memory = torch.zeros(2 * 6 * 4 * 2 * 8, dtype=torch.float16)
        self.base, self.block = self.memory.data_ptr(), 4 * 2 * 8 * 2

    def test_of_blocks_that_lie_token_by_token_and_are_seen_head_by_head(self) -> None:
        seen = [half.view(6, 4, 2, 8).permute(0, 2, 1, 3) for half in self.memory.chunk(2)]
        self.assertEqual(pieces_of(seen, self.base, 6),
                         [Piece(0, self.block, self.block), Piece(6 * self.block, self.block, self.block)])  # fmt: skip

    def test_where_others_lie_in_between_there_are_none(self) -> None:
        for seen in (self.memory.view(4, 12, 2, 8).transpose(0, 1),  # of each block a token here and there
                     self.memory.view(12, 8, 8)[:, ::2],
                     self.memory[:192].view(12, 16).as_strided((12, 4, 4), (16, 4, 0))):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "no block in one piece"):
                pieces_of([seen], self.base, 12)


if __name__ == "__main__":
    ctest.main()
