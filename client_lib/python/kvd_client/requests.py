"""Level 3: what an engine tells kvd of its requests, and what kvd tells it to run.

Counts are tokens and blocks, times are seconds. kvd.h says more about each field.
"""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from . import _abi
from ._handle import SLICE_S, Handle
from .errors import InvalidArgument

_TIMEOUT_S = 5.0
_FINISHED = 1
_MOST_BLOCKS = 1 << 24  # in a row of a table
_REPORT = struct.Struct("<QQII")
assert _REPORT.size == ctypes.sizeof(_abi.StepReport)


class RunFlag(enum.IntFlag):
    """KVD_RUN_…"""

    PREFILL = 1
    SWAPPED_IN = 2
    STREAMED = 4  # wait_layer() before each layer group of the iteration


class HoldReason(enum.IntEnum):
    """kvd_hold_reason: why a request does not run."""

    NONE = 0
    WAITING = 1
    NO_MEMORY = 2
    SWAPPED_OUT = 3
    PROMISED = 4
    SLAB_NOT_MAPPED = 5
    FORCED = 6
    COMPLETE = 7
    PAUSED = 8
    OUT_OF_MEMORY = 9
    DRAINED = 10


class Direction(enum.IntEnum):
    """kvd_direction, for rotate()."""

    OUT = 1
    IN = 2


class Request(NamedTuple):
    """`id` is the engine's own number. Goals are in seconds; 0: the domain's default. Requests
    whose leading tokens, LoRA adapter and salt are the same find each other's blocks. `tokens` are
    the ids of all prompt_tokens tokens; with None nothing is kept or found."""

    id: int
    prompt_tokens: int
    max_new_tokens: int
    ttft_slo: float = 0.0
    tbt_slo: float = 0.0
    tokens: Sequence[int] | None = None
    adapter: str | None = None
    salt: str | None = None
    gap_slo: float = 0.0  # the longest wait for a token after the first


class Report(NamedTuple):
    """What a request did in the iteration that ended: tokens whose KV is complete."""

    request: int
    tokens: int
    finished: bool = False


class Run(NamedTuple):
    """A request of the next iteration. `ticket` is for wait() before its blocks are touched."""

    request: int
    tokens_present: int
    ticket: int
    tokens: int
    flags: RunFlag
    distance: int
    row: int


class Hold(NamedTuple):
    """A request that does not run, and why (a HoldReason, or a number that a newer kvd added)."""

    request: int
    reason: int


class Step(NamedTuple):
    """The answer to step()."""

    iteration: int
    run: list[Run]
    hold: list[Hold]


class Place(NamedTuple):
    """How much of a request stays in HBM. Layers k, 2k, … stream, with k = distance; 0: none."""

    request: int
    resident_blocks: int
    distance: int


class Placement(NamedTuple):
    """The answer to place()."""

    budget_blocks: int
    entries: list[Place]


