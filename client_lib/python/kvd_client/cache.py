"""Level 2: blocks that an engine places itself, in a region, kept in kvd's DRAM and found again.

A digest is 32 bytes. It stands for everything that the tokens of a block, and those before it, are.
kvd.h says more about each call.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from typing import NamedTuple

from . import _abi
from ._handle import Handle
from .errors import InvalidArgument
from .region import Region

_TIMEOUT_S = 5.0
_PARK = 1
_AWAIT_REMOTE = 1
_DIGEST_BYTES = 32
_IN_DRAM, _ON_DISK = 1, 2
_OVER, _MORE = 1, 2


class Piece(NamedTuple):
    """The piece of block b that is `bytes` long at region + offset + b * stride, all in bytes."""

    offset: int
    stride: int
    bytes: int


class Change(NamedTuple):
    """A labelled block that came or went, as it is now; without tokens where it has gone."""

    digest: bytes
    parent: bytes | None  # None: it is the first
    lora: str
    in_dram: bool
    on_disk: bool
    tokens: list[int]


class Changes(NamedTuple):
    """`cursor`: to ask with the next time. `over`: it starts over, and what was told before is void.
    `more`: there are more, ask again at once."""

    cursor: tuple[int, int, int]
    over: bool
    more: bool
    all: list[Change]


class TicketState(enum.IntEnum):
    """kvd_ticket_state. FAILED: nothing was stored, or some block to be loaded is not there. It is
    also the state of an unknown ticket, and of every ticket once the daemon is gone."""

    PENDING = 0
    DONE = 1
    FAILED = 2


class Hint(enum.IntEnum):
    """kvd_hint."""

    RETAIN = 1
    PIN = 2
    UNPIN = 3
    DEMOTE = 4
    PREFETCH = 5


class Cache:
    """Blocks of one kind: sessions of a domain whose caches have the same model, block_tokens and
    block_bytes find each other's.

    Made by Client.cache(). A context manager: leaving it closes the cache; stored blocks stay.
    Threads may share it. When the daemon is gone, calls raise Unavailable and tickets are FAILED:
    allocate a new region and open a new cache.
    """

    def __init__(self, handle: Handle, options: _abi.CacheOptions, timeout: float) -> None:
        self._handle = handle
        number = ctypes.c_uint64()
        handle.call(
            "kvd_cache_open", ctypes.byref(options), _abi.nanoseconds(timeout), ctypes.byref(number)
        )
        self.id: int = number.value

    def close(self, timeout: float = _TIMEOUT_S) -> None:
        """Closes the cache. Copies under way go on; parked blocks stay until they are dropped or
        the session ends."""
        self._handle.call("kvd_cache_close", self.id, _abi.nanoseconds(timeout))

    def lookup(self, digests: Sequence[bytes], timeout: float = _TIMEOUT_S) -> int:
        """How many leading digests, without a gap, can be loaded now. Changes nothing. WouldBlock:
        see await_remote of Client.cache()."""
        leading = ctypes.c_uint64()
        self._handle.call(
            "kvd_cache_lookup", self.id, _joined(digests), len(digests),
            _abi.nanoseconds(timeout), ctypes.byref(leading),
        )  # fmt: skip
        return leading.value

    def post_lookup(self, digests: Sequence[bytes]) -> None:
        """Asks ahead what a lookup() of these digests, or of the first of them, will ask within a
        second. It does not wait: the question goes with the next call of this client, and the
        lookup() after that has the answer. 4096 digests at most; never attaches."""
        self._handle.call("kvd_cache_post_lookup", self.id, _joined(digests), len(digests))

    def store(
        self,
        digests: Sequence[bytes],
        blocks: Sequence[int],
        *,
        park: bool = False,
        timeout: float = _TIMEOUT_S,
    ) -> int:
        """Copies block blocks[i] of the region to DRAM under digests[i]; returns the ticket. The
        blocks must not be written before the copy is over. `park`: the stored blocks stay until
        they are dropped or this session ends.

        Raises OutOfMemory or QuotaExceeded where DRAM is full of blocks that may not make way, and
        WouldBlock where 256 tickets are not over or not polled, or where as much is under way as
        may be; nothing is stored then. After DeadlineExceeded it is unknown whether kvd copies:
        poll the error's `ticket` where it is not 0."""
        return self._copy("kvd_cache_store", digests, blocks, _PARK if park else 0, timeout)

    def load(
        self, digests: Sequence[bytes], blocks: Sequence[int], *, timeout: float = _TIMEOUT_S
    ) -> int:
        """Copies what was stored under digests[i] into block blocks[i]; returns the ticket. The
        blocks must neither be read nor written before the copy is over; after FAILED their content
        is undefined. Raises NotFound, and copies nothing, where some are not there; otherwise as
        store()."""
        return self._copy("kvd_cache_load", digests, blocks, None, timeout)

    def drop(self, digests: Sequence[bytes], timeout: float = _TIMEOUT_S) -> None:
        """Ends the parking of these blocks, and they are no longer found. Digests that are not
        there are skipped."""
        self._handle.call(
            "kvd_cache_drop", self.id, _joined(digests), len(digests), _abi.nanoseconds(timeout)
        )

    def post_drop(self, digests: Sequence[bytes]) -> None:
        """As drop(), but does not wait: it goes with the next call of this client. 4096 digests at
        most; never attaches."""
        self._handle.call("kvd_cache_post_drop", self.id, _joined(digests), len(digests))

    def retain(
        self, digests: Sequence[bytes], seconds: float, timeout: float = _TIMEOUT_S
    ) -> int:
        """Blocks in DRAM leave it after all others of the domain, for so many seconds from now on or
        until the next call for them; 0: they are like any other again. For an agent whose tool runs:
        call it once the stores are over. Returns how many are retained: all that are there, or none
        where more of the domain's DRAM would be than may be (cache.retain_share). cache.retain_most
        bounds the time. Raises InvalidArgument for more than 24 hours, and where an older daemon does
        not know the call."""
        return self.hint(Hint.RETAIN, digests, seconds, timeout)

    def pin(self, digests: Sequence[bytes], timeout: float = _TIMEOUT_S) -> int:
        """As retain(), but until unpin(), whatever else is said of them, or until no engine of the domain has been attached for
        cache.retain_most. Raises QuotaExceeded, and pins nothing, where more of the domain's DRAM
        would be retained than may be."""
        return self.hint(Hint.PIN, digests, 0.0, timeout)

    def unpin(self, digests: Sequence[bytes], timeout: float = _TIMEOUT_S) -> None:
        """The blocks are like any other again, whether they were pinned, retained or demoted."""
        self.hint(Hint.UNPIN, digests, 0.0, timeout)

    def demote(self, digests: Sequence[bytes], timeout: float = _TIMEOUT_S) -> int:
        """Blocks in DRAM leave it before all others of the domain, until somebody loads or stores
        them, and are offered to the disk at once where there is one: those that have to make way
        before they are written are lost. Pinned ones stay. Returns how many are demoted."""
        return self.hint(Hint.DEMOTE, digests, 0.0, timeout)

    def prefetch(
        self, digests: Sequence[bytes], seconds: float, timeout: float = _TIMEOUT_S
    ) -> int:
        """Blocks that only the disk or remote servers have come to DRAM, up to the first that kvd
        lacks, and all are retained for so many seconds from now on. Returns how many are on their
        way: they are read while nobody waits for other reads. Ends with the cache. Raises
        QuotaExceeded as pin()."""
        return self.hint(Hint.PREFETCH, digests, seconds, timeout)

    def hint(
        self, hint: Hint, digests: Sequence[bytes], seconds: float, timeout: float = _TIMEOUT_S
    ) -> int:
        """Any of these. Returns for how many blocks it counts."""
        taken = ctypes.c_uint64()
        self._handle.call(
            "kvd_cache_hint", self.id, int(hint), _joined(digests), len(digests),
            _abi.nanoseconds(seconds), _abi.nanoseconds(timeout), ctypes.byref(taken),
        )  # fmt: skip
        return taken.value

    def label(
        self,
        digests: Sequence[bytes],
        tokens: Sequence[int],
        *,
        parent: bytes | None = None,
        lora: str = "",
        timeout: float = _TIMEOUT_S,
    ) -> int:
        """Labels consecutive blocks, at most 1024, before or after they are stored: from then on
        changes() tells every session of the domain with a cache of the same kind where they are.
        `tokens`: those of the blocks one after the other. `parent`: the block before the first.
        Returns how many labels kvd keeps; it has room for a number of them. Never label what others
        must not learn of, as blocks of a salted prompt."""
        kept = ctypes.c_uint64()
        if parent is not None:
            _joined([parent])
        self._handle.call(
            "kvd_cache_label", self.id, parent, _abi.text(lora), _joined(digests), len(digests),
            _abi.numbers(ctypes.c_uint32, tokens), len(tokens),
            _abi.nanoseconds(timeout), ctypes.byref(kept),
        )  # fmt: skip
        return kept.value

    def changes(
        self, cursor: tuple[int, int, int] = (0, 0, 0), timeout: float = _TIMEOUT_S
    ) -> Changes:
        """Which labelled blocks came to DRAM or the disk, or left them, since the cursor, in the
        order of their last change: about a thousand at a time. A block may be told of before its
        parent. One thread at a time."""
        seen = _abi.CacheCursor(*cursor)
        found = _abi.CacheChanges(struct_size=ctypes.sizeof(_abi.CacheChanges))
        self._handle.call(
            "kvd_cache_get_changes", self.id, ctypes.byref(seen), _abi.nanoseconds(timeout),
            ctypes.byref(found),
        )  # fmt: skip
        return Changes(
            (seen.life, seen.start, seen.position), bool(found.flags & _OVER),
            bool(found.flags & _MORE), [_change_of(found.changes[i]) for i in range(found.count)],
        )  # fmt: skip

    def poll(self, tickets: Sequence[int]) -> list[TicketState]:
        """The states of the tickets; sends no message. Poll a ticket until it is over, and not
        after."""
        states = (ctypes.c_uint8 * len(tickets))()
        self._handle.call("kvd_cache_poll", _tickets_of(tickets), states, len(tickets))
        return [TicketState(state) for state in states]

    def wait(self, tickets: Sequence[int], timeout: float = _TIMEOUT_S) -> list[TicketState]:
        """The states of the tickets once all of them are over. A signal interrupts it within
        0.1 s. Raises DeadlineExceeded."""
        self._handle.wait("kvd_cache_wait", _tickets_of(tickets), len(tickets), timeout=timeout)
        return self.poll(tickets)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle.is_open:
            self.close()

    def _copy(
        self,
        name: str,
        digests: Sequence[bytes],
        blocks: Sequence[int],
        flags: int | None,
        timeout: float,
    ) -> int:
        if len(digests) != len(blocks):
            raise InvalidArgument(f"{len(digests)} digests are given for {len(blocks)} blocks")
        ticket = ctypes.c_uint64()
        ids = _abi.numbers(ctypes.c_uint32, blocks)
        given = [self.id, _joined(digests), ids, len(blocks)]
        if flags is not None:
            given.append(flags)
        try:
            self._handle.call(name, *given, _abi.nanoseconds(timeout), ctypes.byref(ticket))
        except Exception as error:
            error.ticket = ticket.value  # type: ignore[attr-defined]
            raise
        return ticket.value


