"""The wheels, as a stranger installs them: into a virtual environment that has nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path
from unittest.mock import patch

import ctest
from kvd_process import KvdProcess

ROOT = Path(__file__).parents[3]
# Only the installed wheel may lead to files of this tree.
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


def make(out: Path, *projects: str) -> list[str]:
    CLEAN["BUILD"] = str(Path(os.environ["KVD_CLIENT_LIBRARY"]).parents[1])
    CLEAN["PYTHON"] = sys.executable
    return run(ROOT / "deploy/package/wheel.sh", out, *projects).splitlines()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-wheel-")))
        self.venv = self.folder / "venv"

    def pip(self, *words: str | Path) -> None:
        run(self.venv / "bin/python", "-m", "pip", *words)

    def installed(self) -> set[Path]:
        return {path for path in self.venv.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}

    def status(self, endpoint: str) -> dict[str, object]:
        said = run(self.venv / "bin/python", "-m", "kvd_client", "status", "--json", "--endpoint", endpoint)
        found: dict[str, object] = json.loads(said)
        return found


class Client(Case):
    def setUp(self) -> None:
        super().setUp()
        (self.wheel,) = make(self.folder / "dist")

    def test_serves_a_fresh_environment(self) -> None:
        run(sys.executable, "-m", "venv", self.venv)
        self.pip("install", "--no-index", self.wheel)
        kvd = self.enterContext(KvdProcess())
        self.assertEqual(self.status(kvd.endpoint)["slab_bytes"], kvd.slab)
        place = run(self.venv / "bin/python", "-c", "import kvd_client; print(kvd_client.__file__)")
        self.assertTrue(place.startswith(str(self.venv)))
        self.assertTrue(Path(place).with_name("py.typed").exists())

    def test_has_the_version_of_the_daemon(self) -> None:
        daemon = run(Path(os.environ["KVDTEST_BIN_DIR"], "kvd"), "--version")
        version = re.search(r"\d+\.\d+\.\d+", daemon)
        assert version is not None
        self.assertIn(f"-{version[0]}-py3-none-linux_", self.wheel)
        source = (ROOT / "client_lib/python/kvd_client/__init__.py").read_text()
        self.assertIn(f'__version__ = "{version[0]}"', source)


class Server(Case):
    """kvd-server, and kvd-vllm, which is a name for what kvd-client has."""

    dist: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.dist = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-wheels-")))
        make(cls.dist, "kvd-client", "kvd-vllm", "kvd-server")

    def setUp(self) -> None:
        super().setUp()
        run(sys.executable, "-m", "venv", self.venv)
        self.before = self.installed()
        self.pip("install", "--no-index", "--find-links", self.dist, "kvd-server", "kvd-vllm")

    def test_runs_a_kvd_from_a_fresh_environment(self) -> None:
        with patch.dict(os.environ, {"KVDTEST_BIN_DIR": str(self.venv / "bin")}):
            kvd = self.enterContext(KvdProcess(held=True))
        for process in (kvd.process.pid, kvd.pid):
            self.assertIn(self.venv, Path(f"/proc/{process}/exe").resolve().parents)
        self.assertEqual(self.status(kvd.endpoint)["slab_bytes"], kvd.slab)
        with urllib.request.urlopen(f"http://127.0.0.1:{kvd.port}/", timeout=10) as page:
            self.assertIn(b"<html", page.read())
        kvd.process.terminate()
        self.assertEqual(kvd.process.wait(timeout=60), 0)

    def test_its_programs_are_what_they_are_without_it(self) -> None:
        theirs = Path(os.environ["KVDTEST_BIN_DIR"])
        # The last: Python ignores SIGPIPE, which a program must not inherit.
        for words in ["kvd --help", "kvd --nonsense", "kvd-admin", "kvd-holder", "kvdctl --version", "kvdctl no",
                      "kvd-holder grep SigIgn /proc/self/status"]:  # fmt: skip
            name, *arguments = words.split()
            answers = []
            for folder in (theirs, self.venv / "bin"):
                done = subprocess.run([folder / name, *arguments], capture_output=True, text=True, env=CLEAN)
                answers.append((done.returncode, done.stdout, done.stderr))
            with self.subTest(words):
                self.assertEqual(*answers)

    def test_vllm_finds_its_plugin_and_nothing_stays(self) -> None:
        code = "from importlib.metadata import entry_points as e; print(e(group='vllm.general_plugins')['kvd'].value)"
        self.assertEqual(run(self.venv / "bin/python", "-c", code), "kvd_vllm:register")
        self.pip("uninstall", "--yes", "kvd-server", "kvd-vllm", "kvd-client")
        self.assertEqual(self.installed(), self.before)


if __name__ == "__main__":
    ctest.main()
