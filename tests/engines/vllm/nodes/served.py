"""`vllm serve` for tests: a server of its own, as users start it, asked over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvd_process import free_port, poll_until
from vllm_process import Bench

START_S, END_S, ANSWER_S = 300.0, 60.0, 120.0


class HttpServer:
    """A program that answers GET /health once it serves, with the processes that it starts. A context manager:
    leaving it ends them all."""

    def __init__(self, command: Sequence[str], port: int, environment: dict[str, str], log: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                list(command), env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait(self) -> None:
        """Until it serves."""

        def serves() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.ask("GET", "/health", timeout=5)[0] == 200
            return self.process.poll() is not None

        if not poll_until(serves, START_S) or self.process.poll() is not None:
            raise RuntimeError(f"no server: {self.log[-4000:]}")

    def ask(self, method: str, path: str, body: Any = None, timeout: float = ANSWER_S) -> tuple[int, str]:
        """Status and text of the answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def signal(self, number: signal.Signals) -> None:
        """To all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.kill()


class VllmServer(HttpServer):
    """`vllm serve` of the bench's model, without a tokenizer."""

    def __init__(
        self, bench: Bench, name: str, arguments: Sequence[str] = (), port: int = 0, **environment: str
    ) -> None:
        port = port or free_port()
        command = [
            sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(bench.model), "--host", "127.0.0.1",
            "--port", str(port), "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager",
            "--max-model-len", "1024", "--block-size", "32", "--kv-cache-memory-bytes", str(16 << 20), *arguments,
        ]  # fmt: skip
        super().__init__(command, port, {**bench.environment, **environment}, bench.folder / f"{name}.log")

    def metric(self, pattern: str) -> float:
        """The sum of the samples of vLLM's metrics whose names, with labels, begin with `pattern`."""
        text = self.ask("GET", "/metrics")[1]
        return sum(map(float, re.findall(rf"^vllm:{pattern}.* (\S+)$", text, re.MULTILINE)))