class Requests:
    """The level-3 calls of a Client. Each raises a KvdError. Unavailable says once that the daemon
    died: drop the step's tokens and submit the requests again."""

    _handle: Handle

    def submit(self, request: Request, timeout: float = _TIMEOUT_S) -> None:
        """Hands a request to kvd; step() says when it runs."""
        if request.tokens is not None and len(request.tokens) != request.prompt_tokens:
            raise InvalidArgument(
                f"{len(request.tokens)} tokens are given, but prompt_tokens is {request.prompt_tokens}"
            )
        given = _abi.Request(
            ctypes.sizeof(_abi.Request), request.id, request.prompt_tokens, request.max_new_tokens,
            _abi.nanoseconds(request.ttft_slo), _abi.nanoseconds(request.tbt_slo),
        )  # fmt: skip
        if request.tokens is not None:
            given.tokens = _tokens_of(request.tokens)
        given.adapter = _abi.text(request.adapter)
        given.salt = _abi.text(request.salt)
        given.gap_slo_ns = _abi.nanoseconds(request.gap_slo)
        self._handle.call("kvd_submit", ctypes.byref(given), _abi.nanoseconds(timeout))

    def append_tokens(
        self, request: int, tokens: Sequence[int], timeout: float = _TIMEOUT_S
    ) -> None:
        """Tells tokens of the answer, which follow those told before. Blocks that they fill can be
        found once the request has ended. Call it before the report that ends the request. Raises
        NotFound for a request that was submitted without tokens."""
        self._handle.call(
            "kvd_append_tokens", request, _tokens_of(tokens), len(tokens), _abi.nanoseconds(timeout)
        )

    def name_blocks(
        self, request: int, first: int, digests: Sequence[bytes], timeout: float = _TIMEOUT_S
    ) -> None:
        """In place of tokens: digests of 32 bytes that the engine has made itself, for the blocks
        from `first` on, in order and each once."""
        if any(len(digest) != 32 for digest in digests):
            raise InvalidArgument("a digest has 32 bytes")
        self._handle.call(
            "kvd_name_blocks", request, first, b"".join(digests), len(digests),
            _abi.nanoseconds(timeout),
        )  # fmt: skip

    def step(
        self,
        reports: Sequence[Report] = (),
        finished: int = 0,
        running: int = 0,
        timeout: float = _TIMEOUT_S,
    ) -> Step:
        """Reports what the last iteration did and learns what the next one runs. `finished` is the
        highest iteration whose reads and writes are done, `running` the one still executing (0:
        none). One thread at a time: the answer is copied from memory that the next step reuses."""
        given = _reports_of(reports)
        question = _abi.StepInput(
            ctypes.sizeof(_abi.StepInput), given, len(reports), finished, running
        )
        answer = _abi.StepResult(ctypes.sizeof(_abi.StepResult))
        self._handle.call(
            "kvd_step", ctypes.byref(question), _abi.nanoseconds(timeout), ctypes.byref(answer)
        )
        return _step_of(answer)

    def wait(self, ticket: int, timeout: float = _TIMEOUT_S) -> None:
        """Returns once the ticket's copy is complete. A signal interrupts it within 0.1 s."""
        self._handle.wait("kvd_wait", ticket, timeout=timeout)

    def wait_layer(self, iteration: int, group: int, timeout: float = _TIMEOUT_S) -> None:
        """Call it before layer group `group` of an iteration with a streamed request: it returns
        once the group's blocks are in HBM. A signal interrupts it within 0.1 s."""
        self._handle.wait("kvd_wait_layer", iteration, group, timeout=timeout)

    def layer_done(self, iteration: int, group: int) -> None:
        """Says that all reads and writes of the layer group have ended, for the whole batch."""
        self._handle.call("kvd_layer_done", iteration, group)

    def wait_on_stream(self, ticket: int, stream: int) -> None:
        """wait() for work that is put into a stream of kvd's GPU afterwards. `stream` is a
        CUstream's address, or 0 for the default one. Returns at once; call confirm() before a token
        leaves."""
        self._handle.call("kvd_wait_on_stream", ticket, stream)

    def wait_layer_on_stream(self, iteration: int, group: int, stream: int) -> None:
        """wait_layer() for a stream, as wait_on_stream()."""
        self._handle.call("kvd_wait_layer_on_stream", iteration, group, stream)

    def layer_done_on_stream(self, iteration: int, group: int, stream: int) -> None:
        """layer_done(), carried out once the stream gets there. Returns at once."""
        self._handle.call("kvd_layer_done_on_stream", iteration, group, stream)

    def confirm(self) -> None:
        """Call it after a stream's work and before its tokens leave: it raises Unavailable where a
        wait ended without its bytes."""
        self._handle.call("kvd_confirm")

    def wait_for_room(self, timeout: float = SLICE_S) -> None:
        """For an engine that has nothing to run: returns when a copy out of HBM has made room, or
        after `timeout` seconds, at most 0.1. Step again then."""
        self._handle.call("kvd_wait_for_room", _abi.nanoseconds(min(timeout, SLICE_S)))

    def block_addresses(self, row: int, group: int, count: int) -> list[int]:
        """The addresses of the first `count` blocks of a layer group, for a row of the last step's
        run list. Raises NotFound where the row has fewer blocks."""
        if not 0 <= count <= _MOST_BLOCKS:
            raise InvalidArgument(f"a row has 0 to {_MOST_BLOCKS} blocks, not {count}")
        addresses = (ctypes.c_void_p * count)()
        self._handle.call("kvd_block_addresses", row, group, count, addresses)
        return [address or 0 for address in addresses]

    def finish(self, request: int, timeout: float = _TIMEOUT_S) -> None:
        """The request has all its tokens; its blocks go back."""
        self._handle.call("kvd_finish", request, _abi.nanoseconds(timeout))

    def abort(self, request: int, timeout: float = _TIMEOUT_S) -> None:
        """Gives the request up, whatever state it is in."""
        self._handle.call("kvd_abort", request, _abi.nanoseconds(timeout))

    def rotate(self, request: int, direction: Direction, timeout: float = _TIMEOUT_S) -> None:
        """Forces one request out of HBM, or back in."""
        self._handle.call("kvd_rotate", request, direction, _abi.nanoseconds(timeout))

    def allocate_blocks(self, request: int, tokens: int, timeout: float = _TIMEOUT_S) -> int:
        """Room for `tokens` more tokens. Returns the blocks granted per layer group, which have
        addresses from the next step() on."""
        blocks = ctypes.c_uint32()
        self._handle.call(
            "kvd_allocate_blocks", request, tokens, _abi.nanoseconds(timeout), ctypes.byref(blocks)
        )
        return blocks.value

    def place(self, requests: Iterable[int] = (), timeout: float = _TIMEOUT_S) -> Placement:
        """Plans placement now for the given running requests, or for all of them if none is given.
        """
        given = list(requests)
        array = _abi.numbers(ctypes.c_uint64, given)
        answer = _abi.Placement(ctypes.sizeof(_abi.Placement))
        self._handle.call(
            "kvd_place", array, len(given), _abi.nanoseconds(timeout), ctypes.byref(answer)
        )
        return placement_of(answer)


def placement_of(answer: _abi.Placement) -> Placement:
    entries = answer.entries[: answer.entry_count]
    return Placement(
        answer.budget_blocks, [Place(e.request, e.resident_blocks, e.distance) for e in entries]
    )


def _tokens_of(tokens: Sequence[int]) -> ctypes.Array[ctypes.c_uint32]:
    array: ctypes.Array[ctypes.c_uint32] = _abi.numbers(ctypes.c_uint32, tokens)
    return array


def _reports_of(reports: Sequence[Report]) -> ctypes.Array[_abi.StepReport]:
    packed = bytearray()
    for r in reports:
        try:
            packed += _REPORT.pack(r.request, r.tokens, r.finished * _FINISHED, 0)
        except struct.error as fault:
            raise InvalidArgument(f"{r}: {fault}") from None
    return (_abi.StepReport * len(reports)).from_buffer(packed)


def _step_of(answer: _abi.StepResult) -> Step:
    run = [
        Run(e.request, e.tokens_present, e.ticket, e.tokens, RunFlag(e.flags), e.distance, e.row)
        for e in answer.run[: answer.run_count]
    ]
    hold = [Hold(e.request, e.reason) for e in answer.hold[: answer.hold_count]]
    return Step(answer.iteration, run, hold)
