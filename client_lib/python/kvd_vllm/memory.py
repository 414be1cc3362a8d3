"""The KV cache in a region of kvd.

vLLM allocates the KV cache of a worker by one torch.zeros(size, dtype=torch.int8). It runs that
call inside the context manager that a connector's get_mem_pool_context() returns. A torch mode used
as that context sees the call and answers it with a region, so no name of vLLM's is replaced.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import kvd_client
from kvd_vllm.devices import client_of_gpu
from kvd_vllm.elastic.chunks import LEAST_CHUNKS, Geometry, geometry_of, whole
from kvd_vllm.elastic.mapping import back_the_base, give_back
from kvd_vllm.layout import Piece
from kvd_vllm.options import Options

# vLLM gives the loggers below its own a handler.
logger = logging.getLogger("vllm.kvd_vllm")

# A call raises one of these where the kvd that knew the session is gone.
_GONE = (kvd_client.Unavailable, kvd_client.PeerGone, kvd_client.StaleSession)

# Regions of engines that ended in this process while tensors still viewed them.
_left: list[tuple[kvd_client.Client, kvd_client.Region]] = []


class KvdRequired(RuntimeError):
    """Raised when `required` is set and the KV cache cannot be in kvd's memory."""


class KvMemory:
    """A worker's KV cache in kvd, or the reason why it is not there.

    Fails open: where kvd refuses or is absent, the log gets one line and vLLM allocates by itself.
    With `required` it raises KvdRequired instead. Use it on the worker's main thread.

    `pieces`: where the `blocks` blocks will lie, for a KV cache that should be elastic; otherwise
    none. `sleeps`: whether vLLM may ask for sleep() and wake().
    """

    def __init__(
        self, options: Options, pieces: Sequence[Piece] = (), blocks: int = 0, sleeps: bool = False
    ) -> None:
        self._options = options
        self._pieces = list(pieces)
        self._blocks = blocks
        self._sleeps = sleeps
        self._geometry: Geometry | None = None
        # What is kept of a reserved region, and kvd's numbers for the memory behind it.
        self._kept: Geometry | None = None
        self._parts: list[int] = []
        self._client: kvd_client.Client | None = None
        self._region: kvd_client.Region | None = None
        self._refused = False

    @property
    def client(self) -> kvd_client.Client | None:
        """The worker's session, while it has the region."""
        return self._client

    @property
    def region(self) -> kvd_client.Region | None:
        """Where the KV cache lies; None: not in kvd."""
        return self._region

    @property
    def geometry(self) -> Geometry | None:
        """How an elastic region is divided; None: the region is whole, or there is none."""
        return self._geometry

    def allocation(self) -> TorchFunctionMode:
        """The context for vLLM's one allocation."""
        return _Allocation(self)

    def allocate(self, count: int, device: torch.device) -> torch.Tensor | None:
        """`count` zeroed bytes on the device, as torch.zeros returns them; None: take other memory.
        """
        _free_what_was_left()
        kind = kvd_client.Memory.CUDA if device.type == "cuda" else kvd_client.Memory.HOST
        try:
            self._client = self._open(kind, device)
            self._region = self._reserve(count) if self._pieces else None
            if self._region is None and self._sleeps:
                self._region = self._reserve_whole(count)
            if self._region is None:
                self._region = self._client.allocate(count, timeout=self._options.timeout_s)
        except kvd_client.KvdError as fault:
            self._refuse(f"{type(fault).__name__}: {fault}{_hint(fault, count)}")
            return None
        logger.info(
            "kvd: the KV cache of %d bytes lies in kvd's pool (region of %d bytes, engine %d)",
            count, self._region.bytes, self._client.session().engine,
        )  # fmt: skip
        tensor: torch.Tensor = self._region.torch(count).view(torch.int8)
        return tensor

    def _open(self, kind: kvd_client.Memory, device: torch.device) -> kvd_client.Client:
        """A session for memory of the device that vLLM computes on."""
        session = functools.partial(
            kvd_client.Client, self._options.endpoint, engine_name=self._options.engine_name,
            transport=kvd_client.Transport.RING, memory=kind, timeout=self._options.timeout_s,
        )  # fmt: skip
        if kind == kvd_client.Memory.HOST:
            return session()
        number = torch.cuda.current_device() if device.index is None else device.index
        gpu: Any = torch.cuda.get_device_properties(number)
        return client_of_gpu(lambda each: session(device=each), uuid.UUID(str(gpu.uuid)))

    def _reserve(self, count: int) -> kvd_client.ElasticRegion | None:
        """Addresses for all of the KV cache, with memory behind what is kept; None: it cannot be
        elastic."""
        assert self._client is not None
        try:
            region = self._client.reserve(count, timeout=self._options.timeout_s)
        except kvd_client.Unsupported as fault:
            if self._options.required:
                raise
            logger.warning("kvd: the KV cache is not elastic: %s", fault)
            return None
        slab = region.granularity
        division = geometry_of(self._pieces, self._blocks, slab, region.bytes // slab)
        geometry = division.keeping(self._options.elastic_kept_bytes) if division else None
        if geometry is None or not geometry.elastic:
            region.free(timeout=self._options.timeout_s)
            logger.warning(
                "kvd: the KV cache is not elastic: its %d blocks are no %d chunks of whole slabs of "
                "%d bytes beyond what is kept; give vLLM more memory (--kv-cache-memory-bytes), or "
                "kvd smaller slabs (pool.slab)", self._blocks, LEAST_CHUNKS, slab,
            )  # fmt: skip
            return None
        self._back(region, geometry)
        self._geometry = geometry
        logger.info(
            "kvd: the KV cache is elastic: %d bytes are kept, and %d times %d come and go",
            geometry.kept_bytes, len(geometry.elastic), geometry.grain_bytes,
        )  # fmt: skip
        return region

    def _reserve_whole(self, count: int) -> kvd_client.ElasticRegion | None:
        """Addresses with memory behind all of them, which can be taken away; None: kvd cannot do that."""
        assert self._client is not None
        try:
            region = self._client.reserve(count, timeout=self._options.timeout_s)
        except kvd_client.Unsupported as fault:
            logger.warning("kvd: the KV cache keeps its memory while vLLM sleeps: %s", fault)
            return None
        slab = region.granularity
        self._back(region, whole(self._blocks, slab, region.bytes // slab))
        return region

    def _back(self, region: kvd_client.ElasticRegion, geometry: Geometry) -> None:
        try:
            self._parts = back_the_base(region, geometry, self._options.timeout_s)
        except kvd_client.KvdError:
            region.free(timeout=self._options.timeout_s)
            raise
        self._kept = geometry

    def sleep(self) -> None:
        """Gives kvd the memory behind the KV cache, which nobody may touch until wake(). Its addresses
        stay. Chunks of an elastic KV cache go by themselves. A second call changes nothing."""
        if not isinstance(self._region, kvd_client.ElasticRegion) or self._kept is None:
            return
        parts, self._parts = self._parts, []
        try:
            give_back(self._region, parts)
            if parts:
                self._region.share(kept=0, least=0, wanted=0, grain=self._kept.slab)
                logger.info("kvd: %d bytes of the KV cache are kvd's again while vLLM sleeps", self._kept.kept_bytes)
        except _GONE as fault:
            logger.warning("kvd: the KV cache keeps its memory while vLLM sleeps: %s", fault)
            self._kept = None  # the kvd that knew of it is gone

    def wake(self) -> None:
        """Takes the memory again, zeroed. Raises KvdRequired where kvd has none within the time that the
        start may take: vLLM may try again. A second call changes nothing."""
        if not isinstance(self._region, kvd_client.ElasticRegion) or self._kept is None or self._parts:
            return
        try:
            self._parts = back_the_base(self._region, self._kept, self._options.timeout_s)
        except kvd_client.KvdError as fault:
            remedy = "restart vLLM" if isinstance(fault, _GONE) else "wake vLLM again once there is room"
            raise KvdRequired(f"kvd: the KV cache does not get its memory back: {fault}; {remedy}") from fault

    def check_pieces(self, pieces: Sequence[Piece]) -> None:
        """Checks that the blocks of an elastic region lie where vLLM said they would. Raises
        KvdRequired: by now vLLM would run into memory that is not there."""
        if self._geometry is not None and list(pieces) != self._pieces:
            raise KvdRequired(
                "kvd: blocks do not lie where vLLM said that they would, so the KV cache cannot grow "
                "and shrink; take KvdConnector's option `elastic` away"
            )

    def check(self, tensors: Iterable[torch.Tensor]) -> None:
        """Whether vLLM computes on what was allocated here. Call it with all tensors."""
        outside = sum(not self.holds(tensor) for tensor in tensors)
        if outside and not self._refused:
            self._refuse(
                f"vLLM made {outside} KV tensors elsewhere: this version allocates in a way that "
                "is not known; python -m kvd_vllm doctor says more"
            )

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether all of the tensor's storage lies in the region."""
        if self._region is None:
            return False
        storage = tensor.untyped_storage()
        begin = storage.data_ptr() - self._region.address
        return 0 <= begin and begin + storage.nbytes() <= self._region.bytes

    def release(self) -> None:
        """Gives the region back, at the latest when this process ends."""
        if self._client is not None and self._region is not None:
            _left.append((self._client, self._region))
        elif self._client is not None:
            self._client.close()
        self._client = self._region = self._geometry = self._kept = None
        self._parts = []
        _free_what_was_left()

    def _refuse(self, why: str) -> None:
        self._refused = True
        self.release()
        if self._options.required:
            raise KvdRequired(
                f"kvd: {why}. The engine is not started, as KvdConnector's option `required` (or "
                "KVD_VLLM_REQUIRED) is set; without it vLLM runs on memory of its own"
            )
        logger.warning("kvd: not used, the KV cache is vLLM's own memory: %s", why)


class _Allocation(TorchFunctionMode):
    """Answers the allocation of the KV cache; every other call goes through unchanged."""

    def __init__(self, memory: KvMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        count = _bytes_asked(args, kwargs) if func is torch.zeros else None
        if count is not None:
            device = torch.device(kwargs.get("device") or torch.get_default_device())
            tensor = self._memory.allocate(count, device)
            if tensor is not None:
                return tensor
        return func(*args, **kwargs)


def _bytes_asked(args: Any, kwargs: dict[str, Any]) -> int | None:
    """The size of torch.zeros(size, dtype=torch.int8, device=…), one-dimensional."""
    if len(args) != 1 or kwargs.get("dtype") is not torch.int8 or set(kwargs) - {"dtype", "device"}:
        return None
    size = args[0]
    if isinstance(size, (tuple, list, torch.Size)) and len(size) == 1:
        size = size[0]
    return size if isinstance(size, int) and size > 0 else None


def _hint(fault: kvd_client.KvdError, count: int) -> str:
    no_room = (
        kvd_client.OutOfMemory, kvd_client.QuotaExceeded, kvd_client.Infeasible,
        kvd_client.InvalidArgument,
    )  # fmt: skip
    if not isinstance(fault, no_room):
        return ""
    return f" (vLLM asks for {count} bytes; --kv-cache-memory-bytes N makes it ask for N)"


def _free_what_was_left() -> None:
    for entry in list(_left):
        client, region = entry
        try:
            region.free()
        except kvd_client.WouldBlock:
            continue  # a tensor still views it
        except kvd_client.KvdError as fault:
            logger.warning("kvd: a region was not given back: %s", fault)
        _left.remove(entry)
        client.close()
