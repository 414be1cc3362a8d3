"""A worker's side of an elastic KV cache: asks kvd how much it may have, puts memory behind chunks
and takes it away again.

A thread of its own does that, so that no step waits for kvd: the step leaves its orders and takes
the news of the one before. Because an idle engine makes no steps, the thread goes on by itself
until nothing is wanted and nothing has to go back; then it asks no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import kvd_client
from kvd_client.elastic import MOST_POSITIONS

from kvd_vllm.elastic.balloon import Demand, News, Orders
from kvd_vllm.elastic.chunks import Geometry

logger = logging.getLogger("vllm.kvd_vllm")

_ASK_S = 0.02
# Pauses after kvd did not answer, and after there was no room because others have not given it back
# yet.
_REST_S, _NO_ROOM_S = 0.5, 0.05
# kvd forgets what is wanted after 2 s without word, and a step may take longer than that.
_REMIND_S = 0.5
# Copies wait to make their calls while one of these is under way. An answer takes microseconds.
_SHARE_S, _GROW_S, _CALL_S = 0.1, 0.01, 0.5
_NO_ROOM = (kvd_client.OutOfMemory, kvd_client.QuotaExceeded, kvd_client.DeadlineExceeded)


class Region(Protocol):
    """The part of kvd_client.ElasticRegion that is used here."""

    def grow(self, positions: Iterable[int], timeout: float = ...) -> int: ...
    def shrink(self, part: int, timeout: float = ..., *, idle: bool = ...) -> None: ...
    def back(self, positions: Iterable[int]) -> None: ...
    def share(
        self, *, kept: int, least: int, wanted: int, grain: int, age_s: float = ...,
        needs: Sequence[kvd_client.Need] = ..., timeout: float = ...,
    ) -> int: ...  # fmt: skip


def back_the_base(
    region: Region, geometry: Geometry, timeout_s: float,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> list[int]:  # fmt: skip
    """Backs everything that is kept with memory, before vLLM sees the region. If other engines hold that memory, they
    are asked for it. Returns the parts that shrink() takes. If it does not come in time a KvdError is raised, and no
    part has memory."""
    kept, grain = geometry.kept_bytes, geometry.grain_bytes
    begun, left, parts = clock(), list(geometry.base), []
    while True:
        waited = clock() - begun
        region.share(kept=kept, least=kept, wanted=kept, grain=grain, age_s=max(waited, 1e-3))
        try:
            while left:
                parts.append(region.grow(left[:MOST_POSITIONS], timeout=min(_CALL_S, timeout_s)))
                del left[:MOST_POSITIONS]
            return parts
        except _NO_ROOM:
            if waited >= timeout_s:
                give_back(region, parts)
                raise
        sleep(_ASK_S)


def give_back(region: Region, parts: Sequence[int]) -> None:
    """Takes the memory of these parts away."""
    for part in parts:
        region.shrink(part, timeout=_CALL_S)


class Mapper:
    """The chunks of one worker. `fence`: returns a function that says whether all work given to the
    device so far is done; None: the device has finished what it was given."""

    def __init__(
        self,
        region: Region,
        geometry: Geometry,
        fence: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._region = region
        self._geometry = geometry
        self._fence = fence
        self._clock = clock
        self._parts: dict[int, int] = {}  # chunks with memory, and kvd's number for it
        self._spoilt: set[int] = set()  # chunks that may or may not have memory: it is not known
        self._own: set[int] = set()  # chunks with memory of this process, since kvd is gone
        self._leaving: list[int] = []
        self._unheard: set[int] = set()  # leaving chunks that the scheduler's side never heard of
        self._fenced: list[tuple[Any, list[int]]] = []
        # Shared by the step's thread and this object's own.
        self._lock = threading.Lock()
        self._demand: Demand | None = None
        self._leave: list[int] = []
        self._news = News([], [], [], None, 0, False)
        self._is_new = False
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- on the thread of the steps ----

    def begin(self, orders: Orders) -> None:
        """At the start of a step, before its forward."""
        if self._fence is not None and orders.leave:
            self._fenced.append((self._fence(), orders.leave))
        leave = orders.leave if self._fence is None else []
        while self._fenced and self._fenced[0][0].query():
            leave = leave + self._fenced.pop(0)[1]
        with self._lock:
            self._demand = orders.demand
            self._leave += leave
        self._wake.set()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kvd-balloon", daemon=True)
        self._thread.start()

    def take_news(self) -> News | None:
        """What has come about since the last call; None: nothing."""
        with self._lock:
            if not self._is_new:
                return None
            taken = self._news
            self._news = taken._replace(grown=[], gone=[], stayed=[])
            self._is_new = False
        return taken

    def close(self) -> None:
        """Ends the thread. The caller frees the region."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    # ---- on its own ----

    def work(self) -> float:
        """One round. Returns how long to wait before the next."""
        with self._lock:
            demand = self._demand
            self._leaving += self._leave
            self._leave = []
            if demand is not None and demand.wanted == 0:
                self._take_back_what_is_unheard()
        if demand is None:
            return 0.0
        try:
            allowed = self._ask(demand)
        except kvd_client.DeadlineExceeded:
            return _REST_S
        except kvd_client.KvdError as fault:
            self._lose(fault)
            self._back(demand.least)
            return _REST_S
        if self._news.is_down:
            logger.warning("kvd: the KV cache grows and shrinks again")
        self._tell(allowed=allowed, told=demand.wanted, is_down=False)
        self._give_back()
        has_room = self._take(min(allowed, demand.wanted))
        return _ASK_S if has_room else _NO_ROOM_S

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(_REMIND_S if self._has_more_to_do() else None)
            self._wake.clear()
            if not self._closed.is_set():
                self._closed.wait(self.work())

    def _has_more_to_do(self) -> bool:
        with self._lock:
            if self._demand is not None and self._demand.wanted > 0:
                return True
            is_over = not (self._leave or self._leaving or self._news.grown)
            return not is_over and not self._news.is_down

    def _take_back_what_is_unheard(self) -> None:
        """Called with the lock. Takes back growth that came after the last step of an engine that
        fell idle."""
        late = self._news.grown
        self._news = self._news._replace(grown=[])
        self._unheard.update(late)
        self._leaving += late

    def _ask(self, demand: Demand) -> int:
        """Asks kvd for the share, in chunks beyond what is kept."""
        kept, grain = self._geometry.kept_bytes, self._geometry.grain_bytes
        block = grain // self._geometry.chunk_blocks
        needs = [
            kvd_client.Need(each.blocks * block, kept + each.least * grain, each.age_s,
                            each.ttft_ns, each.slo_class, each.begun)
            for each in demand.needs
        ]  # fmt: skip
        share = self._region.share(
            kept=kept, least=kept + demand.least * grain, wanted=kept + demand.wanted * grain,
            grain=grain, age_s=demand.age_s, needs=needs, timeout=_SHARE_S,
        )  # fmt: skip
        if share >= self._geometry.most_bytes:  # with the last chunk, which may be smaller
            return len(self._geometry.elastic)
        return max(0, share - kept) // grain

    def _lose(self, fault: kvd_client.KvdError) -> None:
        """kvd is gone, or it is another kvd that does not know the region: chunks that have memory
        keep it."""
        if not self._news.is_down:
            logger.warning("kvd: the KV cache stays as large as it is, unless a request needs more: %s: %s",
                           type(fault).__name__, fault)  # fmt: skip
        stayed, self._leaving = self._leaving, []
        late, self._unheard = self._unheard, set()
        stayed = [chunk for chunk in stayed if chunk not in late]
        self._tell(grown=late, stayed=stayed, allowed=None, told=0, is_down=True)

    def _back(self, count: int) -> None:
        """Without kvd a request that needs more than there is would wait for ever, so the oldest gets
        memory of this process: all that stock vLLM would have allocated, at most."""
        have = len(self._parts) + len(self._own)
        for chunk in self._geometry.elastic:
            if have >= count:
                return
            if chunk in self._parts or chunk in self._spoilt or chunk in self._own:
                continue
            try:
                self._region.back(self._geometry.chunks[chunk])
            except kvd_client.InvalidArgument:
                return  # kvd is there, and was only late
            except kvd_client.KvdError as fault:
                logger.warning("kvd: no memory for a request that waits: %s", fault)
                return
            self._own.add(chunk)
            have += 1
            self._tell(grown=[chunk])

    def _give_back(self) -> None:
        left = []
        for chunk in self._leaving:
            try:
                # begin() has waited for the device's work.
                self._region.shrink(self._parts[chunk], timeout=_CALL_S, idle=True)
            except kvd_client.NotFound:
                pass  # it went, though kvd's answer was late
            except kvd_client.KvdError:
                left.append(chunk)  # it may still be mapped, so it is not used
                continue
            del self._parts[chunk]
            if chunk in self._unheard:
                self._unheard.discard(chunk)
            else:
                self._tell(gone=[chunk])
        self._leaving = left

    def _take(self, count: int) -> bool:
        """False: there was no room for all."""
        for chunk in self._geometry.elastic:
            if len(self._parts) - len(self._leaving) >= count:
                break
            if chunk in self._parts or chunk in self._spoilt:
                continue
            try:
                self._parts[chunk] = self._region.grow(
                    self._geometry.chunks[chunk], timeout=_GROW_S
                )
            except kvd_client.InvalidArgument as fault:
                # Perhaps an answer was late: then there is memory that cannot be named.
                logger.warning("kvd: a part of the KV cache is not used: %s", fault)
                self._spoilt.add(chunk)
                continue
            except kvd_client.KvdError:
                return False
            self._tell(grown=[chunk])
        return True

    def _tell(
        self, grown: Iterable[int] = (), gone: Iterable[int] = (), stayed: Iterable[int] = (),
        **facts: Any,
    ) -> None:  # fmt: skip
        with self._lock:
            news = self._news._replace(**facts)
            self._news = news._replace(
                grown=[*news.grown, *grown], gone=[*news.gone, *gone],
                stayed=[*news.stayed, *stayed],
            )  # fmt: skip
            self._is_new = True
