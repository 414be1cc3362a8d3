"""A process's session with kvd."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import _abi
from ._handle import Handle, check
from .cache import Cache, Piece, options_of
from .elastic import ElasticRegion
from .region import Region
from .requests import Requests
from .schedule import Scheduling

_TIMEOUT_S = 5.0
# A region may be many GiB, and the daemon zeroes it before it lends it.
_REGION_TIMEOUT_S = 30.0
_STREAMS_LAYERS = 1


class Memory(enum.IntFlag):
    """The kinds of memory that a kvd may have, and which of them a program can use."""

    HOST = 1
    CUDA = 2
    UNMAPPED = 4  # alone, of a program: it maps none, whatever kind kvd lends, and needs no GPU


class Transport(enum.IntEnum):
    """How commands travel. RING saves a few microseconds a command."""

    ZMQ = 0
    RING = 1


class Shape(NamedTuple):
    """The model whose KV the session keeps in blocks; layers = 0: regions only."""

    layers: int = 0
    layers_per_block: int = 0  # 0: the smallest that makes a block >= 256 KiB
    block_tokens: int = 0  # 0: 16
    bytes_per_token_per_layer: int = 0  # K and V together


class Group(NamedTuple):
    """One process of several that split a model's heads; kvd takes them as one engine."""

    id: int = 0  # a number the ranks agreed on, not 0
    ranks: int = 0  # 0: no group
    rank: int = 0  # from 0


class SessionInfo(NamedTuple):
    """What the daemon granted."""

    engine: int  # the session's number in status and metrics
    shape: Shape  # with the defaults filled in
    layer_groups: int
    block_bytes: int
    slab_bytes: int
    generation: int  # changes when the client attaches again; unique together with boot_id
    memory: Memory
    device: int  # the GPU, by this process's count; -1: host memory
    device_uuid: uuid.UUID  # zeros: host memory
    boot_id: uuid.UUID  # of the daemon; changes with its restart


class Stats(NamedTuple):
    """The daemon's counts for this session."""

    region_bytes: int
    hbm_bytes: int
    dram_bytes: int
    requests_waiting: int
    requests_running: int
    requests_rotary: int
    rotations_out: int
    rotations_in: int


