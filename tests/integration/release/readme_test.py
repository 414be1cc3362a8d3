"""The README's two vLLMs, out of wheels in a fresh environment, as `sh deploy/package.sh check-release` does it in a
bare Debian."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ctest
from kvd_process import free_port

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "deploy/package"
VLLM = os.environ["KVDTEST_VLLM"]
sys.path.insert(0, str(ROOT / "docs"))

import follow  # noqa: E402


class Readme(unittest.TestCase):
    def test_the_second_vllm_finds_what_the_first_one_computed(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-readme-")))
        script = follow.script("../README.md", follow.ON_WHEELS["../README.md"])
        first, second = str(free_port()), str(free_port())
        script = script.replace("--enforce-eager &", f"--enforce-eager --port {first} &")
        (folder / "readme.sh").write_text(script.replace("8000", first).replace("8001", second))
        environment = {
            **os.environ, "BUILD": str(Path(os.environ["KVDTEST_BIN_DIR"]).parent), "PYTHON": sys.executable,
            "PORTABLE": "1", "VLLM_NO_USAGE_STATS": "1", "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder),
            "KVD_PATHS_RUNTIME_DIR": f"{folder}/kvd", "KVD_ENDPOINT": f"{folder}/kvd/attach.sock",
            "KVD_ADMIN_PORT": str(free_port()), "KVD_METRICS_PORT": str(free_port()),
        }  # fmt: skip
        del environment["PYTHONPATH"], environment["KVD_CLIENT_LIBRARY"]  # the wheel brings its own
        subprocess.run(["sh", PACKAGE / "wheel.sh", folder / "wheels", "kvd-client", "kvd-vllm", "kvd-server"],
                       env=environment, check=True)  # fmt: skip
        make = f"import other_models, pathlib; other_models.write_speaking(pathlib.Path({str(folder / 'model')!r}))"
        subprocess.run([VLLM, "-c", make], env={**environment, "PYTHONPATH": f"{ROOT}/tests/engines/vllm"}, check=True)
        site = next(Path(VLLM).parents[1].glob("lib/python*/site-packages"))
        shell = subprocess.Popen(["sh", "-e", PACKAGE / "try_vllm.sh", folder / "wheels", site, folder / "model",
                                  folder / "readme.sh"], env=environment, start_new_session=True)  # fmt: skip
        try:
            self.assertEqual(shell.wait(timeout=600), 0)
        finally:
            with contextlib.suppress(ProcessLookupError):  # kvd and the vLLMs
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


if __name__ == "__main__":
    ctest.main()
