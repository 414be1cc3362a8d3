"""Copies that are under way, with the blocks that they hold, and names that kvd is to forget. The
scheduler's thread owns both. Here is also what the scheduler's side asks of kvd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kvd_vllm.goals import Wish
from kvd_vllm.memory import logger
from kvd_vllm.transfers import Copy, Kind, Transfers

if TYPE_CHECKING:
    import kvd_client
    from vllm.v1.core.block_pool import BlockPool

# After a copy failed no new ones begin for a while, twice as long each time in a row.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
# Drops are sent together, at most this often, or once there are this many. They go with a question
# that is asked anyway, or by themselves after twice that time.
_FORGET_S, _MANY_FORGOTTEN = 0.25, 1024
# Bounds the list of names that kvd could not be told to forget. What kvd holds for a session ends with
# the session.
_MOST_FORGOTTEN = 100_000
Cursor = tuple[int, int, int]  # how far an engine has heard of the changes of a cache


class NotYet(Exception):
    """kvd asks servers that nodes share for blocks it lacks: whoever asks again soon finds more."""


class Index:
    """kvd, as the scheduler's side asks it. Fails open: every call returns within a step's budget for
    each worker."""

    def lookup(self, digests: Sequence[bytes]) -> int | None:
        """How many of the leading blocks kvd has; None: it did not answer. Raises NotYet."""
        raise NotImplementedError

    def expect(self, digests: Sequence[bytes]) -> None:
        """These digests, or the first of them, will be looked up soon: the question goes with the
        next one. Does not wait."""
        raise NotImplementedError

    def drop(self, digests: Sequence[bytes], wait: bool = True) -> int:
        """Forgets blocks. Returns how many of them, from the first on, kvd has heard of; without
        `wait`, how many it will hear of with the next question."""
        raise NotImplementedError

    def hint(self, digests: Sequence[bytes], wish: Wish) -> int | None:
        """Says what is to become of blocks. For how many it counts; None: kvd did not answer, or knows
        no such hint."""
        raise NotImplementedError


class Labels(NamedTuple):
    """What is told of consecutive blocks."""

    digests: Sequence[bytes]
    tokens: Sequence[int]
    parent: bytes | None
    lora: str


class Source:
    """kvd, as the announcer asks it."""

    @property
    def is_up(self) -> bool:
        """False: kvd is gone, and with it all that it had in memory."""
        raise NotImplementedError

    def label(self, labels: Labels) -> bool:
        """False: kvd did not answer, and is to be told again."""
        raise NotImplementedError

    def changes(self, cursor: Cursor) -> kvd_client.Changes | None:
        """None: kvd did not answer."""
        raise NotImplementedError


class Forgotten:
    """Names of blocks in kvd that nobody needs any more, until kvd has heard of them. Each call costs
    as much as a few tokens, so they are told together."""

    def __init__(self, index: Index, clock: Callable[[], float]) -> None:
        self._index = index
        self._clock = clock
        self._names: list[bytes] = []
        self._next = 0.0
        self._is_told = True  # kvd took the last ones

    def __len__(self) -> int:
        return len(self._names)

    def add(self, names: Iterable[bytes]) -> None:
        self._names += names

    def tell(self, wait: bool) -> None:
        if not self._names:
            return
        self._next = self._clock() + _FORGET_S
        told = self._index.drop(self._names, wait)
        self._is_told = told > 0
        del self._names[:told]
        del self._names[:-_MOST_FORGOTTEN]

    def tell_along(self) -> None:
        """With a question that is asked anyway, if it is time."""
        if self._clock() >= self._next:
            self.tell(wait=False)

    def tell_late(self, is_idle: bool) -> None:
        """By themselves: where no question came for long, where there are many, and where the engine
        is idle."""
        if self._clock() >= self._next + _FORGET_S or is_idle or len(self) >= _MANY_FORGOTTEN:
            self.tell(wait=True)

    @property
    def is_work(self) -> bool:
        """Whether the engine has to make steps for these. It need not while kvd does not answer."""
        return bool(self._names) and self._is_told


class Wanted(NamedTuple):
    """Blocks of a request, what is to become of them, and the copies that store them."""

    names: list[bytes]
    wish: Wish
    copies: list[int]


class Hinted:
    """What kvd is to be told of blocks, until it has stored them and has been told."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._waiting: list[Wanted] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, wanted: Wanted) -> None:
        if wanted.names:
            self._waiting.append(wanted)

    def tell(self, is_open: Callable[[int], bool]) -> tuple[int, int]:
        """Tells of one whose copies have ended, as a step waits for the answer. Returns how many of
        its blocks are retained, and how many more should be."""
        for wanted in self._waiting:
            if not any(map(is_open, wanted.copies)):
                self._waiting.remove(wanted)
                kept = self._index.hint(wanted.names, wanted.wish) or 0
                return (kept, len(wanted.names) - kept) if wanted.wish.keeps else (0, 0)
        return 0, 0


