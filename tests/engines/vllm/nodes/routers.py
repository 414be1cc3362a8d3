"""The real vllm-router and Dynamo's indexer, on engines that publish KV events.

All of it runs in a network namespace of its own, as the indexer listens on all addresses.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import unittest
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvd_process import poll_until
from served import HttpServer

ROUTERS = os.environ.get("KVDTEST_ROUTERS", "")
NEW_NETWORK = 0x40000000
_CREDIT = re.compile(r"KV prefix decision.*credited_prefix_tokens\S*?=\S*?(\d+)")
_WORKER = re.compile(r"worker_id=(\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def enter_own_network() -> None:
    """Enters a network namespace, for this thread and what it starts. Skips the test where there are no routers or no
    namespaces."""
    if not os.path.exists(f"{ROUTERS}/bin/vllm-router"):
        raise unittest.SkipTest("routers are not fetched: sh deploy/ci/routers.sh --fetch, then configure again")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK) != 0 or subprocess.run(["ip", "link", "set", "lo", "up"], check=False).returncode:
        raise unittest.SkipTest("no network namespace of its own: only root may make one")


@dataclass
class Stream:
    """The KV events that one engine publishes."""

    number: int
    url: str
    events: str
    replay: str


class Indexer(HttpServer):
    """Dynamo's, which follows all engines."""

    def __init__(self, port: int, streams: Sequence[Stream], block: int, folder: Path) -> None:
        command = [f"{ROUTERS}/bin/python", "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
        super().__init__(command, port, {"PATH": os.environ["PATH"]}, folder / f"indexer{port}.log")
        self.wait()
        self._streams, self._block = streams, block
        for stream in streams:
            self._register(stream)

    def _register(self, stream: Stream) -> None:
        told = {"instance_id": stream.number, "endpoint": stream.events, "replay_endpoint": stream.replay}
        status, text = self.ask("POST", "/register", {**told, "model_name": "m", "block_size": self._block})
        assert status < 300, text

    def free_stuck(self) -> int:
        """Registers engines again that died while they were asked for a replay: version 1.6.1 waits for ever."""
        stuck = {}
        for line in _COLOUR.sub("", self.log).splitlines():
            if number := _WORKER.search(line):
                stuck[int(number[1])] = "Requesting replay" in line
        for stream in self._streams:
            if stuck.get(stream.number):
                self.ask("POST", "/unregister", {"instance_id": stream.number, "model_name": "m"})
                self._register(stream)
        return sum(stuck.values())

    def found(self, prompt: list[int]) -> dict[str, dict[str, Any]]:
        """The tokens by engine, in the indexer's own words."""
        _, text = self.ask("POST", "/query", {"token_ids": prompt, "model_name": "m"})
        instances: dict[str, dict[str, Any]] = json.loads(text).get("instances", {})
        return instances

    def where(self, prompt: list[int]) -> dict[int, tuple[int, int]]:
        """The tokens by engine: how many it has in the GPU's cache, and how many more in kvd."""
        found = self.found(prompt).items()
        return {int(at): (each["gpu"], max(each["cpu"], each["disk"]) - each["gpu"]) for at, each in found}


class Router(HttpServer):
    """vllm-router."""

    def __init__(self, port: int, streams: Sequence[Stream], block: int, folder: Path, *options: str) -> None:
        command = [f"{ROUTERS}/bin/vllm-router", "--host", "127.0.0.1", "--port", str(port), "--policy", "kv_aware"]
        command += ["--worker-urls", *(stream.url for stream in streams)]
        for stream in streams:
            command += ["--kv-event-source", f"{stream.url}={stream.events}"]
            command += ["--kv-event-replay-source", f"{stream.url}={stream.replay}"]
        command += ["--kv-event-block-size", str(block), "--kv-event-model", "m", "--prometheus-port", str(port + 1)]
        super().__init__([*command, *options], port, {"PATH": os.environ["PATH"]}, folder / "router.log")
        self.wait()

    def credited(self, prompt: list[int]) -> int:
        """How many tokens the router takes for computed, as it says with --log-level debug: it sends the prompt."""
        said = len(self.log)
        status, text = self.ask("POST", "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 1})
        assert status == 200, text
        credits: list[str] = []

        def is_said() -> bool:
            credits[:] = _CREDIT.findall(_COLOUR.sub("", self.log[said:]))
            return bool(credits)

        assert poll_until(is_said), self.log[-2000:]
        return int(credits[-1])
