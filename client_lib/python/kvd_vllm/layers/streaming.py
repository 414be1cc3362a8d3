"""A worker's side: makes each layer's attention find its blocks, and copies what a plan says."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import kvd_client
import torch

from kvd_vllm.layers.placement import Running, place
from kvd_vllm.layers.table import NOBODYS, Copy, Plan, Table

if TYPE_CHECKING:
    from vllm.forward_context import ForwardContext

_MOST_BLOCKS = 4096  # what kvd takes in one call
_PAUSE_S = 0.001


class Rows(Protocol):
    """DRAM. Copies run beside the caller until they are waited for."""

    def store(self, copies: Sequence[Copy]) -> list[int]: ...
    def load(self, copies: Sequence[Copy]) -> list[int]: ...
    def wait(self, tickets: Sequence[int]) -> None: ...
    def drop(self, rows: Sequence[int]) -> None: ...


class KvdRows(Rows):
    """Rows in kvd's DRAM; a cache of pages of one layer. Raises RuntimeError where a copy fails or is not
    over in `patience_s`: what the step would compute is not known to be right, so the engine ends."""

    def __init__(self, cache: kvd_client.Cache, patience_s: float) -> None:
        self._cache = cache
        self._patience_s = patience_s

    def store(self, copies: Sequence[Copy]) -> list[int]:
        return self._begin(partial(self._cache.store, park=True), copies)

    def load(self, copies: Sequence[Copy]) -> list[int]:
        return self._begin(self._cache.load, copies)

    def wait(self, tickets: Sequence[int]) -> None:
        if not tickets:
            return
        try:
            states = self._cache.wait(tickets, timeout=self._patience_s)
        except kvd_client.KvdError as fault:
            raise self._failed(fault) from fault
        if kvd_client.TicketState.FAILED in states:
            raise self._failed("a copy failed")

    def drop(self, rows: Sequence[int]) -> None:
        try:
            for at in range(0, len(rows), _MOST_BLOCKS):
                self._cache.drop([_digest(row) for row in rows[at : at + _MOST_BLOCKS]], self._patience_s)
        except kvd_client.KvdError as fault:
            raise self._failed(fault) from fault

    def _begin(self, call: Callable[..., int], copies: Sequence[Copy]) -> list[int]:
        tickets = []
        for at in range(0, len(copies), _MOST_BLOCKS):
            part = copies[at : at + _MOST_BLOCKS]
            tickets.append(self._begun(call, [_digest(each.row) for each in part], [each.page for each in part]))
        return tickets

    def _begun(self, call: Callable[..., int], digests: list[bytes], pages: list[int]) -> int:
        """kvd refuses for a moment while it makes DRAM ready."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return call(digests, pages, timeout=self._patience_s)
            except kvd_client.WouldBlock as fault:
                if time.monotonic() > deadline:
                    raise self._failed(fault) from fault
                time.sleep(_PAUSE_S)
            except kvd_client.KvdError as fault:
                raise self._failed(fault) from fault

    def _failed(self, why: object) -> RuntimeError:
        return RuntimeError(f"kvd: blocks of streamed layers are out of reach: {why}")


class Streams:
    """One worker's layers. `layers`: vLLM's names, in the order in which it computes them. `first`: for
    each layer, how many blocks lie between its own first one and page 0.

    Use it on the worker's main thread, in the order in which vLLM calls a connector.
    """

    def __init__(self, table: Table, rows: Rows, layers: Sequence[str], first: Sequence[int], names: int,
                 tokens: int) -> None:  # fmt: skip
        self._table = table
        self._rows = rows
        self._layers = {layer: at for at, layer in enumerate(layers)}
        self._first = list(first)
        self._names = names
        self._tokens = tokens
        self._plan = Plan([])
        self._staged: list[int] = []  # the staged layers of the step that are not fetched yet
        self._fetches: dict[int, list[int]] = {}  # by layer; its tickets
        self.fetched_blocks = self.stored_blocks = 0

    def release(self, names: Iterable[int]) -> None:
        """Before a step. The content of these blocks is not needed any more."""
        self._table.release(names)

    def begin(self, requests: Sequence[Running], context: ForwardContext) -> None:
        """Before the forward pass."""
        placement = place(requests, len(self._first), self._table.pages, self._tokens)
        self._plan = plan = self._table.step(requests, placement)
        self._store(plan.out)
        self._rows.wait(self._rows.load(plan.back))
        self.fetched_blocks += len(plan.back)
        self._staged = [at for at, each in enumerate(plan.layers) if each.is_staged]
        self._fetches = {}
        for at, each in enumerate(plan.layers):
            if not each.is_staged:
                self._fetch(at)
        for _ in range(plan.windows):
            self._fetch_next()
        self._redirect(context)

    def wait(self, layer: str) -> None:
        """Before the attention of a layer, after its new tokens were written."""
        self._rows.wait(self._fetches.pop(self._layers[layer]))

    def save(self, layer: str) -> None:
        """After the attention of a layer. Then its window is the next one's, where new tokens are written
        before anything asks whether they may."""
        each = self._plan.layers[self._layers[layer]]
        self._store(each.store)
        if each.is_staged:
            self._fetch_next()

    def end(self) -> None:
        """After the forward pass."""
        self._rows.drop(self._plan.dead)
        self._plan = Plan([])

    def _fetch_next(self) -> None:
        if self._staged:
            self._fetch(self._staged.pop(0))

    def _fetch(self, layer: int) -> None:
        copies = self._plan.layers[layer].fetch
        self._fetches[layer] = self._rows.load(copies)
        self.fetched_blocks += len(copies)

    def _store(self, copies: Sequence[Copy]) -> None:
        self._rows.wait(self._rows.store(copies))
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


def _digest(row: int) -> bytes:
    return row.to_bytes(32, "big")
