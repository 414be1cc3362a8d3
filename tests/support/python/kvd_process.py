"""A real kvd for tests in Python: a folder of its own, every wait with a deadline. On the host backend, or
with KVDTEST_DEVICE=cuda on a GPU."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
DEVICE = os.environ.get("KVDTEST_DEVICE", "cpu")
SLAB = 2 << 20


def poll_until(condition: Callable[[], bool], patience: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


_claims: list[socket.socket] = []


@atexit.register
def _give_ports_back() -> None:
    for claim in _claims:
        claim.close()


def free_port() -> int:
    """A port that no other test gets until this process ends: tests/support/free_port.hpp."""
    first, count = 20000, 12000
    for tries in range(count):
        port = first + (os.getpid() * 16 + len(_claims) + tries) % count
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0kvd-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError("no free port")


def pool_bytes_mapped(pid: int) -> int:
    """What the kernel says the process has mapped of the HBM pool, in bytes."""
    return sum(end - begin for begin, end in pool_ranges(pid))


def pool_ranges(pid: int) -> list[tuple[int, int]]:
    """The process's writable mappings of slabs of the HBM pool."""
    line = re.compile(r"([0-9a-f]+)-([0-9a-f]+) .w.. .*/memfd:kvd-hbm")
    try:
        text = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return []
    found = (line.match(each) for each in text.splitlines())
    return [(int(hit[1], 16), int(hit[2], 16)) for hit in found if hit]


class KvdProcess:
    """`kvd` of KVDTEST_BIN_DIR with a pool of `slabs` slabs of `slab` bytes. A context manager."""

    def __init__(
        self,
        slabs: int = 8,
        dram_slabs: int = 8,
        slab: int = SLAB,
        bandwidth: str = "unlimited",
        metrics: bool = False,
        read: str = "auto",
        extra: str = "",  # more of kvd.toml
        held: bool = False,  # under kvd-holder, which starts it again
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvd-test-")
        self.endpoint = f"{self._folder.name}/attach.sock"
        self.slab = slab
        self.port = free_port()
        self.metrics_port = free_port() if metrics else 0
        metrics_table = f"port = {self.metrics_port}" if metrics else 'address = ""'
        config = Path(self._folder.name, "kvd.toml")
        backend = "cuda" if DEVICE == "cuda" else "host"
        config.write_text(
            f'backend = "{backend}"\n[paths]\nruntime_dir = "{self._folder.name}"\n'
            f'[pool]\nslab = "{slab}B"\nhbm = "{slab * slabs}B"\n'
            f'dram = "{slab * dram_slabs}B"\nreserve = "0"\n'
            f'[link]\nbandwidth = "{bandwidth}"\n'
            f'[admin]\nport = {self.port}\nread = "{read}"\n[metrics]\n{metrics_table}\n{extra}'
        )
        self.is_held = held
        programs = os.environ["KVDTEST_BIN_DIR"]
        holder = [f"{programs}/kvd-holder", "--"] if held else []
        self._command = [*holder, f"{programs}/kvd", "--config", str(config)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        if not poll_until(lambda: self._answers("/readyz")):
            self.kill()
            raise RuntimeError("kvd did not become ready")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        """kvd's own, not its holder's. 0: there is none."""
        holder = self.process.pid
        if not self.is_held:
            return holder
        children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill_held(self) -> None:
        """kvd under its holder, until there is another kvd."""
        kvd = self.pid
        os.kill(kvd, signal.SIGKILL)
        self._wait_for_another(kvd)

    def upgrade_held(self) -> None:
        """The holder ends kvd in order and starts it again."""
        kvd = self.pid
        self.process.send_signal(signal.SIGUSR1)
        self._wait_for_another(kvd)

    def _wait_for_another(self, kvd: int) -> None:
        if not poll_until(lambda: self.pid not in (0, kvd) and self._answers("/readyz")):
            raise RuntimeError("kvd-holder did not start kvd again")

    @property
    def token(self) -> str:
        return Path(self._folder.name, "admin.token").read_text().strip()

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, number)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def clear_cache(self) -> None:
        self._change("DELETE", "/v1/cache")

    def patch(self, path: str, document: Any) -> None:
        self._change("PATCH", path, json.dumps(document).encode())

    def _change(self, method: str, path: str, data: bytes | None = None) -> None:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/merge-patch+json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        urllib.request.urlopen(request, timeout=10).read()

    def engines(self) -> list[dict[str, Any]]:
        engines: list[dict[str, Any]] = self.get("/v1/engines")["engines"]
        return engines

    def bytes_served_to(self, pid: int) -> int:
        """The region bytes that the daemon counts for a process."""
        return sum(engine["region_bytes"] for engine in self.engines() if engine["pid"] == pid)

    def comes_to_serve(self, pid: int, count: int) -> bool:
        """Looks until it is so, as what the daemon shows is up to a tenth of a second old."""
        return poll_until(lambda: self.bytes_served_to(pid) == count)

    def all_returned(self) -> bool:
        """Waits until the whole HBM pool is free again, scrubbed and all."""

        def is_free() -> bool:
            pool = self.get("/v1/status")["pools"][0]
            return bool(pool["free_bytes"] == pool["capacity_bytes"])

        return poll_until(is_free)

    def _answers(self, path: str) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"kvd ended with {self.process.returncode}")
        try:
            self.get(path)
        except json.JSONDecodeError:
            return True
        except (urllib.error.URLError, OSError):
            return False
        return True

    def __enter__(self) -> KvdProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_held:  # the holder ends after its kvd, which may still use the folder
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
        self.kill()
        self._folder.cleanup()
