"""KvdScheduler and KvdAsyncScheduler: kvd's policies decide who leaves, who comes in, and how many
prompt tokens a step computes; vLLM's own scheduler does the rest.

    --scheduler-cls kvd_vllm.KvdScheduler         (kvd_vllm.KvdAsyncScheduler with async scheduling)

Each step tells kvd what there is, and applies its answer before vLLM's schedule(): victims are
preempted, so that vLLM counts them as it always does, and of the waiting requests only those show
that kvd lets in. Without an answer in time the step is vLLM's own. On the engine's main thread.

Every name here begins with kvd, as vLLM's class has hundreds of its own.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import kvd_client
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kvd_client.schedule import MOST_REQUESTS, RECOMPUTED
from kvd_vllm.connector import KvdConnector
from kvd_vllm.goals import NS as _NS
from kvd_vllm.goals import Goals, goals_of
from kvd_vllm.memory import logger
from kvd_vllm.planning import comes_back

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

_State = kvd_client.ScheduleState
_COMES_IN = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
_LOOK_AHEAD = 16  # requests
_NOBODY = kvd_client.Decision([], [], None)  # leaves, or comes in


class AdmissionQueue(FCFSRequestQueue):
    """vLLM's waiting queue, of which its scheduler sees only the first `shown` requests.

    It asks bool() before it takes one; counters ask len(), which counts all of them.
    """

    shown: int | None = None

    def __bool__(self) -> bool:
        return len(self) > 0 and (self.shown is None or self.shown > 0)

    def peek_request(self) -> Request:
        return self[0]

    def pop_request(self) -> Request:
        if self.shown is not None:
            self.shown -= 1
        return self.popleft()


class KnownRequest:
    """What kvd is told of a request and vLLM does not keep. Times in nanoseconds, by kvd_clock."""

    __slots__ = ("arrived", "first_token", "goals", "last_token", "number", "tokens")

    def __init__(self, number: int, arrived: int, goals: Goals) -> None:
        self.number = number
        self.arrived = arrived
        self.goals = goals
        self.tokens = 0
        self.first_token = self.last_token = 0  # 0: none yet


class LastStep(NamedTuple):
    """What the step did whose output came last."""

    ns: int = 0
    prefill_tokens: int = 0
    decodes: int = 0


class KvdSchedulerMixin:
    """Goes in front of one of vLLM's scheduler classes."""

    kvd_clock = staticmethod(time.monotonic)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        here: Any = self
        _refuse_what_does_not_fit(here)
        queue = AdmissionQueue()
        queue.extend(here.waiting)
        here.waiting = queue
        self.kvd_connector: KvdConnector = here.connector
        self.kvd_batch = kvd_client.ScheduleBatch()
        self.kvd_known: dict[str, KnownRequest] = {}
        self.kvd_numbers = 0
        self.kvd_token_budget: int = here.max_num_scheduled_tokens
        self.kvd_begun: deque[float] = deque()
        self.kvd_ended = 0.0
        self.kvd_last_step = LastStep()
        self.kvd_answered: tuple[int, ...] = ()
        # Seconds by request, of those that kvd was not told yet.
        self.kvd_gaps: dict[int, float] = {}

    # ---- vLLM's methods ----

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        here: Any = self
        self.kvd_make_way()
        decision = self.kvd_decide() if self.kvd_has_a_say() else None
        try:
            if decision is not None:
                self.kvd_apply(decision)
            output: SchedulerOutput = super().schedule(throttle_prefills)  # type: ignore[misc]
        finally:
            here.waiting.shown = None
            here.max_num_scheduled_tokens = self.kvd_token_budget
        self.kvd_begun.append(self.kvd_clock())
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any
    ) -> Any:
        outputs = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        self.kvd_note(scheduler_output.num_scheduled_tokens)
        return outputs

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        """Parks the request's KV first, whoever preempts it, vLLM itself included."""
        here: Any = self
        if not drop_stale_output:
            tables = here.kv_cache_manager.get_block_ids(request.request_id)
            self.kvd_connector.park(request, tables)
        super()._preempt_request(request, timestamp, drop_stale_output)  # type: ignore[misc]

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """vLLM refuses while any block is in use, and to vLLM the blocks of the balloon, of copies
        and of steps in flight are in use. vLLM takes away the blocks of running requests; here
        those of loading requests are taken, too, and parked ones are forgotten."""
        here: Any = self
        if reset_running_requests:
            self.kvd_connector.forget_parks()
            self.kvd_give_up_loads()
            while here.running:
                here._preempt_request(here.running.pop(), time.monotonic(), drop_stale_output=True)
        pool = here.kv_cache_manager.block_pool
        in_flight = [block for _, blocks in here.deferred_frees for block in blocks]
        with self.kvd_connector.let_go():
            pool.free_blocks(in_flight)
            try:
                return bool(super().reset_prefix_cache(  # type: ignore[misc]
                    reset_running_requests, reset_connector
                ))  # fmt: skip
            finally:
                pool.touch(in_flight)

    def kvd_give_up_loads(self) -> None:
        """Does what vLLM does where a load fails, except that the request's blocks go at once: the
        copy holds them until kvd no longer writes them. A session that waits for its next input
        keeps its blocks, because vLLM reads from them how far it is."""
        here: Any = self
        for request in here.kv_holding_waiting:
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                here.failed_recving_kv_req_ids.add(request.request_id)
            elif request.status not in _COMES_IN:
                continue
            here.kv_cache_manager.free(request)
            here._inflight_prefills.discard(request)
            request.num_computed_tokens = 0

    # ---- an elastic KV cache ----

    def kvd_make_way(self) -> None:
        """Memory that kvd wants back should not wait for the end of an answer: the latest request
        that runs in it is parked, one a step. Where none can be parked, the memory waits."""
        balloon = self.kvd_connector.balloon
        here: Any = self
        if balloon is None or here.pause_state != PauseState.UNPAUSED:
            return
        balloon.sweep()
        for request in reversed(here.running if self.kvd_connector.can_park else []):
            tables = here.kv_cache_manager.get_block_ids(request.request_id)
            if comes_back(request) and balloon.is_in_the_way(itertools.chain(*tables)):
                here.running.remove(request)
                here._preempt_request(request, time.monotonic())
                return

    def kvd_total_blocks(self) -> int:
        """Blocks that requests can have in all; for an elastic KV cache, those that are granted
        now."""
        here: Any = self
        balloon = self.kvd_connector.balloon
        if balloon is not None:
            return max(1, balloon.granted_blocks)
        return int(here.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    # ---- asking ----

    def kvd_has_a_say(self) -> bool:
        """Whether there is anything to decide: a request waits, or has prompt tokens to compute.
        Without a KV cache no request waits for memory."""
        here: Any = self
        if here.pause_state != PauseState.UNPAUSED or not here.kv_cache_config.kv_cache_groups:
            return False
        return len(here.waiting) > 0 or any(each.is_prefill_chunk for each in here.running)

    def kvd_decide(self) -> kvd_client.Decision | None:
        """kvd's answer. If it was "nobody" a step ago, and each request has only made a token
        since, the same answer is used for one more step: a question costs as much as a few tokens.
        """
        here: Any = self
        stands = (len(here.running), len(here.kv_holding_waiting), len(here.waiting))
        answered, self.kvd_answered = self.kvd_answered, ()
        if stands == answered:
            grow = sum(each.num_computed_tokens % here.block_size == 0 for each in here.running)
            free = here.kv_cache_manager.block_pool.get_num_free_blocks()
            if grow * self.kvd_connector.groups <= free:
                return _NOBODY
        decision = self.kvd_ask()
        # A bound on prompts binds nobody where no prompt is under way and none comes in.
        nobody = decision is not None and not decision.preempt and not decision.admit
        if nobody and here.running and not any(each.is_prefill_chunk for each in here.running):
            self.kvd_answered = stands
        return decision

    def kvd_ask(self) -> kvd_client.Decision | None:
        """Makes one round trip; None: kvd did not answer in time. A block here is what a token
        needs in every KV cache group: savings by a window show when blocks become free."""
        here: Any = self
        line = itertools.islice(here.waiting, _LOOK_AHEAD)
        self.kvd_connector.prepare([each for each in line if each.status == RequestStatus.WAITING])
        self.kvd_describe()
        pool = here.kv_cache_manager.block_pool
        last, self.kvd_last_step = self.kvd_last_step, LastStep()
        shape, groups = self.kvd_connector.shape, self.kvd_connector.groups
        decision = self.kvd_connector.schedule(
            self.kvd_batch,
            free_blocks=(pool.get_num_free_blocks() + self.kvd_connector.blocks_coming()) // groups,
            total_blocks=max(1, self.kvd_total_blocks() // groups),
            block_tokens=here.block_size,
            block_bytes=groups * shape.block_bytes if shape is not None else 0,
            last_step_ns=last.ns,
            last_step_prefill_tokens=last.prefill_tokens,
            last_step_decodes=last.decodes,
            max_batched_tokens=self.kvd_token_budget,
            max_running=here.max_num_active_reqs,
        )
        self.kvd_tell_gaps(decision is not None)
        return decision

    def kvd_tell_gaps(self, answered: bool) -> None:
        """Tells kvd the longest gaps of its requests. A kvd that did not answer may have lost them,
        and is told all again."""
        if not answered:
            self.kvd_gaps = {each.number: each.goals.gap_ns / _NS
                             for each in self.kvd_known.values() if each.goals.gap_ns}  # fmt: skip
        elif self.kvd_gaps and self.kvd_connector.set_gaps(self.kvd_gaps):
            self.kvd_gaps = {}

    def kvd_describe(self) -> None:
        """Fills the batch: all requests that run, load or are parked, and as many waiting ones as
        fit."""
        here: Any = self
        now, batch, size = int(self.kvd_clock() * _NS), self.kvd_batch, here.block_size
        batch.clear()
        self.kvd_forget_the_gone()
        parks = self.kvd_connector.can_park
        for request in here.running:
            blocks = -(-request.num_computed_tokens // size)
            back = 0 if parks and comes_back(request) else RECOMPUTED
            self.kvd_add(request, now, _State.RUNNING, blocks=blocks, back=back)
        for request in here.kv_holding_waiting:  # loads go on: it has its blocks, and keeps them
            self.kvd_add(request, now, _State.RUNNING, back=RECOMPUTED)
        for request in here.waiting:
            if len(batch) >= MOST_REQUESTS:
                break
            if request.status in _COMES_IN:
                tokens, back = self.kvd_connector.parked(request.request_id)
                state = _State.PARKED if back else _State.WAITING
                self.kvd_add(request, now, state, back=back, parked=tokens)

    def kvd_add(
        self, request: Request, now: int, state: int, blocks: int = 0, back: int = 0, parked: int = 0
    ) -> None:
        """Adds a request to the question. It runs for every request in every step that asks, after
        a model has emptied the caches, so it makes no call that it can do without."""
        known = self.kvd_known.get(request.request_id) or self.kvd_meet(request, now)
        generated, most = request.num_output_tokens, request.max_tokens
        age, first, last = now - known.arrived, known.first_token, known.last_token
        ttft, tbt, slo_class, _ = known.goals
        self.kvd_batch.add(
            known.number, state, request.num_prompt_tokens,
            parked or request.num_computed_tokens, generated,
            most if most > generated else generated, blocks, back, age if age > 0 else 1,
            (now - first if now > first else 1) if first else 0,
            (now - last if now > last else 1) if last else 0, ttft, tbt, slo_class,
        )  # fmt: skip

    def kvd_meet(self, request: Request, now: int) -> KnownRequest:
        self.kvd_numbers += 1
        arrived = int(self.kvd_arrival_of(request, now / _NS) * _NS)
        known = KnownRequest(self.kvd_numbers, arrived, goals_of(request))
        self.kvd_known[request.request_id] = known
        if known.goals.gap_ns:
            self.kvd_gaps[known.number] = known.goals.gap_ns / _NS
        return known

    def kvd_arrival_of(self, request: Request, now: float) -> float:
        """When it arrived, by kvd_clock; vLLM's front end took the time of day."""
        return now - max(0.0, time.time() - request.arrival_time)

    def kvd_forget_the_gone(self) -> None:
        here: Any = self
        if len(self.kvd_known) > len(here.requests):
            self.kvd_known = {
                name: known for name, known in self.kvd_known.items() if name in here.requests
            }

    # ---- applying ----

    def kvd_apply(self, decision: kvd_client.Decision) -> None:
        here: Any = self
        gone = set(decision.preempt)
        victims = [each for each in here.running if self.kvd_number_of(each) in gone]
        order = {number: at for at, number in enumerate(decision.preempt)}
        victims.sort(key=lambda each: order[self.kvd_number_of(each)])
        for victim in victims:
            here.running.remove(victim)
            here._preempt_request(victim, time.monotonic())
        self.kvd_let_in(decision.admit)
        if decision.prefill_tokens is not None:
            decodes = sum(not each.is_prefill_chunk for each in here.running)
            bound = max(1, decision.prefill_tokens + decodes + len(decision.admit))
            # vLLM gives tokens in this order, and no prompt should take those of the answers.
            here.running.sort(key=lambda each: each.is_prefill_chunk)
            here.max_num_scheduled_tokens = min(self.kvd_token_budget, bound)

    def kvd_let_in(self, numbers: list[int]) -> None:
        """Puts the requests that come in first, in kvd's order. Besides them vLLM sees only those
        that wait for a grammar or for input, which it looks after while it looks for requests."""
        here: Any = self
        queue: AdmissionQueue = here.waiting
        if not numbers and not here.running and not here.kv_holding_waiting:
            return  # nothing runs and nothing comes in: that would be for ever
        order = {number: at for at, number in enumerate(numbers)}
        blocked = [each for each in queue if each.status not in _COMES_IN]
        others = [each for each in queue if each.status in _COMES_IN]
        admitted = [each for each in others if self.kvd_number_of(each) in order]
        admitted.sort(key=lambda each: order[self.kvd_number_of(each)])
        staying = [each for each in others if self.kvd_number_of(each) not in order]
        queue.clear()
        queue.extend(blocked + admitted + staying)
        queue.shown = len(blocked) + len(admitted)

    def kvd_number_of(self, request: Request) -> int:
        """0, which no request has, for one that kvd was not told of."""
        known = self.kvd_known.get(request.request_id)
        return known.number if known is not None else 0

    # ---- noting ----

    def kvd_note(self, scheduled: dict[str, int]) -> None:
        """Notes what a step did, once its output has been taken in."""
        here: Any = self
        now = self.kvd_clock()
        begun = self.kvd_begun.popleft() if self.kvd_begun else now
        if scheduled:
            took = now - max(begun, self.kvd_ended)
            decodes = sum(count == 1 for count in scheduled.values())
            tokens = sum(scheduled.values()) - decodes
            self.kvd_last_step = LastStep(max(1, int(took * _NS)), tokens, decodes)
        self.kvd_ended = now
        at = int(now * _NS)
        for name in scheduled:
            known, request = self.kvd_known.get(name), here.requests.get(name)
            if known is not None and request is not None \
                    and request.num_output_tokens > known.tokens:  # fmt: skip
                known.tokens = request.num_output_tokens
                known.last_token = at
                known.first_token = known.first_token or at


class KvdScheduler(KvdSchedulerMixin, Scheduler):
    """For vLLM without async scheduling."""


class KvdAsyncScheduler(KvdSchedulerMixin, AsyncScheduler):
    """For vLLM with async scheduling."""


def _refuse_what_does_not_fit(scheduler: Any) -> None:
    """Raises ValueError with the remedy."""
    wants_async = bool(scheduler.scheduler_config.async_scheduling)
    if wants_async != isinstance(scheduler, AsyncScheduler):
        right = "KvdAsyncScheduler" if wants_async else "KvdScheduler"
        state = "on" if wants_async else "off"
        raise ValueError(
            f"{type(scheduler).__name__} does not fit: async scheduling is {state}; use "
            f"--scheduler-cls kvd_vllm.{right}"
        )
    if not isinstance(scheduler.waiting, FCFSRequestQueue):
        raise ValueError("kvd decides the order of requests: use --scheduling-policy fcfs")
    if not isinstance(scheduler.connector, KvdConnector):
        raise ValueError(
            'KvdScheduler parks requests by way of KvdConnector: add --kv-transfer-config '
            '\'{"kv_connector":"KvdConnector","kv_role":"kv_both"}\''
        )
