"""The floor: one thread's memcpy from a slot to a pool of the same process and back. It has no
keys."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence

from store import PlainMemory, PlainRequest, Settings

_POOL_BYTES = 512 << 20


class FloorRequest(PlainRequest):
    def __init__(self, store: FloorStore, numbers: Sequence[int]) -> None:
        self._store, self._numbers = store, numbers

    def store(self, slots: Sequence[int], kept: bool = False) -> None:
        del kept
        for number, slot in zip(self._numbers, slots, strict=True):
            ctypes.memmove(self._store.place(number), self._store.at(slot), self._store.bytes)

    def found(self) -> int:
        return len(self._numbers)

    def load(self, slots: Sequence[int]) -> None:
        for number, slot in zip(self._numbers, slots, strict=True):
            ctypes.memmove(self._store.at(slot), self._store.place(number), self._store.bytes)


class FloorStore(PlainMemory):
    def __init__(self, block_bytes: int, slots: int, pool: int) -> None:
        self.bytes = block_bytes
        self._pool = pool
        memory = mmap.mmap(-1, block_bytes * slots)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        super().__init__(memoryview(memory), block_bytes)

    def at(self, slot: int) -> int:
        return self._address + slot * self.bytes

    def place(self, number: int) -> int:
        return self._pool + number * self.bytes % _POOL_BYTES

    def request(self, numbers: Sequence[int]) -> FloorRequest:
        return FloorRequest(self, numbers)

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


class Floor:
    has_keys = False
    can_keep = False

    def __init__(self, settings: Settings) -> None:
        del settings

    def start(self) -> None:
        self._memory = mmap.mmap(-1, _POOL_BYTES)
        self._pool = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.memset(self._pool, 1, _POOL_BYTES)

    def stop(self) -> None:
        pass

    def open(self, block_bytes: int, slots: int, owner: bool = False) -> FloorStore:
        del owner
        return FloorStore(block_bytes, slots, self._pool)

    def server(self) -> int:
        return os.getpid()

    def index(self) -> int:
        return self.server()

    def restart(self) -> None:
        pass
