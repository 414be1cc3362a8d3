"""A real redis-server on a Unix socket, of the folder that deploy/ci/redis.sh fetched."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

from kvd_process import poll_until

FOLDER = os.environ.get("KVDTEST_REDIS", "")
LIBRARIES = ":".join(f"{FOLDER}/usr/lib/{cpu}-linux-gnu" for cpu in ("x86_64", "aarch64"))
MISSING = "Redis is not fetched: sh deploy/ci/redis.sh --fetch, then configure again"


class RedisProcess:
    """A context manager: leaving it ends the server."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvd-redis-")
        self._socket = f"{self._folder.name}/socket"
        self.address = f"unix:{self._socket}"
        self._process = subprocess.Popen(
            [f"{FOLDER}/usr/bin/redis-server", "--port", "0", "--unixsocket", self._socket,
             "--save", "", "--appendonly", "no"],
            env={"LD_LIBRARY_PATH": LIBRARIES}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        if not poll_until(lambda: Path(self._socket).exists()):
            self._process.kill()
            raise RuntimeError("redis-server did not start")

    def say(self, *words: str) -> str:
        """Sends a command, and returns the part of the reply that comes at once."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._socket)
            parts = [f"*{len(words)}", *(f"${len(word)}\r\n{word}" for word in words)]
            connection.sendall("".join(f"{part}\r\n" for part in parts).encode())
            return connection.recv(1 << 20).decode(errors="replace")

    def keys(self) -> list[str]:
        return re.findall("kvd1:[0-9a-f]{64}", self.say("KEYS", "kvd1:*"))

    def __enter__(self) -> RedisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()
