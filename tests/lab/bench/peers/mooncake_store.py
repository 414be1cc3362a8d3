"""Mooncake Store, without a copy of its own (put_from, get_into). A master knows where blocks are.

Mooncake: over TCP on the loopback device. The memory belongs to an owner, a process of its own, or
to the process that stores (Settings.storer_owns), as in its default embedded mode. MooncakeShared:
mooncake_client, one process of the node, has the memory, and copies between it and the memory of
its clients, which they share with it."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from store import Failed, PlainMemory, PlainRequest, Servers, Settings

MASTER_PORT, _METRICS_PORT = 50061, 9013
_OWNER_PORT, _CLIENT_PORT = 17002, 17100
_NODE_PORT = 50052
_LEAST_POOL = 64 << 20
_LOCAL_BUFFER = 64 << 20
_FOUND = 1
_PUT_AT_ONCE = 512


class MooncakeRequest(PlainRequest):
    def __init__(self, store: MooncakeStore, keys: list[str]) -> None:
        self._store, self._keys = store, keys

    def store(self, slots: Sequence[int], kept: bool = False) -> None:
        for first in range(0, len(self._keys), _PUT_AT_ONCE):
            last = first + _PUT_AT_ONCE
            self._store.put(self._keys[first:last], slots[first:last], kept)

    def found(self) -> int:
        return self._store.leading(self._keys)

    def load(self, slots: Sequence[int]) -> None:
        self._store.get(self._keys, slots)


class MooncakeStore(PlainMemory):
    """`mooncake`: a connected client; `memory`: the memory that it can copy from and to."""

    def __init__(self, mooncake: Any, memory: memoryview, block_bytes: int, slots: int) -> None:
        self._mooncake = mooncake
        self._bytes = block_bytes
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        super().__init__(memory, block_bytes)
        for slot in range(slots):
            self.fill(slot, 0)
        if self._mooncake.register_buffer(self._address, block_bytes * slots) != 0:
            raise Failed("register_buffer")

    def request(self, numbers: Sequence[int]) -> MooncakeRequest:
        return MooncakeRequest(self, [f"{self._bytes:032x}{number:032x}" for number in numbers])

    def put(self, keys: list[str], slots: Sequence[int], kept: bool) -> None:
        from mooncake.store import ReplicateConfig

        config = ReplicateConfig()
        config.with_hard_pin = kept
        if len(keys) == 1:
            codes = [
                self._mooncake.put_from(keys[0], self._at(slots[0]), self._bytes, config),
            ]
        else:
            places = [self._at(slot) for slot in slots]
            codes = self._mooncake.batch_put_from(keys, places, [self._bytes] * len(keys), config)
        if any(code != 0 for code in codes):
            raise Failed(f"put: {sorted(set(codes))}")

    def get(self, keys: list[str], slots: Sequence[int]) -> None:
        if len(keys) == 1:
            codes = [self._mooncake.get_into(keys[0], self._at(slots[0]), self._bytes)]
        else:
            places = [self._at(slot) for slot in slots]
            codes = self._mooncake.batch_get_into(keys, places, [self._bytes] * len(keys))
        if any(code != self._bytes for code in codes):
            raise Failed(f"get: {sorted(set(codes))}")

    def leading(self, keys: list[str]) -> int:
        if len(keys) == 1:
            answers = [self._mooncake.is_exist(keys[0])]
        else:
            answers = self._mooncake.batch_is_exist(keys)
        count = next((i for i, answer in enumerate(answers) if answer != _FOUND), len(answers))
        if count < len(answers) and answers[count] < 0:
            raise Failed(f"exists: {answers[count]}")
        return count

    def forget(self) -> None:
        self._mooncake.remove_all(True)

    def close(self) -> None:
        self._mooncake.close()

    def _at(self, slot: int) -> int:
        return self._address + slot * self._bytes


class Mooncake:
    has_keys = True
    can_keep = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._servers = Servers(settings.folder)
        prepare()

    def start(self) -> None:
        self.restart()
        if self._settings.storer_owns:
            return
        owner = [sys.executable, __file__, str(self._settings.pool_bytes)]
        self._servers.start("owner", owner, {})
        self._servers.wait("owner", lambda: "ready" in self._servers.log("owner").split())

    def stop(self) -> None:
        self._servers.stop()

    def open(self, block_bytes: int, slots: int, owner: bool = False) -> MooncakeStore:
        owns = owner and self._settings.storer_owns
        port = _CLIENT_PORT + os.getpid() % 1000
        mooncake = connected(port, self._settings.pool_bytes if owns else 0)
        memory = memoryview(mmap.mmap(-1, block_bytes * slots))
        return MooncakeStore(mooncake, memory, block_bytes, slots)

    def server(self) -> int:
        return self._servers.pid("master")

    def index(self) -> int:
        return self._servers.pid("master")

    def restart(self) -> None:
        self._servers.reap("master")
        command = [
            program("mooncake_master"), "--rpc_address=127.0.0.1", f"--rpc_port={MASTER_PORT}",
            "--metrics_host=127.0.0.1", f"--metrics_port={_METRICS_PORT}",
            "--enable_metric_reporting=false", "--rpc_thread_num=2",
        ]  # fmt: skip
        self._servers.start("master", command, {})
        self._servers.wait("master", lambda: listens(MASTER_PORT))


class MooncakeShared(Mooncake):
    def start(self) -> None:
        super().restart()
        self.restart()

    def open(self, block_bytes: int, slots: int, owner: bool = False) -> MooncakeStore:
        from mooncake.store import MooncakeDistributedStore

        del owner  # the memory belongs to the node's process, whoever stores
        needed = block_bytes * slots
        pool = max(_LEAST_POOL, needed)
        mooncake = MooncakeDistributedStore()
        code = mooncake.setup_dummy(pool, _LOCAL_BUFFER, f"127.0.0.1:{_NODE_PORT}")
        if code != 0:
            raise Failed(f"setup_dummy: {code}")
        address = mooncake.alloc_from_mem_pool(needed)
        memory = memoryview((ctypes.c_ubyte * needed).from_address(address)).cast("B")
        return MooncakeStore(mooncake, memory, block_bytes, slots)

    def server(self) -> int:
        return self._servers.pid("node")

    def restart(self) -> None:
        self._servers.reap("node")
        command = [
            program("mooncake_client"), "--host=127.0.0.1", f"--port={_NODE_PORT}",
            f"--global_segment_size={self._settings.pool_bytes >> 20} MB", "--local_buffer_size=64MB",
            f"--master_server_address=127.0.0.1:{MASTER_PORT}", "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp", "--threads=2",
        ]  # fmt: skip
        self._servers.start("node", command, {})
        self._servers.wait("node", lambda: listens(_NODE_PORT))


def program(name: str) -> str:
    import mooncake

    return str(Path(next(iter(mooncake.__path__)), name))


def prepare() -> None:
    os.environ.update(MC_TCP_BIND_ADDRESS="127.0.0.1", MC_LOG_LEVEL="WARNING", MC_TE_METRIC="0")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def connected(port: int, segment: int) -> Any:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(
        f"127.0.0.1:{port}", "P2PHANDSHAKE", segment, _LOCAL_BUFFER, "tcp", "",
        f"127.0.0.1:{MASTER_PORT}",
    )  # fmt: skip
    if code != 0:
        raise Failed(f"setup: {code}")
    return store


if __name__ == "__main__":
    # The process that owns the memory.
    import signal

    prepare()
    owned = connected(_OWNER_PORT, int(sys.argv[1]))
    print("ready", flush=True)
    while True:
        signal.pause()
