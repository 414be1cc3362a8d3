"""What kvd has to do with a request, as OpenTelemetry spans beside those of vLLM's own, under the trace context
that the client sent. They are on where vLLM's are (--otlp-traces-endpoint), and go where vLLM's go.

A request is in one phase at a time while it does not run, so the spans from its preemption on add up to the
time until it runs again. On the scheduler's thread; vLLM's exporter sends from a thread of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.tracing import extract_trace_context, instrument_manual

from kvd_vllm.groups import Tables, blocks_at
from kvd_vllm.planning import Planner
from kvd_vllm.transfers import Kind

if TYPE_CHECKING:
    from kvd_vllm.copies import Open
    from vllm.v1.request import Request


class _Phase(NamedTuple):
    name: str
    since_ns: int  # by the time of day, as spans have it
    attributes: dict[str, Any]


class TracedPlanner(Planner):
    """Plans as Planner does, and tells the phases of requests with a trace context. `block_bytes`: of a block
    in one KV cache group."""

    def __init__(self, block_bytes: int, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._block_bytes = block_bytes
        self._phases: dict[str, _Phase] = {}

    def add(self, request: Request) -> None:
        super().add(request)
        self._enter(request, "kvd.wait", "new")

    def admit(self, request: Request, tables: Tables, count: int) -> None:
        known, size = self._requests[request.request_id], self._block_tokens
        first, last = known.local // size, -(-(known.local + count) // size)
        park, handoff = known.park, known.handoff
        is_back = park is not None and not self._is_under_way(park)
        super().admit(request, tables, count)
        if count == 0:
            self._leave(request)
        elif is_back:
            # A parked block lies in DRAM until it is dropped.
            self._enter(request, "kvd.restore", "resumed", len(blocks_at(tables, first, last)), "dram")
        else:
            reason = "handoff" if handoff is not None else "prefix"
            self._enter(request, "kvd.load", reason, len(blocks_at(tables, first, last)))

    def park(self, request: Request, tables: Tables) -> bool:
        is_parked = super().park(request, tables)
        park = self._requests[request.request_id].park
        if is_parked and park is not None:
            self._enter(request, "kvd.parked", "preempted", len(park.digests), "dram")
        else:
            self._enter(request, "kvd.wait", "recompute")
        return is_parked

    def forget_parks(self) -> None:
        parked = [known.request for known in self._requests.values() if known.park is not None]
        super().forget_parks()
        for request in parked:
            self._enter(request, "kvd.wait", "recompute")

    def finish(self, request: Request, tables: Tables) -> None:
        super().finish(request, tables)
        self._leave(request)

    def _end(self, ended: Open, done: bool) -> None:
        super()._end(ended, done)
        known = self._requests.get(ended.copy.request)
        if not done and known is not None and ended.copy.kind != Kind.STORE:
            if ended.copy.request in self._phases:
                self._enter(known.request, "kvd.wait", "recompute")

    def _enter(self, request: Request, name: str, reason: str, blocks: int = 0, tier: str = "") -> None:
        """Begins a phase, and ends the one before it at the same time."""
        if not request.trace_headers:
            return
        now = time.time_ns()
        self._leave(request, now)
        attributes: dict[str, Any] = {"kvd.reason": reason, "gen_ai.request.id": request.request_id}
        if blocks:
            attributes["kvd.bytes"] = blocks * self._block_bytes
        if tier:
            attributes["kvd.tier"] = tier
        self._phases[request.request_id] = _Phase(name, now, attributes)

    def _leave(self, request: Request, now: int | None = None) -> None:
        phase = self._phases.pop(request.request_id, None)
        if phase is not None:
            context = extract_trace_context(request.trace_headers)
            instrument_manual(phase.name, phase.since_ns, now or time.time_ns(), phase.attributes, context)
