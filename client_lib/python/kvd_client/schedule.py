"""Scheduling for an engine that places its own blocks. Before each step it tells kvd what it has,
and kvd's policies say which requests leave, which come in, and how many prompt tokens the step may
have.

Counts are tokens and blocks. Times are whole nanoseconds here, not seconds as elsewhere in this
package, because each request of each step has five of them. kvd.h says more about each field.
"""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Mapping
from typing import NamedTuple

from . import _abi
from ._handle import Handle
from .errors import InvalidArgument
from .requests import Placement, placement_of

MOST_REQUESTS = 2048
# As blocks_to_return of a running request: the request cannot be parked.
RECOMPUTED = 0xFFFFFFFF
_ANY_TOKENS = 0xFFFFFFFF
_REQUEST = struct.Struct("<Q8I5Q")
assert _REQUEST.size == ctypes.sizeof(_abi.SchedRequest)


class ScheduleState(enum.IntEnum):
    """KVD_SCHED_…: where a request is."""

    WAITING = 1  # a new prompt, or one that was preempted and has to be recomputed
    PARKED = 2  # preempted, with its blocks kept for its return
    RUNNING = 3


class Decision(NamedTuple):
    """The answer to schedule()."""

    preempt: list[int]  # running requests that leave before the step, in this order
    admit: list[int]  # waiting and parked ones that come in, in this order; others stay out
    # Most prompt tokens of the step, beside the decodes; None: any number.
    prefill_tokens: int | None


class ScheduleBatch:
    """The requests of one schedule(), in memory that is made once: clear() and fill it for each
    step.

    Use it on one thread at a time.
    """

    def __init__(self, capacity: int = MOST_REQUESTS) -> None:
        if not 0 < capacity <= MOST_REQUESTS:
            raise InvalidArgument(f"a batch has room for 1 to {MOST_REQUESTS} requests")
        self._capacity = capacity
        self._requests = (_abi.SchedRequest * capacity)()
        self._preempt = (ctypes.c_uint64 * capacity)()
        self._admit = (ctypes.c_uint64 * capacity)()
        self._bytes = memoryview(self._requests).cast("B")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        self._count = 0

    def add(
        self,
        id: int,
        state: int,
        prompt_tokens: int,
        computed_tokens: int,
        generated_tokens: int,
        max_new_tokens: int,
        blocks: int,
        blocks_to_return: int,
        age_ns: int,
        first_token_age_ns: int = 0,
        last_token_age_ns: int = 0,
        ttft_ns: int = 0,
        tbt_ns: int = 0,
        slo_class: int = 0,
    ) -> None:
        """`state`: a ScheduleState. `computed_tokens`: tokens whose KV it has; for a parked
        request, tokens whose KV is kept. `blocks`: for a running request those that come free when
        it leaves. `blocks_to_return`: for a running request 0, or RECOMPUTED if nothing of it can
        be kept while it is away, so that it does not leave for others. For any other request the
        blocks that it needs to come in; 0: computed from its tokens. Ages are until now, at least
        1; 0: there is none. Goals: 0: that of its class. Raises InvalidArgument where the batch is
        full or a number does not fit its field."""
        if self._count >= self._capacity:
            raise InvalidArgument(
                f"more than {self._capacity} requests: leave out those at the end of the queue"
            )
        try:
            _REQUEST.pack_into(
                self._bytes, self._count * _REQUEST.size, id, state, prompt_tokens,
                computed_tokens, generated_tokens, max_new_tokens, blocks, blocks_to_return,
                slo_class, age_ns, first_token_age_ns, last_token_age_ns, ttft_ns, tbt_ns,
            )  # fmt: skip
        except struct.error as fault:
            raise InvalidArgument(f"request {id}: {fault}") from None
        self._count += 1