@dataclass
class Open:
    """A copy whose end has not been reported, and what is to be forgotten then."""

    copy: Copy
    since: float
    forget: list[bytes] = field(default_factory=list)


class Copies:
    """Copies under way. Each holds a reference to its blocks from the step that decides it until the
    worker reports its end, whatever becomes of its request. After a failure none begin for a while."""

    def __init__(self, clock: Callable[[], float], patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._pool: BlockPool | None = None
        self._number = 0
        self._open: dict[int, Open] = {}
        self._new: list[Copy] = []
        self._new_after: list[Copy] = []  # copies that begin after this step's forward
        self._pause_s = _PAUSE_S
        self._paused_until = 0.0

    def bind(self, pool: BlockPool) -> None:
        self._pool = pool

    @property
    def pool(self) -> BlockPool:
        assert self._pool is not None
        return self._pool

    @property
    def next_number(self) -> int:
        return self._number + 1

    def begin(
        self, kind: Kind, name: str, digests: Iterable[bytes], blocks: Iterable[int],
        after: bool = False,
    ) -> Copy:  # fmt: skip
        """A copy that holds its blocks from now on. `after`: it begins after this step's forward."""
        self._number += 1
        copy = Copy(self._number, kind, name, list(digests), list(blocks))
        self._hold(copy)
        self._open[copy.number] = Open(copy, self._clock())
        (self._new_after if after else self._new).append(copy)
        return copy

    def take_begun(self) -> Transfers:
        """The copies that were begun since the last call."""
        begun, self._new = self._new, []
        begun_after, self._new_after = self._new_after, []
        return Transfers(begun, begun_after)

    def end(self, number: int, done: bool) -> Open:
        """The blocks may be used again."""
        ended = self._open.pop(number)
        self._release(ended.copy)
        if done:
            self._pause_s = _PAUSE_S
        return ended

    def forget_at_end(self, number: int, names: Iterable[bytes]) -> None:
        self._open[number].forget.extend(names)

    def __bool__(self) -> bool:
        return bool(self._open)

    def is_open(self, number: int) -> bool:
        return number in self._open

    def open_of(self, name: str) -> list[int]:
        return [number for number, each in self._open.items() if each.copy.request == name]

    def is_loading(self, name: str) -> bool:
        return any(
            each.copy.kind == Kind.LOAD and each.copy.request == name
            for each in self._open.values()
        )

    def blocks_coming(self) -> int:
        """Blocks that only copies hold: they become free when these end."""
        blocks = self.pool.blocks
        held = {at for each in self._open.values() for at in each.copy.blocks}
        return sum(blocks[at].ref_cnt == 1 for at in held)

    def has_room_coming(self) -> bool:
        """Whether blocks that only copies hold become free when these end. False once a copy has
        taken too long: then vLLM helps itself."""
        if self.is_paused:
            return False
        blocks = self.pool.blocks
        begun_after = self._clock() - self._patience_s
        return any(
            blocks[at].ref_cnt == 1
            for each in self._open.values()
            if each.since > begun_after
            for at in each.copy.blocks
        )

    @contextlib.contextmanager
    def let_go(self) -> Iterator[None]:
        """While nothing is handed out: vLLM clears its prefix cache only when no block is in use,
        and the copies under way are no reason not to."""
        held = [each.copy for each in self._open.values()]
        for copy in held:
            self._release(copy)
        try:
            yield
        finally:
            for copy in held:
                self._hold(copy)

    def pause(self) -> None:
        """Pauses after a copy that kvd failed to make."""
        if self.is_well:
            logger.warning("kvd: a copy failed; its request computes these tokens, as without kvd")
        self._paused_until = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    @property
    def is_paused(self) -> bool:
        return self._clock() < self._paused_until

    @property
    def is_well(self) -> bool:
        """Whether the last copy that was tried has ended well."""
        return self._pause_s == _PAUSE_S

    def _hold(self, copy: Copy) -> None:
        self.pool.touch([self.pool.blocks[at] for at in copy.blocks])

    def _release(self, copy: Copy) -> None:
        self.pool.free_blocks([self.pool.blocks[at] for at in reversed(copy.blocks)])
