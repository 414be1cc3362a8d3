"""What was made for an earlier commit goes on with this kvd: its client, its C header, its Python package."""

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
LIBRARY = Path(os.environ["KVD_CLIENT_LIBRARY"])
# The last commit of protocol 2 that changed bytes of a frame that there was before.
EARLIER = "b77b2cf91be5c3ea503e5b605cd922e6b192a873"
GOLDEN = Path("tests/unit/ipc/wire/golden")


def run(*command: str | Path, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env={**os.environ, **more}, capture_output=True, text=True, timeout=900)


def setUpModule() -> None:
    global earlier
    folder = tempfile.TemporaryDirectory(prefix="kvd-earlier-")
    unittest.addModuleCleanup(folder.cleanup)
    earlier = Path(folder.name)
    archive = earlier / "earlier.tar"
    if run("git", "archive", "--output", archive, EARLIER, cwd=ROOT).returncode != 0:
        raise unittest.SkipTest(f"no git history with {EARLIER[:8]} here")
    run("tar", "-xf", archive, cwd=earlier).check_returncode()


class Frames(unittest.TestCase):
    def test_are_those_of_today(self) -> None:
        theirs = sorted((earlier / GOLDEN).glob("v*/*.hex"))
        self.assertGreater(len(theirs), 20)
        for file in theirs:
            self.assertEqual((ROOT / file.relative_to(earlier)).read_bytes(), file.read_bytes(), file.name)


class Earlier(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=64))

    def succeeds(self, *command: str | Path, cwd: Path | None = None, **more: str) -> str:
        done = run(*command, cwd=cwd, KVD_ENDPOINT=self.kvd.endpoint, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def example(self, language: str, number: int) -> str:
        page = (earlier / "docs/attach.md").read_text()
        return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)[number]

    @unittest.skipUnless("KVDTEST_BUILD_EARLIER" in os.environ, "KVDTEST_BUILD_EARLIER says to build it")
    def test_its_client_rotates_and_finds_its_bytes(self) -> None:
        off = [f"-DKVD_{each}=OFF" for each in ("BUILD_TESTS", "BUILD_BENCH", "WITH_LLAMA")]
        self.succeeds("cmake", "--preset", "quick", *off, cwd=earlier)
        self.succeeds("cmake", "--build", "--preset", "quick", "--target", "kvd-pattern", cwd=earlier)
        pattern = [earlier / "build/quick/bin/kvd-pattern", "--json", "--requests", "48", "--prompt", "160",
                   "--new", "64", "--layers", "8", "--bytes-per-token", "2048", "--step-ms", "2"]  # fmt: skip
        for transport in ([], ["--ring"]):
            with self.subTest(transport):
                found = json.loads(self.succeeds(*pattern, *transport))
                self.assertEqual((found["pattern_errors"], found["restarts"]), (0, 0), found)
                self.assertGreater(found["rotations_in"], 0, found)
        control = run(*pattern, "--corrupt-once", KVD_ENDPOINT=self.kvd.endpoint)
        self.assertNotEqual(control.returncode, 0, control.stdout)

    def test_a_program_of_its_c_header_runs_with_this_library(self) -> None:
        source, program = earlier / "engine.c", earlier / "engine"
        source.write_text(self.example("c", 0))
        self.succeeds("cc", "-I", earlier / "client_lib/include", source, LIBRARY, "-o", program)
        lent = self.succeeds(program, LD_LIBRARY_PATH=str(LIBRARY.parent))
        self.assertEqual(lent, f"kvd lent {self.kvd.slab} bytes\n")

    def test_its_python_package_runs_with_this_library(self) -> None:
        package = str(earlier / "client_lib/python")
        lent = self.succeeds(sys.executable, "-c", self.example("python", 0), PYTHONPATH=package)
        self.assertEqual(lent, f"kvd lent {self.kvd.slab} bytes\n")

if __name__ == "__main__":
    ctest.main()
