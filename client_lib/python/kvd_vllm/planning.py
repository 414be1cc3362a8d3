"""The scheduler's side: which blocks are stored, parked and loaded, and when they may be reused.

One rule keeps bytes right: from the step that decides a copy until the worker reports its end, the
copy holds a reference to each of its blocks. So no block is handed out while kvd may still read or
write it, whatever became of the request. All of this runs on the scheduler's thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from kvd_vllm.groups import Groups, Place, Tables, blocks_at
from kvd_vllm.memory import logger
from kvd_vllm.naming import Names
from kvd_vllm.stats import KvdStats
from kvd_vllm.transfers import Copy, Ends, Kind, Transfers

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

# How long an answer to "which prefix does kvd have" is valid for a request that waits.
_ANSWER_S = 1.0
# After a copy failed no new ones begin for a while, twice as long each time in a row.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
# Drops are sent together, at most this often, or once there are this many. They go with a question
# that is asked anyway, or by themselves after twice that time.
_FORGET_S, _MANY_FORGOTTEN = 0.25, 1024
# At how many ends of a prefix groups are looked up that look back only at a window.
_MOST_ENDS = 4
# No block has this name: a load under it fails, and the block is computed.
_NOWHERE = bytes(32)
# Bounds the list of parks that kvd could not be told to forget. What kvd holds for a session ends with
# the session.
_MOST_FORGOTTEN = 100_000


class Index:
    """kvd, as the scheduler's side asks it. Fails open: every call returns within a step's budget.
    """

    def lookup(self, digests: Sequence[bytes]) -> int | None:
        """How many of the leading blocks kvd has; None: it did not answer."""
        raise NotImplementedError

    def expect(self, digests: Sequence[bytes]) -> None:
        """These digests, or the first of them, will be looked up soon: the question goes with the
        next one. Does not wait."""
        raise NotImplementedError

    def drop(self, digests: Sequence[bytes], wait: bool = True) -> int:
        """Forgets blocks. Returns how many of them, from the first on, kvd has heard of; without
        `wait`, how many it will hear of with the next question."""
        raise NotImplementedError


class Park(NamedTuple):
    """Where a preempted request's KV is: `tokens` of it; the last block may be partial."""

    tokens: int
    digests: dict[Place, bytes]
    copy: int
    since: float


class Open(NamedTuple):
    """A copy whose end has not been reported, and what is to be forgotten then."""

    copy: Copy
    since: float
    forget: list[bytes]


class Found(NamedTuple):
    """How many leading blocks kvd had, and how many were asked for."""

    blocks: int
    asked: int
    until: float


def comes_back(request: Request) -> bool:
    """Whether vLLM, which asks again when a preempted request is resumed, takes the answer. It does
    not for requests that need a result for each prompt token, as with prompt_logprobs."""
    return not request.skip_reading_prefix_cache


