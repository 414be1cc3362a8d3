"""The questions that every system is asked in the same way: where its servers are, and how a client
stores and loads."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

PATIENCE_S = 60.0
CALL_S = 30.0  # the longest wait for a call, where a system lets one set it


class Failed(Exception):
    """A call did not do what it was asked to do, and said so."""


class Settings(NamedTuple):
    """The settings of one system's servers and clients."""

    build: str  # kvd's build folder
    folder: str  # for sockets and logs
    pool_bytes: int  # for blocks, all servers together
    chunk_tokens: int = 256  # LMCache: the tokens of a block
    storer_owns: bool = False  # Mooncake: no owner besides the process that stores
    held: bool = True  # kvd: under kvd-holder, which starts it again and keeps its memory


class Request(Protocol):
    """Consecutive blocks, numbered. A call includes only its own work: the keys are made before.
    This is a context manager; work that follows a call is done when it is left."""

    def store(self, slots: Sequence[int], kept: bool = False) -> None:
        """Stores the slots. Raises Failed. `kept`: they do not make way for others."""

    def found(self) -> int:
        """How many leading blocks are said to be there."""

    def load(self, slots: Sequence[int]) -> None:
        """Loads into the slots; call found() first. Raises Failed."""

    def __enter__(self) -> Request: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...  # fmt: skip


class PlainRequest:
    """A request without work that follows a call."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass  # fmt: skip


class Store(Protocol):
    """A client with memory for `slots` blocks."""

    def fill(self, slot: int, number: int) -> None:
        """Fills the slot so that every eight bytes of it are the number."""

    def holds(self, slot: int, number: int) -> bool: ...

    def request(self, numbers: Sequence[int]) -> Request: ...

    def forget(self) -> None:
        """Forgets everything that is stored."""

    def close(self) -> None: ...


class System(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...

    def open(self, block_bytes: int, slots: int, owner: bool = False) -> Store:
        """owner: this client stores; see Settings.storer_owns."""

    def server(self) -> int:
        """The process that clients ask."""

    def index(self) -> int:
        """The process that knows where blocks are."""

    def restart(self) -> None:
        """Starts the server again after it was killed."""

    @property
    def has_keys(self) -> bool:
        """False for the floor, which finds nothing."""

    @property
    def can_keep(self) -> bool:
        """Whether a block can be stored so that it does not make way."""


class Servers:
    """Processes started by this one, with their logs; they are ended by their pids."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        with open(self._folder / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **environment},
            )  # fmt: skip

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        def ready_or_over() -> bool:
            return self._running[name].poll() is not None or is_ready()

        if not poll_until(ready_or_over) or self._running[name].poll() is not None:
            raise Failed(f"{name} does not start:\n" + "\n".join(self.log(name).splitlines()[-8:]))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def reap(self, name: str) -> None:
        """Takes in a process that was killed by its pid."""
        process = self._running.pop(name, None)
        if process is not None:
            process.wait(10)

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            self.kill(name, signal.SIGTERM)


def poll_until(condition: Callable[[], bool], patience: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def word(number: int) -> bytes:
    """The word is never zero, because memory that was never written holds zeros."""
    return (number + (1 << 62)).to_bytes(8, "little")


class PlainMemory:
    """Consecutive slots of bytes that belong to another object."""

    def __init__(self, view: memoryview, block_bytes: int) -> None:
        self._view, self._block_bytes = view, block_bytes

    def fill(self, slot: int, number: int) -> None:
        self._of(slot)[:] = word(number) * (self._block_bytes // 8)

    def holds(self, slot: int, number: int) -> bool:
        return self._of(slot) == word(number) * (self._block_bytes // 8)

    def release(self) -> None:
        self._view.release()

    def _of(self, slot: int) -> memoryview:
        return self._view[slot * self._block_bytes : (slot + 1) * self._block_bytes]
