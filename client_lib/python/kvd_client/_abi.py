"""The structs and functions of kvd.h as ctypes declarations, and where the library is found.

Names follow kvd.h, which says what each of them means.
"""

from __future__ import annotations

import array
import ctypes
import functools
import operator
import os
from collections.abc import Iterable
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16,
    c_uint32, c_uint64, c_void_p,
)  # fmt: skip
from pathlib import Path
from typing import Any

from .errors import InvalidArgument, Unsupported

LIBRARY = "libkvd_client.so"
SONAME = "libkvd_client.so.0"


def _whole(value: Any, kind: Any) -> int:
    """The number, if it fits the C type: ctypes would cut off the excess, and kvd would be told
    another number."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{value!r} is no whole number") from None
    bits = 8 * ctypes.sizeof(kind)
    least = 0 if kind in _UNSIGNED else -(1 << bits - 1)
    if not least <= number < least + (1 << bits):
        raise InvalidArgument(f"{number} is not from {least} to {least + (1 << bits) - 1}")
    return number


_UNSIGNED = {c_uint8, c_uint16, c_uint32, c_uint64, c_size_t}
_WHOLE = _UNSIGNED | {c_int, c_int32, c_int64}


class U32(c_uint32):
    """The type of an argument: a number that does not fit is refused."""

    @classmethod
    def from_param(cls, value: Any) -> U32:
        return cls(_whole(value, c_uint32))


class U64(c_uint64):
    """As U32, for c_uint64."""

    @classmethod
    def from_param(cls, value: Any) -> U64:
        return cls(_whole(value, c_uint64))


class I32(c_int32):
    """As U32, for c_int32."""

    @classmethod
    def from_param(cls, value: Any) -> I32:
        return cls(_whole(value, c_int32))


class Address(c_void_p):
    """As U32, for an address."""

    @classmethod
    def from_param(cls, value: Any) -> Address:
        return cls(_whole(value, c_uint64))


def numbers(kind: Any, values: Iterable[int]) -> Any:
    """A C array of `kind`, c_uint32 or c_uint64, each number of which fits."""
    try:
        # Iterating bytes gives numbers, too.
        packed = array.array("I" if kind is c_uint32 else "Q", iter(values))
    except (OverflowError, TypeError) as fault:
        most = (1 << 8 * ctypes.sizeof(kind)) - 1
        raise InvalidArgument(f"not all are whole numbers from 0 to {most}: {fault}") from None
    return (kind * len(packed)).from_buffer(packed)


def text(value: str | None) -> bytes | None:
    """A text for C. C ends it at the first NUL, so a text with one is refused."""
    if value is not None and "\0" in value:
        raise InvalidArgument(f"{value!r} has a NUL in it")
    return value.encode() if value is not None else None


class Struct(Structure):
    """A struct that refuses whole numbers that do not fit."""

    _kinds: dict[str, Any] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._kinds = {name: kind for name, kind, *_ in cls._fields_ if kind in _WHOLE}

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._kinds.get(name)
        super().__setattr__(name, value if kind is None else _whole(value, kind))


class OpenOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("endpoint", c_char_p),
        ("engine_name", c_char_p),
        ("layers", c_uint32),
        ("layers_per_block", c_uint32),
        ("block_tokens", c_uint32),
        ("bytes_per_token_per_layer", c_uint64),
        ("timeout_ns", c_uint64),
        ("memory", c_uint32),
        ("transport", c_uint32),
        ("abilities", c_uint32),
        ("ranks", c_uint32),
        ("group", c_uint64),
        ("rank", c_uint32),
        ("device", c_uint32),
        ("model", c_char_p),
    ]


class Region(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("id", c_uint64),
        ("address", c_void_p),
        ("bytes", c_uint64),
        ("granularity", c_uint64),
        ("device", c_int32),
        ("reserved", c_uint32),
    ]


class Need(Struct):
    _fields_ = [
        ("bytes", c_uint64),
        ("least_bytes", c_uint64),
        ("age_ns", c_uint64),
        ("ttft_ns", c_uint64),
        ("slo_class", c_uint32),
        ("begun", c_uint32),
    ]


class Demand(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kept_bytes", c_uint64),
        ("least_bytes", c_uint64),
        ("wanted_bytes", c_uint64),
        ("grain_bytes", c_uint64),
        ("age_ns", c_uint64),
        ("needs", POINTER(Need)),
        ("need_count", c_size_t),
    ]


class SessionInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("engine", c_uint32),
        ("layers", c_uint32),
        ("layers_per_block", c_uint32),
        ("block_tokens", c_uint32),
        ("layer_groups", c_uint32),
        ("reserved", c_uint32),
        ("bytes_per_token_per_layer", c_uint64),
        ("block_bytes", c_uint64),
        ("slab_bytes", c_uint64),
        ("generation", c_uint64),
        ("memory", c_uint32),
        ("device", c_int32),
        ("device_uuid", c_uint8 * 16),
        ("boot_id", c_uint8 * 16),
    ]


class Request(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("id", c_uint64),
        ("prompt_tokens", c_uint64),
        ("max_new_tokens", c_uint64),
        ("ttft_slo_ns", c_uint64),
        ("tbt_slo_ns", c_uint64),
        ("tokens", POINTER(c_uint32)),
        ("adapter", c_char_p),
        ("salt", c_char_p),
        ("gap_slo_ns", c_uint64),
    ]


class StepReport(Struct):
    _fields_ = [
        ("request", c_uint64),
        ("tokens", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class RunEntry(Struct):
    _fields_ = [
        ("request", c_uint64),
        ("tokens_present", c_uint64),
        ("ticket", c_uint64),
        ("tokens", c_uint32),
        ("flags", c_uint32),
        ("distance", c_uint32),
        ("row", c_uint32),
    ]


class HoldEntry(Struct):
    _fields_ = [("request", c_uint64), ("reason", c_uint32), ("reserved", c_uint32)]


class StepInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("reports", POINTER(StepReport)),
        ("report_count", c_uint64),
        ("iteration_finished", c_uint64),
        ("iteration_running", c_uint64),
    ]


class StepResult(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("iteration", c_uint64),
        ("run", POINTER(RunEntry)),
        ("run_count", c_uint64),
        ("hold", POINTER(HoldEntry)),
        ("hold_count", c_uint64),
    ]


class PlacementEntry(Struct):
    _fields_ = [
        ("request", c_uint64),
        ("resident_blocks", c_uint64),
        ("distance", c_uint32),
        ("reserved", c_uint32),
    ]


class LayersRequest(Struct):
    _fields_ = [("id", c_uint64), ("tokens", c_uint64)]


class LayersInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity_blocks", c_uint64),
        ("block_bytes", c_uint64),
        ("step_ns", c_uint64),
        ("layers", c_uint32),
        ("block_tokens", c_uint32),
        ("requests", POINTER(LayersRequest)),
        ("count", c_uint64),
    ]


class Placement(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("budget_blocks", c_uint64),
        ("entries", POINTER(PlacementEntry)),
        ("entry_count", c_uint64),
    ]


class Stats(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("region_bytes", c_uint64),
        ("hbm_bytes", c_uint64),
        ("dram_bytes", c_uint64),
        ("requests_waiting", c_uint64),
        ("requests_running", c_uint64),
        ("requests_rotary", c_uint64),
        ("rotations_out", c_uint64),
        ("rotations_in", c_uint64),
    ]


class SchedRequest(Struct):
    _fields_ = [
        ("id", c_uint64),
        ("state", c_uint32),
        ("prompt_tokens", c_uint32),
        ("computed_tokens", c_uint32),
        ("generated_tokens", c_uint32),
        ("max_new_tokens", c_uint32),
        ("blocks", c_uint32),
        ("blocks_to_return", c_uint32),
        ("slo_class", c_uint32),
        ("age_ns", c_uint64),
        ("first_token_age_ns", c_uint64),
        ("last_token_age_ns", c_uint64),
        ("ttft_ns", c_uint64),
        ("tbt_ns", c_uint64),
    ]


class RequestGap(Struct):
    _fields_ = [("id", c_uint64), ("gap_ns", c_uint64)]


class SchedInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("free_blocks", c_uint64),
        ("total_blocks", c_uint64),
        ("block_bytes", c_uint64),
        ("last_step_ns", c_uint64),
        ("block_tokens", c_uint32),
        ("last_step_prefill_tokens", c_uint32),
        ("last_step_decodes", c_uint32),
        ("max_batched_tokens", c_uint32),
        ("max_running", c_uint32),
        ("reserved", c_uint32),
        ("requests", POINTER(SchedRequest)),
        ("count", c_uint64),
    ]


class SchedResult(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("preempt", POINTER(c_uint64)),
        ("preempt_capacity", c_uint64),
        ("preempt_count", c_uint64),
        ("admit", POINTER(c_uint64)),
        ("admit_capacity", c_uint64),
        ("admit_count", c_uint64),
        ("prefill_tokens", c_uint32),
        ("reserved", c_uint32),
    ]


class BlockPiece(Struct):
    _fields_ = [("offset", c_uint64), ("stride", c_uint64), ("bytes", c_uint64)]


class CacheOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_char_p),
        ("block_tokens", c_uint32),
        ("flags", c_uint32),
        ("block_bytes", c_uint64),
        ("region_id", c_uint64),
        ("blocks", c_uint64),
        ("pieces", POINTER(BlockPiece)),
        ("piece_count", c_uint32),
        ("reserved_too", c_uint32),
    ]


class CacheCursor(Structure):
    _fields_ = [("life", c_uint64), ("start", c_uint64), ("position", c_uint64)]


class CacheChange(Structure):
    _fields_ = [
        ("digest", c_uint8 * 32),
        ("parent", c_uint8 * 32),
        ("lora", c_char * 64),
        ("tiers", c_uint32),
        ("token_count", c_uint32),
        ("tokens", POINTER(c_uint32)),
    ]


class CacheChanges(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("changes", POINTER(CacheChange)),
        ("count", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class DlDevice(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DlDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DlTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DlDevice),
        ("ndim", c_int32),
        ("dtype", DlDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class DlManagedTensor(Structure):
    _fields_ = [
        ("dl_tensor", DlTensor),
        ("manager_ctx", c_void_p),
        ("deleter", CFUNCTYPE(None, c_void_p)),
    ]


HANDLE = c_void_p

# Every function but four returns a kvd_status.
_CALLS: dict[str, list[Any]] = {
    "kvd_open": [POINTER(OpenOptions), POINTER(HANDLE)],
    "kvd_get_session_info": [HANDLE, POINTER(SessionInfo)],
    "kvd_ping": [HANDLE, U64],
    "kvd_get_stats": [HANDLE, U64, POINTER(Stats)],
    "kvd_region_allocate": [HANDLE, U64, U64, POINTER(Region)],
    "kvd_region_free": [HANDLE, U64, U64],
    "kvd_region_reserve": [HANDLE, U64, U64, POINTER(Region)],
    "kvd_region_grow": [
        HANDLE, U64, POINTER(c_uint32), U32, U64, POINTER(c_uint64),
    ],
    "kvd_region_back": [HANDLE, U64, POINTER(c_uint32), U32, U64],
    "kvd_region_shrink": [HANDLE, U64, U64, U64],
    "kvd_region_shrink_idle": [HANDLE, U64, U64, U64],
    "kvd_region_share": [HANDLE, U64, POINTER(Demand), U64, POINTER(c_uint64)],
    "kvd_region_dlpack": [HANDLE, U64, U64, POINTER(POINTER(DlManagedTensor))],
    "kvd_hold_mappings": [U64],
    "kvd_submit": [HANDLE, POINTER(Request), U64],
    "kvd_append_tokens": [HANDLE, U64, POINTER(c_uint32), U64, U64],
    "kvd_name_blocks": [HANDLE, U64, U32, c_char_p, U64, U64],
    "kvd_step": [HANDLE, POINTER(StepInput), U64, POINTER(StepResult)],
    "kvd_wait": [HANDLE, U64, U64],
    "kvd_wait_layer": [HANDLE, U64, U32, U64],
    "kvd_layer_done": [HANDLE, U64, U32],
    "kvd_wait_on_stream": [HANDLE, U64, Address],
    "kvd_wait_layer_on_stream": [HANDLE, U64, U32, Address],
    "kvd_layer_done_on_stream": [HANDLE, U64, U32, Address],
    "kvd_confirm": [HANDLE],
    "kvd_wait_for_room": [HANDLE, U64],
    "kvd_block_addresses": [HANDLE, U32, U32, U64, POINTER(c_void_p)],
    "kvd_finish": [HANDLE, U64, U64],
    "kvd_abort": [HANDLE, U64, U64],
    "kvd_rotate": [HANDLE, U64, I32, U64],
    "kvd_allocate_blocks": [HANDLE, U64, U64, U64, POINTER(c_uint32)],
    "kvd_cache_open": [HANDLE, POINTER(CacheOptions), U64, POINTER(c_uint64)],
    "kvd_cache_close": [HANDLE, U64, U64],
    "kvd_cache_lookup": [HANDLE, U64, c_char_p, U64, U64, POINTER(c_uint64)],
    "kvd_cache_store": [
        HANDLE, U64, c_char_p, POINTER(c_uint32), U64, U32, U64,
        POINTER(c_uint64),
    ],
    "kvd_cache_load": [
        HANDLE, U64, c_char_p, POINTER(c_uint32), U64, U64, POINTER(c_uint64),
    ],
    "kvd_cache_drop": [HANDLE, U64, c_char_p, U64, U64],
    "kvd_cache_hint": [HANDLE, U64, U32, c_char_p, U64, U64, U64, POINTER(c_uint64)],
    "kvd_cache_post_lookup": [HANDLE, U64, c_char_p, U64],
    "kvd_cache_post_drop": [HANDLE, U64, c_char_p, U64],
    "kvd_cache_label": [
        HANDLE, U64, c_char_p, c_char_p, c_char_p, U64, POINTER(c_uint32), U64, U64,
        POINTER(c_uint64),
    ],
    "kvd_cache_get_changes": [
        HANDLE, U64, POINTER(CacheCursor), U64, POINTER(CacheChanges),
    ],
    "kvd_cache_poll": [HANDLE, POINTER(c_uint64), POINTER(c_uint8), U64],
    "kvd_cache_wait": [HANDLE, POINTER(c_uint64), U64, U64],
    "kvd_place_layers": [HANDLE, POINTER(LayersInput), U64, POINTER(Placement)],
    "kvd_place": [HANDLE, POINTER(c_uint64), U64, U64, POINTER(Placement)],
    "kvd_set_gaps": [HANDLE, POINTER(RequestGap), c_size_t, U64],
    "kvd_schedule": [HANDLE, POINTER(SchedInput), U64, POINTER(SchedResult)],
}


def candidates() -> list[str]:
    """Where the library is looked for, in order: only $KVD_CLIENT_LIBRARY where it is set;
    otherwise the file beside this package, as in the wheel, then the loader's own search."""
    named = os.environ.get("KVD_CLIENT_LIBRARY")
    if named:
        return [named]
    beside = Path(__file__).with_name(LIBRARY)
    return [str(beside), SONAME] if beside.exists() else [SONAME]


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded once. ctypes releases the GIL around each of its calls.

    Raises Unsupported, with what the loader said about each candidate.
    """
    faults = []
    for file in candidates():
        try:
            return _declare(ctypes.CDLL(file))
        except OSError as fault:
            faults.append(str(fault))
        except AttributeError as fault:
            raise Unsupported(
                f"{file} is of another version than this package ({fault}): "
                "install both from one build of kvd"
            ) from None
    raise Unsupported(
        f"{LIBRARY} cannot be loaded: {'; '.join(faults)}. Install kvd-client or the library, and "
        "libzmq5, which the latter needs, or name the file in KVD_CLIENT_LIBRARY"
    )


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _CALLS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, c_int
    others: list[tuple[str, list[Any], Any]] = [
        ("kvd_close", [HANDLE], None),
        ("kvd_release_mappings", [], None),
        ("kvd_last_error", [], c_char_p),
        ("kvd_slo_class", [c_char_p], c_uint32),
    ]
    for name, arguments, result in others:
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def nanoseconds(seconds: float) -> int:
    """A time in seconds for kvd, which counts nanoseconds; infinity is 292 years."""
    if not seconds >= 0:
        raise InvalidArgument(f"{seconds} is no time in seconds: it must be 0 or more")
    return int(min(seconds, 9.2e9) * 1e9)
