"""kvd as the two sides of a connector see it: the only implementations of Index and Cache."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import kvd_client

from kvd_vllm.copies import Cursor, Index, Labels, NotYet, Source
from kvd_vllm.copying import Cache, State
from kvd_vllm.goals import Wish
from kvd_vllm.layout import CacheShape, Piece
from kvd_vllm.memory import logger
from kvd_vllm.options import Options

_T = TypeVar("_T")

# The timeout of a worker's calls: they wait for the daemon's loop, not for copies. A copy whose
# call got no answer in time may have begun all the same, or ends as failed.
_CALL_S = 0.1
# The timeout of calls that name the cache, in the first step. Without an answer the finder's thread
# makes them.
_OPEN_S = 0.25
# After a late answer the next steps do not ask, so at most a 50th of the time is lost. The rest is
# longer each time in a row, but not so long that parked blocks that are no longer needed fill kvd.
_FIRST_REST_S, _LONGEST_REST_S = 0.1, 1.0
_RETRY_S, _ATTACH_S = 0.5, 2.0
_QUIET_S = 60.0
# What kvd takes in one call.
_MOST_BLOCKS, _MOST_PIECES = 4096, 65536
_NOT_YET = -1
# The timeout of calls that no step waits for.
_ASIDE_S = 1.0


class Link(Index, Source):
    """The scheduler's session. Every call ends within the step's budget, or, about blocks, within one for
    each worker: their caches are asked one after the other. Without an answer it returns None or 0, and the
    engine goes on as stock vLLM.

    A thread of this object looks for a daemon that is gone, so that no step waits for an attach.
    The log gets one line when kvd stops answering, and one when it answers again.
    """

    def __init__(
        self, options: Options, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._shapes: Sequence[CacheShape] = ()
        self._clock = clock
        self._client: kvd_client.Client | None = None
        self._caches: list[kvd_client.Cache] = []  # one for each worker
        self._rest_s = _FIRST_REST_S
        self._resting_until = 0.0
        self._is_up = False
        self._told = False
        self._quiet_until = 0.0
        self._unanswered = 0
        self._closed = threading.Event()
        self._losing = threading.Lock()
        self._finder: threading.Thread | None = None  # None: nothing is looked for
        try:
            self._attach(options.timeout_s)
            self._is_up = True
        except kvd_client.KvdError as fault:
            self._lose(fault)

    def open(self, shapes: Sequence[CacheShape]) -> None:
        """Opens the cache of each worker, once they have said what names them. This happens in the
        first step."""
        self._shapes = shapes
        if self._is_up:
            try:
                self._attach(min(_OPEN_S, self._options.timeout_s))
            except kvd_client.KvdError as fault:
                self._lose(fault)

    def lookup(self, digests: Sequence[bytes]) -> int | None:
        opened, asked = self._caches, digests[:_MOST_BLOCKS]
        if not opened:
            return None

        def leading(ours: kvd_client.Cache) -> int:
            try:
                return ours.lookup(asked, timeout=self._budget)
            except kvd_client.WouldBlock:
                return _NOT_YET

        def least() -> int:
            # Each is asked, so that kvd asks remote servers for all of them at once.
            answers = [leading(each) for each in opened]
            return 0 if 0 in answers else min(answers)

        answer = self._ask(least)
        if answer == _NOT_YET:
            raise NotYet
        return answer

    def expect(self, digests: Sequence[bytes]) -> None:
        for each in self._caches if len(digests) <= _MOST_BLOCKS else ():
            self._post(functools.partial(each.post_lookup, digests))

    def drop(self, digests: Sequence[bytes], wait: bool = True) -> int:
        told, opened = digests[:_MOST_BLOCKS], self._caches

        def drop(ours: kvd_client.Cache) -> bool:
            if not wait:
                return self._post(functools.partial(ours.post_drop, told))
            call = functools.partial(ours.drop, told, timeout=self._budget)
            return self._ask(lambda: call() is None) is True

        return len(told) if opened and all(map(drop, opened)) else 0

    def hint(self, digests: Sequence[bytes], wish: Wish) -> int | None:
        opened = self._caches
        if not opened:
            return None

        def tell() -> int | None:
            # An older kvd knows no such hint.
            with contextlib.suppress(kvd_client.InvalidArgument):
                try:
                    return min([each.hint(wish.hint, digests, wish.seconds, self._budget) for each in opened])
                except (kvd_client.QuotaExceeded, kvd_client.WouldBlock):
                    return 0
            return None

        return self._ask(tell)

    def schedule(
        self, batch: kvd_client.ScheduleBatch, facts: dict[str, int]
    ) -> kvd_client.Decision | None:
        if self._client is None:
            return None
        return self._ask(
            functools.partial(self._client.schedule, batch, timeout=self._budget, **facts)
        )

    def set_gaps(self, gaps: Mapping[int, float]) -> bool:
        if self._client is None:
            return False
        call = functools.partial(self._client.set_gaps, gaps, timeout=self._budget)

        def tell() -> bool:
            # An older kvd: the class's gap counts.
            with contextlib.suppress(kvd_client.Unsupported):
                call()
            return True

        return self._ask(tell) is True

    @property
    def is_up(self) -> bool:
        return self._is_up

    @property
    def is_open(self) -> bool:
        """Whether it is known what names the cache."""
        return bool(self._shapes)

    def label(self, labels: Labels) -> bool:
        def call(ours: kvd_client.Cache) -> bool:
            # What kvd does not take it never takes, and an older one knows no labels.
            with contextlib.suppress(kvd_client.InvalidArgument, kvd_client.Unsupported):
                ours.label(
                    labels.digests, labels.tokens, parent=labels.parent, lora=labels.lora, timeout=_ASIDE_S
                )  # fmt: skip
            return True

        return self._ask_aside(call) is True

    def changes(self, cursor: Cursor) -> kvd_client.Changes | None:
        return self._ask_aside(lambda ours: ours.changes(cursor, timeout=_ASIDE_S))

    def take_unanswered(self) -> int:
        """Calls without an answer in time since the last call of this."""
        taken, self._unanswered = self._unanswered, 0
        return taken

    def close(self) -> None:
        self._closed.set()
        with self._losing:
            finder, self._finder = self._finder, None
        if finder is not None:
            finder.join()
        if self._client is not None:
            self._client.close()
            self._client = None
        self._is_up = False

    @property
    def _budget(self) -> float:
        return self._options.step_budget_s

    def _ask(self, call: Callable[[], _T]) -> _T | None:
        if not self._is_up or self._clock() < self._resting_until:
            return None
        try:
            answer = call()
        except (kvd_client.Unavailable, kvd_client.PeerGone, kvd_client.StaleSession) as fault:
            self._unanswered += 1
            self._lose(fault)
            return None
        except kvd_client.KvdError as fault:
            self._unanswered += 1
            self._tell(fault)
            self._resting_until = self._clock() + self._rest_s
            self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
            return None
        self._rest_s = _FIRST_REST_S
        if self._told:
            self._told = False
            logger.warning("kvd: answers again")
        return answer

    def _ask_aside(self, call: Callable[[kvd_client.Cache], _T]) -> _T | None:
        """Asks from another thread than the scheduler's, of the cache of an only worker. If kvd is late
        there, steps may ask all the same."""
        opened = self._caches
        if not self._is_up or not opened:
            return None
        try:
            return call(opened[0])
        except (kvd_client.Unavailable, kvd_client.PeerGone, kvd_client.StaleSession) as fault:
            self._lose(fault)
        except kvd_client.KvdError:
            pass
        return None

    def _post(self, call: Callable[[], None]) -> bool:
        """Posts what goes with the next question. It posts nothing while such posts are not
        answered, since nothing may be reading them. False: it was not posted, be it that many are already."""
        if self._rest_s > _FIRST_REST_S:
            return False

        def post() -> bool:
            with contextlib.suppress(kvd_client.WouldBlock):
                call()
                return True
            return False

        return self._ask(post) is True

    def _attach(self, timeout_s: float) -> None:
        """Opens what is not open, or resumes the session."""
        if self._client is None:
            self._client = self._session(timeout_s)
        self._client.ping(timeout_s)
        opened: list[kvd_client.Cache] = []
        try:
            for each in self._shapes:
                opened.append(self._client.cache(
                    each.model, block_tokens=each.block_tokens, block_bytes=each.block_bytes,
                    await_remote=True, timeout=timeout_s,
                ))  # fmt: skip
        except kvd_client.KvdError:
            # kvd has few for a session, and all are opened anew.
            for ours in opened:
                with contextlib.suppress(kvd_client.KvdError):
                    ours.close(timeout_s)
            raise
        self._caches = opened

    def _session(self, timeout_s: float) -> kvd_client.Client:
        """A session for whatever memory kvd lends. This side maps none of it, so that a scheduler in a
        process of its own makes no context on a GPU."""
        return kvd_client.Client(
            self._options.endpoint, engine_name=self._options.engine_name,
            transport=kvd_client.Transport.RING, memory=kvd_client.Memory.UNMAPPED, timeout=timeout_s,
        )  # fmt: skip

    def _lose(self, fault: Exception) -> None:
        """Any thread that asks may be the one that hears of it, and several may at a time."""
        with self._losing:
            self._is_up = False
            self._tell(fault)
            if self._finder is None and not self._closed.is_set():
                self._finder = threading.Thread(target=self._find, name="kvd-finder", daemon=True)
                self._finder.start()

    def _find(self) -> None:
        """Runs until the daemon is there again."""
        while not self._closed.wait(_RETRY_S):
            try:
                self._attach(_ATTACH_S)
            except kvd_client.KvdError:
                continue
            if self._shapes and not self._caches:
                continue  # it was found meanwhile
            with self._losing:
                self._is_up, self._finder = True, None
            return

    def _tell(self, fault: Exception) -> None:
        """Logs a fault. Late answers are logged at most once a minute, because a busy machine may
        have many."""
        late = isinstance(fault, kvd_client.DeadlineExceeded)
        if not self._told and not (late and self._clock() < self._quiet_until):
            self._told = True
            self._quiet_until = self._clock() + _QUIET_S
            logger.warning(
                "kvd: no answer, vLLM decides as without it until there is one: %s: %s",
                type(fault).__name__, fault,
            )  # fmt: skip


class _Parts(NamedTuple):
    """The tickets of one copy that are not over, and whether a part of the copy has failed."""

    open: list[int]
    failed: bool


class KvdCache(Cache):
    """A worker's region as blocks, in its session. A copy of more blocks than kvd takes in one call
    becomes several calls; it has ended when all of them have."""

    def __init__(
        self,
        client: kvd_client.Client,
        region: kvd_client.Region,
        shape: CacheShape,
        pieces: Sequence[Piece],
    ) -> None:
        found = sum(piece.bytes for piece in pieces)
        if found != shape.block_bytes:
            raise ValueError(f"a block has {found} bytes, not {shape.block_bytes} as vLLM says")
        self._most = max(1, min(_MOST_BLOCKS, _MOST_PIECES // len(pieces)))
        self._copies: dict[int, _Parts] = {}
        self._number = 0
        self._cache = client.cache(
            shape.model, block_tokens=shape.block_tokens, block_bytes=shape.block_bytes,
            region=region, blocks=shape.blocks, pieces=[kvd_client.Piece(*each) for each in pieces],
        )  # fmt: skip

    def store(self, digests: Sequence[bytes], blocks: Sequence[int], park: bool) -> int:
        call = functools.partial(self._cache.store, park=park, timeout=_CALL_S)
        return self._begin(call, digests, blocks)

    def load(self, digests: Sequence[bytes], blocks: Sequence[int]) -> int:
        return self._begin(functools.partial(self._cache.load, timeout=_CALL_S), digests, blocks)

    def poll(self, tickets: Sequence[int]) -> list[State]:
        parts = [self._copies[ticket] for ticket in tickets]
        asked = [each for part in parts for each in part.open]
        over = dict(zip(asked, self._cache.poll(asked), strict=True)) if asked else {}
        return [self._look(ticket, over) for ticket in tickets]

    def close(self) -> None:
        try:
            self._cache.close()
        except kvd_client.KvdError as fault:
            logger.warning("kvd: the cache was not closed: %s", fault)

    def _begin(
        self, call: Callable[..., int], digests: Sequence[bytes], blocks: Sequence[int]
    ) -> int:
        begun: list[int] = []
        fault: kvd_client.KvdError | None = None
        for at in range(0, len(blocks), self._most):
            try:
                begun.append(call(digests[at : at + self._most], blocks[at : at + self._most]))
            except kvd_client.KvdError as error:
                # With a ticket kvd may have begun, though it did not say so in time.
                ticket = getattr(error, "ticket", 0)
                if ticket:
                    begun.append(ticket)
                if not ticket or at + self._most < len(blocks):
                    fault = error  # each of the others would take as long
                    break
        if fault is not None and not begun:
            raise fault
        self._number += 1
        self._copies[self._number] = _Parts(begun, fault is not None)
        return self._number

    def _look(self, ticket: int, over: dict[int, kvd_client.TicketState]) -> State:
        parts = self._copies[ticket]
        failed = parts.failed or kvd_client.TicketState.FAILED in map(over.get, parts.open)
        left = [each for each in parts.open if over[each] == kvd_client.TicketState.PENDING]
        if left:
            self._copies[ticket] = _Parts(left, failed)
            return State.PENDING
        del self._copies[ticket]
        return State.FAILED if failed else State.DONE


class NoCache(Cache):
    """Stands in where the KV cache does not lie in kvd, or kvd has opened no cache for it: every
    copy fails."""

    def store(self, digests: Sequence[bytes], blocks: Sequence[int], park: bool) -> int:
        raise kvd_client.Unavailable("kvd has no cache for this engine")

    def load(self, digests: Sequence[bytes], blocks: Sequence[int]) -> int:
        raise kvd_client.Unavailable("kvd has no cache for this engine")

    def poll(self, tickets: Sequence[int]) -> list[State]:
        return []

    def close(self) -> None:
        """Does nothing: nothing is open."""
