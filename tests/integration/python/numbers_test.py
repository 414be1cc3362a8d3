"""A number that does not fit where kvd.h has it is refused: ctypes would cut it, and kvd would be told another
one. Without a kvd: nothing of it gets that far."""

from __future__ import annotations

import ctypes
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import ctest
from kvd_client import (
    Cache, Client, Direction, ElasticRegion, Group, InvalidArgument, Piece, Report, Request, Shape, slo_class,
)  # fmt: skip
from kvd_client import _abi
from kvd_client.cache import options_of

TOO_LARGE_32 = [1 << 32, (1 << 32) + 7, 1 << 40, -1]
TOO_LARGE_64 = [1 << 64, (1 << 64) + 7, -1, 10**400]
NO_NUMBERS = [1.0, "1", None, float("nan")]
DIGEST = b"d" * 32


class Deaf:
    """Stands in for the library: takes what the real one would be given."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            for kind, argument in zip(_abi._CALLS.get(name, []), arguments):
                kind.from_param(argument)
            self.calls.append(name)
            return 0

        return call


class Numbers(unittest.TestCase):
    def setUp(self) -> None:
        self.deaf = Deaf()
        self.enterContext(mock.patch.object(_abi, "library", lambda: self.deaf))
        self.client = Client("/nowhere")
        self.cache = Cache(self.client._handle, options_of("m", 16, 4096, None, 0, ()), 1.0)
        self.region = ElasticRegion(self.client._handle, _abi.Region(ctypes.sizeof(_abi.Region)))
        self.deaf.calls.clear()

    def refused(self, call: Callable[[Any], object], values: list[Any]) -> None:
        for value in values:
            with self.subTest(value=value):
                with self.assertRaises(ValueError):
                    call(value)
        self.assertEqual(self.deaf.calls, [])

    def test_of_blocks_and_positions_have_32_bits(self) -> None:
        for call in [
            lambda n: self.cache.store([DIGEST], [n]),
            lambda n: self.cache.load([DIGEST], [n]),
            lambda n: self.region.grow([0, n]),
            lambda n: self.client.append_tokens(1, [1, n]),
            lambda n: self.client.submit(Request(1, 1, 1, tokens=[n])),
            lambda n: self.client.wait_layer(1, n),
            lambda n: self.client.layer_done(1, n),
            lambda n: self.client.name_blocks(1, n, [DIGEST]),
            lambda n: self.client.block_addresses(n, 0, 1),
            lambda n: self.client.block_addresses(0, n, 1),
            lambda n: Client("/nowhere", shape=Shape(n, 1, 16, 4096)),
            lambda n: Client("/nowhere", group=Group(1, 2, n)),
            lambda n: Client("/nowhere", device=n),
            lambda n: self.client.cache("m", block_tokens=n, block_bytes=1),
        ]:
            self.refused(call, TOO_LARGE_32 + NO_NUMBERS)

    def test_of_bytes_requests_and_tickets_have_64_bits(self) -> None:
        for call in [
            lambda n: self.client.allocate(n),
            lambda n: self.client.reserve(n),
            lambda n: self.client.cache("m", block_tokens=16, block_bytes=n),
            lambda n: self.cache.poll([n]),
            lambda n: self.cache.wait([1, n]),
            lambda n: self.client.wait(n),
            lambda n: self.client.submit(Request(n, 1, 1)),
            lambda n: self.client.submit(Request(1, n, 1)),
            lambda n: self.client.finish(n),
            lambda n: self.client.abort(n),
            lambda n: self.client.rotate(n, Direction.OUT),
            lambda n: self.client.allocate_blocks(n, 1),
            lambda n: self.client.place([1, n]),
            lambda n: self.client.step([Report(n, 1)]),
            lambda n: self.client.step([Report(1, n)]),
            lambda n: self.client.step(finished=n),
            lambda n: self.client.wait_on_stream(1, n),
            lambda n: self.region.shrink(n),
            lambda n: self.region.share(kept=0, least=n, wanted=0, grain=1),
        ]:
            self.refused(call, TOO_LARGE_64 + NO_NUMBERS)
        pieces = lambda n: options_of("m", 16, 1, self.region, 1, [Piece(0, n, 1)])  # noqa: E731
        self.refused(pieces, TOO_LARGE_64)
        self.refused(lambda n: self.client.block_addresses(0, 0, n), [-1, 1 << 40])

    def test_of_seconds_are_not_negative_and_no_nan(self) -> None:
        for call in [
            lambda s: self.client.ping(s),
            lambda s: self.client.wait(1, s),
            lambda s: self.cache.wait([1], s),
            lambda s: self.client.wait_for_room(s),
            lambda s: Client("/nowhere", timeout=s),
        ]:
            self.refused(call, [-1, -0.5, float("nan"), float("-inf")])

    def test_that_fit_are_told_as_they_are(self) -> None:
        most = (1 << 32) - 1
        self.assertEqual(list(_abi.numbers(ctypes.c_uint32, [0, True, most])), [0, 1, most])
        self.assertEqual(list(_abi.numbers(ctypes.c_uint64, ())), [])
        self.assertEqual(list(_abi.numbers(ctypes.c_uint32, b"prompt!")), list(b"prompt!"))
        self.cache.store([DIGEST], [most])
        self.client.step([Report((1 << 64) - 1, 3, True)])
        self.assertEqual(self.deaf.calls, ["kvd_cache_store", "kvd_step"])

    def test_are_not_the_only_thing_that_c_would_cut(self) -> None:
        for call in [
            lambda text: Client("/nowhere", model=text),
            lambda text: Client(text),
            lambda text: self.client.cache(text, block_tokens=16, block_bytes=1),
            lambda text: self.client.submit(Request(1, 1, 1, salt=text)),
            lambda text: self.client.submit(Request(1, 1, 1, adapter=text)),
            lambda text: slo_class(text),
        ]:
            self.refused(call, ["model\0b"])

    def test_are_refused_with_the_error_of_a_wrong_call(self) -> None:
        with self.assertRaisesRegex(InvalidArgument, "1099511627776|unsigned int"):
            self.cache.store([DIGEST], [1 << 40])


if __name__ == "__main__":
    ctest.main()
