"""The wheel, as a stranger installs it: into a virtual environment that has nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ctest
from kvd_process import KvdProcess

ROOT = Path(__file__).parents[3]
# Nothing of this tree may be found but by the installed wheel.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "KVD_CLIENT_LIBRARY", "LD_LIBRARY_PATH", "KVD_ENDPOINT")
}


def run(*command: str | Path) -> str:
    done = subprocess.run(command, env=CLEAN, cwd="/", capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


class Wheel(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-wheel-")))
        CLEAN["BUILD"] = str(Path(os.environ["KVD_CLIENT_LIBRARY"]).parents[1])
        CLEAN["PYTHON"] = sys.executable
        self.wheel = run(ROOT / "deploy/package/wheel.sh", self.folder / "dist")

    def test_serves_a_fresh_environment(self) -> None:
        venv = self.folder / "venv"
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin/python", "-m", "pip", "install", "--no-index", self.wheel)
        kvd = self.enterContext(KvdProcess())
        found = json.loads(
            run(venv / "bin/python", "-m", "kvd_client", "status", "--json",
                "--endpoint", kvd.endpoint)
        )  # fmt: skip
        self.assertEqual(found["slab_bytes"], kvd.slab)
        place = run(venv / "bin/python", "-c", "import kvd_client; print(kvd_client.__file__)")
        self.assertTrue(place.startswith(str(venv)))
        self.assertTrue(Path(place).with_name("py.typed").exists())

    def test_has_the_version_of_the_daemon(self) -> None:
        daemon = run(Path(os.environ["KVDTEST_BIN_DIR"], "kvd"), "--version")
        version = re.search(r"\d+\.\d+\.\d+", daemon)
        assert version is not None
        self.assertIn(f"-{version[0]}-py3-none-linux_", self.wheel)
        source = (ROOT / "client_lib/python/kvd_client/__init__.py").read_text()
        self.assertIn(f'__version__ = "{version[0]}"', source)


if __name__ == "__main__":
    ctest.main()
