"""schemathesis tries the admin interface by its own description, over a kvd with an engine, and finds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ctest
from kvd_process import KvdProcess, poll_until

SEED = os.environ.get("KVD_SEED", "7")
EXAMPLES = "200"  # an operation
REST, DRAIN = 26, 2  # operations of all paths but /v1/drain, and of it


class Rest(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        engine = subprocess.Popen(
            [f"{os.environ['KVDTEST_BIN_DIR']}/kvd-pattern", "--endpoint", self.kvd.endpoint, "--name", "load",
             "--requests", "8", "--new", "4000", "--step-ms", "100", "--deadline", "900", "--json"],
            stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        self.assertTrue(poll_until(lambda: len(self.kvd.get("/v1/requests")["requests"]) == 8))

    def schemathesis(self, description: str, *more: str) -> subprocess.CompletedProcess[str]:
        """All of its checks."""
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-rest-"))
        return subprocess.run(
            [Path(sys.executable).parent / "schemathesis", "run", description, "--checks", "all",
             "--max-examples", EXAMPLES, "--seed", SEED, "--request-timeout", "30", "--no-color",
             "-H", f"Authorization: Bearer {self.kvd.token}", *more],
            cwd=folder, capture_output=True, text=True, timeout=800)  # fmt: skip

    def test_nothing_is_found(self) -> None:
        description = f"http://127.0.0.1:{self.kvd.port}/openapi.json"
        # Drains come last: a node out of service says 503 at /readyz, and has no engine to show.
        for chosen, operations in (("--exclude-path", REST), ("--include-path", DRAIN)):
            run = self.schemathesis(description, chosen, "/v1/drain")
            print(f"seed {SEED}\n{run.stdout[-3000:]}", file=sys.stderr)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertIn(f"Selected: {operations}/{REST + DRAIN}", run.stdout)
            self.assertIn(f"Tested: {operations}", run.stdout)

    def test_what_is_wrong_would_be_found(self) -> None:
        """The control: descriptions that kvd does not keep to."""
        description = self.kvd.get("/openapi.json")
        schemas = description["components"]["schemas"]
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-rest-")))

        def finds(path: str) -> str:
            (folder / "openapi.json").write_text(json.dumps(description))
            run = self.schemathesis(str(folder / "openapi.json"), "--url", f"http://127.0.0.1:{self.kvd.port}",
                                    "--include-path", path)  # fmt: skip
            self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
            return run.stdout

        schemas["Engine"]["properties"]["pid"]["type"] = "string"
        self.assertIn("Response violates schema", finds("/v1/engines"))
        schemas["SloPatch"]["properties"]["classes"]["properties"]["default"] = {"type": "integer"}
        self.assertIn("Schema-valid request rejected", finds("/v1/slo"))


if __name__ == "__main__":
    ctest.main()
