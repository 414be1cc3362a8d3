"""A worker's cache that outlives kvd. A kvd that was started again does not know the region in
which vLLM computes. So blocks go by way of a window, a small region of the new kvd, and this
process copies them there and back. All of it runs on the worker's thread, except the search for the
new kvd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import kvd_client

from kvd_vllm.copying import Cache, State
from kvd_vllm.layout import CacheShape, Piece
from kvd_vllm.memory import logger

# The window's share of the KV cache. Copies larger than the window go in parts, one after the
# other.
_SHARE = 8
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.5, 30.0
_CALL_S = 2.0
_GONE = (kvd_client.Unavailable, kvd_client.PeerGone, kvd_client.StaleSession)


class _NoWindow(Exception):
    """kvd does not know the region, and this process cannot copy what lies in it."""


@dataclass
class _Move:
    """A copy of blocks by way of the window, and the part of it that is under way."""

    is_load: bool
    park: bool
    digests: list[bytes]
    blocks: list[int]
    ticket: int = 0  # ticket of the part; 0: none
    slots: list[int] = field(default_factory=list)
    state: State = State.PENDING


class WindowCache(Cache):
    """`inner` copies between kvd and the window, whose slots hold one block each, piece after
    piece.

    `kv`, `window`: the bytes of both regions, as numpy arrays. The caller keeps the blocks
    unchanged until their copy is over, so parts of it may be copied late.
    """

    def __init__(
        self, inner: Cache, kv: Any, window: Any, pieces: Sequence[Piece], slots: int
    ) -> None:
        self._inner = inner
        self._kv = kv
        self._window = window
        self._pieces = pieces
        self._block_bytes = sum(piece.bytes for piece in pieces)
        self._free = list(range(slots))
        self._moves: dict[int, _Move] = {}
        self._number = 0

    def store(self, digests: Sequence[bytes], blocks: Sequence[int], park: bool) -> int:
        return self._begin(_Move(False, park, list(digests), list(blocks)))

    def load(self, digests: Sequence[bytes], blocks: Sequence[int]) -> int:
        return self._begin(_Move(True, False, list(digests), list(blocks)))

    def poll(self, tickets: Sequence[int]) -> list[State]:
        states = []
        for ticket in tickets:
            move = self._moves[ticket]
            self._advance(move)
            states.append(move.state)
            if move.state != State.PENDING:
                del self._moves[ticket]
        return states

    def close(self) -> None:
        self._inner.close()
        self._kv = self._window = None

    def _begin(self, move: _Move) -> int:
        """Raises the error that the first part is refused with."""
        self._start_part(move)
        self._number += 1
        self._moves[self._number] = move
        return self._number

    def _advance(self, move: _Move) -> None:
        try:
            while move.state == State.PENDING:
                ended = self._end_part(move)
                if ended == State.PENDING:
                    return
                if ended == State.FAILED or not move.blocks:
                    move.state = ended
                elif not self._start_part(move):
                    return
        except kvd_client.WouldBlock:
            return
        except kvd_client.KvdError:
            move.state = State.FAILED

    def _start_part(self, move: _Move) -> bool:
        """False: the window is full of parts of other copies."""
        count = min(len(self._free), len(move.blocks))
        slots, digests, blocks = self._free[:count], move.digests[:count], move.blocks[:count]
        if not slots:
            return False
        if move.is_load:
            move.ticket = self._inner.load(digests, slots)
        else:
            for block, slot in zip(blocks, slots, strict=True):
                self._copy(block, slot, out=False)
            move.ticket = self._inner.store(digests, slots, move.park)
        move.slots = slots
        del self._free[:count]
        return True

    def _end_part(self, move: _Move) -> State:
        """The state of the part that is under way; DONE where there is none."""
        if move.ticket == 0:
            return State.DONE
        state = self._inner.poll([move.ticket])[0]
        if state == State.PENDING:
            return state
        count = len(move.slots)
        if state == State.DONE and move.is_load:
            for block, slot in zip(move.blocks, move.slots, strict=False):
                self._copy(block, slot, out=True)
        self._free += move.slots
        del move.digests[:count], move.blocks[:count]
        move.ticket, move.slots = 0, []
        return state

    def _copy(self, block: int, slot: int, out: bool) -> None:
        at = slot * self._block_bytes
        for piece in self._pieces:
            begin = piece.offset + block * piece.stride
            here, there = slice(begin, begin + piece.bytes), slice(at, at + piece.bytes)
            if out:
                self._kv[here] = self._window[there]
            else:
                self._window[there] = self._kv[here]
            at += piece.bytes


# Opens a cache over a region, which has so many blocks made of these pieces.
Opener = Callable[[kvd_client.Region, int, Sequence[Piece]], Cache]


class LastingCache(Cache):
    """Serves `first` and, after its kvd has gone, a cache that the next kvd gives. Until then calls
    raise the error it is refused with. Copies of a kvd that has gone are FAILED.

    There are no windows on a GPU: the log says so, and vLLM has to be restarted.
    """

    def __init__(
        self,
        first: Cache,
        client: kvd_client.Client,
        region: kvd_client.Region,
        shape: CacheShape,
        pieces: Sequence[Piece],
        open_cache: Opener,
    ) -> None:
        self._cache = first
        self._client = client
        self._region = region
        self._shape = shape
        self._pieces = pieces
        self._open_cache = open_cache
        self._window: kvd_client.Region | None = None
        self._lost = False
        self._next: tuple[Cache, kvd_client.Region | None] | None = None
        self._tickets: dict[int, tuple[Cache, int]] = {}
        self._number = 0
        self._closed = threading.Event()
        self._finder: threading.Thread | None = None

    def store(self, digests: Sequence[bytes], blocks: Sequence[int], park: bool) -> int:
        return self._begin(lambda cache: cache.store(digests, blocks, park))

    def load(self, digests: Sequence[bytes], blocks: Sequence[int]) -> int:
        return self._begin(lambda cache: cache.load(digests, blocks))

    def poll(self, tickets: Sequence[int]) -> list[State]:
        asked = [self._tickets[ticket] for ticket in tickets]
        alive = None if self._lost else self._cache
        theirs = [number for cache, number in asked if cache is alive]
        found = iter(self._cache.poll(theirs) if theirs else [])
        states = [next(found) if cache is alive else State.FAILED for cache, _ in asked]
        for ticket, state in zip(tickets, states, strict=True):
            if state != State.PENDING:
                del self._tickets[ticket]
        return states

    def close(self) -> None:
        self._closed.set()
        if self._finder is not None:
            self._finder.join()
        self._take_next()
        if not self._lost:
            self._cache.close()
            self._free_window()

    def _begin(self, call: Callable[[Cache], int]) -> int:
        self._take_next()
        try:
            if self._lost:
                raise kvd_client.Unavailable("kvd is gone: blocks are stored again once it is back")
            ticket = call(self._cache)
        except _GONE:
            self._lose()
            raise
        self._number += 1
        self._tickets[self._number] = self._cache, ticket
        return self._number

    def _take_next(self) -> None:
        taken, self._next = self._next, None
        if taken is None:
            return
        self._cache, self._window = taken
        self._finder, self._lost = None, False
        logger.warning("kvd: blocks are stored again, in the kvd that was started since")

    def _free_window(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            try:
                window.free()
            except kvd_client.KvdError as fault:
                logger.warning("kvd: the memory to copy through was not given back: %s", fault)

    def _lose(self) -> None:
        """The window of a kvd that has gone is useless, and the next kvd needs its memory."""
        if not self._lost:
            self._lost = True
            self._cache.close()
            self._free_window()
        self._find_anew()

    def _find_anew(self) -> None:
        if self._finder is not None or self._closed.is_set():
            return
        self._finder = threading.Thread(target=self._find, name="kvd-finder", daemon=True)
        self._finder.start()

    def _find(self) -> None:
        wait_s, told = _FIRST_RETRY_S, ""
        while not self._closed.wait(wait_s):
            try:
                self._client.ping(_CALL_S)
                self._next = self._open()
                return
            except _GONE:
                continue  # not started yet
            except _NoWindow:
                logger.warning("kvd: nothing is stored or parked any more, until vLLM is restarted")
                self._closed.set()
            except kvd_client.KvdError as fault:
                wait_s = min(2 * wait_s, _LONGEST_RETRY_S)
                if told != str(fault):
                    told = str(fault)
                    logger.warning("kvd: nothing is stored or parked, as kvd gave no memory to copy through: %s", fault)

    def _open(self) -> tuple[Cache, kvd_client.Region | None]:
        """Opens a cache over vLLM's own memory where kvd knows it, else by way of a window. Raises
        _NoWindow."""
        try:
            return self._open_cache(self._region, self._shape.blocks, self._pieces), None
        except kvd_client.NotFound:
            if self._region.device >= 0:
                raise _NoWindow from None
        size = self._shape.block_bytes
        slots = max(1, self._shape.blocks // _SHARE)
        window = self._client.allocate(slots * size, timeout=_CALL_S)
        try:
            inner = self._open_cache(window, slots, [Piece(0, size, size)])
            kv, there = self._region.numpy(), window.numpy()
            return WindowCache(inner, kv, there, self._pieces, slots), window
        except kvd_client.KvdError:
            window.free()
            raise