class Client(Requests, Scheduling):
    """A session. It leases memory (level 1: allocate()) or lets kvd schedule requests (level 3:
    submit() and step(), see Requests; schedule() for an engine that places its own blocks, see
    Scheduling).

    endpoint: the attach socket; None: $KVD_ENDPOINT, else the daemon's default path.
    engine_name: shown in status and metrics, at most 31 bytes; None: the program's name.
    shape: the model's, for level 3; None: regions only.
    model: all that the bytes of a block depend on besides its tokens and the shape: weights by
      their content (no path, name or time), number format, layout, version. Requests of sessions
      whose models differ share nothing; None: nothing is shared.
    memory: the kinds that the program can use; a kvd that lends another kind is refused with
      Unsupported and the remedy. UNMAPPED, alone: any kvd will do, and allocate() raises.
    streams_layers: the program calls wait_layer() before and layer_done() after each layer group;
      all ranks of a group have to.
    group: this process is a rank of an engine of several processes.
    device: which of kvd's devices should lend the memory, in the order of kvd's [[device]] tables.
    timeout: seconds for the attach, and for attaching again.

    Raises Unavailable where no daemon answers, Unsupported where the library cannot be loaded, and
    whatever the daemon refuses with. A context manager: leaving it closes the session.

    When the daemon is gone, calls raise Unavailable, regions stay readable until freed, and the
    next call attaches again by itself. Threads may share a client. Every call ends by its timeout
    and releases the GIL; a signal interrupts the calls that wait long (wait(), wait_layer()). In a
    forked child every call raises PeerGone, and the regions' addresses are not mapped.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        engine_name: str | None = None,
        shape: Shape | None = None,
        model: str | None = None,
        memory: Memory = Memory.HOST,
        transport: Transport = Transport.ZMQ,
        streams_layers: bool = False,
        group: Group | None = None,
        device: int = 0,
        timeout: float = _TIMEOUT_S,
    ) -> None:
        options = _abi.OpenOptions(struct_size=ctypes.sizeof(_abi.OpenOptions))
        options.endpoint = _abi.text(endpoint)
        options.engine_name = _abi.text(engine_name)
        options.layers, options.layers_per_block, options.block_tokens, \
            options.bytes_per_token_per_layer = shape or Shape()  # fmt: skip
        options.group, options.ranks, options.rank = group or Group()
        options.model = _abi.text(model)
        options.device = device
        options.timeout_ns = _abi.nanoseconds(timeout)
        options.memory, options.transport = memory, transport
        options.abilities = _STREAMS_LAYERS * streams_layers
        self._handle = Handle(options)

    def close(self) -> None:
        """Returns everything that the session holds. Waits for calls of other threads. Where
        something still views a region, its memory is kept until the process ends. Safe to call
        again."""
        self._handle.close()

    def session(self) -> SessionInfo:
        """What the daemon granted, as of the last attach."""
        out = _abi.SessionInfo(ctypes.sizeof(_abi.SessionInfo))
        self._handle.call("kvd_get_session_info", ctypes.byref(out))
        shape = Shape(
            out.layers, out.layers_per_block, out.block_tokens, out.bytes_per_token_per_layer
        )
        return SessionInfo(
            out.engine, shape, out.layer_groups, out.block_bytes, out.slab_bytes, out.generation,
            Memory(out.memory), out.device, uuid.UUID(bytes=bytes(out.device_uuid)),
            uuid.UUID(bytes=bytes(out.boot_id)),
        )  # fmt: skip

    def ping(self, timeout: float = _TIMEOUT_S) -> None:
        """Makes one round trip to the daemon."""
        self._handle.call("kvd_ping", _abi.nanoseconds(timeout))

    def stats(self, timeout: float = _TIMEOUT_S) -> Stats:
        """The daemon's counts for this session: bytes and requests."""
        out = _abi.Stats(ctypes.sizeof(_abi.Stats))
        self._handle.call("kvd_get_stats", _abi.nanoseconds(timeout), ctypes.byref(out))
        return Stats(*(getattr(out, field) for field in Stats._fields))

    def allocate(self, bytes: int, timeout: float = _REGION_TIMEOUT_S) -> Region:
        """A region of at least `bytes` bytes, in whole slabs. Raises OutOfMemory, Infeasible or
        QuotaExceeded where the pool or the quota has no room."""
        lease = _abi.Region(ctypes.sizeof(_abi.Region))
        self._handle.call(
            "kvd_region_allocate", bytes, _abi.nanoseconds(timeout), ctypes.byref(lease)
        )
        return Region(self._handle, lease)

    def reserve(self, bytes: int, timeout: float = _TIMEOUT_S) -> ElasticRegion:
        """Addresses for at least `bytes` bytes, in whole slabs, with nothing behind them yet: see
        ElasticRegion. Raises Unsupported where the memory of this kvd does not allow it."""
        lease = _abi.Region(ctypes.sizeof(_abi.Region))
        self._handle.call(
            "kvd_region_reserve", bytes, _abi.nanoseconds(timeout), ctypes.byref(lease)
        )
        return ElasticRegion(self._handle, lease)

    def cache(
        self,
        model: str,
        *,
        block_tokens: int,
        block_bytes: int,
        region: Region | None = None,
        blocks: int = 0,
        pieces: Sequence[Piece] = (),
        await_remote: bool = False,
        timeout: float = _TIMEOUT_S,
    ) -> Cache:
        """Level 2: kvd's DRAM for blocks that this engine places itself.

        model: all that the bytes of a block depend on besides its digest: weights by their content
          (no path, name or time, under which there may be other weights tomorrow), number format,
          rank, version and kernels, and the order in which the pieces of a block follow each other.
          If you cannot tell, put a random number there.
        block_bytes: bytes of all pieces of a block together.
        region: where the `blocks` blocks are, each made of the `pieces`; None: the cache is only
          for lookups and drops.
        await_remote: lookups raise WouldBlock, and are to be made again soon, while kvd opens the
          disk's files or asks the servers that nodes share for what it lacks: for a tenth of the
          time that computing takes, and at most 0.2 s.

        Raises InvalidArgument where the pieces are not within the region or do not add up."""
        return Cache(
            self._handle,
            options_of(model, block_tokens, block_bytes, region, blocks, pieces, await_remote),
            timeout,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def held_mappings(timeout: float = _TIMEOUT_S) -> Iterator[None]:
    """Use it around the capture of a CUDA graph: within it kvd neither maps nor unmaps memory of a
    GPU in this process. Raises DeadlineExceeded where a mapping under way does not end in time."""
    library = _abi.library()
    check(library.kvd_hold_mappings(_abi.nanoseconds(timeout)))
    try:
        yield
    finally:
        library.kvd_release_mappings()
