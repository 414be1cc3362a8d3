"""The scheduler's side: which blocks are stored, parked and loaded, and when they may be reused.

One rule keeps bytes right: from the step that decides a copy until the worker reports its end, the
copy holds a reference to each of its blocks. So no block is handed out while kvd may still read or
write it, whatever became of the request. All of this runs on the scheduler's thread.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import kvd_client

from kvd_vllm import handoffs
from kvd_vllm.copies import Copies, Forgotten, Hinted, Index, Labels, NotYet, Open, Wanted
from kvd_vllm.goals import Wish, prefetch_s, wish_after
from kvd_vllm.groups import Groups, Place, Tables, blocks_at
from kvd_vllm.handoffs import Handoff
from kvd_vllm.naming import Names
from kvd_vllm.stats import KvdStats
from kvd_vllm.transfers import Ends, Kind, Transfers

if TYPE_CHECKING:
    from kvd_vllm.events import Announcer
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

# How long an answer to "which prefix does kvd have" is valid for a request that waits.
_ANSWER_S = 1.0
# How often it is asked whether a prompt that another engine has computed is there.
_ASK_AGAIN_S = 0.005
# How often remote servers' answer is asked for, and how long it is waited for at most, if kvd does
# not say before that it is late.
_REMOTE_AGAIN_S, _REMOTE_S = 0.001, 0.5
# At how many ends of a prefix groups are looked up that look back only at a window.
_MOST_ENDS = 4
# No block has this name: a load under it fails, and the block is computed.
_NOWHERE = bytes(32)


class Park(NamedTuple):
    """Where a preempted request's KV is: `tokens` of it; the last block may be partial."""

    tokens: int
    digests: dict[Place, bytes]
    copy: int
    since: float


class Found(NamedTuple):
    """How many leading blocks kvd had, and how many were asked for."""

    blocks: int
    asked: int
    until: float


