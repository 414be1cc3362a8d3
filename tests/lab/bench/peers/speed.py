"""The rows about time and memory, for one system in one round."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store import Failed, Store, System

SIZES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
BATCHES = (1, 32)
LOOKED_UP = 2048  # blocks of 16 tokens: 32 K tokens
_LARGE_CHUNKS = 128  # chunks of 256 tokens: the same number of tokens
_WINDOW_BYTES = 64 << 20  # more than the caches of a core, so that sources are cold
_SINGLES, _TOGETHER = 64, 4  # repetitions in a round
_LOOKUPS = 20
_ENTRIES, _ENTRIES_AT_ONCE = 20_000, 1_000
SMALL = 4096

_numbers = itertools.count(1)
Tell = Callable[[dict[str, Any]], None]


class Clock:
    """Measures repetitions of the same work, in microseconds."""

    def __init__(self) -> None:
        self.us: list[float] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        begin = time.perf_counter_ns()
        yield
        self.us.append((time.perf_counter_ns() - begin) / 1e3)


def transfers(system: System, tell: Tell) -> None:
    """Rows store and load, and lookups of blocks of 256 tokens."""
    for size in SIZES:
        window = max(max(BATCHES), _WINDOW_BYTES // size)
        store = system.open(size, 2 * window)
        _touch(store, window)
        for batch in BATCHES:
            _copies(store, size, window, batch, tell)
        if size == min(SIZES) and system.has_keys:
            _lookups(store, _LARGE_CHUNKS, "lookup 128 x 256 tokens", tell)
        store.forget()
        store.close()


def lookups(system: System, tell: Tell) -> None:
    """Rows lookup of blocks of 16 tokens, and memory an entry."""
    store = system.open(SMALL, LOOKED_UP)
    _lookups(store, LOOKED_UP, "lookup 2048 x 16 tokens", tell)
    store.forget()
    before = anonymous_bytes(system.index())
    for _ in range(_ENTRIES // _ENTRIES_AT_ONCE):
        with store.request(_next(_ENTRIES_AT_ONCE)) as request:
            request.found()
            request.store(range(_ENTRIES_AT_ONCE))
    each = (anonymous_bytes(system.index()) - before) / _ENTRIES
    tell({"row": "memory an entry", "bytes": each})


def anonymous_bytes(pid: int) -> int:
    """The memory of a process, without what it shares."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


def _next(count: int) -> list[int]:
    return list(itertools.islice(_numbers, count))


def _touch(store: Store, window: int) -> None:
    """Uses all memory once, so that no measurement pays for the first use."""
    for _ in range(4):
        with store.request(_next(window)) as request:
            request.found()
            request.store(range(window))
            request.found()
            request.load(range(window, 2 * window))
    store.forget()


def _copies(store: Store, size: int, window: int, batch: int, tell: Tell) -> None:
    stores, loads = Clock(), Clock()
    wanted = _SINGLES if batch == 1 else _TOGETHER
    while len(loads.us) < wanted:
        count = min(wanted - len(loads.us), window // batch)
        numbers = _next(window)
        for slot in range(window):
            store.fill(slot, numbers[slot])
            store.fill(window + slot, 0)
        for first in range(0, count * batch, batch):
            with store.request(numbers[first : first + batch]) as request:
                request.found()
                with stores.timed():
                    request.store(range(first, first + batch))
        for first in range(0, count * batch, batch):
            with store.request(numbers[first : first + batch]) as request:
                if request.found() != batch:
                    raise Failed(f"{batch} blocks of {size} that were stored are not found")
                with loads.timed():
                    request.load(range(window + first, window + first + batch))
        for slot in range(count * batch):
            if not store.holds(window + slot, numbers[slot]):
                raise Failed(f"wrong bytes in a block of {size}")
    store.forget()
    for row, clock in (("store", stores), ("load", loads)):
        tell({"row": row, "block": size, "batch": batch, "us": clock.us})


def _lookups(store: Store, count: int, row: str, tell: Tell) -> None:
    numbers = _next(count)
    with store.request(numbers) as request:
        request.found()
        request.store(range(count))
    for kind, expected in (("hits", count), ("misses", 0)):
        clock = Clock()
        for _ in range(_LOOKUPS):
            with store.request(numbers if expected else _next(count)) as request:
                with clock.timed():
                    found = request.found()
            if found != expected:
                raise Failed(f"{row}: {found} found, not {expected}")
        tell({"row": f"{row}, {kind}", "us": clock.us})
