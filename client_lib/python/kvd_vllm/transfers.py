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

    Shared copies are right only for `weights`, those of all workers. `look`: their identity should be
    taken anew.
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
    became of an elastic KV cache, the name of the cache (once, with the first step) and the weights
    that it stands for, and the identity of weights and adapters that were asked for or have changed.
    `others`: what other workers said in the same step."""

    done: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    news: News | None = None
    model: str = ""
    named_by: str = ""
    weights: str = ""
    adapters: dict[AdapterKey, Adapter] = field(default_factory=dict)
    rank: int = 0
    block_bytes: int = 0  # a block's part that this worker has
    others: list[Ends] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Ends)
        self.others += [other, *other.others]
        return self


# Stands between the identities of the workers' weights, and in none of them.
NEXT = "\0"
# The worst that became of a copy anywhere is what became of it.
_DONE, _FAILED, _REFUSED = range(3)


def weights_of(all_of_them: str, rank: int) -> str:
    """A worker's part of the weights that Workers put together; "": they have not said theirs yet."""
    parts = all_of_them.split(NEXT)
    return parts[rank] if rank < len(parts) else ""


class Workers:
    """All workers of a model, as if they were one, on the scheduler's thread. Each has a part of each
    block, in a cache of its own in kvd, whose name has its rank. A prefix is as long as in the cache
    that has least of it (daemon.py).

    A copy has ended when each worker has ended its part, so until then nobody reuses its blocks.
    It is done where all parts are: a load that one worker lost is lost for all."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.caches: dict[int, tuple[str, int]] = {}  # by rank: the name, and the bytes of a block
        self._weights: dict[int, str] = {}  # by rank
        self._parts: dict[int, list[int]] = {}  # by copy: what became of the parts that have ended

    def hear(self, ends: Ends) -> Ends:
        """What one worker would have said in place of all of them."""
        said, whole = [ends, *ends.others], Ends(news=ends.news)
        for each in said:
            self._count_parts(each, whole)
            whole.adapters.update(each.adapters)
            if each.model:
                self.caches[each.rank] = each.model, each.block_bytes
            if each.weights:
                self._weights[each.rank] = each.weights
        if any(each.weights for each in said) and len(self._weights) == self._count:
            whole.weights = NEXT.join(self._weights[rank] for rank in sorted(self._weights))
        if any(each.model for each in said) and len(self.caches) == self._count:
            whole.model = next(iter(self.caches.values()))[0]
            # A worker's cache is named by its own weights, and its bytes depend on those of all: where there
            # are several, the names of blocks tell them apart.
            whole.named_by = ends.named_by if self._count == 1 else ""
        return whole

    def _count_parts(self, ends: Ends, whole: Ends) -> None:
        found = (ends.done, ends.failed, ends.refused)
        into = (whole.done, whole.failed, whole.refused)
        for end in (_DONE, _FAILED, _REFUSED):
            for number in found[end]:
                parts = self._parts.setdefault(number, [])
                parts.append(end)
                if len(parts) == self._count:
                    into[max(self._parts.pop(number))].append(number)
