"""The class that SGLang makes: SGLang's calls to kvd_vllm.tier.pages."""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from kvd_sglang import identity
from kvd_sglang.identity import Refused
from kvd_sglang.options import parse
from kvd_vllm.glances import Glances
from kvd_vllm.identity import UNEXPECTED, parts_of
from kvd_vllm.tier.pages import Kind, Pages

logger = logging.getLogger(__name__)

_KV = "kv"  # SGLang's name of the pool that has one page for all that a model keeps of its tokens


class KvdStorage(HiCacheStorage):
    """SGLang calls it on several threads: one stores, one looks up and one loads.

    Raises ValueError for options that do not exist, which keeps SGLang from starting. Everything else
    that goes wrong is logged, and SGLang goes on without kvd's pages.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self._options = parse(storage_config.extra_config or {})
        self._config = storage_config
        self._scheduler = identity.scheduler_of_caller()
        self._pages: Pages | None = None
        self._glances: Glances | None = None
        self._looking = threading.Lock()
        self._cleared = b""  # changes each time that earlier pages must not be found again
        self._reason = ""  # why nothing is stored or found; "": it is

    # SGLang names its pools: first this one, then every pool by its name, and then that is all.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != _KV:
            self._refuse(f"it keeps more than one page of its tokens (pool {host_pool_name})")

    def on_host_pools_registered(self) -> None:
        if self._reason:
            return
        try:
            pool = self.mem_pool_host
            name = identity.name_of(self._config, pool, self._scheduler)
            model = identity.model_of(self._scheduler)
            self._glances = Glances(lambda: parts_of({"model": model}))
            self._glances.note()
            page = pool.get_data_page(0, flat=False)
        except Refused as fault:
            self._refuse(str(fault))
            return
        except UNEXPECTED as fault:
            self._refuse(f"this SGLang is not as expected: {type(fault).__name__}: {fault}")
            return
        kind = Kind(name, pool.page_size, page.numel() * page.element_size())
        self._pages = Pages(self._options, kind, logger)
        if self._pages.is_up:
            logger.info(
                "kvd: keeps the pages of %d tokens, %d bytes each, as %s", kind.tokens, kind.bytes, name
            )

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()

    def clear(self) -> None:
        """This engine finds none of its earlier pages again. kvd keeps them for others until it needs
        the room."""
        self._cleared = uuid.uuid4().bytes

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        return self._do(0, keys, lambda pages, digests: pages.lookup(digests))

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    # SGLang calls these with "interface_v1": 1. They copy between the window and SGLang's pool.

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        pool = self.mem_pool_host
        first = host_indices[:: pool.page_size].tolist()

        def take(at: int, row: torch.Tensor) -> None:
            pool.set_from_flat_data_page(first[at], row.view(pool.dtype))

        found = self._do(0, keys, lambda pages, digests: pages.load(digests, take))
        return [at < found for at in range(len(keys))]

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        pool = self.mem_pool_host
        first = host_indices[:: pool.page_size].tolist()

        def fill(at: int, row: torch.Tensor) -> None:
            page = pool.get_data_page(first[at], flat=False)
            row.view(page.dtype).view(page.shape).copy_(page)

        stored = self._do(0, keys, lambda pages, digests: pages.store(digests, fill))
        return [at < stored for at in range(len(keys))]

    # SGLang calls these without it, and copies each page once more.

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        pages = target_locations or [self.mem_pool_host.get_dummy_flat_data_page() for _ in keys]

        def take(at: int, row: torch.Tensor) -> None:
            pages[at].view(torch.uint8).copy_(row)

        found = self._do(0, keys, lambda kept, digests: kept.load(digests, take))
        return [page if at < found else None for at, page in enumerate(pages)]

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location] if target_location is not None else None)[0]

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        def fill(at: int, row: torch.Tensor) -> None:
            row.copy_(values[at].contiguous().view(-1).view(torch.uint8))

        return self._do(0, keys, lambda pages, digests: pages.store(digests, fill)) == len(keys)

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return self.batch_set([key], [value])

    # These calls are for several pools. Such an engine is refused, so nothing is there.

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        return PoolTransferResult.empty()

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {each.name: [False] * len(each.keys or []) for each in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {each.name: [False] * len(each.keys or []) for each in transfers}

    def _do(self, otherwise: int, keys: Sequence[str], act: Callable[[Pages, list[bytes]], int]) -> int:
        if self._pages is None or self._reason:
            return otherwise
        if self._is_changed():
            self._refuse("its weights have changed since it began. Restart it, and they are told apart again")
            return otherwise
        return act(self._pages, [self._digest_of(key) for key in keys])

    def _digest_of(self, key: str) -> bytes:
        """SGLang's key is a SHA-256 of the tokens and of all before them, in hexadecimal digits."""
        digest = bytes.fromhex(key)
        return hashlib.sha256(self._cleared + digest).digest() if self._cleared else digest

    def _is_changed(self) -> bool:
        assert self._glances is not None
        with self._looking:
            try:
                return self._glances.is_changed()
            except UNEXPECTED:
                return True

    def _refuse(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason
            logger.warning("kvd: pages of this engine are neither stored nor found: %s", reason)
