"""What routers are told of blocks in kvd: KV events, which vLLM publishes beside its own.

A router hears one stream of an engine. So each engine announces what kvd has of its cache: what it has
stored itself, what others of the node have stored, and after a restart what is still there. kvd tells what
became of labelled blocks (Cache.changes), and whoever stores a block or finds one without a label labels it.
"""

from __future__ import annotations

import functools
import queue
import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import (
    MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored, KVCacheEvent,
)  # fmt: skip
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

from kvd_vllm.copies import Cursor, Labels, Source
from kvd_vllm.doors.callers import callers

if TYPE_CHECKING:
    import kvd_client

# How often kvd is asked what has changed.
_ASK_S = 0.1
# Labels that wait for kvd, in blocks of a request each. Beyond that the oldest are dropped.
_MOST_WAITING = 4096
# What a command labels: kvd takes 1024 blocks and 256 KiB, and others wait meanwhile.
_MOST_BLOCKS, _MOST_BYTES = 512, 192 << 10
_MEDIUMS = (MEDIUM_CPU, MEDIUM_STORAGE)
_NOTHING: Cursor = (0, 0, 0)


@dataclass
class _Block:
    parent: bytes | None = None
    lora: str = ""
    tokens: array[int] = field(default_factory=lambda: array("I"))  # none: kvd has not told of it
    tiers: tuple[bool, bool] = (False, False)  # whether kvd has it in DRAM, on disk
    told: tuple[bool, bool] = (False, False)  # the same, as it was announced
    children: set[bytes] = field(default_factory=set)


def waker_of_caller() -> Callable[[], None]:
    """Makes an idle engine take a step: it waits for requests, and asks its connector nothing meanwhile. The
    engine is found on the stack of the call that makes its connector."""
    for owner in callers():
        waiting = getattr(owner, "input_queue", None)
        if isinstance(waiting, queue.Queue):
            return functools.partial(waiting.put_nowait, (EngineCoreRequestType.WAKEUP, None))
    return lambda: None


def spec_kind(kv_cache_spec: Any) -> str:
    """What vLLM calls the kind of such a group in its own events."""
    kind: str = get_kv_cache_spec_kind(kv_cache_spec).value
    return kind


class View:
    """Where kvd has each labelled block, and what was announced of that.

    Consumers lose a block that they hear of before its parent, and a lookup finds no block behind one that is
    not there. So a block is announced while all blocks before it are, each tier once, parents first, and is
    withdrawn before its parent.

    Owner: one thread. Cost: O(1) a change, and O(blocks behind it) where the first of a chain comes or goes.
    """

    def __init__(self, block_tokens: int, kind: str) -> None:
        self._block_tokens = block_tokens
        self._kind = kind
        self._blocks: dict[bytes, _Block] = {}
        self._stale: set[bytes] = set()  # blocks that kvd has not told of since it started over
        self.events: list[KVCacheEvent] = []

    def __contains__(self, digest: bytes) -> bool:
        """Whether kvd has told of the block."""
        block = self._blocks.get(digest)
        return block is not None and bool(block.tokens)

    def hear(self, changes: kvd_client.Changes) -> None:
        if changes.over:
            self._stale = set(self._blocks)
        for change in changes.all:
            self._stale.discard(change.digest)
            if change.tokens:
                self._place(change)
            else:
                self._forget(change.digest)
        if not changes.more:
            stale, self._stale = self._stale, set()
            for digest in stale:
                self._forget(digest)

    def clear(self) -> None:
        for digest in list(self._blocks):
            self._forget(digest)
        self._blocks = {}
        self._stale = set()

    def _place(self, change: kvd_client.Change) -> None:
        block = self._blocks.setdefault(change.digest, _Block())
        if not block.tokens:
            block.parent, block.lora, block.tokens = change.parent, change.lora, array("I", change.tokens)
            if change.parent is not None:
                self._blocks.setdefault(change.parent, _Block()).children.add(change.digest)
        block.tiers = (change.in_dram, change.on_disk)
        self._settle(change.digest)

    def _forget(self, digest: bytes) -> None:
        block = self._blocks.get(digest)
        if block is None:
            return
        block.tiers = (False, False)
        self._settle(digest)
        self._drop(digest)

    def _drop(self, digest: bytes | None) -> None:
        """Forgets a block that is nowhere and that no known block follows, and those before it."""
        while digest is not None:
            block = self._blocks.get(digest)
            if block is None or any(block.tiers) or block.children:
                return
            del self._blocks[digest]
            if block.parent is not None and block.parent in self._blocks:
                self._blocks[block.parent].children.discard(digest)
            digest = block.parent

    def _is_behind_a_gap(self, block: _Block) -> bool:
        above = self._blocks.get(block.parent) if block.parent is not None else None
        return block.parent is not None and (above is None or not any(above.told))

    def _settle(self, digest: bytes) -> None:
        """Announces the block, and those behind it, as they are now."""
        block = self._blocks[digest]
        now = (False, False) if self._is_behind_a_gap(block) else block.tiers
        was = any(block.told)
        if was and not any(now):
            self._withdraw_behind(digest)
        self._tell(digest, block, now)
        if any(now) and not was:
            self._tell_behind(digest)

    def _tell_behind(self, digest: bytes) -> None:
        ahead = deque(self._blocks[digest].children)
        while ahead:
            child = ahead.popleft()
            block = self._blocks[child]
            self._tell(child, block, block.tiers)
            if any(block.told):
                ahead.extend(block.children)

    def _withdraw_behind(self, digest: bytes) -> None:
        order = []
        ahead = deque(self._blocks[digest].children)
        while ahead:
            child = ahead.popleft()
            if any(self._blocks[child].told):
                order.append(child)
                ahead.extend(self._blocks[child].children)
        for child in reversed(order):
            self._tell(child, self._blocks[child], (False, False))

    def _tell(self, digest: bytes, block: _Block, now: tuple[bool, bool]) -> None:
        for medium, was, is_there in zip(_MEDIUMS, block.told, now, strict=True):
            if is_there and not was:
                self._tell_stored(medium, digest, block)
            elif was and not is_there:
                self._tell_removed(medium, digest)
        block.told = now

    def _tell_stored(self, medium: str, digest: bytes, block: _Block) -> None:
        parent = _number(block.parent) if block.parent is not None else None
        last = self.events[-1] if self.events else None
        if isinstance(last, BlockStored) and parent is not None and last.block_hashes[-1] == parent \
                and (last.medium, last.lora_name or "") == (medium, block.lora):  # fmt: skip
            last.block_hashes.append(_number(digest))
            last.token_ids.extend(block.tokens)
            return
        self.events.append(
            BlockStored(
                block_hashes=[_number(digest)], parent_block_hash=parent, token_ids=list(block.tokens),
                block_size=self._block_tokens, lora_id=None, medium=medium,
                lora_name=block.lora or None, group_idx=0, kv_cache_spec_kind=self._kind,
            )
        )  # fmt: skip

    def _tell_removed(self, medium: str, digest: bytes) -> None:
        last = self.events[-1] if self.events else None
        if isinstance(last, BlockRemoved) and last.medium == medium:
            last.block_hashes.append(_number(digest))
        else:
            self.events.append(
                BlockRemoved(block_hashes=[_number(digest)], medium=medium, group_idx=0)
            )


