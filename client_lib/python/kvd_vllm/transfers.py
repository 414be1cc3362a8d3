"""What the scheduler's side and a worker's side tell each other: at the start, and once a step."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorWorkerMetadata,
)  # fmt: skip

from kvd_vllm.elastic.balloon import News, Orders
from kvd_vllm.elastic.chunks import Geometry

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest


class Kind(enum.IntEnum):
    STORE = 0  # full blocks, under the hashes that every engine gives them
    PARK = 1  # a preempted request's blocks, under names of its own
    LOAD = 2


class Adapter(NamedTuple):
    """What a worker has loaded of a LoRA adapter. `load` is a new number each time its content has
    changed."""

    load: int
    content: bytes


# An adapter as vLLM tells it from others: id, name and path.
AdapterKey = tuple[int, str, str]


def key_of(lora: LoRARequest) -> AdapterKey:
    return lora.lora_int_id, lora.lora_name, lora.lora_path


@dataclass
class Copy:
    """One copy between blocks of the KV cache and kvd. `number` names it until its end is reported.

    `shared`: the names are ones that other engines know; where `lora` is given, they are right only
    while the worker has `adapter` loaded for it.
    """

    number: int
    kind: Kind
    request: str
    digests: list[bytes]
    blocks: list[int]
    shared: bool = False
    lora: LoRARequest | None = None
    adapter: Adapter | None = None


@dataclass
class Opened(KVConnectorHandshakeMetadata):
    """The worker's side to the scheduler's, at the start: how its KV cache is divided where it is
    elastic, and whether blocks of it can go to kvd."""

    geometry: Geometry | None
    copies: bool


@dataclass
class Transfers(KVConnectorMetadata):
    """The scheduler's side to the worker's: copies to begin before this step's forward and after
    it, and what an elastic KV cache is told.

    Shared copies are right only for `weights`. `look`: their identity should be taken anew.
    `adapters`: those whose content is asked for."""

    copies: list[Copy] = field(default_factory=list)
    copies_after: list[Copy] = field(default_factory=list)
    orders: Orders | None = None
    weights: str = ""
    look: bool = False
    adapters: list[LoRARequest] = field(default_factory=list)


@dataclass
class Ends(KVConnectorWorkerMetadata):
    """The worker's side to the scheduler's: copies of which kvd no longer touches any byte
    (`refused`: the worker did not ask for them, because it computes something else now), what
    became of an elastic KV cache, the name of the cache (once, with the first step), and the
    identity of weights and adapters that were asked for or have changed."""

    done: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    news: News | None = None
    model: str = ""
    weights: str = ""
    adapters: dict[AdapterKey, Adapter] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Ends)
        # Only one worker has an elastic KV cache, and only one stores blocks.
        news = self.news if self.news is not None else other.news
        return Ends(
            self.done + other.done, self.failed + other.failed, self.refused + other.refused, news,
            self.model or other.model, self.weights or other.weights, {**self.adapters, **other.adapters},
        )  # fmt: skip
