"""quarter.sh --dry: the script that a GPU gets runs from end to end on vLLM for CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import ctest

HERE = Path(__file__).parent
# What a CPU can answer.
PASSED = {"ready", "engines", "tokens", "logprobs", "region", "hits", "bytes", "computed", "parked", "seen", "weights"}


class Dry(unittest.TestCase):
    def test_answers_what_needs_no_gpu_and_says_so_of_the_rest(self) -> None:
        out = Path(self.enterContext(tempfile.TemporaryDirectory()))
        run = subprocess.run(
            ["sh", HERE / "quarter.sh", "--dry", "--seconds", "300", os.environ["KVDTEST_BUILD"]],
            env={**os.environ, "OUT": str(out)}, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        log = out / "logs.txt"
        said = run.stdout + run.stderr + (log.read_text(errors="replace")[-6000:] if log.exists() else "")
        self.assertEqual(run.returncode, 0, said)
        criteria = json.loads((out / "quarter.json").read_text())["criteria"]
        states = {(each["item"], each["key"]): each["state"] for each in criteria}
        passed = {key for (_, key), state in states.items() if state == "pass"}
        self.assertEqual(passed, PASSED, said)
        others = {each["reason"].split(";")[0] for each in criteria if each["state"] == "not run"}
        self.assertEqual(others, {"no GPU"})
        self.assertLessEqual(len(list(out.iterdir())), 8)


if __name__ == "__main__":
    ctest.main()
