"""The packages are typed: mypy in its strict mode has nothing to say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ctest

PACKAGES = Path(__file__).parents[3] / "client_lib/python"


class Types(unittest.TestCase):
    def test_are_strict(self) -> None:
        if importlib.util.find_spec("mypy") is None:
            self.skipTest("mypy is not installed: apt-get install mypy")
        with tempfile.TemporaryDirectory(prefix="kvd-mypy-") as cache:
            done = subprocess.run(
                [sys.executable, "-m", "mypy", "--cache-dir", cache, "kvd_client", "kvd_sglang", "kvd_vllm"],
                cwd=PACKAGES, capture_output=True, text=True,
            )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    ctest.main()
