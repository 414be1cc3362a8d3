"""A worker's side: begins the copies of a step, and says when each has ended.

It runs on the worker's main thread. A copy begins once the work that the GPU was given before it is
done. It is reported only when kvd no longer touches any of its bytes.
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
    """kvd, as a worker's side uses it: copies between numbered blocks and names of 32 bytes.

    Calls raise the errors that the Copier is given as `refused` or, where they may be repeated a
    little later, as `busy`. The tickets of a kvd that died are FAILED.
    """

    def store(self, digests: Sequence[bytes], blocks: Sequence[int], park: bool) -> int:
        """Begins a copy to kvd. Returns its ticket."""
        raise NotImplementedError

    def load(self, digests: Sequence[bytes], blocks: Sequence[int]) -> int:
        """Begins a copy from kvd. Returns its ticket."""
        raise NotImplementedError

    def poll(self, tickets: Sequence[int]) -> list[State]:
        """The state of each ticket. DONE and FAILED are final: such a ticket is not asked about
        again."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends all copies."""
        raise NotImplementedError


# A session of kvd has 256 tickets.
_MOST_OPEN = 128
# A call that takes longer means that kvd stands still, or nearly so.
_LATE_S = 0.08


# Whether the names of a copy's blocks stand for their content.
Judge = Callable[[Copy], bool]


class _Begun(NamedTuple):
    copy: Copy
    ticket: int
    since: float


class Copier:
    """The copies of one worker. `fence`: returns a function that says whether all work given to the
    device so far is done, or waits for it; None: the device has finished what it was given.

    A failed load is reported by request: vLLM takes the request's blocks away, and those that kvd
    may still write stay out of use until the copy has ended.

    While kvd stands still, one call of a step finds that out. Until that copy ends no other is
    asked for, and copies that wait for longer than `patience_s` fail, so that their blocks are
    free."""

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
        self._fenced: list[tuple[Any, list[Copy], Judge]] = []
        self._queue: deque[tuple[Copy, float]] = deque()
        self._begun: list[_Begun] = []
        self._late: _Begun | None = None  # a copy that kvd was too slow to take
        # Loads that vLLM knows to have failed, though kvd still works on them.
        self._told: set[int] = set()
        self._ends = Ends()
        self._received: set[str] = set()
        self._failed: set[str] = set()

    def begin(self, copies: list[Copy], is_right: Judge = lambda _: True) -> None:
        """Begins copies, before a step's forward or after it. Those that are not right, once the device
        has finished its work, are refused."""
        if not copies:
            return
        if self._fence is None:
            self._enqueue(copies, is_right)
            self._submit()
        else:
            self._fenced.append((self._fence(), copies, is_right))

    def refuse(self, copies: list[Copy]) -> None:
        """These copies are not made, and kvd is not at fault."""
        for copy in copies:
            self._ends.refused.append(copy.number)
            if copy.kind == Kind.LOAD:
                self._tell(copy, False)
            self._told.discard(copy.number)

    def advance(self) -> None:
        """At the end of a step: submits copies for which the device has finished its work, and
        notes those that have ended."""
        while self._fenced and self._fenced[0][0].query():
            self._enqueue(*self._fenced.pop(0)[1:])
        self._submit()
        self._poll()

    def take_received(self) -> set[str]:
        """Requests whose load between steps is over, whether or not it succeeded."""
        taken, self._received = self._received, set()
        return taken

    def take_failed(self) -> set[str]:
        """Requests among these into which nothing was loaded."""
        taken, self._failed = self._failed, set()
        return taken

    def take_ends(self) -> Ends | None:
        """Copies that have ended since the last call; None: none."""
        if not self._ends.done and not self._ends.failed and not self._ends.refused:
            return None
        taken, self._ends = self._ends, Ends()
        return taken

    def drain(self, timeout_s: float) -> bool:
        """Waits for the copies that were begun. False: some are still under way."""
        deadline = self._clock() + timeout_s
        while (self._fenced or self._begun or self._queue) and self._clock() < deadline:
            self.advance()
            time.sleep(1e-3)
        return not (self._fenced or self._begun or self._queue)

    def close(self, timeout_s: float) -> None:
        """Waits for the copies that were begun, then ends those that are left."""
        self.drain(timeout_s)
        self._cache.close()

    def _enqueue(self, copies: list[Copy], is_right: Judge) -> None:
        now = self._clock()
        for copy in copies:
            if is_right(copy):
                self._queue.append((copy, now))
            else:
                self.refuse([copy])

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
        """For a kvd that stands still: it knows nothing of the copies that wait here."""
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
        self._received.add(copy.request)
        if not done:
            self._failed.add(copy.request)
