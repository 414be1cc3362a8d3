"""The class that vLLM makes: vLLM's calls to pages.py, on threads of its own."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvd_vllm.memory import logger
from kvd_vllm.tier.naming import engine_of_caller, name_of
from kvd_vllm.tier.pages import Kind, Pages, options_of

Keys = Sequence[bytes]


class _Lookups(AsyncLookupManager):
    """vLLM's own way to look up on another thread."""

    def __init__(self, tier_type: str, find: Callable[[Keys], list[bool]]) -> None:
        self._find = find
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[Any], req_context: Any) -> list[bool]:
        return self._find(keys)


class KvdTier(SecondaryTierManager):
    """vLLM calls it on the scheduler's thread, where nothing waits. One thread looks up, one stores and
    one loads.

    Raises ValueError for options that do not exist, which keeps vLLM from starting. Everything else that
    goes wrong is logged, and vLLM goes on with its CPU tier.
    """

    medium = Medium.CPU

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str | None = None,
        **given: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        options = options_of("secondary_tiers", "KvdTier", given)
        self.locality = Locality(locality) if locality is not None else None
        config = offloading_spec.config
        tokens = min(each.tokens_per_block for each in config.groups) * config.cache.blocks_per_chunk
        kind = Kind(name_of(config, engine_of_caller()), tokens, self.block_size_bytes)
        self._chunks = numpy.asarray(primary_kv_view).view(numpy.uint8)
        self._cleared = b""  # changes each time that earlier blocks must not be found again
        self._is_ending = False  # what has not begun is not copied any more
        self._done: SimpleQueue[JobResult] = SimpleQueue()
        self._loading: dict[int, list[Any]] = {}  # keys, by job
        self._pages = Pages(options, kind, logger)
        self._stores = ThreadPoolExecutor(1, "kvd-tier-store")
        self._loads = ThreadPoolExecutor(1, "kvd-tier-load")
        self._lookups = _Lookups(tier_type, lambda keys: self._pages.which(self._digests(keys)))

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        if not self._pages.is_up:
            return LookupResult.MISS  # a request waits a step for the answer of a lookup
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._stores.submit(self._run, job_metadata, self._store)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._loading[job_metadata.job_id] = list(job_metadata.keys)
        self._loads.submit(self._run, job_metadata, self._load)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        found: list[JobResult] = []
        try:
            while True:
                found.append(self._done.get_nowait())
        except Empty:
            pass
        for each in found:
            keys = self._loading.pop(each.job_id, None)
            if keys is not None and not each.success:
                # Otherwise vLLM would find and load them again and again.
                self._lookups.mark_miss(keys[len(each.successful_keys or ()) :])
        return found

    def drain_jobs(self) -> None:
        """vLLM calls it only when it empties its CPU tier, as it does for other weights: this engine finds
        none of its earlier blocks again."""
        self._is_ending = True
        for thread in (self._stores, self._loads):
            thread.submit(int).result()
        self._is_ending = False
        self._cleared = uuid.uuid4().bytes

    def shutdown(self) -> None:
        self._lookups.shutdown()
        for thread in (self._stores, self._loads):
            thread.shutdown(cancel_futures=True)
        del self._chunks  # vLLM gives the memory back, which nothing may look at then
        self._pages.close()

    def _digests(self, keys: Keys) -> list[bytes]:
        return [hashlib.sha256(self._cleared + key).digest() for key in keys]

    def _run(self, job: TransferJob, copy: Callable[[Keys, list[int]], int]) -> None:
        began, keys = time.monotonic(), list(job.keys)
        try:
            count = 0 if self._is_ending else copy(keys, [int(each) for each in job.chunk_ids])
        except Exception:
            # vLLM keeps the chunks of a job until it hears of its end.
            logger.exception("kvd: a copy has failed")
            count = 0
        self._done.put(
            JobResult(
                job.job_id, count == len(keys), tuple(keys[:count]) if job.is_promotion else None,
                time.monotonic() - began, count * self.block_size_bytes,
            )
        )  # fmt: skip

    def _store(self, keys: Keys, chunks: list[int]) -> int:
        """Returns how many kvd has now, those that it had before included."""
        digests = self._digests(keys)
        first = self._pages.lookup(digests)  # kvd passes over what it has behind a gap, too

        def fill(at: int, row: Any) -> None:
            numpy.copyto(row.numpy(), self._chunks[chunks[first + at]])

        return first + self._pages.store(digests[first:], fill)

    def _load(self, keys: Keys, chunks: list[int]) -> int:
        def take(at: int, row: Any) -> None:
            numpy.copyto(self._chunks[chunks[at]], row.numpy())

        return self._pages.load(self._digests(keys), take)
