"""A worker's side: makes each layer's attention find its blocks, and copies what a plan says."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kvd_vllm.layers.placement import NoRoom, Running, place
from kvd_vllm.layers.plans import Plans
from kvd_vllm.layers.rows import Part, Rows
from kvd_vllm.layers.table import NOBODYS, Copy, Plan, Table

if TYPE_CHECKING:
    from vllm.forward_context import ForwardContext


class Streams:
    """One worker's layers. `layers`: vLLM's names, in the order in which it computes them. `first`: for
    each layer, how many blocks lie between its own first one and page 0.

    Use it on the worker's main thread, in the order in which vLLM calls a connector.
    """

    def __init__(self, table: Table, rows: Rows, plans: Plans, layers: Sequence[str], first: Sequence[int],
                 names: int, tokens: int) -> None:  # fmt: skip
        self._table = table
        self._rows = rows
        self._plans = plans
        self._layers = {layer: at for at, layer in enumerate(layers)}
        self._first = list(first)
        self._names = names
        self._tokens = tokens
        self._plan = Plan([])
        self._fetches: dict[int, list[Part]] = {}  # by layer
        self._lost: set[int] = set()  # blocks that the step lacks in some layer
        self._invalid: set[int] = set()
        self._requests: Sequence[Running] = []
        self._began_at = self._waited_s = 0.0  # the step
        self.fetched_blocks = self.stored_blocks = self.lost_blocks = 0

    def release(self, names: Iterable[int]) -> None:
        """Before a step. The content of these blocks is not needed any more."""
        self._table.release(names)

    def begin(self, requests: Sequence[Running], context: ForwardContext) -> None:
        """Before the forward pass."""
        self._table.set_aside(self._rows.begin_step())
        layers, pages = len(self._first), self._table.pages
        planned = self._plans.distances(requests, pages, not self._rows.answers())
        try:
            placement = place(requests, layers, pages, self._tokens, planned)
        except NoRoom:
            self._table.set_aside(self._rows.begin_step(wait=True))
            placement = place(requests, layers, self._table.pages, self._tokens)
        self._plan = plan = self._table.step(requests, placement)
        self._store(plan.out)
        self._miss(self._rows.wait(self._rows.load(plan.back)), 0)
        self.fetched_blocks += len(plan.back)
        self._fetches = {}
        for at, each in enumerate(plan.layers):
            self._fetch(at, each.fetch)
        self._redirect(context)
        self._requests, self._began_at, self._waited_s = requests, time.monotonic(), 0.0

    def wait(self, layer: str) -> None:
        """Before the attention of a layer, after its new tokens were written."""
        at, since = self._layers[layer], time.monotonic()
        self._miss(self._rows.wait(self._fetches.pop(at)), at)
        self._waited_s += time.monotonic() - since

    def save(self, layer: str) -> None:
        """After the attention of a layer. Then its staging pages are those of later layers, where new tokens
        are written before anything asks whether they may."""
        each, since = self._plan.layers[self._layers[layer]], time.monotonic()
        self._store(each.store)
        for later, copies in each.then.items():
            self._fetch(later, copies)
        self._waited_s += time.monotonic() - since

    def end(self) -> None:
        """After the forward pass."""
        self._plans.computed(self._requests, time.monotonic() - self._began_at - self._waited_s)
        self._requests = []
        self._invalid = self._table.end(self._lost)
        self.lost_blocks += len(self._lost)
        self._lost = set()
        self._rows.drop(self._plan.dead)
        self._plan = Plan([])

    def take_invalid(self) -> set[int]:
        """Blocks that requests of the step read and that do not hold what they should: what the step
        answers to these requests is void, and they are computed again from there on."""
        taken, self._invalid = self._invalid, set()
        return taken

    def _fetch(self, layer: int, copies: Sequence[Copy]) -> None:
        self._fetches.setdefault(layer, []).extend(self._rows.load(copies))
        self.fetched_blocks += len(copies)

    def _miss(self, copies: Sequence[Copy], layer: int) -> None:
        """These layers, from this one on, read what the copies did not bring."""
        if copies:
            self._lost |= self._plan.names_on({each.page for each in copies}, layer)

    def _store(self, copies: Sequence[Copy]) -> None:
        self._rows.store(copies)
        self.stored_blocks += len(copies)

    def _redirect(self, context: ForwardContext) -> None:
        """Gives each layer a block table and a slot mapping of its own."""
        metadata: Any = context.attn_metadata
        slots: Any = context.slot_mapping
        if strange := set(metadata) ^ set(self._layers):
            raise RuntimeError(f"kvd: layers are not those of the KV cache: {', '.join(sorted(strange))}")
        for layer, at in self._layers.items():
            mine = copy.copy(metadata[layer])
            pages = self._plan.layers[at].pages
            where = torch.full((self._names,), NOBODYS)
            where[list(pages.keys())] = torch.tensor(list(pages.values()))
            where += self._first[at]
            mine.block_table = where[mine.block_table.long()].to(mine.block_table.dtype)
            mine.slot_mapping = _mapped(mine.slot_mapping, where, self._tokens)
            metadata[layer] = mine
            slots[layer] = _mapped(slots[layer], where, self._tokens)


def _mapped(slots: torch.Tensor, where: torch.Tensor, tokens: int) -> torch.Tensor:
    """Slots below 0 are padding."""
    names = (slots.clamp(min=0) // tokens).long()
    return torch.where(slots < 0, slots, (where[names] * tokens + slots % tokens).to(slots.dtype))
