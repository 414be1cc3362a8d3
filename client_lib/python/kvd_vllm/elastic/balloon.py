"""The scheduler's side of an elastic KV cache: which blocks vLLM may use of those that kvd could
grant.

vLLM counts the most blocks that it may ever have. Blocks without memory at the moment are claimed
here, as if they were in use: a balloon in vLLM's block pool. Memory comes and goes by whole chunks
(chunks.py). When kvd grants a chunk its blocks are let go. When kvd wants memory back, unused
chunks leave first. Of the others those with the fewest used blocks "retire": each of their blocks
is claimed as it becomes free, so that nothing new lands there. The worker's side (mapping.py) asks
kvd, and maps. All of this runs on the scheduler's thread.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import kvd_client

from kvd_vllm.elastic.chunks import Geometry
from kvd_vllm.goals import Goals, goals_of

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

# Wants are added up, and chunks looked through, at most this often.
_LOOK_S = 0.02
# Growth takes a while to come. So each request is taken to need this many more blocks of its answer
# before it does.
_AHEAD_BLOCKS = 2
# How long a step may wait for growth instead of preempting: until kvd has heard that it is wanted,
# and once kvd has granted it.
_UNHEARD_S, _GROWTH_S = 0.05, 0.5
# A chunk that has been retiring for longer is in the way of others, whose first tokens may wait for
# it: requests that run in it are parked. The time is a few steps, for answers that are about to
# end.
_OVERDUE_S = 0.05
# The longest that an engine without requests makes steps to give its memory back. Memory that the
# worker was told of by then goes back without steps.
_GIVE_BACK_S = 10.0


class Need(NamedTuple):
    """The needs of requests with one goal that await their first tokens, or that have all begun."""

    blocks: int  # blocks that they would use
    least: int  # chunks beyond what is kept that the oldest needs to run
    age_s: float  # how long the oldest of them has waited
    ttft_ns: int
    slo_class: int
    begun: bool


class Demand(NamedTuple):
    """What the requests want, in chunks beyond what is kept."""

    least: int  # for the oldest to run
    wanted: int  # for all
    age_s: float  # age of the oldest; 0: there is none
    needs: tuple[Need, ...] = ()  # one for each goal, at most kvd_client.MOST_NEEDS


class Orders(NamedTuple):
    """What the worker's side is told with a step: what is wanted, and which chunks are no longer in
    use."""

    demand: Demand
    leave: list[int]


class News(NamedTuple):
    """What the worker's side reports after a step."""

    grown: list[int]  # chunks that have memory now
    gone: list[int]  # chunks whose memory went back
    stayed: list[int]  # chunks that were to leave, but still have their memory
    allowed: int | None  # chunks beyond what is kept that kvd grants; None: unknown
    told: int  # how many chunks kvd knows to be wanted
    is_down: bool  # kvd is gone, so memory that is there stays


class State(enum.Enum):
    """The state of a chunk."""

    KEPT = "kept"  # always has memory
    HELD = "held"  # has none: every block is claimed
    GRANTED = "granted"
    RETIRING = "retiring"  # its blocks are claimed as they become free
    LEAVING = "leaving"  # every block is claimed, and the worker was told to unmap it


class Counts(Protocol):
    """The part of stats.KvdStats that is used here; that class needs vLLM."""

    def add(self, name: str, count: int = 1) -> None: ...
    def set(self, name: str, value: int) -> None: ...


class _Alike:
    """Requests with one goal."""

    def __init__(self, since: float, oldest: Request) -> None:
        self.blocks = 0
        self.since = since
        self.oldest = oldest

    def add(self, blocks: int, since: float, request: Request) -> None:
        self.blocks += blocks
        if since < self.since:
            self.since, self.oldest = since, request


