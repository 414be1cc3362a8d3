"""What the scheduler's side and a worker's side tell each other: at the start, and once a step."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorWorkerMetadata,
)  # fmt: skip

from kvd_vllm.balloon import News, Orders
from kvd_vllm.chunks import Geometry


class Kind(enum.IntEnum):
    STORE = 0  # full blocks, under the hashes that every engine gives them
    PARK = 1  # a preempted request's blocks, under names of its own
    LOAD = 2


@dataclass
class Copy:
    """One copy between blocks of the KV cache and kvd. `number` names it until its end is reported.

    `waits`: the step's forward reads the blocks, so they have to be there before it.
    """

    number: int
    kind: Kind
    request: str
    digests: list[bytes]
    blocks: list[int]
    waits: bool = False


@dataclass
class Opened(KVConnectorHandshakeMetadata):
    """The worker's side to the scheduler's, at the start: how its KV cache is divided where it is
    elastic, and whether blocks of it can go to kvd."""

    geometry: Geometry | None
    copies: bool


@dataclass
class Transfers(KVConnectorMetadata):
    """The scheduler's side to the worker's: copies to begin before this step's forward and after it,
    and what an elastic KV cache is to be told."""

    copies: list[Copy] = field(default_factory=list)
    copies_after: list[Copy] = field(default_factory=list)
    orders: Orders | None = None


@dataclass
class Ends(KVConnectorWorkerMetadata):
    """The worker's side to the scheduler's: copies of which kvd touches no byte any more, and what
    became of an elastic KV cache."""

    done: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    news: News | None = None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Ends)
        # Only one worker has an elastic KV cache.
        news = self.news if self.news is not None else other.news
        return Ends(self.done + other.done, self.failed + other.failed, news)
