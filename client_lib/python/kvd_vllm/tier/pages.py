"""kvd as a storage of pages, for engines that keep them in memory of their own: SGLang's, and those of
vLLM's CPU tier. Nothing else in this folder and in kvd_sglang calls kvd.

Pages go through a window: a region of kvd's that they are copied into before kvd takes them, and that
kvd puts them into. One half of it is for stores and one for loads, so that neither waits for the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import kvd_client
from kvd_client import TicketState
from kvd_vllm.options import bytes_of, name_of, seconds_of, text_of

_T = TypeVar("_T")
Digests = Sequence[bytes]

# The timeout of a call: it waits for the daemon's loop, not for copies.
_CALL_S = 0.25
# After a late answer the next calls are not made for this long, and for longer each time in a row.
_FIRST_REST_S, _LONGEST_REST_S = 0.1, 2.0
_RETRY_S, _AGAIN_S = 0.5, 0.005
_QUIET_S = 60.0
# What kvd takes in one call, and the most pages of one half of the window.
_MOST_DIGESTS, _MOST_ROWS = 4096, 1024
# A call raises one of these where the kvd that knew the session is gone.
_GONE = (kvd_client.Unavailable, kvd_client.PeerGone, kvd_client.StaleSession)
# kvd answers so to a region that is larger than it can lend.
_NO_ROOM = (
    kvd_client.OutOfMemory, kvd_client.Infeasible, kvd_client.QuotaExceeded, kvd_client.InvalidArgument,
)  # fmt: skip


class Options(NamedTuple):
    endpoint: str | None = None  # None: the daemon's default socket
    engine_name: str = "vllm"  # in status and metrics, at most 31 bytes
    timeout_s: float = 5.0  # for the attach at the start
    copy_timeout_s: float = 2.0  # a copy that takes longer is given up
    window_bytes: int = 64 << 20  # kvd's memory that pages go through


VALUES: dict[str, Callable[[str, Any], Any]] = {
    "endpoint": text_of,
    "engine_name": name_of,
    "timeout_s": seconds_of,
    "copy_timeout_s": seconds_of,
    "window_bytes": bytes_of,
}


def options_of(where: str, owner: str, given: Mapping[str, Any]) -> Options:
    """Raises ValueError for an option that does not exist, or for a value that does not fit."""
    if unknown := sorted(set(given) - set(VALUES)):
        raise ValueError(f"{where}: {owner} has no {', '.join(unknown)}; it has {', '.join(VALUES)}")
    return Options(**{option: VALUES[option](f"{where}: {option}", each) for option, each in given.items()})


class Kind(NamedTuple):
    """What the pages of an engine are."""

    name: str  # all that their bytes depend on besides their digests
    tokens: int  # that a page has
    bytes: int  # that a page has


class _Lost(Exception):
    """The window may not be used any more."""


class _Half:
    """Rows of the window. `lock`: one thread copies at a time."""

    def __init__(self, first: int, rows: Any) -> None:
        self.first = first
        self.rows = rows  # a tensor of bytes, a row for each page
        self.lock = threading.Lock()
        self.under_way: list[int] = []  # tickets that were given up, and may still use the rows


class _Session:
    """An attach, with its window."""

    def __init__(self, options: Options, kind: Kind, timeout_s: float) -> None:
        self.client = kvd_client.Client(
            options.endpoint, engine_name=options.engine_name, memory=kvd_client.Memory.HOST,
            transport=kvd_client.Transport.RING, timeout=timeout_s,
        )  # fmt: skip
        try:
            rows, region = self._window(options, kind, timeout_s)
            size = 2 * rows * kind.bytes
            self.cache = self.client.cache(
                kind.name, block_tokens=kind.tokens, block_bytes=kind.bytes, region=region,
                blocks=2 * rows, pieces=[kvd_client.Piece(0, kind.bytes, kind.bytes)],
                await_remote=True, timeout=timeout_s,
            )  # fmt: skip
            window = region.torch(size).view(2 * rows, kind.bytes)
            self.loads, self.stores = _Half(0, window[:rows]), _Half(rows, window[rows:])
            self.generation = self.client.session().generation
        except BaseException:
            self.client.close()
            raise

    def _window(self, options: Options, kind: Kind, timeout_s: float) -> tuple[int, kvd_client.Region]:
        """The rows of a half, and the region. It is as large as kvd has room for, up to what the options
        say."""
        rows = min(max(1, options.window_bytes // 2 // kind.bytes), _MOST_ROWS)
        while True:
            try:
                return rows, self.client.allocate(2 * rows * kind.bytes, timeout=timeout_s)
            except _NO_ROOM:
                if rows == 1:
                    raise
                rows = max(1, rows // 4)

    def close(self, patience_s: float) -> None:
        """Ends the session. A copy of another thread is waited for, as it has a deadline."""
        for half in (self.loads, self.stores):
            if half.lock.acquire(timeout=patience_s):
                half.rows = None
                half.lock.release()
        self.client.close()


class Pages:
    """The pages of one engine in kvd. Every call ends in time. Without an answer nothing is found or
    stored, and the engine goes on.

    A thread of this object looks for a daemon that is gone. Threads may share the object.
    """

    def __init__(
        self, options: Options, kind: Kind, logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._options = options
        self._kind = kind
        self._logger = logger
        self._clock = clock
        self._session: _Session | None = None
        self._rest_s = _FIRST_REST_S
        self._resting_until = 0.0
        self._told = False
        self._quiet_until = 0.0
        self._closed = threading.Event()
        self._losing = threading.Lock()
        self._finder: threading.Thread | None = None  # None: nothing is looked for
        try:
            self._session = _Session(options, kind, options.timeout_s)
        except kvd_client.KvdError as fault:
            self._lose(None, fault)

    @property
    def is_up(self) -> bool:
        return self._session is not None

    def lookup(self, digests: Digests) -> int:
        """How many leading pages, without a gap, can be loaded now."""
        return self._ask(lambda session: self._look_up(session, digests), 0)

    def which(self, digests: Digests) -> list[bool]:
        """Which of these pages can be loaded now. Where that takes long the last are not looked for."""
        return self._ask(lambda session: self._look_up_each(session, digests), [False] * len(digests))

    def store(self, digests: Digests, fill: Callable[[int, Any], None]) -> int:
        """Stores leading pages; returns how many. `fill` copies page `at` into a row of bytes."""

        def run(session: _Session) -> int:
            def copy(half: _Half, at: int, some: Digests, rows: list[int]) -> int:
                for number in range(len(some)):
                    fill(at + number, half.rows[number])
                return len(some) * self._is_done(session, half, session.cache.store, some, rows)

            return self._by_parts(session, session.stores, digests, copy)

        return self._ask(run, 0)

    def load(self, digests: Digests, take: Callable[[int, Any], None]) -> int:
        """Loads leading pages; returns how many. `take` copies a row of bytes to page `at`."""

        def run(session: _Session) -> int:
            def copy(half: _Half, at: int, some: Digests, rows: list[int]) -> int:
                try:
                    done = self._is_done(session, half, session.cache.load, some, rows)
                except kvd_client.NotFound:  # some page was evicted since it was found
                    some = some[: self._look_up(session, some)]
                    done = bool(some) and self._is_done(
                        session, half, session.cache.load, some, rows[: len(some)]
                    )
                if not done:
                    return 0
                for number in range(len(some)):
                    take(at + number, half.rows[number])
                return len(some)

            return self._by_parts(session, session.loads, digests, copy)

        return self._ask(run, 0)

    def close(self) -> None:
        self._closed.set()
        with self._losing:
            finder, self._finder = self._finder, None
            session, self._session = self._session, None
        if finder is not None:
            finder.join()
        if session is not None:
            session.close(self._patience_s)

    @property
    def _patience_s(self) -> float:
        return 2 * (self._options.copy_timeout_s + _CALL_S)

    def _look_up(self, session: _Session, digests: Digests) -> int:
        deadline = self._clock() + _CALL_S
        found = 0
        while found < len(digests):
            some = digests[found : found + _MOST_DIGESTS]
            try:
                leading = session.cache.lookup(some, timeout=max(0.001, deadline - self._clock()))
            except kvd_client.WouldBlock:  # kvd asks its disk or other nodes
                if self._clock() >= deadline or self._closed.wait(_AGAIN_S):
                    return found
                continue
            found += leading
            if leading < len(some):
                break
        return found

    def _look_up_each(self, session: _Session, digests: Digests) -> list[bool]:
        """kvd counts up to the first gap, so it is asked for one page behind a gap and for more behind
        a page that is there."""
        deadline = self._clock() + _CALL_S
        found: list[bool] = []
        most = len(digests)
        while len(found) < len(digests) and self._clock() < deadline:
            some = digests[len(found) : len(found) + most]
            leading = self._look_up(session, some)
            found += [True] * leading + [False] * (leading < len(some))
            most = 1 if leading < len(some) else 2 * most
        return found + [False] * (len(digests) - len(found))

    def _by_parts(
        self, session: _Session, half: _Half, digests: Digests,
        copy: Callable[[_Half, int, Digests, list[int]], int],
    ) -> int:  # fmt: skip
        """As many pages at a time as the half has rows; returns how many were copied."""
        if not half.lock.acquire(timeout=self._options.copy_timeout_s):
            return 0
        try:
            at = 0
            while at < len(digests):
                if half.rows is None or not self._is_free(session, half):
                    return at
                some = digests[at : at + len(half.rows)]
                copied = copy(half, at, some, list(range(half.first, half.first + len(some))))
                at += copied
                if copied < len(some):
                    return at
            return at
        finally:
            half.lock.release()

    def _is_free(self, session: _Session, half: _Half) -> bool:
        """Whether kvd neither reads nor writes its rows for a copy that was given up."""
        if half.under_way:
            over = session.cache.poll(half.under_way)
            half.under_way = [
                ticket for ticket, state in zip(half.under_way, over, strict=True)
                if state == TicketState.PENDING
            ]  # fmt: skip
        return not half.under_way

    def _is_done(
        self, session: _Session, half: _Half, call: Callable[..., int], digests: Digests, rows: list[int]
    ) -> bool:
        """Whether kvd has made the copy. Raises what it refuses with."""
        ticket = 0
        try:
            ticket = call(digests, rows, timeout=_CALL_S)
            done = session.cache.wait([ticket], timeout=self._options.copy_timeout_s)
            return done == [TicketState.DONE]
        except kvd_client.DeadlineExceeded as fault:
            ticket = ticket or getattr(fault, "ticket", 0)
            if not ticket:
                raise _Lost from fault  # nobody can say whether kvd copies
            half.under_way.append(ticket)
            raise

    def _ask(self, run: Callable[[_Session], _T], otherwise: _T) -> _T:
        session = self._session
        if session is None or self._clock() < self._resting_until:
            return otherwise
        try:
            answer = run(session)
            if session.client.session().generation != session.generation:
                raise _Lost("another kvd answers")  # which knows nothing of the window
        except kvd_client.NotFound:
            return otherwise  # pages are evicted all the time
        except (*_GONE, _Lost) as fault:
            self._lose(session, fault)
            return otherwise
        except kvd_client.KvdError as fault:
            self._tell(fault)
            self._resting_until = self._clock() + self._rest_s
            self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
            return otherwise
        self._rest_s = _FIRST_REST_S
        if self._told:
            self._told = False
            self._logger.warning("kvd: answers again")
        return answer

    def _lose(self, session: _Session | None, fault: Exception) -> None:
        """Any thread that asks may be the one that hears of it, and several may at a time."""
        with self._losing:
            if self._session is not session:
                return
            self._session = None
            if self._is_refusal(fault):
                return
            self._tell(fault)
            if not self._closed.is_set():
                self._finder = threading.Thread(
                    target=self._find, args=(session,), name="kvd-finder", daemon=True
                )
                self._finder.start()

    def _find(self, lost: _Session | None) -> None:
        """Runs until the daemon is there again."""
        if lost is not None:
            lost.close(self._patience_s)
        while not self._closed.wait(_RETRY_S):
            try:
                session = _Session(self._options, self._kind, self._options.timeout_s)
            except kvd_client.KvdError as fault:
                if self._is_refusal(fault):
                    return
                continue
            with self._losing:
                if not self._closed.is_set():
                    self._session, self._finder = session, None
                    self._resting_until, self._rest_s = 0.0, _FIRST_REST_S
                    return
            session.close(0)

    def _is_refusal(self, fault: Exception) -> bool:
        """Whether no further attempt to attach can succeed, which is logged."""
        if not isinstance(fault, kvd_client.InvalidArgument):
            return False
        self._logger.warning(
            "kvd: refuses pages of %d bytes, and is not asked again: %s. The engine goes on without it; "
            "restart the engine once that is mended", self._kind.bytes, fault,
        )  # fmt: skip
        return True

    def _tell(self, fault: Exception) -> None:
        """Logs a fault. Late answers are logged at most once a minute, because a busy machine may
        have many."""
        late = not isinstance(fault, (*_GONE, _Lost))
        if not self._told and not (late and self._clock() < self._quiet_until):
            self._told = True
            self._quiet_until = self._clock() + _QUIET_S
            self._logger.warning(
                "kvd: no answer, the engine goes on without it until there is one: %s: %s",
                type(fault).__name__, fault,
            )  # fmt: skip
