"""Processes that run a script as `python script …` does, but with vLLM imported: that takes a dozen
seconds, so one server does it once, before any engine, and each process is forked from it.

Each is a process of its own all the same: with pid, environment, stdin, stdout, log and exit status.
What differs from a fresh one: the modules of warm_vllm.py are there, the seed of Python's hashes is the
server's, and at the end Python is not taken down.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
_context = multiprocessing.get_context("forkserver")
_environment: dict[str, str] = {}  # the server's


def prepare(environment: dict[str, str]) -> None:
    """Starts the server, which imports in the background. It ends with this process."""
    assert not _environment, "one server serves this process, with the packages of one bench"
    _environment.update(environment)
    path = f"{HERE}{os.pathsep}{environment['PYTHONPATH']}"
    _context.set_forkserver_preload(["warm_vllm"])
    with mock.patch.dict(os.environ, {**environment, "PYTHONPATH": path}, clear=True):
        forkserver.ensure_running()


def _run(
    script: str, arguments: list[str], environment: dict[str, str], log: str,
    stdin: Connection, stdout: Connection,
) -> None:  # fmt: skip
    """In the new process."""
    from warm_vllm import PATH

    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate((stdin, stdout)):
        os.dup2(stream.fileno(), number)
        stream.close()
    stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stderr, 2)
    os.close(stderr)
    sys.stdin = open(0, closefd=False)
    sys.path[:] = PATH
    sys.argv[:] = [script, *arguments]
    importlib.invalidate_caches()  # packages were installed since
    runpy.run_path(script, run_name="__main__")


class WarmProcess:
    """What tests use of subprocess.Popen, with text in stdin and stdout; stderr is appended to `log`."""

    def __init__(
        self, script: Path, arguments: Sequence[str], environment: dict[str, str], log: Path
    ) -> None:
        differing = {key for key, _ in environment.items() ^ _environment.items()}
        seen_at_import = {key for key in differing if not key.startswith("KVD_")}
        assert not seen_at_import, f"vLLM was imported with other values of {seen_at_import}"
        its_stdin, stdin = _context.Pipe(duplex=False)
        stdout, its_stdout = _context.Pipe(duplex=False)
        self._process = _context.Process(
            target=_run, name="MainProcess", daemon=True,
            args=(str(script), list(arguments), environment, str(log), its_stdin, its_stdout),
        )  # fmt: skip
        # Without a file of __main__ the new process does not import the test, nor with it a kvd_client
        # that is not the wheel's.
        with mock.patch.object(sys.modules["__main__"], "__file__", None, create=True):
            self._process.start()
        its_stdin.close()
        its_stdout.close()
        self.stdin = open(os.dup(stdin.fileno()), "w")
        self.stdout = open(os.dup(stdout.fileno()))
        stdin.close()
        stdout.close()
        self._printed: list[str] = []
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def communicate(self, *, timeout: float | None = None) -> tuple[str, None]:
        """Ends its stdin, takes the rest of its output, and waits for its end."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        if self._reader is None:
            self._reader = threading.Thread(target=lambda: self._printed.extend(self.stdout), daemon=True)
            self._reader.start()
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        self.stdout.close()
        self.wait(timeout)
        return "".join(self._printed), None

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
