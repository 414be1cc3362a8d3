"""`kvdctl top` and `events --follow` beside a real kvd with an engine: top in a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
import unittest

import ctest
from kvd_process import PATIENCE_S, KvdProcess

BIN = os.environ["KVDTEST_BIN_DIR"]


class Terminal:
    """A program in a pseudo-terminal of 120 columns and 30 rows. A context manager."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        environment = os.environ | {"TERM": "xterm", "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.text = ""

    def shows(self, pattern: str) -> bool:
        """Reads until it was written; what steers the terminal is left out."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, re.sub(r"\x1b[\[(][0-9;?]*[A-Za-z]", " ", self.text)):
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            try:
                piece = os.read(self._ours, 65536) if ready else b""
            except OSError:  # the terminal's end: the program has gone
                piece = b""
            if not piece:
                return False
            self.text += piece.decode(errors="replace")
        return True

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._ours, keys.encode())

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


class Top(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        self.url = f"http://127.0.0.1:{self.kvd.port}"
        self.start_engine("load")

    def start_engine(self, name: str) -> None:
        engine = subprocess.Popen(
            [f"{BIN}/kvd-pattern", "--endpoint", self.kvd.endpoint, "--name", name, "--requests", "8",
             "--new", "4000", "--step-ms", "20", "--deadline", "600", "--json"], stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)

    def test_fills_a_terminal_and_answers_keys(self) -> None:
        with Terminal(f"{BIN}/kvdctl", "top", "--url", self.url, "--interval", "0.2") as top:
            self.assertTrue(top.shows(r"hbm +\["), top.text)
            self.assertTrue(top.shows(r"1 +load"), top.text)
            self.assertTrue(top.shows(r"q quit"), top.text)
            top.press("r")
            self.assertTrue(top.shows(r"DEPOSIT"), top.text)
            top.press("p")
            self.assertTrue(top.shows(r"paused"), top.text)
            top.press("p")
            self.kvd.kill()
            self.assertTrue(top.shows(r"no answer from"), top.text)
            top.press("q")
            self.assertEqual(top.process.wait(PATIENCE_S), 0)

    def test_follows_events(self) -> None:
        follow = subprocess.Popen([f"{BIN}/kvdctl", "events", "--follow", "--url", self.url], stdout=subprocess.PIPE)
        self.addCleanup(follow.wait)
        self.addCleanup(follow.kill)
        assert follow.stdout is not None
        self.addCleanup(follow.stdout.close)
        self.assertIn(b"engine 1 'load' attached", follow.stdout.readline())
        self.start_engine("other")
        self.assertIn(b"engine 2 'other' attached", follow.stdout.readline())


if __name__ == "__main__":
    ctest.main()
