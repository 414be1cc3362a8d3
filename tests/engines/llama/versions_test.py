"""libggml-kvd.so in llama.cpp of another version of ggml, one of deploy/ci/llama-versions.txt: bit for bit the logits of
an engine on its own memory, and other ones once kvd's memory was wiped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import ctest
from kvd_process import PATIENCE_S, KvdProcess, pool_bytes_mapped

PROGRAMS = Path(os.environ["KVDTEST_BIN_DIR"])
PLUGIN = PROGRAMS.parent / "lib" / "libggml-kvd.so"
ENGINES = Path(os.environ["KVDTEST_LLAMA_VERSIONS"])
VERSION = os.environ["KVDTEST_GGML"]


class Engine:
    """One run of prompt.py, half-way once made. On kvd's memory, or with None on its own."""

    def __init__(self, model: Path, kvd: KvdProcess | None) -> None:
        lent = {} if kvd is None else {"GGML_BACKEND_PATH": str(PLUGIN), "KVD_ENDPOINT": kvd.endpoint}
        self.process = subprocess.Popen(
            [ENGINES / "python", Path(__file__).with_name("prompt.py"),
             ENGINES / VERSION / "llama_cpp_py_sync", model],
            env={**os.environ, "PYTHONPATH": str(ENGINES / "cffi"), "KVD_LLAMA_REQUIRE": "1", **lent},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "half\n":
            raise RuntimeError(self.process.communicate()[1])

    def finish(self) -> dict[str, Any]:
        said, errors = self.process.communicate("\n", PATIENCE_S)
        if self.process.returncode != 0:
            raise RuntimeError(errors)
        answer: dict[str, Any] = json.loads(said)
        return answer


class Versions(unittest.TestCase):
    def test_runs_on_kvd_bit_for_bit(self) -> None:
        with KvdProcess() as kvd, tempfile.TemporaryDirectory() as folder:
            model = Path(folder, "model.gguf")
            subprocess.run([PROGRAMS / "kvd-llama-model", "--out", model], check=True)
            own = Engine(model, None).finish()
            self.assertEqual(own["ggml"], VERSION)
            self.assertGreater(own["distinct"], 100)
            lent = Engine(model, kvd)
            served = pool_bytes_mapped(lent.process.pid)
            self.assertGreater(served, 0)
            self.assertTrue(kvd.comes_to_serve(lent.process.pid, served))
            self.assertEqual(lent.finish(), own)
            wiped = Engine(model, kvd)
            subprocess.run([PROGRAMS / "kvd-zero-pool", "--pid", str(wiped.process.pid)], check=True)
            self.assertNotEqual(wiped.finish()["logits"], own["logits"])
            self.assertTrue(kvd.all_returned())


if __name__ == "__main__":
    sys.exit(ctest.main())
