"""A region that grows and shrinks: addresses for the most it may have, and memory behind some of
them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from . import _abi
from .region import Region

# A share is asked for between two steps of an engine; growth may wait until its slabs are zeroed.
_SHARE_TIMEOUT_S = 1.0
_TIMEOUT_S = 5.0
MOST_POSITIONS = 4096  # positions of one grow()
MOST_NEEDS = 16  # needs of one share()


class Need(NamedTuple):
    """The needs of requests with one goal that await their first tokens, or that have all begun."""

    bytes: int  # what all of them would use
    least: int  # what the oldest of them needs to run, with all that is kept
    age_s: float  # how long the oldest of them has waited
    ttft_ns: int = 0  # their goal; 0: that of their class
    slo_class: int = 0  # slo_class(); 0: that of the domain
    begun: bool = False


class ElasticRegion(Region):
    """Addresses for `bytes` bytes. Only those that grow() put memory behind may be touched: any
    other is a fault, as is any address that is not mapped. Made by Client.reserve(). It belongs to
    the daemon that it was reserved with. After that daemon's end grow() and share() raise
    Unavailable until another one has taken it over (docs/operations.md), memory that is there stays
    until it is freed, and back() adds to it.

    Position p is the slab at address + p * granularity. Views (numpy(), a tensor made by DLPack)
    cover the whole range, so they outlive growth and shrinking.
    """

    def grow(self, positions: Iterable[int], timeout: float = _TIMEOUT_S) -> int:
        """Puts zeroed slabs behind these positions, at most MOST_POSITIONS, all or none. Returns
        the part that shrink() takes. Waits for room until the timeout, and other calls of the
        client wait with it.

        Raises OutOfMemory, QuotaExceeded or DeadlineExceeded where there is no room,
        InvalidArgument for a position that already has memory or is named twice."""
        asked = list(positions)
        array = _abi.numbers(ctypes.c_uint32, asked)
        part = ctypes.c_uint64()
        self._handle.call(
            "kvd_region_grow", self.id, array, len(asked), _abi.nanoseconds(timeout),
            ctypes.byref(part),
        )  # fmt: skip
        return part.value

    def back(self, positions: Iterable[int], timeout: float = _TIMEOUT_S) -> None:
        """Puts zeroed memory of this process's own behind these positions of a region whose daemon
        is gone, all or none; it stays until the region is freed. Raises InvalidArgument while that
        daemon is there, and OutOfMemory."""
        asked = list(positions)
        array = _abi.numbers(ctypes.c_uint32, asked)
        self._handle.call(
            "kvd_region_back", self.id, array, len(asked), _abi.nanoseconds(timeout)
        )  # fmt: skip

    def shrink(self, part: int, timeout: float = _TIMEOUT_S, *, idle: bool = False) -> None:
        """Unmaps what one grow() mapped and gives its slabs back; the addresses stay reserved.
        Waits for a GPU's work, unless all work that used the part is known to be done (`idle`)."""
        name = "kvd_region_shrink_idle" if idle else "kvd_region_shrink"
        self._handle.call(name, self.id, part, _abi.nanoseconds(timeout))

    def share(
        self,
        *,
        kept: int,
        least: int,
        wanted: int,
        grain: int,
        age_s: float = 0.0,
        needs: Sequence[Need] = (),
        timeout: float = _SHARE_TIMEOUT_S,
    ) -> int:
        """How many bytes this region may have now, given what all elastic regions of the node want.
        If that is less than it has, give the difference back soon; if it is more, it may grow that
        far.

        kept: bytes that it never gives back.
        least: what the oldest request needs to run, with all that is kept.
        wanted: what all its requests would use.
        grain: beyond what is kept it grows and shrinks by whole multiples of this.
        age_s: age of the oldest request; 0: there is none.
        needs: at most MOST_NEEDS, one for each goal. Requests with less time until their first
          token is due get memory before those with more; without `needs` no goals count.

        Ask every few steps: after 2 s without word kvd assumes that nothing more is wanted."""
        told = [
            _abi.Need(each.bytes, each.least, _abi.nanoseconds(each.age_s), each.ttft_ns,
                      each.slo_class, each.begun)
            for each in needs
        ]  # fmt: skip
        array = (_abi.Need * len(told))(*told)
        demand = _abi.Demand(
            ctypes.sizeof(_abi.Demand), kept, least, wanted, grain, _abi.nanoseconds(age_s), array,
            len(needs),
        )  # fmt: skip
        share = ctypes.c_uint64()
        self._handle.call(
            "kvd_region_share", self.id, ctypes.byref(demand), _abi.nanoseconds(timeout),
            ctypes.byref(share),
        )  # fmt: skip
        return share.value
