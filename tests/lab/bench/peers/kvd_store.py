"""kvd: level 2 of its Python package, over the ring in shared memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import kvd_client
from store import CALL_S, Failed, PlainMemory, PlainRequest, Servers, Settings, poll_until

_SLAB = 2 << 20
_REGION_BYTES = 320 << 20
_DROPPED_AT_ONCE = 4096


class KvdRequest(PlainRequest):
    def __init__(self, cache: kvd_client.Cache, digests: list[bytes]) -> None:
        self._cache, self._digests = cache, digests

    def store(self, slots: Sequence[int], kept: bool = False) -> None:
        self._copied(lambda: self._cache.store(self._digests, slots, park=kept, timeout=CALL_S))

    def found(self) -> int:
        try:
            return self._cache.lookup(self._digests, CALL_S)
        except kvd_client.KvdError as error:
            raise Failed(str(error)) from error

    def load(self, slots: Sequence[int]) -> None:
        self._copied(lambda: self._cache.load(self._digests, slots, timeout=CALL_S))

    def _copied(self, ask: Callable[[], int]) -> None:
        try:
            states = self._cache.wait([ask()], CALL_S)
        except kvd_client.KvdError as error:
            raise Failed(str(error)) from error
        if states != [kvd_client.TicketState.DONE]:
            raise Failed("the copy failed")


class KvdStore(PlainMemory):
    def __init__(self, endpoint: str, block_bytes: int, slots: int) -> None:
        self._client = kvd_client.Client(
            endpoint, engine_name="peers", transport=kvd_client.Transport.RING, timeout=CALL_S
        )
        self._region = self._client.allocate(block_bytes * slots)
        self._cache = self._client.cache(
            f"peers-{block_bytes}", block_tokens=16, block_bytes=block_bytes, region=self._region,
            blocks=slots, pieces=[kvd_client.Piece(0, block_bytes, block_bytes)],
        )  # fmt: skip
        self._stored: list[bytes] = []
        super().__init__(self._region.view(), block_bytes)

    def request(self, numbers: Sequence[int]) -> KvdRequest:
        digests = [hashlib.sha256(number.to_bytes(8, "little")).digest() for number in numbers]
        self._stored += digests
        return KvdRequest(self._cache, digests)

    def forget(self) -> None:
        for first in range(0, len(self._stored), _DROPPED_AT_ONCE):
            self._cache.drop(self._stored[first : first + _DROPPED_AT_ONCE], CALL_S)
        self._stored.clear()

    def close(self) -> None:
        self.release()
        self._client.close()


class Kvd:
    has_keys = True
    can_keep = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._servers = Servers(settings.folder)
        self._endpoint = f"{settings.folder}/attach.sock"

    def start(self) -> None:
        config = Path(self._settings.folder, "kvd.toml")
        # Not realtime, since no peer is.
        config.write_text(
            f'backend = "host"\n[paths]\nruntime_dir = "{self._settings.folder}"\n'
            f'[pool]\nslab = "{_SLAB}B"\nhbm = "{_REGION_BYTES}B"\n'
            f'dram = "{self._settings.pool_bytes}B"\nreserve = "0"\n'
            '[engine]\nrealtime = "never"\n[admin]\naddress = ""\n[metrics]\naddress = ""\n'
        )
        programs = Path(self._settings.build, "bin")
        command = [f"{programs}/kvd", "--config", str(config)]
        if self._settings.held:
            command = [f"{programs}/kvd-holder", "--", *command]
        self._servers.start("kvd", command, {})
        self._servers.wait("kvd", self._answers)

    def stop(self) -> None:
        self._servers.stop()

    def open(self, block_bytes: int, slots: int, owner: bool = False) -> KvdStore:
        del owner  # blocks belong to kvd, whoever stores them
        return KvdStore(self._endpoint, block_bytes, slots)

    def server(self) -> int:
        holder = self._servers.pid("kvd")
        if not self._settings.held:
            return holder
        return int(Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0])

    def index(self) -> int:
        return self.server()

    def restart(self) -> None:
        """Does nothing: kvd-holder has started it again."""
        if not poll_until(self._answers):
            raise Failed("kvd-holder does not start kvd again")

    def _answers(self) -> bool:
        try:
            kvd_client.Client(self._endpoint, timeout=1.0).close()
        except kvd_client.KvdError:
            return False
        return True


def prepare(build: str) -> None:
    """Tells the package where to find its library."""
    os.environ.setdefault("KVD_CLIENT_LIBRARY", f"{build}/lib/libkvd_client.so")
