"""The daemon's error codes as exceptions.

Every failed call raises a subclass of KvdError, one for each code of `kvd_status` in kvd.h. The
text is the daemon's or the library's own sentence, which names the remedy.
"""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """`kvd_status` of kvd.h."""

    OK = 0
    OUT_OF_MEMORY = 1
    WOULD_BLOCK = 2
    NOT_FOUND = 3
    STALE_SESSION = 4
    INVALID_ARGUMENT = 5
    INFEASIBLE = 6
    DEADLINE_EXCEEDED = 7
    PEER_GONE = 8
    DEVICE_ERROR = 9
    UNSUPPORTED = 10
    UNAVAILABLE = 11
    PERMISSION_DENIED = 12
    QUOTA_EXCEEDED = 13
    INTERNAL = 14
    DRAINING = 15


class KvdError(Exception):
    """A call that failed. `status` is the code."""

    status: Status = Status.INTERNAL

    def __init__(self, message: str, status: Status | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status


class OutOfMemory(KvdError):
    """The pool has no room now."""

    status = Status.OUT_OF_MEMORY


class WouldBlock(KvdError):
    """Not now: tensors still view the region, or mappings are held for a graph capture."""

    status = Status.WOULD_BLOCK


class NotFound(KvdError):
    """No such region, request, row or block."""

    status = Status.NOT_FOUND


class StaleSession(KvdError):
    """The session is not the one that the daemon knows."""

    status = Status.STALE_SESSION


class InvalidArgument(KvdError, ValueError):
    """The call is wrong, or the client is closed."""

    status = Status.INVALID_ARGUMENT


class Infeasible(KvdError):
    """It will never fit: it is larger than the pool or the quota."""

    status = Status.INFEASIBLE


class DeadlineExceeded(KvdError):
    """The timeout of the call is over."""

    status = Status.DEADLINE_EXCEEDED


class PeerGone(KvdError):
    """The daemon is gone, or this is a forked child, where the client is dead."""

    status = Status.PEER_GONE


class DeviceError(KvdError):
    """The GPU or its driver failed."""

    status = Status.DEVICE_ERROR


class Unsupported(KvdError):
    """This daemon, memory or version cannot do it."""

    status = Status.UNSUPPORTED


class Unavailable(KvdError):
    """No daemon answers. From a level-3 call: its requests are gone, submit them again."""

    status = Status.UNAVAILABLE


class PermissionDenied(KvdError):
    """This user may not do it."""

    status = Status.PERMISSION_DENIED


class QuotaExceeded(KvdError):
    """The domain's quota is used up."""

    status = Status.QUOTA_EXCEEDED


class Draining(KvdError):
    """The engine is out of service (`kvdctl drain`): another one takes the request."""

    status = Status.DRAINING


class Internal(KvdError):
    """A fault of kvd."""

    status = Status.INTERNAL


_CLASSES: dict[int, type[KvdError]] = {kind.status: kind for kind in KvdError.__subclasses__()}


def error_of(status: int, message: str) -> KvdError:
    """The exception for a code. A code of a newer library becomes Internal, and says so."""
    kind = _CLASSES.get(status)
    if kind is None:
        return Internal(f"unknown status {status}: {message}")
    return kind(message)