class Balloon:
    """Claims and lets go of blocks of vLLM's pool. Until open() says which chunks have memory, none
    has."""

    def __init__(
        self, block_tokens: int, clock: Callable[[], float], stats: Counts, groups: int = 1
    ) -> None:
        self._block_tokens = block_tokens
        self._groups = groups
        self._clock = clock
        self._stats = stats
        self._pool: BlockPool | None = None
        self._geometry: Geometry | None = None
        self._is_open = False
        self._state: list[State] = []
        self._most = 0  # chunks that come and go
        self._claimed: set[int] = set()
        self._since: dict[int, float] = {}  # chunks that retire, and since when
        self._arrived: dict[str, tuple[float, Goals]] = {}  # requests, and when they were first seen
        self._demand = Demand(0, 0, 0.0)
        self._surveyed = (0.0, -1)  # when, and how many requests there were
        self._scan_next = 0.0
        self._allowed: int | None = None
        self._told = 0
        self._is_down = False
        self._short: tuple[float, float] | None = None  # when vLLM lacked a block, first and last
        self._idle_since: float | None = None

    # ---- what the connector calls ----

    def bind(self, pool: BlockPool) -> None:
        """No block may be handed out before the worker has said which have memory."""
        self._pool = pool
        for at in range(1, len(pool.blocks)):
            self._claim(at)

    def open(self, geometry: Geometry | None) -> None:
        """The division that the worker has made. None: the KV cache is not elastic, and all of it
        is there."""
        self._is_open = True
        self._geometry = geometry
        if geometry is None:
            self._let_go(sorted(self._claimed))
            return
        self._state = [State.HELD if own else State.KEPT for own in geometry.chunks]
        self._most = len(geometry.elastic)
        for chunk in self._in(State.KEPT):
            self._let_go(self._blocks(chunk))
        self._stats.set("granted_blocks", self.granted_blocks)

    def hear(self, news: News) -> None:
        for chunk in news.stayed:
            self._move(chunk, State.LEAVING, State.GRANTED, None)
        for chunk in news.gone:
            self._move(chunk, State.LEAVING, State.HELD, "given_back_blocks")
        # A chunk that went may have come back since, and none goes that this side has not heard of.
        for chunk in news.grown:
            self._move(chunk, State.HELD, State.GRANTED, "grown_blocks")
            self._short = None
        self._allowed, self._told, self._is_down = news.allowed, news.told, news.is_down
        if news.grown or news.stayed or news.gone:
            self._stats.set("granted_blocks", self.granted_blocks)

    def step(self, requests: Collection[Request]) -> Orders | None:
        """At the end of a schedule(): returns what the worker is told with this step."""
        if not self._is_open:
            raise RuntimeError(
                "kvd: the worker did not say which memory it has, as this vLLM does not pass on what "
                "it says at the start; take KvdConnector's option `elastic` away"
            )
        if self._geometry is None:
            return None
        now = self._clock()
        if requests:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._survey(requests, now)
        self._shrink(self._excess(bool(requests)), now)
        self.sweep()
        leave = self._free_of_those_that_retire()
        for chunk in leave:
            self._state[chunk] = State.LEAVING
            del self._since[chunk]
        return Orders(self._demand, leave)

    def sweep(self) -> None:
        """Claims blocks of retiring chunks that have become free. It runs after blocks were freed
        and before the next ones are handed out."""
        assert self._pool is not None
        blocks = self._pool.blocks
        for chunk in self._since:
            for at in self._blocks(chunk):
                if blocks[at].ref_cnt == 0:
                    self._claim(at)

    def has_room_coming(self) -> bool:
        """vLLM lacks a block for a running request: says whether it should wait rather than
        preempt."""
        if self._geometry is None or self._is_down or State.HELD not in self._state:
            return False
        now = self._clock()
        if self._short is None or now - self._short[1] > _GROWTH_S:
            self._short = now, now
        since = self._short[0]
        self._short = since, now
        have = self._have()
        is_heard = self._told > have
        likely = self._allowed is not None and self._allowed > have
        return now < since + (_GROWTH_S if likely else 0.0 if is_heard else _UNHEARD_S)

    def has_work(self) -> bool:
        """Whether the engine has to make steps though it has no request left. Memory that it does
        not keep has to go back first, because without steps it would not hear of others' needs; and
        kvd has to be told that nothing is wanted."""
        if self._geometry is None or self._is_down:
            return False
        if self._demand.wanted > 0 or self._free_of_those_that_retire():
            return True
        if self._idle_since is not None and self._clock() > self._idle_since + _GIVE_BACK_S:
            return False
        return self._have() > 0 or self._told > 0 or State.LEAVING in self._state

    @property
    def granted_blocks(self) -> int:
        """Blocks that requests may have now, without the null block."""
        assert self._pool is not None
        return len(self._pool.blocks) - 1 - len(self._claimed)

    def is_in_the_way(self, blocks: Iterable[int]) -> bool:
        """Whether any of these blocks is in a chunk that others have waited for too long."""
        late = self._clock() - _OVERDUE_S
        overdue = {chunk for chunk, since in self._since.items() if since < late}
        if not overdue:
            return False
        assert self._geometry is not None
        size = self._geometry.chunk_blocks
        return any(at // size in overdue for at in blocks)

    @contextlib.contextmanager
    def let_go(self) -> Iterator[None]:
        """While nothing is handed out: vLLM clears its prefix cache only when no block is in use.
        """
        assert self._pool is not None
        held = sorted(self._claimed)
        self._let_go(held)
        try:
            yield
        finally:
            for at in held:
                self._claim(at)

    # ---- within ----

    def _free_of_those_that_retire(self) -> list[int]:
        return [at for at in sorted(self._since) if self._claimed.issuperset(self._blocks(at))]

    def _excess(self, is_busy: bool) -> int:
        """How many chunks are to be given back."""
        if self._is_down:
            return 0
        have = self._have()
        if not is_busy:
            return have
        return max(0, have - self._allowed) if self._allowed is not None else 0

    def _shrink(self, excess: int, now: float) -> None:
        """Retires `excess` chunks and no others. Unused ones leave with this step."""
        if excess == len(self._since) and (excess == 0 or now < self._scan_next):
            return
        self._scan_next = now + _LOOK_S
        chosen = set(self._least_missed(excess))
        for chunk in [at for at in self._since if at not in chosen]:
            self._state[chunk] = State.GRANTED
            del self._since[chunk]
            self._let_go([at for at in self._blocks(chunk) if at in self._claimed])
        for chunk in chosen:
            self._state[chunk] = State.RETIRING
            self._since.setdefault(chunk, now)

    def _least_missed(self, count: int) -> list[int]:
        """Chunks without a used block come first, ordered by what vLLM's prefix cache loses with
        them. Then come those that already retire, then those with the fewest used blocks."""
        assert self._pool is not None
        if count == 0:
            return []
        blocks = self._pool.blocks
        order = []
        for chunk in [*self._in(State.GRANTED), *self._since]:
            used = cached = 0
            for at in self._blocks(chunk):
                used += blocks[at].ref_cnt > 0 and at not in self._claimed
                cached += blocks[at].block_hash is not None
            is_new = chunk not in self._since
            order.append((used > 0, is_new and used > 0, used, cached, -chunk))
        return [-each[-1] for each in sorted(order)[:count]]

    def _survey(self, requests: Collection[Request], now: float) -> None:
        """Adds up what all requests want."""
        last, count = self._surveyed
        is_short = self._short is not None and self._short[1] >= last
        if len(requests) == count and now < last + _LOOK_S and not is_short:
            return
        self._surveyed = now, len(requests)
        arrived: dict[str, tuple[float, Goals]] = {}
        by_goal: dict[tuple[int, int, bool], _Alike] = {}
        wanted = 0
        for request in requests:
            name = request.request_id
            since, goals = arrived[name] = self._arrived.get(name) or (now, goals_of(request))
            blocks = self._blocks_of(request, _AHEAD_BLOCKS)
            wanted += blocks
            key = (goals.ttft_ns, goals.slo_class, request.num_output_tokens > 0)
            if key not in by_goal and len(by_goal) == kvd_client.MOST_NEEDS:
                key = max(by_goal)  # the loosest
            by_goal.setdefault(key, _Alike(since, request)).add(blocks, since, request)
        self._arrived = arrived
        if not by_goal:
            self._demand = Demand(0, 0, 0.0)
            return
        chunks = self._chunks_for(wanted)
        if is_short:
            chunks = max(chunks, min(self._have() + 1, self._most))
        needs = tuple(
            Need(alike.blocks * self._groups, self._chunks_for(self._blocks_of(alike.oldest, 1)),
                 max(now - alike.since, 1e-3), *key)
            for key, alike in by_goal.items()
        )  # fmt: skip
        first = max(needs, key=lambda need: need.age_s)
        self._demand = Demand(first.least, max(first.least, chunks), first.age_s, needs)

    def _blocks_of(self, request: Request, ahead: int) -> int:
        """The request's blocks in one KV cache group, and up to `ahead` more that its answer may need."""
        size, most = self._block_tokens, request.num_prompt_tokens + request.max_tokens
        return -(-min(request.num_tokens + ahead * size, most) // size)

    def _chunks_for(self, blocks: int) -> int:
        """How many chunks beyond what is kept hold so many blocks of each KV cache group."""
        assert self._geometry is not None
        more = max(0, blocks * self._groups - self._geometry.kept_blocks)
        return min(-(-more // self._geometry.chunk_blocks), self._most)

    def _have(self) -> int:
        """Chunks beyond what is kept that are in use or may be."""
        return self._state.count(State.GRANTED) + self._state.count(State.RETIRING)

    def _in(self, state: State) -> list[int]:
        return [at for at, each in enumerate(self._state) if each == state]

    def _blocks(self, chunk: int) -> range:
        """The chunk's blocks, without the null block, which belongs to no request."""
        assert self._geometry is not None
        found = self._geometry.blocks_of(chunk)
        return found if found.start > 0 else range(1, found.stop)

    def _move(self, chunk: int, before: State, after: State, count: str | None) -> None:
        assert self._state[chunk] == before, f"chunk {chunk} is {self._state[chunk]}, not {before}"
        self._state[chunk] = after
        if after == State.GRANTED:
            self._let_go(self._blocks(chunk))
        if count is not None:
            self._stats.add(count, len(self._blocks(chunk)))

    def _claim(self, at: int) -> None:
        """Claims a block that is not in use; vLLM's prefix cache forgets what it has there."""
        assert self._pool is not None
        self._pool.evict_blocks({at})
        self._pool.touch([self._pool.blocks[at]])
        self._claimed.add(at)

    def _let_go(self, claimed: Iterable[int]) -> None:
        assert self._pool is not None
        blocks = list(claimed)
        self._claimed.difference_update(blocks)
        self._pool.free_blocks([self._pool.blocks[at] for at in blocks])
