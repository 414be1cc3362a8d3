"""Whether the weights of a running engine have changed, without reading all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvd_vllm import identity
from kvd_vllm.identity import Part

# How many tensors one look covers; the next look covers others. Training a model changes most of
# them.
_AT_ONCE = 8


class Look:
    """What a few tensors hold once a GPU has done the work that it was given before. To wait for that
    between two steps would take away what asynchronous scheduling gains."""

    def __init__(self, samples: Sequence[torch.Tensor], before: bytes) -> None:
        self._before = before
        self._event: torch.cuda.Event | None = None
        device = samples[0].device if samples else torch.device("cpu")
        if device.type == "cuda" and all(each.device == device for each in samples):
            found = torch.cat(list(samples))
            self._seen = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._seen.copy_(found, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))
        else:
            self._seen = torch.cat([each.cpu() for each in samples] or [torch.empty(0)])

    def has_come(self) -> bool:
        return self._event is None or bool(self._event.query())

    def is_changed(self) -> bool:
        """Waits for a look that has not come."""
        if self._event is not None:
            self._event.synchronize()
        return self._seen.numpy().tobytes() != self._before


class Glances:
    """Looks at a few of the tensors at a time: whether one has changed since all were noted."""

    def __init__(self, parts: Callable[[], list[Part]]) -> None:
        self._parts = parts
        self._noted: list[tuple[Part, bytes]] = []
        self._at = 0

    @property
    def count(self) -> int:
        """Tensors."""
        return len(self._noted)

    def note(self) -> None:
        self._noted = [
            (part, b"".join(each.cpu().numpy().tobytes() for each in identity.samples_of(part)))
            for part in self._parts()
        ]

    def begin(self) -> Look:
        """The work given to a GPU from now on is not part of what is looked at."""
        count = self.count
        # The tensors are far apart, because neighbours are often changed together.
        step = max(1, count // _AT_ONCE)
        some = [self._noted[(self._at + each * step) % count] for each in range(min(count, _AT_ONCE))]
        self._at += 1
        samples = [each for part, _ in some for each in identity.samples_of(part)]
        return Look(samples, b"".join(before for _, before in some))

    def is_changed(self) -> bool:
        return self.begin().is_changed()
