"""What vLLM logs and exports of this connector: counts, as vllm:kvd_… counters, and one gauge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics, KVConnectorStats,
)  # fmt: skip

if TYPE_CHECKING:
    from vllm.config import VllmConfig

COUNTERS = {
    "stored_blocks": "Blocks stored in kvd for every engine of this model to find.",
    "parked_blocks": "Blocks of preempted requests parked in kvd.",
    "loaded_blocks": "Blocks loaded from kvd.",
    "retained_blocks": "Blocks of ended requests that kvd retains for their next turn, as they asked.",
    "unretained_blocks": "Blocks of which this was asked, and that kvd had no more or no share for.",
    "failed_blocks": "Blocks of copies to or from kvd that failed.",
    "parked_requests": "Preempted requests parked in kvd.",
    "recomputed_requests": "Preempted requests that could not be parked or not come back.",
    "handed_requests": "Prompts kept in kvd for a decode engine.",
    "taken_requests": "Prompts of a prefill engine loaded from kvd.",
    "stock_steps": "Steps that vLLM's own scheduler decided, as kvd was late or absent.",
    "unanswered_calls": "Calls of the engine that kvd did not answer, or not in time.",
    "grown_blocks": "Blocks of an elastic KV cache that got memory.",
    "given_back_blocks": "Blocks of an elastic KV cache whose memory went back to kvd.",
    "layer_blocks_fetched": "Blocks of one layer each that were fetched from DRAM for a step.",
    "layer_blocks_lost": "Blocks that kvd lost, or did not fetch in time: they are computed again.",
    "layer_blocks_stored": "Blocks of one layer each that were written to DRAM.",
}
GAUGES = {
    "granted_blocks": "Blocks that requests may have now, of an elastic KV cache.",
}


class KvdStats(KVConnectorStats):
    """Counts since the last interval, under the names of COUNTERS, and the latest values of GAUGES.
    """

    data: dict[str, int]

    def reset(self) -> None:
        self.data = {}

    def add(self, name: str, count: int = 1) -> None:
        self.data[name] = self.data.get(name, 0) + count

    def set(self, name: str, value: int) -> None:
        self.data[name] = value

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, count in other.data.items():
            if name in GAUGES:
                self.set(name, count)
            else:
                self.add(name, count)
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"kvd {name.replace('_', ' ')}": count for name, count in self.data.items()}

    def is_empty(self) -> bool:
        return not any(count or name in GAUGES for name, count in self.data.items())

    def take(self) -> KvdStats | None:
        """What has been counted since the last call; None: nothing."""
        if self.is_empty():
            return None
        taken = KvdStats(self.data)
        self.data = {}
        return taken


class KvdPromMetrics(KVConnectorPromMetrics):
    """The counts as Prometheus counters, the gauges as gauges."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._per_engine(
                self._counter_cls(
                    name=f"vllm:kvd_{name}", documentation=text, labelnames=labelnames
                )
            )
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: self._per_engine(
                self._gauge_cls(name=f"vllm:kvd_{name}", documentation=text, labelnames=labelnames)
            )
            for name, text in GAUGES.items()
        }

    def _per_engine(self, metric: Any) -> dict[int, Any]:
        values: Iterable[tuple[int, list[object]]] = self.per_engine_labelvalues.items()
        return {engine: metric.labels(*labels) for engine, labels in values}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(count)
            elif name in self._gauges:
                self._gauges[name][engine_idx].set(count)
