"""A worker's side: begins the copies of a step, and says when each has ended.

On the worker's main thread. A copy begins once the work that was given to the GPU before it is done,
and is reported only when kvd touches none of its bytes any more.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvd_vllm.transfers import Copy, Ends, Kind


class State(enum.IntEnum):
    """The state of a copy that kvd was asked for."""

    PENDING = 0
    DONE = 1
    FAILED = 2


class Cache:
    """kvd, as a worker's side asks it: copies between numbered blocks and names of 32 bytes.

    Calls raise what the Copier is told of as `refused` or, where they may be made again a little
    later, as `busy`. The tickets of a kvd that died are FAILED.
    """

    def store(self, digests: Sequence[bytes], blocks: Sequence[int], park: bool) -> int:
        """Begins a copy to kvd. Returns its ticket."""
        raise NotImplementedError

    def load(self, digests: Sequence[bytes], blocks: Sequence[int]) -> int:
        """Begins a copy from kvd. Returns its ticket."""
        raise NotImplementedError

    def poll(self, tickets: Sequence[int]) -> list[State]:
        """How each ticket stands. DONE and FAILED are final: it is not asked for again."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends all copies."""
        raise NotImplementedError


# A session of kvd has 256 tickets.
_MOST_OPEN = 128
# A call that takes longer is of a kvd that stands still, or nearly.
_LATE_S = 0.08


class _Begun(NamedTuple):
    copy: Copy
    ticket: int
    since: float


class Copier:
    """The copies of one worker. `fence`: returns a function that says whether all work given to the
    device so far is done, or waits for it; None: the device is done with what it was given.

    A load that failed is told by request: vLLM takes the request's blocks away, and those that kvd may
    still write stay out of use until the copy has ended. Where a step waits for it, it is told by block,
    and the request computes into the same blocks.

    While kvd stands still one call of a step finds that out: until that copy ends no other is asked for, and
    those that wait for longer than `patience_s` fail, so that their blocks are free."""

    def __init__(
        self,
        cache: Cache,
        refused: type[Exception],
        busy: type[Exception],
        patience_s: float = 10.0,
        fence: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._refused = refused
        self._busy = busy
        self._patience_s = patience_s
        self._fence = fence
        self._clock = clock
        self._fenced: list[tuple[Any, list[Copy]]] = []
        self._queue: deque[tuple[Copy, float]] = deque()
        self._begun: list[_Begun] = []
        self._late: _Begun | None = None  # what kvd was too slow to take
        self._told: set[int] = set()  # loads that vLLM knows as failed, though kvd is still at them
        self._ends = Ends()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._bad_blocks: set[int] = set()

    def begin(self, copies: list[Copy]) -> None:
        """In a step, before its forward or after it."""
        if not copies:
            return
        if self._fence is None:
            self._enqueue(copies)
            self._submit()
        else:
            self._fenced.append((self._fence(), copies))

    def refuse(self, copies: list[Copy]) -> None:
        """These are not made, and that is no fault of kvd's."""
        for copy in copies:
            self._ends.refused.append(copy.number)
            if copy.kind == Kind.LOAD:
                self._tell(copy, False)
            self._told.discard(copy.number)

    def wait(self) -> None:
        """Before a forward that reads loaded blocks: returns when they are there, or known bad."""
        if not self._is_waited_for():
            return
        for event, copies in self._fenced:
            event.synchronize()
            self._enqueue(copies)
        self._fenced = []
        pause = 20e-6
        self.advance()
        while self._is_waited_for():
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
            self.advance()

    def advance(self) -> None:
        """At the end of a step: what the device is done with is submitted, what has ended is noted."""
        while self._fenced and self._fenced[0][0].query():
            self._enqueue(self._fenced.pop(0)[1])
        self._submit()
        self._poll()

    def take_received(self) -> set[str]:
        """Requests whose load between steps is over, well or not."""
        taken, self._received = self._received, set()
        return taken

    def take_failed(self) -> set[str]:
        """The requests among these into which nothing was loaded."""
        taken, self._failed = self._failed, set()
        return taken

    def take_bad_blocks(self) -> set[int]:
        """Blocks for which a step waited, and into which nothing was loaded."""
        taken, self._bad_blocks = self._bad_blocks, set()
        return taken

    def take_ends(self) -> Ends | None:
        """Copies that have ended since the last call; None: none."""
        if not self._ends.done and not self._ends.failed and not self._ends.refused:
            return None
        taken, self._ends = self._ends, Ends()
        return taken

    def close(self, timeout_s: float) -> None:
        """Waits for the copies that were begun, then ends what is left."""
        deadline = self._clock() + timeout_s
        while (self._begun or self._queue) and self._clock() < deadline:
            self.advance()
            time.sleep(1e-3)
        self._cache.close()

    def _is_waited_for(self) -> bool:
        ahead = [copy for _, copies in self._fenced for copy in copies]
        queued = [copy for copy, _ in self._queue]
        begun = [each.copy for each in self._begun]
        return any(
            copy.waits and copy.number not in self._told for copy in [*ahead, *queued, *begun]
        )

    def _enqueue(self, copies: list[Copy]) -> None:
        now = self._clock()
        self._queue.extend((copy, now) for copy in copies)

    def _submit(self) -> None:
        if self._late is not None and self._late in self._begun:
            self._lose_patience(self._late.since)
            return
        self._late = None
        while self._queue and len(self._begun) < _MOST_OPEN and self._late is None:
            copy, since = self._queue.popleft()
            asked = self._clock()
            try:
                if copy.kind == Kind.LOAD:
                    ticket = self._cache.load(copy.digests, copy.blocks)
                else:
                    ticket = self._cache.store(copy.digests, copy.blocks, copy.kind == Kind.PARK)
            except self._busy:
                if self._clock() < since + self._patience_s:
                    self._queue.appendleft((copy, since))
                    return
                self._end(copy, False)
            except self._refused:
                self._end(copy, False)
            else:
                begun = _Begun(copy, ticket, self._clock())
                self._begun.append(begun)
                if begun.since > asked + _LATE_S:
                    self._late = begun

    def _lose_patience(self, stands_since: float) -> None:
        """With a kvd that stands still: it knows nothing of what waits here."""
        if self._clock() < stands_since + self._patience_s:
            return
        while self._queue:
            self._end(self._queue.popleft()[0], False)

    def _poll(self) -> None:
        if not self._begun:
            return
        try:
            states = self._cache.poll([each.ticket for each in self._begun])
        except self._refused:
            states = [State.PENDING] * len(self._begun)
        left = []
        for each, state in zip(self._begun, states, strict=True):
            if state != State.PENDING:
                self._end(each.copy, state == State.DONE)
                continue
            left.append(each)
            if each.copy.kind == Kind.LOAD and self._clock() > each.since + self._patience_s:
                self._tell(each.copy, False)
        self._begun = left

    def _end(self, copy: Copy, done: bool) -> None:
        (self._ends.done if done else self._ends.failed).append(copy.number)
        if copy.kind == Kind.LOAD:
            self._tell(copy, done)
        self._told.discard(copy.number)

    def _tell(self, copy: Copy, done: bool) -> None:
        """vLLM learns once that a load is over."""
        if copy.number in self._told:
            return
        self._told.add(copy.number)
        if not copy.waits:
            self._received.add(copy.request)
        if done:
            return
        if copy.waits:
            self._bad_blocks.update(copy.blocks)
        else:
            self._failed.add(copy.request)
