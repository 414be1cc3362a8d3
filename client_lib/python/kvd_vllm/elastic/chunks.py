"""Which memory of an elastic KV cache goes and comes together: blocks in chunks, each of which has
whole slabs of its own.

A slab of kvd holds many blocks of one layer, and a block lies in one slab of each layer. So memory
is given back by as many neighbouring blocks as fill whole slabs everywhere: a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kvd_vllm.layout import Piece

# With fewer chunks there is nothing worth giving back.
LEAST_CHUNKS = 4
# Larger chunks are tried where a layer does not begin with a slab: if a chunk begins and ends
# within slabs, only the slabs between belong to it alone.
_FACTORS = (1, 2, 4, 8)
_NOBODY, _SEVERAL = -1, -2


class Geometry(NamedTuple):
    """How `blocks` blocks lie in slabs of `slab` bytes. A position is a slab's number in the region."""

    blocks: int
    chunk_blocks: int
    slab: int
    base: tuple[int, ...]  # positions that always have memory
    chunks: tuple[tuple[int, ...], ...]  # positions that a chunk has alone; (): it lies in the base

    def blocks_of(self, chunk: int) -> range:
        begin = chunk * self.chunk_blocks
        return range(begin, min(begin + self.chunk_blocks, self.blocks))

    @property
    def elastic(self) -> list[int]:
        """The chunks that come and go."""
        return [at for at, positions in enumerate(self.chunks) if positions]

    @property
    def kept_blocks(self) -> int:
        """Blocks that always have memory, without vLLM's null block."""
        return sum(len(self.blocks_of(at)) for at, has in enumerate(self.chunks) if not has) - 1

    @property
    def kept_bytes(self) -> int:
        return len(self.base) * self.slab

    @property
    def most_bytes(self) -> int:
        return (len(self.base) + sum(map(len, self.chunks))) * self.slab

    @property
    def grain_bytes(self) -> int:
        """What a chunk gives or takes; the last chunk may be smaller."""
        return max(1, *map(len, self.chunks)) * self.slab

    def keeping(self, count: int) -> Geometry:
        """The geometry with more chunks in its base, until the base has `count` bytes."""
        base, chunks = list(self.base), list(self.chunks)
        for at in self.elastic:
            if len(base) * self.slab >= count:
                break
            base += chunks[at]
            chunks[at] = ()
        return self._replace(base=tuple(sorted(base)), chunks=tuple(chunks))


def whole(blocks: int, slab: int, positions: int) -> Geometry:
    """All memory of the blocks comes and goes together, and never by itself: that is for sleep."""
    return Geometry(blocks, blocks, slab, tuple(range(positions)), ((),))


def geometry_of(pieces: Sequence[Piece], blocks: int, slab: int, positions: int) -> Geometry | None:
    """The division of a region of `positions` positions that keeps the least; None: it has too few
    blocks. The base has block 0, which vLLM pads with."""
    size = math.lcm(*(slab // math.gcd(slab, piece.stride) for piece in pieces))
    found = [
        _divided(pieces, blocks, slab, positions, size * factor)
        for factor in _FACTORS
        if -(-blocks // (size * factor)) >= LEAST_CHUNKS
    ]
    useful = [each for each in found if len(each.elastic) >= LEAST_CHUNKS - 1]
    return min(useful, key=lambda each: len(each.base)) if useful else None


def _divided(
    pieces: Sequence[Piece], blocks: int, slab: int, positions: int, size: int
) -> Geometry:
    count = -(-blocks // size)
    owner = [_NOBODY] * positions
    for piece in pieces:
        for chunk in range(count):
            last = min((chunk + 1) * size, blocks) - 1
            begin = piece.offset + chunk * size * piece.stride
            end = piece.offset + last * piece.stride + piece.bytes
            for at in range(begin // slab, -(-end // slab)):
                owner[at] = chunk if owner[at] in (_NOBODY, chunk) else _SEVERAL
    own: list[list[int]] = [[] for _ in range(count)]
    base = []
    for at, chunk in enumerate(owner):
        if chunk > 0:
            own[chunk].append(at)
        else:
            base.append(at)
    return Geometry(blocks, size, slab, tuple(base), tuple(map(tuple, own)))