def _change_of(each: _abi.CacheChange) -> Change:
    parent = bytes(each.parent)
    return Change(
        bytes(each.digest), parent if any(parent) else None, each.lora.decode(),
        bool(each.tiers & _IN_DRAM), bool(each.tiers & _ON_DISK), each.tokens[: each.token_count],
    )  # fmt: skip


def options_of(
    model: str,
    block_tokens: int,
    block_bytes: int,
    region: Region | None,
    blocks: int,
    pieces: Sequence[Piece],
    await_remote: bool = False,
) -> _abi.CacheOptions:
    options = _abi.CacheOptions(struct_size=ctypes.sizeof(_abi.CacheOptions))
    options.model = _abi.text(model)
    options.block_tokens, options.block_bytes = block_tokens, block_bytes
    options.flags = _AWAIT_REMOTE if await_remote else 0
    if region is not None:
        options.region_id, options.blocks = region.id, blocks
        options.pieces = (_abi.BlockPiece * len(pieces))(*(_abi.BlockPiece(*p) for p in pieces))
        options.piece_count = len(pieces)
    return options


def _joined(digests: Sequence[bytes]) -> bytes:
    if any(len(digest) != _DIGEST_BYTES for digest in digests):
        raise InvalidArgument("a digest has 32 bytes")
    return b"".join(digests)


def _tickets_of(tickets: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    tickets_array: ctypes.Array[ctypes.c_uint64] = _abi.numbers(ctypes.c_uint64, tickets)
    return tickets_array