class Planner:
    """Decides the copies of each step, and holds their blocks until they have ended."""

    def __init__(
        self,
        index: Index,
        block_tokens: int,
        clock: Callable[[], float],
        *,
        windows: Sequence[int] = (0,),
        sync_loads: bool = False,
        prefixes: bool = True,
        parking: bool = True,
        patience_s: float = 10.0,
    ) -> None:
        self._index = index
        self._block_tokens = block_tokens
        self._groups = Groups(windows, block_tokens)
        self._group_count = len(windows)
        self._clock = clock
        self._sync_loads = sync_loads
        self._prefixes = prefixes
        self._loads = True
        self._parking = parking
        self._patience_s = patience_s
        self._pool: BlockPool | None = None
        self._engine = uuid.uuid4().bytes
        self.names = Names(len(windows), block_tokens, clock, patience_s)
        self._cached: object = None  # vLLM's prefix cache; a new object each time it is emptied
        self._number = 0
        self._requests: dict[str, Request] = {}
        self._new: list[Copy] = []
        self._new_after: list[Copy] = []  # copies that begin after this step's forward
        self._open: dict[int, Open] = {}
        # For each load that its step waits for: the requests that compute on top of its blocks, and
        # their block ids. vLLM's prefix cache has these blocks at once, so the loading request need
        # not be the only one.
        self._on_top: dict[int, list[tuple[Request, list[int]]]] = {}
        self._parks: dict[str, Park] = {}
        self._stored: dict[str, int] = {}  # leading blocks that kvd has or is getting
        self._found: dict[str, Found] = {}
        self._expected: dict[str, float] = {}  # until when kvd's answer about them is valid
        self._local: dict[str, int] = {}  # tokens that vLLM's own prefix cache has
        # Requests that have computed something since their blocks were handed out: before that,
        # blocks that another connector of a MultiConnector loads are not there.
        self._computed: set[str] = set()
        self._refused: set[str] = set()  # requests whose load failed: no second try
        self._forget: list[bytes] = []
        self._forget_next = 0.0
        self._is_told = True  # kvd took the last drops
        self._pause_s = _PAUSE_S
        self._paused_until = 0.0
        self._is_asked = False  # whether a request is to come in, since the last step
        self.stats = KvdStats()

    # ---- what vLLM asks ----

    def bind(self, pool: BlockPool) -> None:
        self._pool = pool
        self._cached = pool.cached_block_hash_to_block

    def copy_nothing(self) -> None:
        """The KV cache does not lie in kvd."""
        self._prefixes = self._parking = False

    def load_no_prefix(self) -> None:
        """Loads no prefix: stored blocks are for other engines."""
        self._loads = False

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self.names.add(request)

    @property
    def requests(self) -> Collection[Request]:
        """All requests that vLLM has, in whatever state."""
        return self._requests.values()

    def tokens_to_load(self, request: Request, local: int) -> tuple[int | None, bool]:
        """How many tokens beyond the `local` ones to load, and whether the load goes on between
        steps. vLLM asks again and again; (None, …): not yet. The call changes nothing except what
        it remembers of kvd's answer.

        No step waits for parked blocks: the last one may be partial, and an abandoned load that
        arrives all the same would undo what was computed behind it."""
        self._look_for_reset()
        self._is_asked = True
        self._local[request.request_id] = local
        park = self._parks.get(request.request_id)
        if park is not None and self._is_patient_with(park):
            if self._is_under_way(park):
                return None, False
            goes_on, count = True, min(park.tokens, request.num_tokens - 1) - local
        elif self._prefixes and self.names.may_share(request, local) is None:
            return None, False
        else:
            goes_on, count = not self._sync_loads, self._tokens_found(request) - local
        return (count, goes_on) if count > 0 else (0, False)

    def prepare(self, requests: Iterable[Request]) -> None:
        """kvd will soon be asked which requests come in, and whatever else it has to hear goes with
        that question. tokens_to_load() may be asked about these requests then."""
        if self._forget and self._clock() >= self._forget_next:
            self._tell_forgotten(wait=False)
        for request in requests:
            self._expect(request)

    def admit(self, request: Request, tables: Tables, count: int) -> None:
        """The blocks have been handed out; `count` tokens will be loaded into them."""
        name = request.request_id
        self._computed.discard(name)
        park = self._parks.pop(name, None)
        for number, others in self._on_top.items():
            if not set(tables[0]).isdisjoint(self._open[number].copy.blocks):
                others.append((request, list(tables[0])))
        if count == 0:
            if park is not None:
                self._let_go(park)
            return
        size = self._block_tokens
        begin = self._local.get(name, 0)
        first, last = begin // size, -(-(begin + count) // size)
        found = blocks_at(tables, first, last)
        usable = park is not None and self._is_patient_with(park) \
            and not self._is_under_way(park)  # fmt: skip
        digests = [park.digests.get(place, _NOWHERE) for place in found] \
            if park is not None and usable else self.names.digests(request, found)  # fmt: skip
        copy = self._begin(Kind.LOAD, name, digests, found.values())
        if not usable:
            self.names.mark(copy, request)
        copy.waits = self._sync_loads and not usable
        if copy.waits:
            self._on_top[copy.number] = [(request, list(tables[0]))]
        if park is not None and usable:
            self._open[copy.number].forget.extend(park.digests.values())
            return
        if park is not None:
            self._let_go(park)
        self._stored[name] = max(last, self._stored.get(name, 0))

    def park(self, request: Request, tables: Tables) -> bool:
        """A request is about to be preempted: its KV goes to kvd in the state that it has once the
        steps in flight have written theirs. False: it does not go, and will be computed again."""
        name, tokens = request.request_id, request.num_computed_tokens
        found = blocks_at(tables, 0, -(-tokens // self._block_tokens))
        can_park = self._parking and not self._is_paused() and comes_back(request)
        if not can_park or not found or self._is_loading(name):
            self.stats.add("recomputed_requests")
            return False
        # Parked blocks stay in kvd until they are dropped. Once half a KV cache of them is useless,
        # these are dropped first. Smaller drops go together with others, since each call costs as
        # much as a few tokens.
        assert self._pool is not None
        if 2 * len(self._forget) >= len(self._pool.blocks):
            self._tell_forgotten(wait=True)
        digests = dict(zip(found, self._private_names(name, len(found)), strict=True))
        copy = self._begin(Kind.PARK, name, digests.values(), found.values())
        self._parks[name] = Park(tokens, digests, copy.number, self._clock())
        self.stats.add("parked_requests")
        return True

    @property
    def can_park(self) -> bool:
        """Whether requests may be preempted for others. After a copy failed they may be once
        another copy has ended well: stored blocks, or requests that vLLM preempts by itself, are
        the trial. Where nothing is stored, once some time has passed."""
        is_well = self._pause_s == _PAUSE_S or not self._prefixes
        return self._parking and is_well and not self._is_paused()

    def parked(self, name: str) -> tuple[int, int]:
        """How many tokens of a request are parked, and how many blocks in every group it needs to
        get them back; 0, 0: it is not parked."""
        park = self._parks.get(name)
        return (park.tokens, -(-len(park.digests) // self._group_count)) if park else (0, 0)

    def blocks_coming(self) -> int:
        """Blocks that only copies hold: they become free when these end."""
        assert self._pool is not None
        blocks = self._pool.blocks
        held = {at for each in self._open.values() for at in each.copy.blocks}
        return sum(blocks[at].ref_cnt == 1 for at in held)

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

    def forget_parks(self) -> None:
        """Preempted requests compute anew, as running ones do when vLLM is told so."""
        for park in self._parks.values():
            self._let_go(park)
        self.stats.add("recomputed_requests", len(self._parks))
        self._parks.clear()

    def forget_all(self) -> None:
        """Earlier results must not be found again."""
        self.names.clear()
        self._forget_computed()

    def _look_for_reset(self) -> None:
        """vLLM tells a connector of a reset only where reset_prefix_cache() is told to. The reset
        is called when the weights may have changed, so parked blocks must not come back either."""
        assert self._pool is not None
        if self._cached is not self._pool.cached_block_hash_to_block:
            self._cached = self._pool.cached_block_hash_to_block
            self.names.reset()
            self._forget_computed()

    def _forget_computed(self) -> None:
        self.forget_parks()
        self._stored.clear()
        self._found.clear()
        self._expected.clear()

    def step(self, output: SchedulerOutput) -> Transfers:
        """The copies that begin with this step."""
        self._look_for_reset()
        fresh = {new.req_id for new in output.scheduled_new_reqs}
        fresh |= output.scheduled_cached_reqs.resumed_req_ids
        self._computed.update(output.num_scheduled_tokens)
        for name, count in output.num_scheduled_tokens.items():
            request = self._requests.get(name)
            if request is None:
                continue
            if self._groups.has_windows:
                # Before the next step vLLM gives up blocks that then lie before a window.
                done = request.num_computed_tokens + count
            elif name in fresh:
                continue
            else:
                done = request.num_computed_tokens - request.num_in_flight_tokens
            if done // self._block_tokens > self._stored.get(name, 0):
                tables = output.kv_connector_block_state.resolve_block_ids(name)
                self._store(request, done, tables, after=self._groups.has_windows)
        is_late = self._clock() >= self._forget_next + _FORGET_S
        if is_late or not output.num_scheduled_tokens or len(self._forget) >= _MANY_FORGOTTEN:
            self._tell_forgotten(wait=True)
        begun, self._new = self._new, []
        begun_after, self._new_after = self._new_after, []
        transfers = Transfers(begun, begun_after)
        self.names.ask(transfers, self._is_asked or bool(output.num_scheduled_tokens))
        self._is_asked = False
        return transfers

    def invalidate(self, invalid: Set[int]) -> None:
        """Loads into these blocks have failed, and vLLM has told the first request of each to
        compute them anew. vLLM assumes that this request runs next, and meanwhile leaves its
        uncomputed blocks in the prefix cache. But the request may be parked, aborted or given a
        part of its prompt instead. So every request that computed on top of these blocks computes
        them itself, and no new request finds them."""
        assert self._pool is not None
        for number, others in self._on_top.items():
            if invalid.isdisjoint(self._open[number].copy.blocks):
                continue
            for request, blocks in others:
                bad = [at for at, block in enumerate(blocks) if block in invalid]
                first = min(bad, default=len(blocks))
                self._pool.evict_blocks(set(blocks[first:]))
                if not bad or request.request_id not in self._requests:
                    continue
                tokens = first * self._block_tokens
                request.num_computed_tokens = min(request.num_computed_tokens, tokens)
                stored = self._stored.get(request.request_id, 0)
                self._stored[request.request_id] = min(stored, first)

    def end(self, ends: Ends) -> None:
        """The worker's reports: the blocks of these copies may be reused."""
        self.names.hear(ends)
        for number in ends.done:
            self._end(self._open.pop(number), True)
        for number in ends.failed:
            self._end(self._open.pop(number), False)
            self._pause()
        for number in ends.refused:
            self._end(self._open.pop(number), False)

    def give_up(self, names: Set[str]) -> None:
        """Requests whose loads vLLM takes for failed, though kvd may still work on them: nothing is
        loaded for them again."""
        self._refused |= names & self._requests.keys()

    def finish(self, request: Request, tables: Tables) -> None:
        """The request has ended, in whatever state; its blocks still belong to it."""
        name = request.request_id
        is_known = self._requests.pop(name, None) is not None
        if is_known and name in self._computed and not self._is_loading(name):
            done = request.num_computed_tokens - request.num_in_flight_tokens
            self._store(request, done, tables)
        park = self._parks.pop(name, None)
        if park is not None:
            self._let_go(park)
        self._stored.pop(name, None)
        self._found.pop(name, None)
        self._expected.pop(name, None)
        self._local.pop(name, None)
        self._refused.discard(name)
        self._computed.discard(name)
        self.names.finish(name)

    def has_room_coming(self) -> bool:
        """Whether blocks that only copies hold become free when these end. False once a copy has
        taken too long: then vLLM helps itself."""
        assert self._pool is not None
        if self._is_paused():
            return False
        blocks = self._pool.blocks
        begun_after = self._clock() - self._patience_s
        return any(
            blocks[at].ref_cnt == 1
            for each in self._open.values()
            if each.since > begun_after
            for at in each.copy.blocks
        )

    def has_work(self) -> bool:
        """Whether the engine has to make steps though it has no request left."""
        return bool(self._open or (self._forget and self._is_told))

    # ---- within ----

    def _tell_forgotten(self, wait: bool) -> None:
        if not self._forget:
            return
        self._forget_next = self._clock() + _FORGET_S
        told = self._index.drop(self._forget, wait)
        self._is_told = told > 0
        del self._forget[:told]
        del self._forget[:-_MOST_FORGOTTEN]

    def _expect(self, request: Request) -> None:
        name, now = request.request_id, self._clock()
        if name in self._parks or self._expected.get(name, 0.0) > now:
            return
        limit = self._blocks_to_look_up(request)
        if limit > 0 and not self._is_known(name, limit):
            self._expected[name] = now + _ANSWER_S
            self._index.expect(self.names.digests(request, self._groups.places_ahead(limit)))

    def _private_names(self, name: str, count: int) -> list[bytes]:
        """Names that no other engine can know, and that no two parks share."""
        seed = hashlib.sha256(b"kvd_vllm park" + self._engine + name.encode())
        seed.update(self._number.to_bytes(8, "little"))
        names = []
        for at in range(count):
            each = seed.copy()
            each.update(at.to_bytes(8, "little"))
            names.append(each.digest())
        return names

    def _tokens_found(self, request: Request) -> int:
        """How many leading tokens kvd has, in whole blocks, at least one token less than the
        request has."""
        name, limit = request.request_id, self._blocks_to_look_up(request)
        if limit == 0:
            return 0
        if not self._is_known(name, limit):
            blocks = self._look_up(request, limit)
            now = self._clock()
            until = self._expected.pop(name, now)
            self._found[name] = Found(blocks, limit, until if until > now else now + _ANSWER_S)
        return min(self._found[name].blocks, limit) * self._block_tokens

    def _look_up(self, request: Request, limit: int) -> int:
        """How many leading blocks, at most `limit`, end where kvd has all that is needed to go on.
        """
        ahead = self._groups.places_ahead(limit)
        leading = self._index.lookup(self.names.digests(request, ahead)) or 0
        found = leading // len(self._groups.leading)
        local = self._local.get(request.request_id, 0) // self._block_tokens
        for _ in range(_MOST_ENDS):
            places = self._groups.places_in_windows(local, found)
            if not places:
                return found
            there = self._index.lookup(self.names.digests(request, places)) or 0
            if there == len(places):
                return found
            found = places[there][1]
        return 0

    def _is_known(self, name: str, limit: int) -> bool:
        known = self._found.get(name)
        return known is not None and known.until >= self._clock() and known.asked >= limit

    def _blocks_to_look_up(self, request: Request) -> int:
        """How many blocks to look up; 0: nothing of this request may be found. kv_transfer_params'
        max_load_tokens bounds what it may load."""
        name = request.request_id
        if not (self._prefixes and self._loads) or name in self._refused or self._is_paused() \
                or not comes_back(request):  # fmt: skip
            return 0
        limit = (request.num_tokens - 1) // self._block_tokens
        local = self._local.get(name, 0)
        if not self.names.may_share(request, local):
            return 0
        bound = _max_load_tokens(request)
        if bound is not None:
            limit = min(limit, (local + bound) // self._block_tokens)
        return limit if limit * self._block_tokens > local else 0

    def _store(self, request: Request, done: int, tables: Tables, after: bool = False) -> None:
        """Stores full blocks that kvd has not got yet. `done` tokens of the request are computed,
        or will be `after` this step's forward."""
        if not self._prefixes or self._is_paused():
            return
        name = request.request_id
        if not self.names.may_share(request, self._local.get(name, 0)):
            return
        first, last = self._stored.get(name, 0), done // self._block_tokens
        last = min(last, self.names.count(request), *map(len, tables))
        found = blocks_at(tables, first, last)
        if found:
            digests = self.names.digests(request, found)
            copy = self._begin(Kind.STORE, name, digests, found.values(), after)
            self.names.mark(copy, request)
            self._stored[name] = last

    def _begin(
        self, kind: Kind, name: str, digests: Iterable[bytes], blocks: Iterable[int],
        after: bool = False,
    ) -> Copy:  # fmt: skip
        """A copy that holds its blocks from now on."""
        assert self._pool is not None
        self._number += 1
        copy = Copy(self._number, kind, name, list(digests), list(blocks))
        self._hold(copy)
        self._open[copy.number] = Open(copy, self._clock(), [])
        (self._new_after if after else self._new).append(copy)
        return copy

    def _hold(self, copy: Copy) -> None:
        assert self._pool is not None
        self._pool.touch([self._pool.blocks[at] for at in copy.blocks])

    def _release(self, copy: Copy) -> None:
        assert self._pool is not None
        self._pool.free_blocks([self._pool.blocks[at] for at in reversed(copy.blocks)])

    def _end(self, ended: Open, done: bool) -> None:
        copy = ended.copy
        self._on_top.pop(copy.number, None)
        self._release(copy)
        self._forget += ended.forget
        self._count(copy, done)
        if done:
            self._pause_s = _PAUSE_S
            return
        park = self._parks.get(copy.request)
        if copy.kind == Kind.PARK and park is not None and park.copy == copy.number:
            del self._parks[copy.request]
            self._forget += park.digests.values()
            self.stats.add("recomputed_requests")
        elif copy.kind != Kind.PARK and copy.request in self._requests:
            self._stored.pop(copy.request, None)
            if copy.kind == Kind.LOAD:
                self._refused.add(copy.request)

    def _pause(self) -> None:
        """Pauses after a copy that kvd failed to make."""
        if self._pause_s == _PAUSE_S:
            logger.warning("kvd: a copy failed; its request computes these tokens, as without kvd")
        self._paused_until = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _count(self, copy: Copy, done: bool) -> None:
        names = ("stored_blocks", "parked_blocks", "loaded_blocks")
        self.stats.add(names[copy.kind] if done else "failed_blocks", len(copy.blocks))

    def _let_go(self, park: Park) -> None:
        """Forgets a park, once its copy has ended."""
        if park.copy in self._open:
            self._open[park.copy].forget.extend(park.digests.values())
        else:
            self._forget += park.digests.values()

    def _is_patient_with(self, park: Park) -> bool:
        """False: a park takes too long because kvd hangs, and is given up."""
        return not self._is_under_way(park) or self._clock() < park.since + self._patience_s

    def _is_under_way(self, park: Park) -> bool:
        return park.copy in self._open

    def _is_loading(self, name: str) -> bool:
        return any(
            each.copy.kind == Kind.LOAD and each.copy.request == name
            for each in self._open.values()
        )

    def _is_paused(self) -> bool:
        return self._clock() < self._paused_until


def _max_load_tokens(request: Request) -> int | None:
    """Reads it as vLLM's own offloading does: a whole number of at least 0; otherwise there is no
    bound."""
    given = (request.kv_transfer_params or {}).get("max_load_tokens")
    return given if type(given) is int and given >= 0 else None