class Scheduling:
    """The call for an engine that places its own blocks. Part of Client."""

    _handle: Handle

    def schedule(
        self,
        batch: ScheduleBatch,
        *,
        free_blocks: int,
        total_blocks: int,
        block_tokens: int,
        block_bytes: int = 0,
        last_step_ns: int = 0,
        last_step_prefill_tokens: int = 0,
        last_step_decodes: int = 0,
        max_batched_tokens: int = 0,
        max_running: int = 0,
        timeout: float = 0.002,
    ) -> Decision:
        """Says which requests the next step preempts and admits. For a client without a shape.
        `batch` has all requests that run or are parked, and those waiting ones that could come in.

        `free_blocks`: blocks that requests may take; `total_blocks`: blocks that requests can have
        in all; `block_bytes`: bytes of a block in all layers, or 0 if parked blocks are not in
        kvd's DRAM; `last_step_…`: how long the last iteration took and what it did, 0 ns: none
        since the last call; `max_batched_tokens`, `max_running`: the engine's own bounds, 0: none.

        Never attaches, and ends by `timeout` seconds. Raises Unavailable at once where the daemon
        is gone (ping(), from another thread, attaches again), DeadlineExceeded where this or
        another call of this client takes longer, InvalidArgument for impossible values. Go on as
        without kvd then."""
        count = len(batch)
        question = _abi.SchedInput(
            ctypes.sizeof(_abi.SchedInput), free_blocks, total_blocks, block_bytes, last_step_ns,
            block_tokens, last_step_prefill_tokens, last_step_decodes, max_batched_tokens,
            max_running, 0, batch._requests, count,
        )  # fmt: skip
        answer = _abi.SchedResult(
            ctypes.sizeof(_abi.SchedResult), batch._preempt, count, 0, batch._admit, count, 0,
            _ANY_TOKENS, 0,
        )  # fmt: skip
        self._handle.call(
            "kvd_schedule", ctypes.byref(question), _abi.nanoseconds(timeout), ctypes.byref(answer)
        )
        bound = answer.prefill_tokens
        return Decision(
            batch._preempt[: answer.preempt_count],
            batch._admit[: answer.admit_count],
            None if bound == _ANY_TOKENS else bound,
        )

    def place_layers(
        self,
        tokens: Mapping[int, int],
        *,
        layers: int,
        capacity_blocks: int,
        block_tokens: int,
        block_bytes: int,
        step_ns: int,
        timeout: float = 0.002,
    ) -> Placement:
        """Says which layers of running requests are to stay in HBM, by kvd's placement policy: the
        last plan that was made, of those of its requests that are named now. Another is made
        meanwhile, so ask again some steps later. For a client without a shape.

        `tokens`: for each request the tokens whose KV it has; `capacity_blocks`: blocks of one layer
        that HBM has room for; `block_bytes`: of one layer; `step_ns`: that a step computes, waits
        for layers left out.

        Never attaches. Raises as schedule(), and Unsupported where the daemon is older."""
        named = (_abi.LayersRequest * len(tokens))(*(_abi.LayersRequest(*each) for each in tokens.items()))
        question = _abi.LayersInput(
            ctypes.sizeof(_abi.LayersInput), capacity_blocks, block_bytes, step_ns, layers,
            block_tokens, named, len(tokens),
        )  # fmt: skip
        answer = _abi.Placement(ctypes.sizeof(_abi.Placement))
        self._handle.call(
            "kvd_place_layers", ctypes.byref(question), _abi.nanoseconds(timeout), ctypes.byref(answer)
        )
        return placement_of(answer)

    def set_gaps(self, gaps: Mapping[int, float], timeout: float = 0.002) -> None:
        """Sets the longest wait for a token after the first, in seconds, for each request; 0: the
        gap of its class. Call it once for a request, after the schedule() that named it first: a
        request that kvd does not know is skipped, and all gaps are forgotten with the session.
        Never attaches. Raises as schedule(), and Unsupported where the daemon is older: then the
        gap of the class counts."""
        named = [_abi.RequestGap(id, _abi.nanoseconds(gap)) for id, gap in gaps.items()]
        array = (_abi.RequestGap * len(named))(*named)
        self._handle.call("kvd_set_gaps", array, len(gaps), _abi.nanoseconds(timeout))


def slo_class(name: str) -> int:
    """The number of an SLO class by its name, for ScheduleBatch.add(). A class that the daemon does
    not know counts as the domain's."""
    _abi.text(name)  # refuses what C would cut off
    number: int = _abi.library().kvd_slo_class(name.encode())
    return number
