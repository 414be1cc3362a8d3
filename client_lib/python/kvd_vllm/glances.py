"""Whether the weights of a running engine have changed, without reading all of them."""

from __future__ import annotations

from collections.abc import Callable

from kvd_vllm import identity
from kvd_vllm.identity import Part

# How many tensors one look covers; the next look covers others. Training a model changes most of
# them.
_AT_ONCE = 8


class Glances:
    """Looks at a few of the tensors at a time: whether one has changed since all were noted."""

    def __init__(self, parts: Callable[[], list[Part]]) -> None:
        self._parts = parts
        self._noted: list[tuple[Part, bytes]] = []
        self._at = 0

    def note(self) -> None:
        self._noted = [(part, identity.glimpse_of(part)) for part in self._parts()]

    def is_changed(self) -> bool:
        count = len(self._noted)
        # The tensors are far apart, because neighbours are often changed together.
        step = max(1, count // _AT_ONCE)
        some = [self._noted[(self._at + each * step) % count] for each in range(min(count, _AT_ONCE))]
        self._at += 1
        return any(identity.glimpse_of(part) != before for part, before in some)