class Announcer:
    """Follows kvd by a thread of its own, so that no step waits for it, and has an idle engine take a step where
    there is news.

    Owner: label(), allow(), take(), has_news() and close() are the scheduler's.
    """

    def __init__(
        self, source: Source, block_tokens: int, kind: str, wake: Callable[[], None], ask_s: float = _ASK_S
    ) -> None:
        self._source = source
        self._wake = wake
        self._ask_s = ask_s
        self._most = max(1, min(_MOST_BLOCKS, _MOST_BYTES // (32 + 4 * block_tokens)))
        self._block_tokens = block_tokens
        self._waiting: deque[Labels] = deque(maxlen=_MOST_WAITING)
        self._view = View(block_tokens, kind)
        self._cursor = _NOTHING
        self._news: list[KVCacheEvent] = []
        self._lock = threading.Lock()  # guards _news
        self._allowed = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvd-events", daemon=True)
        self._thread.start()

    def label(self, labels: Labels) -> None:
        """Blocks that are stored, or that were found."""
        for at in range(0, len(labels.digests), self._most):
            end = min(at + self._most, len(labels.digests))
            size = self._block_tokens
            self._waiting.append(
                Labels(labels.digests[at:end], labels.tokens[at * size : end * size],
                       labels.digests[at - 1] if at else labels.parent, labels.lora)
            )  # fmt: skip

    def knows(self, digests: Iterable[bytes]) -> bool:
        """Whether all of these blocks have labels."""
        return all(digest in self._view for digest in digests)

    def allow(self, is_allowed: bool) -> None:
        """False: what kvd has is not what this engine would find, and nothing is announced."""
        self._allowed = is_allowed

    def take(self) -> Collection[KVCacheEvent]:
        """What has happened since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def has_news(self) -> bool:
        return bool(self._news)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        more = False
        while more or not self._closed.wait(self._ask_s):
            if self._closed.is_set():
                return
            more = self._follow()
            if not self._view.events:
                continue
            with self._lock:
                self._news += self._view.events
            self._view.events = []
            self._wake()

    def _follow(self) -> bool:
        """True: there is more to hear."""
        if not self._source.is_up or not self._allowed:
            self._view.clear()
            self._cursor = _NOTHING
            return False
        while self._waiting:
            labels = self._waiting.popleft()
            if not self._source.label(labels):
                self._waiting.appendleft(labels)
                return False
        changes = self._source.changes(self._cursor)
        if changes is None:
            return False
        self._view.hear(changes)
        self._cursor = changes.cursor
        return changes.more


def _number(digest: bytes) -> int:
    """What vLLM makes of a hash for consumers that take numbers."""
    return int.from_bytes(digest[-8:], "big")
