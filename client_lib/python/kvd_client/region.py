"""A region: memory of kvd's pool, and how Python's array libraries see it."""

from __future__ import annotations

import ctypes
import importlib
import weakref
from typing import TYPE_CHECKING, Any

from . import _abi
from ._handle import Handle
from .errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    import numpy

_CPU, _CUDA = 1, 2  # DLDeviceType
_TIMEOUT_S = 5.0


class Region:
    """Whole slabs of kvd's pool, mapped back to back at one address, zeroed, pinned until freed.

    Made by Client.allocate(). A context manager: leaving it frees the region.

    A view of the region (view(), numpy(), a tensor made by DLPack) keeps it mapped; free() is
    refused with WouldBlock until the last view is gone. A view may outlive the client: then the
    daemon keeps the memory back until this process has ended.

    Attributes: `id`; `address`, a device pointer where `device` >= 0; `bytes`, at least as many as
    were asked for; `granularity`, the alignment of both in bytes; `device`, the GPU that the
    address belongs to by this process's count, or -1 for host memory.
    """

    def __init__(self, handle: Handle, lease: _abi.Region) -> None:
        self._handle = handle
        self.id: int = lease.id
        self.address: int = lease.address
        self.bytes: int = lease.bytes
        self.granularity: int = lease.granularity
        self.device: int = lease.device

    def free(self, timeout: float = _TIMEOUT_S) -> None:
        """Unmaps the region and hands its slabs back, within `timeout` seconds. The address is
        invalid afterwards. Raises WouldBlock while something views the region."""
        self._handle.call("kvd_region_free", self.id, _abi.nanoseconds(timeout))

    def view(self) -> memoryview:
        """The bytes of a region in host memory, writable. Raises Unsupported for memory of a GPU.
        """
        if self.device >= 0:
            raise Unsupported("the region is a GPU's memory: use torch() or from_dlpack()")
        tensor = self._tensor()
        buffer = (ctypes.c_ubyte * self.bytes).from_address(self.address)
        weakref.finalize(buffer, tensor.contents.deleter, tensor).atexit = False
        return memoryview(buffer).cast("B")

    def numpy(self, dtype: Any = "uint8") -> numpy.ndarray[Any, Any]:
        """The region as a one-dimensional numpy array that shares its memory. Needs numpy."""
        frombuffer = importlib.import_module("numpy").frombuffer
        array: numpy.ndarray[Any, Any] = frombuffer(self.view(), dtype=dtype)
        return array

    def torch(self, count: int | None = None) -> Any:
        """The first `count` bytes of the region, all by default, as a one-dimensional torch.uint8
        tensor that shares its memory; its storage ends there. Needs torch."""
        return importlib.import_module("torch").from_dlpack(_capsule(self._tensor(count)))

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """A DLPack capsule, for from_dlpack() of torch, numpy, cupy, jax. The memory is zeroed and
        idle when the region is made, so `stream` needs no wait."""
        return _capsule(self._tensor())

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, self.device) if self.device >= 0 else (_CPU, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device < 0:
            raise AttributeError("the region is host memory")
        return {"shape": (self.bytes,), "typestr": "|u1", "data": (self.address, False),
                "version": 3}  # fmt: skip

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle.is_open:
            self.free()

    def __repr__(self) -> str:
        where = f"device {self.device}" if self.device >= 0 else "host"
        return f"<kvd region {self.id}: {self.bytes} bytes at {self.address:#x}, {where}>"

    def _tensor(self, count: int | None = None) -> Any:
        if count is not None and not 0 < count <= self.bytes:
            raise InvalidArgument(f"the region has 1 to {self.bytes} bytes, not {count}")
        tensor = ctypes.POINTER(_abi.DlManagedTensor)()
        self._handle.call(
            "kvd_region_dlpack", self.id, _abi.nanoseconds(_TIMEOUT_S), ctypes.byref(tensor)
        )
        if count is not None:
            tensor.contents.dl_tensor.shape[0] = count
        return tensor


# The DLPack protocol names a capsule "dltensor" until its tensor has been taken.
_NAME = b"dltensor"
_python = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)


def _drop(capsule: int) -> None:
    """Gives back the tensor of a capsule if nobody took it."""
    if _is_valid(capsule, _NAME):
        address = _pointer(capsule, _NAME)
        _abi.DlManagedTensor.from_address(address).deleter(address)


_drop_capsule = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_drop)


def _capsule(tensor: Any) -> Any:
    return _new(
        ctypes.cast(tensor, ctypes.c_void_p), _NAME, ctypes.cast(_drop_capsule, ctypes.c_void_p)
    )
