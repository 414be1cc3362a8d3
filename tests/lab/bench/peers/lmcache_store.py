"""LMCache's server for several processes, without a GPU. Its clients copy between pages of their KV
cache and a pool in POSIX shared memory, and tell the server by ZeroMQ (its transfer mode
engine_driven).

The client is LMCache's own, of `lmcache bench server`."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mooncake_store import listens
from store import CALL_S, Failed, Servers, Settings

PORT, _HTTP_PORT = 5555, 8080
_PAGE_TOKENS = 16
_HEAD_BYTES = 128  # 64 values of two bytes
_FIRST_SLOT = 1  # LMCache takes page 0 for an absent one
_FILLER = 7

_names = itertools.count()


class LmcacheRequest:
    def __init__(self, store: LmcacheStore, numbers: Sequence[int]) -> None:
        self._store = store
        self._request = store.context(numbers)
        self._lost = False  # then waiting for the end would only cost ten seconds

    def store(self, slots: Sequence[int], kept: bool = False) -> None:
        assert not kept
        self._copy("store", slots)

    def found(self) -> int:
        answer = self._store.client.lookup(self._request)
        if not answer.succeeded:
            self._lost = True
            raise Failed(f"lookup: {answer.error}")
        return int(answer.hit_chunks)

    def load(self, slots: Sequence[int]) -> None:
        self._copy("retrieve", slots)

    def __enter__(self) -> LmcacheRequest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._lost:
            self._store.client.end_session(self._request)

    def _copy(self, what: str, slots: Sequence[int]) -> None:
        try:
            self._store.copy(what, self._request, slots)
        except Exception:
            self._lost = True
            raise


class LmcacheStore:
    def __init__(self, block_bytes: int, slots: int, chunk_tokens: int) -> None:
        from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
        from lmcache.cli.commands.bench.server_bench.config import BenchConfig

        self._pages = chunk_tokens // _PAGE_TOKENS
        self._chunk_tokens = chunk_tokens
        layers, heads = _shape(block_bytes, chunk_tokens)
        pages = (slots + _FIRST_SLOT) * self._pages
        self.client: Any = ServerBenchClient(
            BenchConfig(
                f"tcp://127.0.0.1:{PORT}", f"http://127.0.0.1:{_HTTP_PORT}", mode="cpu",
                transfer_mode="engine_driven", tp_size=1, use_mla=False, num_tokens=chunk_tokens,
                kvcache_shape_spec=f"(2,{pages},{_PAGE_TOKENS},{heads},64):float16:{layers}",
                num_blocks=pages, block_size=_PAGE_TOKENS,
            ),
            lambda _: None,
        )  # fmt: skip
        self.client.start()
        self._tensors = list(self.client._workers[0].kv_caches.values())

    def fill(self, slot: int, number: int) -> None:
        for part in self._parts(slot):
            part.fill_(number + (1 << 62))

    def holds(self, slot: int, number: int) -> bool:
        return all(bool((part == number + (1 << 62)).all()) for part in self._parts(slot))

    def request(self, numbers: Sequence[int]) -> LmcacheRequest:
        return LmcacheRequest(self, numbers)

    def context(self, numbers: Sequence[int]) -> Any:
        """A prompt that begins with the first number: all its blocks are found by it."""
        from lmcache.cli.commands.bench.server_bench.client import RequestContext

        count = len(numbers) * self._chunk_tokens
        tokens = (numbers[0], *(_FILLER,) * (count - 1))
        name = f"peers-{os.getpid()}-{next(_names)}"
        return RequestContext(
            sequence_id=numbers[0], request_id=name, request_kind="peers", token_ids=tokens,
            num_full_tokens=count, total_chunks=len(numbers), chunk_size=self._chunk_tokens,
            block_offset=0, num_blocks=len(numbers) * self._pages,
        )  # fmt: skip

    def copy(self, what: str, request: Any, slots: Sequence[int]) -> None:
        """Copies slots that follow each other."""
        from dataclasses import replace

        placed = replace(request, block_offset=(slots[0] + _FIRST_SLOT) * self._pages)
        result = getattr(self.client, what)(placed, 0, request.num_full_tokens)
        if result is None or not result.succeeded:
            raise Failed(f"{what} failed")

    def forget(self) -> None:
        self.client._req_client.clear(True).result(timeout=CALL_S)

    def close(self) -> None:
        self.client.close()

    def _parts(self, slot: int) -> list[Any]:
        import torch

        first = (slot + _FIRST_SLOT) * self._pages
        return [
            half.narrow(0, first, self._pages).view(torch.int64)
            for tensor in self._tensors for half in tensor
        ]  # fmt: skip


class Lmcache:
    has_keys = True
    can_keep = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._servers = Servers(settings.folder)
        prepare()

    def start(self) -> None:
        self.restart()

    def stop(self) -> None:
        self._servers.stop()

    def open(self, block_bytes: int, slots: int, owner: bool = False) -> LmcacheStore:
        del owner  # blocks belong to the server, whoever stores them
        return LmcacheStore(block_bytes, slots, self._settings.chunk_tokens)

    def server(self) -> int:
        return self._servers.pid("lmcache")

    def index(self) -> int:
        return self.server()

    def restart(self) -> None:
        self._servers.reap("lmcache")
        program = Path(sys.executable).with_name("lmcache")
        command = [
            str(program), "server", "--host", "127.0.0.1", "--port", str(PORT),
            "--http-host", "127.0.0.1", "--http-port", str(_HTTP_PORT),
            "--supported-transfer-mode", "auto", "--shm-name", f"peers_{os.getpid()}",
            "--l1-size-gb", str(self._settings.pool_bytes / (1 << 30)), "--no-l1-use-lazy",
            "--eviction-policy", "LRU", "--chunk-size", str(self._settings.chunk_tokens),
            "--disable-observability",
        ]  # fmt: skip
        self._servers.start("lmcache", command, {})
        self._servers.wait("lmcache", lambda: listens(PORT))


def prepare() -> None:
    os.environ.update(
        LMCACHE_DISABLE_BANNER="1", LMCACHE_TRACK_USAGE="false", DO_NOT_TRACK="1",
        OMP_NUM_THREADS="1", PYTHONHASHSEED="0", LMCACHE_LOG_LEVEL="WARNING",
    )  # fmt: skip


def _shape(block_bytes: int, chunk_tokens: int) -> tuple[int, int]:
    """How many layers and heads give the K and V of a chunk this many bytes."""
    heads = block_bytes // (2 * chunk_tokens * _HEAD_BYTES)
    layers = 2 if heads >= 16 else 1
    return layers, heads // layers
