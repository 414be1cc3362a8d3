"""Where each block of each layer lies: in a page of HBM, in a row of DRAM, or in both.

A page has one block of one layer. All layers share the pages. A row is never written twice, so what
is late can never be taken for what came after it.

Blocks may be lost: kvd had them and is gone. The table knows how many tokens of a block hold what they
should in all layers, so that a request which reads more is found out and computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvd_vllm.layers.placement import NoRoom, Placement, Running, partial_names, stays

NOBODYS = 0  # the page that vLLM's padding names; zeros


class Copy(NamedTuple):
    """A block of a layer, to or from DRAM."""

    row: int
    page: int


@dataclass
class LayerPlan:
    """One layer in one step."""

    pages: dict[int, int] = field(default_factory=dict)  # by name: where the step finds it
    fetch: list[Copy] = field(default_factory=list)  # before its attention, from the beginning of the step on
    then: dict[int, list[Copy]] = field(default_factory=dict)  # by later layer: the same, once this one is read
    store: list[Copy] = field(default_factory=list)  # after its attention


@dataclass
class Plan:
    """What a worker does in a step. `out` comes first of all, then `back`: blocks that the step writes to.
    Each is over before anything else begins. The rows `dead` are dropped when the step is over."""

    layers: list[LayerPlan]
    out: list[Copy] = field(default_factory=list)
    back: list[Copy] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)

    def names_on(self, pages: set[int], layer: int) -> set[int]:
        """Blocks that this layer or a later one finds there: a copy that is late may come any time."""
        found = (each.pages.items() for each in self.layers[layer:])
        return {name for items in found for name, page in items if page in pages}


class Table:
    """Knows `layers` layers that share `pages` pages. A block has `tokens` tokens."""

    def __init__(self, layers: int, pages: int, tokens: int) -> None:
        self.pages = pages - 1  # that blocks may have
        self._tokens = tokens
        self._free = list(range(pages - 1, NOBODYS, -1))
        self._page: list[dict[int, int]] = [{} for _ in range(layers)]
        self._row: list[dict[int, int]] = [{} for _ in range(layers)]
        self._rows = 0  # that there ever were
        self._dead: list[int] = []
        self._aside: set[int] = set()
        self._sound: dict[int, int] = {}  # by name, its tokens from the first on that are as they should be
        self._requests: Sequence[Running] = []  # what the step computes

    def release(self, names: Iterable[int]) -> None:
        """The content of these blocks is not needed any more."""
        for name in names:
            for layer in range(len(self._page)):
                self._give_up(layer, name)
                self._forget_row(layer, name)
            self._sound.pop(name, None)

    def set_aside(self, pages: set[int]) -> None:
        """Between steps. No block has these pages until a later call leaves them out."""
        if pages == self._aside:
            return
        for layer in self._page:
            for name in [name for name, page in layer.items() if page in pages]:
                self._free.append(layer.pop(name))
        self._free = [page for page in [*self._free, *self._aside] if page not in pages]
        self.pages += len(self._aside) - len(pages)
        self._aside = pages

    def end(self, lost: Iterable[int]) -> set[int]:
        """After a step that lacked `lost` in some layer. Returns the blocks that a request reads and that
        do not hold what they should; at least one of each such request."""
        tokens, unsound = self._tokens, set[int]()
        spoiled: dict[int, int] = {}  # by name, from which token on what is written means nothing
        self._sound.update(dict.fromkeys(lost, 0))
        for names, before, after, _ in self._requests:
            for at in range(before // tokens, -(-after // tokens)):
                written_before = max(before - at * tokens, 0)
                self._sound[names[at]] = min(self._sound.get(names[at], 0), written_before)
        # What a request reads is written before the step, or in it by one that is less far.
        for names, before, after, _ in sorted(self._requests, key=lambda each: each.before):
            read = enumerate(names[: -(-before // tokens)])
            faults = {name for at, name in read if self._sound.get(name, 0) < min(before - at * tokens, tokens)}
            unsound |= faults
            for at in range(before // tokens, -(-after // tokens)):
                name = names[at]
                if faults:
                    spoiled[name] = min(spoiled.get(name, tokens), max(before - at * tokens, 0))
                else:
                    self._sound[name] = max(self._sound[name], min(after - at * tokens, tokens))
                self._sound[name] = min(self._sound[name], spoiled.get(name, tokens))
        self._requests = []
        return unsound

    def step(self, requests: Sequence[Running], placement: Placement) -> Plan:
        """Changes the table to what it is after the step; call end() then. Raises NoRoom where the
        placement does not fit; the table is of no use then."""
        tokens, self._requests = self._tokens, requests
        used = {name for each in requests for name in each.names[: -(-each.after // tokens)]}
        fresh = {
            name
            for names, before, after, _ in requests
            for name in names[-(-before // tokens) : -(-after // tokens)]
        }
        partial = partial_names(requests, tokens)
        written = {name for names, before, after, _ in requests
                   for name in names[before // tokens : -(-after // tokens)]}  # fmt: skip
        full = {name for names, _, after, _ in requests for name in names[: after // tokens]}
        stay = stays(requests, placement.resident)
        plan = Plan([LayerPlan() for _ in self._page])
        self.release(fresh)
        kept = [
            {name for name in used if name in partial or layer in stay[name]}
            for layer in range(len(self._page))
        ]
        for layer, names in enumerate(kept):
            for name in sorted(used - names):
                self._leave(layer, name, plan)
        self._make_room(used, kept, placement.windows, plan)
        # What is fetched has pages of its own: if it comes late it harms nothing that is written.
        staged: dict[int, list[int]] = {}  # by name, its pages, with which the layers that stream take turns
        turns: dict[int, list[int]] = {}  # by name, the layers that stream
        for layer, names in enumerate(kept):
            of = plan.layers[layer]
            for name in sorted(names):
                if name not in self._page[layer]:
                    self._page[layer][name] = self._free.pop()
                    fetch = plan.back if name in written else of.fetch
                    self._fetch(layer, name, self._page[layer][name], name in fresh, fetch)
                of.pages[name] = self._page[layer][name]
            for name in sorted(used - names):
                before, pages = turns.setdefault(name, []), staged.setdefault(name, [])
                fetch = of.fetch
                if len(before) < placement.windows:
                    pages.append(self._free.pop())
                else:
                    fetch = plan.layers[before[-placement.windows]].then.setdefault(layer, [])
                of.pages[name] = pages[len(before) % placement.windows]
                before.append(layer)
                self._fetch(layer, name, of.pages[name], name in fresh, fetch)
            for name in sorted(written):
                self._forget_row(layer, name)
            for name in sorted(full):
                if layer not in stay[name] and name not in self._row[layer]:
                    of.store.append(Copy(self._new_row(layer, name), of.pages[name]))
        for pages in staged.values():
            self._free += pages
        plan.dead, self._dead = self._dead, []
        return plan

    def _fetch(self, layer: int, name: int, page: int, is_fresh: bool, fetch: list[Copy]) -> None:
        if not is_fresh and name in self._row[layer]:
            fetch.append(Copy(self._row[layer][name], page))

    def _make_room(self, used: set[int], kept: list[set[int]], windows: int, plan: Plan) -> None:
        """Blocks that the step does not use make way as far as it needs their pages."""
        need = sum(name not in self._page[layer] for layer, names in enumerate(kept) for name in names)
        streamed = Counter(name for names in kept for name in used - names)
        need += sum(min(windows, layers) for layers in streamed.values())
        for layer in range(len(self._page)):
            for name in sorted(self._page[layer].keys() - used):
                if len(self._free) >= need:
                    return
                self._leave(layer, name, plan)
        if len(self._free) < need:
            raise NoRoom(f"a step takes {need} more pages, and {len(self._free)} are free")

    def _leave(self, layer: int, name: int, plan: Plan) -> None:
        page = self._page[layer].get(name)
        if page is None:
            return
        if name not in self._row[layer]:
            plan.out.append(Copy(self._new_row(layer, name), page))
        self._give_up(layer, name)

    def _give_up(self, layer: int, name: int) -> None:
        page = self._page[layer].pop(name, None)
        if page is not None:
            self._free.append(page)

    def _new_row(self, layer: int, name: int) -> int:
        self._rows += 1
        self._row[layer][name] = self._rows
        return self._rows

    def _forget_row(self, layer: int, name: int) -> None:
        row = self._row[layer].pop(name, None)
        if row is not None:
            self._dead.append(row)
