"""kvd-engine for tests in Python, as a process of its own on a real kvd."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from typing import Any

from kvd_process import PATIENCE_S, KvdProcess, free_port, poll_until

PROGRAM = f"{os.environ['KVDTEST_BIN_DIR']}/kvd-engine"
BLOCK = 16  # tokens, of 4 KiB each


class KvdEngine:
    """A context manager. 32 of its blocks fill a slab of KvdProcess."""

    def __init__(self, kvd: KvdProcess, *options: str, user: int | None = None) -> None:
        self.port, self._user = free_port(), user
        self._command = [
            PROGRAM, "--random", "layers=2,hidden=256,heads=4,kv_heads=4", "--port", str(self.port),
            "--threads", "1", "--block-tokens", str(BLOCK), "--endpoint", kvd.endpoint, *options,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, user=self._user)

    def wait(self) -> None:
        """Until it serves."""
        if not poll_until(self._is_ready):
            raise AssertionError("kvd-engine is not ready")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, prompt: list[int], **more: Any) -> int:
        """Has one token made, or as many as are asked for. Returns how many tokens of the prompt were found."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True, **more}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        usage = json.load(urllib.request.urlopen(request, timeout=PATIENCE_S))["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def _is_ready(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health").read())
        except OSError:
            return False

    def __enter__(self) -> KvdEngine:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
