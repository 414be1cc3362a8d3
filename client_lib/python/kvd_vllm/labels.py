"""What kvd is told of blocks for routers, and asked of them; nothing here is vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import kvd_client

Cursor = tuple[int, int, int]


class Labels(NamedTuple):
    """What is told of consecutive blocks."""

    digests: Sequence[bytes]
    tokens: Sequence[int]
    parent: bytes | None
    lora: str


class Source:
    """kvd, as the announcer asks it."""

    @property
    def is_up(self) -> bool:
        """False: kvd is gone, and with it all that it had in memory."""
        raise NotImplementedError

    def label(self, labels: Labels) -> bool:
        """False: kvd did not answer, and is to be told again."""
        raise NotImplementedError

    def changes(self, cursor: Cursor) -> kvd_client.Changes | None:
        """None: kvd did not answer."""
        raise NotImplementedError
