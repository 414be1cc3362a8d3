"""llama.cpp on memory of kvd, whose answer must be that of llama.cpp alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

PROGRAMS = Path(os.environ["KVDTEST_BIN_DIR"])
PLUGIN = PROGRAMS.parent / "lib" / "libggml-kvd.so"


class Llama:
    """One answer at a time, with `options` of kvd-llama. A context manager."""

    def __init__(self, endpoint: str, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._lent = {"GGML_BACKEND_PATH": str(PLUGIN), "KVD_ENDPOINT": endpoint, "KVD_LLAMA_REQUIRE": "1"}
        subprocess.run([PROGRAMS / "kvd-llama-model", "--out", folder / "model.gguf"], check=True)
        if self._run("plain", {}).wait() != 0:
            raise RuntimeError("llama.cpp alone has failed")
        self.begin()

    def begin(self) -> None:
        self.process = self._run("on kvd", self._lent, *self._options)

    def wait_for_pause(self) -> None:
        while "paused" not in self._said():
            assert self.process.poll() is None, "llama.cpp has ended"

    def has_answered(self) -> bool:
        """Also in part."""
        return "progress" in self._said()

    def differs(self) -> int:
        """Goes on to the end. 0: the answer is that of llama.cpp alone, bit for bit."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
        compare = [PROGRAMS / "kvd-llama-compare", self._folder / "plain", self._folder / "on kvd"]
        return self.process.wait() or subprocess.run(compare, check=False).returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _said(self) -> str:
        return (self._folder / "on kvd.said").read_text()

    def _run(self, record: str, environment: dict[str, str], *more: str) -> subprocess.Popen[bytes]:
        command = [
            PROGRAMS / "kvd-llama", "--model", self._folder / "model.gguf", "--input", __file__, "--logits-out",
            self._folder / record, "--tokens", "256", "--context-size", "4096", *more,
        ]  # fmt: skip
        with open(self._folder / f"{record}.said", "wb") as said:
            return subprocess.Popen(command, env={**os.environ, **environment}, stdout=said)
