"""Where blocks of streamed layers lie while they are not in HBM."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import kvd_client

from kvd_vllm.layers.table import NOBODYS, Copy

_MOST_BLOCKS = 4096  # what kvd takes in one call
_PAUSE_S, _SHORT_S = 0.001, 0.2
_ASIDE_S = 1.0  # a kvd that hung up may still be writing
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 600.0
_LAST_TRY_S = 30.0  # between tries while kvd is gone
_NO_ROW = 0  # a table's rows are counted from 1
_AWAY = (
    kvd_client.Unavailable, kvd_client.PeerGone, kvd_client.StaleSession, kvd_client.DeadlineExceeded,
)  # fmt: skip


class Part(NamedTuple):
    """Copies that kvd was asked for at once."""

    ticket: int  # 0: kvd does not make them
    copies: list[Copy]


class Rows:
    """Rows in kvd's DRAM; what kvd does not take, as it is away or full, lies in memory of this process.
    `open_cache`: opens kvd's cache of pages of one layer. `session`: what tells kvd's session from others.
    `pages`: their bytes, by number.

    kvd is away when it is gone, or when a call or a copy takes or is put off longer than `patience_s`. What
    lies there counts as lost then. From time to time its cache is opened again, but not while a copy is
    late: kvd may still write the pages of a late load. The more often kvd goes away, the less often.

    Raises what the first open_cache raises. Use it on the worker's main thread.
    """

    def __init__(
        self, open_cache: Callable[..., kvd_client.Cache], session: Callable[[], object], pages: Any,
        patience_s: float, warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._open_cache = open_cache
        self._session_of = session
        self._cache = open_cache()
        self._session = session()
        self._pages = pages
        self._patience_s = patience_s
        self._warn = warn
        self._own: dict[int, Any] = {}
        self._opened_at = -math.inf  # the first time that kvd goes away is not one of many
        self._retry_s = _FIRST_RETRY_S
        self._retry_at: float | None = None  # kvd is away: when it is asked again
        self._late: list[Part] = []
        self._aside: dict[int, float] = {}  # pages of loads that failed: until when kvd may write them
        self._kvds: set[int] = set()  # rows that kvd may have
        self._dead: list[int] = []  # rows that kvd may have and is to drop
        self._told: set[type[kvd_client.KvdError]] = set()

    def begin_step(self, wait: bool = False) -> set[int]:
        """The pages that kvd may still write, though nobody waits for it. `wait`: as long as for a load
        until there are none."""
        deadline = time.monotonic() + max(self._patience_s, _ASIDE_S) * wait
        while True:
            self._late = [each for each in self._late if self._looked_at(each) == kvd_client.TicketState.PENDING]
            self._aside = {page: until for page, until in self._aside.items() if time.monotonic() < until}
            if self._late and self._is_due():
                self._hear()
                continue
            if not (self._late or self._aside) or time.monotonic() >= deadline:
                break
            time.sleep(_PAUSE_S)
        if not self._late and self._is_due():
            self._reopen()
        return {copy.page for each in self._late for copy in each.copies} | self._aside.keys()

    def store(self, copies: Sequence[Copy]) -> None:
        """Returns once they are stored."""
        for part in self._begin(partial(self._cache.store, park=True), copies):
            state = self._state(part)
            if state != kvd_client.TicketState.FAILED:
                self._kvds.update(each.row for each in part.copies)
            if state != kvd_client.TicketState.DONE:
                self._own.update({each.row: self._pages[each.page].clone() for each in part.copies})
            if state == kvd_client.TicketState.PENDING:
                self._late.append(Part(part.ticket, []))

    def load(self, copies: Sequence[Copy]) -> list[Part]:
        """Begins them. Wait for each."""
        kvds: list[Copy] = []
        lost: list[Copy] = []
        for each in copies:
            if each.row in self._own:
                self._pages[each.page].copy_(self._own[each.row])
            else:
                (kvds if each.row in self._kvds else lost).append(each)
        return [Part(0, lost), *self._begin(self._cache.load, kvds)]

    def wait(self, parts: Sequence[Part]) -> list[Copy]:
        """Returns the copies that failed or are late, once all others are over."""
        lost: list[Copy] = []
        for part in parts:
            state = self._looked_at(part)
            if state != kvd_client.TicketState.DONE:
                lost += part.copies
            if state == kvd_client.TicketState.PENDING:
                self._late.append(part)
        return lost

    def drop(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._own.pop(row, None)
        self._dead += self._kvds.intersection(rows)
        while self._dead and self.answers():
            try:
                self._cache.drop([_digest(row) for row in self._dead[:_MOST_BLOCKS]], self._patience_s)
            except kvd_client.KvdError as fault:
                self._note(fault)
                return
            self._kvds.difference_update(self._dead[:_MOST_BLOCKS])
            del self._dead[:_MOST_BLOCKS]

    def answers(self) -> bool:
        """kvd is there."""
        return self._retry_at is None and not self._late

    def _put_off(self) -> None:
        """Each time that kvd goes away requests are computed again: one that does so often is asked less and
        less often."""
        now = time.monotonic()
        was_good = now - self._opened_at > 10 * self._retry_s
        self._retry_s = _FIRST_RETRY_S if was_good else min(2 * self._retry_s, _LAST_RETRY_S)
        self._retry_at = now + self._retry_s

    def _wait_longer(self) -> None:
        self._retry_s = max(self._retry_s, min(2 * self._retry_s, _LAST_TRY_S))
        self._retry_at = time.monotonic() + self._retry_s

    def _is_due(self) -> bool:
        return self._retry_at is not None and time.monotonic() > self._retry_at

    def _hear(self) -> None:
        """kvd may have refused a copy after nobody waited for its answer. The answer to a later copy says
        so: one of a row that never was. The drop comes first, as copies without an answer use up tickets."""
        self._retry_at = time.monotonic() + self._retry_s
        try:
            self._cache.drop([_digest(_NO_ROW)], _SHORT_S)
            self._cache.load([_digest(_NO_ROW)], [NOBODYS], timeout=_SHORT_S)
        except _AWAY:
            self._wait_longer()
        except kvd_client.KvdError:
            pass

    def _reopen(self) -> None:
        try:
            # A kvd that is late would open one cache after the other, so it is asked for its session first.
            session = self._session_of()
            with contextlib.suppress(kvd_client.NotFound):  # an earlier try has closed it
                self._cache.close(_SHORT_S)
            self._cache = self._open_cache(timeout=_SHORT_S)
        except kvd_client.KvdError:
            self._wait_longer()
        else:
            self._retry_at = None
            self._opened_at = time.monotonic()
            self._told.clear()
            if session != self._session:
                self._session = session
                self._kvds.clear()
                self._dead.clear()
            self._warn("kvd: blocks of streamed layers lie in kvd again")

    def _begin(self, call: Callable[..., int], copies: Sequence[Copy]) -> list[Part]:
        parts = [list(copies[at : at + _MOST_BLOCKS]) for at in range(0, len(copies), _MOST_BLOCKS)]
        return [Part(self._begun(call, part), part) for part in parts]

    def _begun(self, call: Callable[..., int], copies: list[Copy]) -> int:
        """kvd refuses for a moment while it makes DRAM ready."""
        deadline = time.monotonic() + self._patience_s
        digests, pages = [_digest(each.row) for each in copies], [each.page for each in copies]
        while self.answers():
            try:
                return call(digests, pages, timeout=self._patience_s)
            except kvd_client.KvdError as fault:
                is_busy = isinstance(fault, kvd_client.WouldBlock)
                if not is_busy or time.monotonic() > deadline:
                    self._note(fault)
                    if is_busy:
                        self._put_off()
                    return getattr(fault, "ticket", 0)
                time.sleep(_PAUSE_S)
        return 0

    def _looked_at(self, load: Part) -> kvd_client.TicketState:
        state = self._state(load)
        if load.ticket and state == kvd_client.TicketState.FAILED:
            self._aside.update(dict.fromkeys((each.page for each in load.copies), time.monotonic() + _ASIDE_S))
        return state

    def _state(self, part: Part) -> kvd_client.TicketState:
        """PENDING: it is late."""
        if part.ticket and self.answers():
            try:
                return self._cache.wait([part.ticket], timeout=self._patience_s)[0]
            except kvd_client.KvdError as fault:
                self._note(fault)
        return self._poll(part)

    def _poll(self, part: Part) -> kvd_client.TicketState:
        if not part.ticket:
            return kvd_client.TicketState.FAILED
        return self._cache.poll([part.ticket])[0]

    def _note(self, fault: kvd_client.KvdError) -> None:
        if isinstance(fault, _AWAY):
            self._put_off()
        if type(fault) not in self._told:
            self._warn(f"kvd: blocks of streamed layers lie in this process's own memory: {fault}")
        self._told.add(type(fault))


def _digest(row: int) -> bytes:
    return row.to_bytes(32, "big")