@dataclass
class Known:
    """What is known of a request besides what vLLM says of it."""

    request: Request
    park: Park | None = None
    stored: int = 0  # leading blocks that kvd has or is getting
    found: Found | None = None
    expected: float = 0.0  # until when kvd's answer about it is valid
    local: int = 0  # tokens that vLLM's own prefix cache has
    # Whether it has computed something since its blocks were handed out: before that, blocks that
    # another connector of a MultiConnector loads are not there.
    computed: bool = False
    refused: bool = False  # its load failed: there is no second try
    handoff: Handoff | None = None  # another engine has computed its prompt
    waits_since: float | None = None  # for that engine's copies
    remote_since: float | None = None  # remote servers are being asked
    remote_again: float = 0.0  # when kvd is asked for their answer


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
        prefixes: bool = True,
        parking: bool = True,
        patience_s: float = 10.0,
        handoff_s: float = 60.0,
    ) -> None:
        self._index = index
        self._block_tokens = block_tokens
        self._groups = Groups(windows, block_tokens)
        self._group_count = len(windows)
        self._clock = clock
        self._prefixes = prefixes
        self._loads = True
        self._parking = parking
        self._patience_s = patience_s
        self._engine = uuid.uuid4().bytes
        self.names = Names(len(windows), block_tokens, clock, patience_s)
        self.copies = Copies(clock, patience_s)
        self._forgotten = Forgotten(index, clock)
        self._hinted = Hinted(index)
        self.deadlines = handoffs.Deadlines(index.drop, handoff_s)
        self._cached: object = None  # vLLM's prefix cache; a new object each time it is emptied
        self._requests: dict[str, Known] = {}
        self.announcer: Announcer | None = None  # None: vLLM publishes no KV events
        self._is_asked = False  # whether a request is to come in, since the last step
        self.stats = KvdStats()

    # ---- what vLLM asks ----

    def bind(self, pool: BlockPool) -> None:
        self.copies.bind(pool)
        self._cached = pool.cached_block_hash_to_block

    def copy_nothing(self) -> None:
        """The KV cache does not lie in kvd."""
        self._prefixes = self._parking = False

    def load_no_prefix(self) -> None:
        """Loads no prefix: stored blocks are for other engines."""
        self._loads = False

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = Known(request, handoff=handoffs.read(request))
        self.names.add(request)
        self._prefetch(self._requests[request.request_id])

    @property
    def requests(self) -> list[Request]:
        """All requests that vLLM has, in whatever state."""
        return [each.request for each in self._requests.values()]

    def tokens_to_load(self, request: Request, local: int) -> tuple[int | None, bool]:
        """How many tokens beyond the `local` ones to load, and whether the load goes on between
        steps. vLLM asks again and again; (None, …): not yet. The call changes nothing except what
        it remembers of kvd's answer.

        No step waits for parked blocks: the last one may be partial, and an abandoned load that
        arrives all the same would undo what was computed behind it."""
        self._look_for_reset()
        self._is_asked = True
        known = self._requests[request.request_id]
        known.local = local
        park = known.park
        if park is not None and self._is_patient_with(park):
            if self._is_under_way(park):
                return None, False
            count = min(park.tokens, request.num_tokens - 1) - local
        elif self._prefixes and self.names.may_share(request, local) is None:
            return None, False
        elif self._waits_for_handoff(known):
            return None, False
        elif known.handoff is not None:
            count = min(known.handoff.tokens, request.num_tokens - 1) - local
        else:
            found = self._tokens_found(known)
            if found is None:
                return None, False
            count = found - local
        return (count, True) if count > 0 else (0, False)

    def prepare(self, requests: Iterable[Request]) -> None:
        """kvd will soon be asked which requests come in, and whatever else it has to hear goes with
        that question. tokens_to_load() may be asked about these requests then."""
        self._forgotten.tell_along()
        for request in requests:
            self._expect(request)

    def admit(self, request: Request, tables: Tables, count: int) -> None:
        """The blocks have been handed out; `count` tokens will be loaded into them."""
        name = request.request_id
        known = self._requests[name]
        known.computed = False
        park, known.park = known.park, None
        if count == 0:
            if park is not None:
                self._let_go(park)
            return
        size = self._block_tokens
        first, last = known.local // size, -(-(known.local + count) // size)
        found = blocks_at(tables, first, last)
        usable = park is not None and self._is_patient_with(park) \
            and not self._is_under_way(park)  # fmt: skip
        if park is not None and usable:
            digests = [park.digests.get(place, _NOWHERE) for place in found]
        else:
            digests = self._shared_names(known, found)
        copy = self.copies.begin(Kind.LOAD, name, digests, found.values())
        if not usable:
            self.names.mark(copy, request)
        if known.handoff is not None and not usable:
            names = self.names.tail(request, known.handoff.tokens, known.handoff.secret)
            self.copies.forget_at_end(copy.number, names)
            self.stats.add("taken_requests")
            last, known.handoff = (known.handoff.tokens - 1) // size, None
        if park is not None and usable:
            self.copies.forget_at_end(copy.number, park.digests.values())
            return
        if park is not None:
            self._let_go(park)
        self._label(request, first, min(last, self.names.count(request)), is_new=False)
        known.stored = max(last, known.stored)

    def park(self, request: Request, tables: Tables) -> bool:
        """A request is about to be preempted: its KV goes to kvd in the state that it has once the
        steps in flight have written theirs. False: it does not go, and will be computed again."""
        name, tokens = request.request_id, request.num_computed_tokens
        found = blocks_at(tables, 0, -(-tokens // self._block_tokens))
        can_park = self._parking and not self.copies.is_paused and comes_back(request)
        if not can_park or not found or self.copies.is_loading(name):
            self.stats.add("recomputed_requests")
            return False
        # Parked blocks stay in kvd until they are dropped. Once half a KV cache of them is useless,
        # these are dropped first.
        if 2 * len(self._forgotten) >= len(self.copies.pool.blocks):
            self._forgotten.tell(wait=True)
        digests = dict(zip(found, self._private_names(name, len(found)), strict=True))
        copy = self.copies.begin(Kind.PARK, name, digests.values(), found.values())
        self._requests[name].park = Park(tokens, digests, copy.number, self._clock())
        self.stats.add("parked_requests")
        return True

    @property
    def can_park(self) -> bool:
        """Whether requests may be preempted for others. After a copy failed they may be once
        another copy has ended well: stored blocks, or requests that vLLM preempts by itself, are
        the trial. Where nothing is stored, once some time has passed."""
        is_well = self.copies.is_well or not self._prefixes
        return self._parking and is_well and not self.copies.is_paused

    def parked(self, name: str) -> tuple[int, int]:
        """How many tokens of a request are parked, and how many blocks in every group it needs to
        get them back; 0, 0: it is not parked."""
        known = self._requests.get(name)
        park = known.park if known else None
        return (park.tokens, -(-len(park.digests) // self._group_count)) if park else (0, 0)

    def forget_parks(self) -> None:
        """Preempted requests compute anew, as running ones do when vLLM is told so."""
        for known in self._requests.values():
            if known.park is not None:
                self._let_go(known.park)
                known.park = None
                self.stats.add("recomputed_requests")

    def forget_all(self) -> None:
        """Earlier results must not be found again."""
        self.names.clear()
        self._forget_computed()

    def _look_for_reset(self) -> None:
        """vLLM tells a connector of a reset only where reset_prefix_cache() is told to. The reset
        is called when the weights may have changed, so parked blocks must not come back either."""
        if self._cached is not self.copies.pool.cached_block_hash_to_block:
            self._cached = self.copies.pool.cached_block_hash_to_block
            self.names.reset()
            self._forget_computed()

    def _forget_computed(self) -> None:
        self.forget_parks()
        for known in self._requests.values():
            known.stored, known.found, known.expected = 0, None, 0.0

    def step(self, output: SchedulerOutput) -> Transfers:
        """The copies that begin with this step."""
        self._look_for_reset()
        fresh = {new.req_id for new in output.scheduled_new_reqs}
        fresh |= output.scheduled_cached_reqs.resumed_req_ids
        for name, count in output.num_scheduled_tokens.items():
            known = self._requests.get(name)
            if known is None:
                continue
            known.computed, request = True, known.request
            if self._groups.has_windows:
                # Before the next step vLLM gives up blocks that then lie before a window.
                done = request.num_computed_tokens + count
            elif name in fresh:
                continue
            else:
                done = request.num_computed_tokens - request.num_in_flight_tokens
            if done // self._block_tokens > known.stored:
                tables = output.kv_connector_block_state.resolve_block_ids(name)
                self._store(known, done, tables, after=self._groups.has_windows)
        if self.announcer is not None:
            self.announcer.allow(self._prefixes and self._loads and self.names.is_plain)
        self._forgotten.tell_late(is_idle=not output.num_scheduled_tokens)
        kept, missed = self._hinted.tell(self.copies.is_open)
        self.stats.add("retained_blocks", kept)
        self.stats.add("unretained_blocks", missed)
        transfers = self.copies.take_begun()
        self.names.ask(transfers, self._is_asked or bool(output.num_scheduled_tokens))
        self._is_asked = False
        return transfers

    def end(self, ends: Ends) -> None:
        """The worker's reports: the blocks of these copies may be reused."""
        self.names.hear(ends)
        for number in ends.done:
            self._end(self.copies.end(number, True), True)
        for number in ends.failed:
            self._end(self.copies.end(number, False), False)
            self.copies.pause()
        for number in ends.refused:
            ended = self.copies.end(number, False)
            self._end(ended, False)
            if ended.copy.kind == Kind.STORE and self.names.are_of_several:
                # A worker whose own weights are as before may have stored what others of new ones made of it.
                self._forgotten.add(ended.copy.digests)
                self._forgotten.tell(wait=True)

    def forget(self) -> None:
        """Tells kvd once more which names it shall forget: some may be of bytes that are wrong."""
        self._forgotten.tell(wait=True)

    def give_up(self, names: Set[str]) -> None:
        """Requests whose loads vLLM takes for failed, though kvd may still work on them: nothing is
        loaded for them again."""
        for name in names & self._requests.keys():
            self._requests[name].refused = True

    def hand_over(self, request: Request, tables: Tables) -> Handoff | None:
        """Keeps what another engine needs to go on with the prompt of a request that ends now; None:
        it computes the prompt itself. Called before finish()."""
        known, size = self._requests.get(request.request_id), self._block_tokens
        if known is None or not handoffs.is_wanted(request) or not self._can_store(known) \
                or not self.deadlines.has_room():  # fmt: skip
            return None
        handoff = handoffs.make(request)
        if request.num_computed_tokens - request.num_in_flight_tokens < handoff.tokens:
            return None
        at = (handoff.tokens - 1) // size
        self._store(known, at * size, tables)
        blocks = blocks_at(tables, at, at + 1)
        is_there = known.stored >= at and self._may_share(known)
        if not is_there or len(blocks) < self._group_count or self.copies.is_paused:
            return None
        names = self.names.tail(request, handoff.tokens, handoff.secret)
        copy = self.copies.begin(Kind.PARK, request.request_id, names, blocks.values())
        self.names.mark(copy, request)
        self.deadlines.keep(names)
        self.stats.add("handed_requests")
        return handoff

    def finish(self, request: Request, tables: Tables) -> None:
        """The request has ended, in whatever state; its blocks still belong to it."""
        name = request.request_id
        known = self._requests.pop(name, None)
        if known is not None:
            if self._can_store(known):
                done = request.num_computed_tokens - request.num_in_flight_tokens
                self._store(known, done, tables)
            if known.park is not None:
                self._let_go(known.park)
            self._hint(known, tables)
        self.names.finish(name)

    def has_work(self) -> bool:
        """Whether the engine has to make steps though it has no request left."""
        is_news = self.announcer is not None and self.announcer.has_news()
        return bool(self.copies or self._hinted) or self._forgotten.is_work or is_news

    # ---- within ----

    def _hint(self, known: Known, tables: Tables) -> None:
        """Has what the request left kept for its next turn, or let go first, as it said."""
        wish, request = wish_after(known.request), known.request
        if wish is not None and known.stored > 0 and self._may_share(known):
            names = self.names.digests(request, blocks_at(tables, 0, known.stored))
            self._hinted.add(Wanted(names, wish, self.copies.open_of(request.request_id)))

    def _prefetch(self, known: Known) -> None:
        """Has the prompt in kvd's DRAM before its turn comes, as the request said."""
        seconds, request = prefetch_s(known.request), known.request
        if seconds is None or request.lora_request is not None:
            return  # an adapter's blocks have no names before the worker has told them
        limit = self._blocks_to_look_up(known)
        if limit > 0:
            names = self.names.digests(request, self._groups.places_ahead(limit))
            self._hinted.add(Wanted(names, Wish(kvd_client.Hint.PREFETCH, seconds), []))

    def _can_store(self, known: Known) -> bool:
        """Whether its blocks hold what its tokens stand for."""
        return known.computed and not self.copies.is_loading(known.request.request_id)

    def _waits_for_handoff(self, known: Known) -> bool:
        """Whether the prompt is on its way from another engine. Afterwards known.handoff says whether
        it is there. It is waited for, but not for long, and not where kvd does not answer."""
        handoff, now, since = known.handoff, self._clock(), known.waits_since
        if handoff is None:
            return False
        last = (handoff.tokens - 1) // self._block_tokens
        is_late = since is not None and now >= since + handoffs.WAIT_S
        if is_late or not self._may_load(known) or self.names.count(known.request) < last:
            known.handoff = None
            return False
        if known.expected > now:
            return True
        known.expected = now + _ASK_AGAIN_S
        places = [*self._groups.places_ahead(last),
                  *self._groups.places_in_windows(known.local // self._block_tokens, last)]
        names = self.names.digests(known.request, places)
        names += self.names.tail(known.request, handoff.tokens, handoff.secret)
        try:
            there = self._index.lookup(names)
        except NotYet:
            there = 0
        if there is None:
            known.handoff = None
        is_there = there in (None, len(names))
        known.waits_since = None if is_there else since or now
        return not is_there

    def _shared_names(self, known: Known, places: Collection[Place]) -> list[bytes]:
        """The names under which others have these blocks."""
        handoff = known.handoff
        if handoff is None:
            return self.names.digests(known.request, places)
        last = (handoff.tokens - 1) // self._block_tokens
        whole = self.names.digests(known.request, [each for each in places if each[1] < last])
        tail = self.names.tail(known.request, handoff.tokens, handoff.secret)
        return whole + [tail[group] for group, at in places if at == last]

    def _expect(self, request: Request) -> None:
        known, now = self._requests[request.request_id], self._clock()
        if known.park is not None or known.expected > now:
            return
        limit = self._blocks_to_look_up(known)
        if limit > 0 and not self._is_known(known, limit):
            known.expected = now + _ANSWER_S
            self._index.expect(self.names.digests(request, self._groups.places_ahead(limit)))

    def _private_names(self, name: str, count: int) -> list[bytes]:
        """Names that no other engine can know, and that no two parks share."""
        seed = hashlib.sha256(b"kvd_vllm park" + self._engine + name.encode())
        seed.update(self.copies.next_number.to_bytes(8, "little"))
        names = []
        for at in range(count):
            each = seed.copy()
            each.update(at.to_bytes(8, "little"))
            names.append(each.digest())
        return names

    def _tokens_found(self, known: Known) -> int | None:
        """How many leading tokens kvd has, in whole blocks, at least one token less than the
        request has; None: remote servers are being asked."""
        limit = self._blocks_to_look_up(known)
        if limit == 0:
            return 0
        if known.found is None or not self._is_known(known, limit):
            blocks = self._look_up_or_wait(known, limit)
            if blocks is None:
                return None
            now = self._clock()
            until, known.expected = known.expected, 0.0
            known.found = Found(blocks, limit, until if until > now else now + _ANSWER_S)
        return min(known.found.blocks, limit) * self._block_tokens

    def _look_up_or_wait(self, known: Known, limit: int) -> int | None:
        """As _look_up(); None: it is too early to do without the answer of remote servers."""
        now, since = self._clock(), known.remote_since
        if since is not None and now < known.remote_again:
            return None
        try:
            blocks = self._look_up(known, limit)
        except NotYet:
            since = known.remote_since = now if since is None else since
            known.remote_again = now + _REMOTE_AGAIN_S
            return None if now < since + _REMOTE_S else 0
        known.remote_since = None
        return blocks

    def _look_up(self, known: Known, limit: int) -> int:
        """How many leading blocks, at most `limit`, end where kvd has all that is needed to go on.
        """
        ahead = self._groups.places_ahead(limit)
        leading = self._index.lookup(self.names.digests(known.request, ahead)) or 0
        found = leading // len(self._groups.leading)
        local = known.local // self._block_tokens
        for _ in range(_MOST_ENDS):
            places = self._groups.places_in_windows(local, found)
            if not places:
                return found
            there = self._index.lookup(self.names.digests(known.request, places)) or 0
            if there == len(places):
                return found
            found = places[there][1]
        return 0

    def _is_known(self, known: Known, limit: int) -> bool:
        found = known.found
        return found is not None and found.until >= self._clock() and found.asked >= limit

    def _blocks_to_look_up(self, known: Known) -> int:
        """How many blocks to look up; 0: nothing of this request may be found. kv_transfer_params'
        max_load_tokens bounds what it may load."""
        request = known.request
        if not self._may_load(known):
            return 0
        limit = (request.num_tokens - 1) // self._block_tokens
        bound = _max_load_tokens(request)
        if bound is not None:
            limit = min(limit, (known.local + bound) // self._block_tokens)
        return limit if limit * self._block_tokens > known.local else 0

    def _may_load(self, known: Known) -> bool:
        """Whether blocks that others have may be loaded for the request."""
        return self._loads and not known.refused and not self.copies.is_paused \
            and comes_back(known.request) and self._may_share(known)  # fmt: skip

    def _may_share(self, known: Known) -> bool:
        return self._prefixes and bool(self.names.may_share(known.request, known.local))

    def _store(self, known: Known, done: int, tables: Tables, after: bool = False) -> None:
        """Stores full blocks that kvd has not got yet. `done` tokens of the request are computed,
        or will be `after` this step's forward."""
        request = known.request
        if self.copies.is_paused or not self._may_share(known):
            return
        last = min(done // self._block_tokens, self.names.count(request), *map(len, tables))
        found = blocks_at(tables, known.stored, last)
        if found:
            digests = self.names.digests(request, found)
            copy = self.copies.begin(
                Kind.STORE, request.request_id, digests, found.values(), after
            )
            self.names.mark(copy, request)
            self._label(request, known.stored, last)
            known.stored = last

    def _label(self, request: Request, first: int, last: int, is_new: bool = True) -> None:
        """Has kvd tell others what these blocks are of. Unless they are new they may have labels."""
        lora = self.names.lora_told(request)
        if self.announcer is None or lora is None or first >= last:
            return
        digests = self.names.digests(request, [(0, at) for at in range(max(first - 1, 0), last)])
        parent = digests.pop(0) if first > 0 else None
        if is_new or not self.announcer.knows(digests):
            tokens = request.all_token_ids[first * self._block_tokens : last * self._block_tokens]
            self.announcer.label(Labels(digests, tokens, parent, lora))

    def _end(self, ended: Open, done: bool) -> None:
        copy = ended.copy
        self._forgotten.add(ended.forget)
        names = ("stored_blocks", "parked_blocks", "loaded_blocks")
        self.stats.add(names[copy.kind] if done else "failed_blocks", len(copy.blocks))
        known = self._requests.get(copy.request)
        if done or known is None:
            return
        if copy.kind != Kind.PARK:
            known.stored = 0
            known.refused |= copy.kind == Kind.LOAD
        elif known.park is not None and known.park.copy == copy.number:
            self._forgotten.add(known.park.digests.values())
            known.park = None
            self.stats.add("recomputed_requests")

    def _let_go(self, park: Park) -> None:
        """Forgets a park, once its copy has ended."""
        if self.copies.is_open(park.copy):
            self.copies.forget_at_end(park.copy, park.digests.values())
        else:
            self._forgotten.add(park.digests.values())

    def _is_patient_with(self, park: Park) -> bool:
        """False: a park takes too long because kvd hangs, and is given up."""
        return not self._is_under_way(park) or self._clock() < park.since + self._patience_s

    def _is_under_way(self, park: Park) -> bool:
        return self.copies.is_open(park.copy)


def _max_load_tokens(request: Request) -> int | None:
    """Reads it as vLLM's own offloading does: a whole number of at least 0; otherwise there is no
    bound."""
    given = handoffs.params_of(request).get("max_load_tokens")
    return given if type(given) is int and given >= 0 else None
