"""The scheduler's side: which blocks each request has, and what a worker hears of it each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from kvd_vllm.layers.placement import Running

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class Step(KVConnectorMetadata):
    """What is sent to the worker. `released`: blocks whose content nobody needs any more, by the
    beginning of the step."""

    def __init__(self, requests: list[Running], released: set[int]) -> None:
        self.requests = requests
        self.released = released


class Tracker:
    """`keeps`: vLLM finds the blocks of requests that have ended again (its prefix cache)."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._names: dict[str, list[int]] = {}

    def step(self, output: SchedulerOutput) -> Step:
        gone = output.finished_req_ids | (output.preempted_req_ids or set())
        left = {name for request in gone for name in self._names.pop(request, ())}
        computed: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            self._names[new.req_id] = list(new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request, fresh, count in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if request in cached.resumed_req_ids:
                self._names[request] = []
            self._names[request] += fresh[0] if fresh else []
            computed[request] = count
        requests = [
            Running(tuple(self._names[name]), computed[name], computed[name] + count, name)
            for name, count in output.num_scheduled_tokens.items()
        ]
        if self._keeps or not left:
            return Step(requests, set())
        return Step(requests, left.difference(*self._names.values()))
