"""A kvd_handle, and the rules of calling through it."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from typing import Any

from . import _abi
from .errors import InvalidArgument, PeerGone, Status, error_of

# A call that waits comes back this often, so that Python can run its signal handlers.
SLICE_S = 0.1


class Handle:
    """Owns one kvd_handle. Threads may call at the same time; close() waits for their calls.

    In a forked child every call raises PeerGone and close() does nothing, as in the C library.
    """

    def __init__(self, options: _abi.OpenOptions) -> None:
        self._library = _abi.library()
        self._owner = os.getpid()
        self._idle = threading.Condition()
        self._calls = 0
        self._handle = _abi.HANDLE()
        check(self._library.kvd_open(ctypes.byref(options), ctypes.byref(self._handle)))
        self._end = weakref.finalize(self, _close, self._library, self._handle, self._owner)

    @property
    def is_open(self) -> bool:
        return self._end.alive and self._owner == os.getpid()

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that takes the handle first, and raises the error it fails with."""
        self._enter()
        try:
            check(getattr(self._library, name)(self._handle, *arguments))
        finally:
            self._leave()

    def wait(self, name: str, *arguments: Any, timeout: float) -> None:
        """Calls a function whose last argument is a timeout, in slices, so that a signal interrupts
        it.

        It is only for functions that may be called again after their timeout.
        """
        _abi.nanoseconds(timeout)  # refuses what is no time: the loop would not end
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            self._enter()
            try:
                status = getattr(self._library, name)(
                    self._handle, *arguments, _abi.nanoseconds(max(0.0, min(left, SLICE_S)))
                )
                if status != Status.DEADLINE_EXCEEDED or left <= SLICE_S:
                    return check(status)
            finally:
                self._leave()

    def close(self) -> None:
        if self._owner != os.getpid():
            return
        with self._idle:
            self._idle.wait_for(lambda: self._calls == 0)
            self._end()

    def _enter(self) -> None:
        if self._owner != os.getpid():
            raise PeerGone("this is a forked child: open a client of its own here")
        with self._idle:
            if not self._end.alive:
                raise InvalidArgument("the client is closed: open another one")
            self._calls += 1

    def _leave(self) -> None:
        with self._idle:
            self._calls -= 1
            self._idle.notify_all()


def check(status: int) -> None:
    """Raises the error behind a status that is not OK. Call it on the thread of the failed call."""
    if status != Status.OK:
        sentence = _abi.library().kvd_last_error()
        raise error_of(status, sentence.decode(errors="replace"))


def _close(library: ctypes.CDLL, handle: ctypes.c_void_p, owner: int) -> None:
    if owner == os.getpid():
        library.kvd_close(handle)
