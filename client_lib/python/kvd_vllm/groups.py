"""KV cache groups: which blocks of each a prefix needs, and in which order kvd is asked for them.

vLLM divides a model's layers into groups with a block table each. A group looks back at all tokens,
or at a window of them: blocks before the window are vLLM's null block in the group's table.
"""

from __future__ import annotations

from collections.abc import Sequence

# vLLM's null block.
NOTHING = 0

# A request's block ids, by group and position; and one such group and position.
Tables = Sequence[Sequence[int]]
Place = tuple[int, int]


class Groups:
    """`windows`: for each group, how many tokens it looks back; 0: to the first token."""

    def __init__(self, windows: Sequence[int], block_tokens: int) -> None:
        self._windows = tuple(windows)
        self._block_tokens = block_tokens
        self.has_windows = any(windows)
        whole = [group for group, window in enumerate(windows) if not window]
        # The groups of which a prefix needs every block. Where no group looks back at all tokens,
        # these are all groups.
        self.leading = whole or list(range(len(windows)))

    def first_needed(self, group: int, tokens: int) -> int:
        """The first block that the group needs to compute what comes after so many tokens."""
        window = self._windows[group]
        return max(0, tokens - window + 1) // self._block_tokens if window else 0

    def places_ahead(self, last: int) -> list[Place]:
        """The blocks of a prefix that must be there without a gap, in the order in which to ask for
        them."""
        return [(group, at) for at in range(last) for group in self.leading]

    def places_in_windows(self, first: int, last: int) -> list[Place]:
        """What the other groups need at the end of a prefix of `last` blocks, of which `first` are
        there anyway. The last blocks come first."""
        tokens = last * self._block_tokens
        others = [group for group in range(len(self._windows)) if group not in self.leading]
        begin = {group: self.first_needed(group, tokens) for group in others}
        return [
            (group, at)
            for at in range(last - 1, first - 1, -1)
            for group in others
            if at >= begin[group]
        ]


def blocks_at(tables: Tables, first: int, last: int) -> dict[Place, int]:
    """The blocks at these positions, without null blocks."""
    return {
        (group, at): table[at]
        for at in range(first, last)
        for group, table in enumerate(tables)
        if at < len(table) and table[at] != NOTHING
    }
