"""The part of the comparison that needs nothing fetched: memcpy and kvd, one round, and all the
failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import ctest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import table  # noqa: E402


class Peers(unittest.TestCase):
    def test_kvd_plays_all_rows_and_fails_as_it_says(self) -> None:
        done = subprocess.run(
            [sys.executable, str(HERE / "bench.py"), "--systems", "memcpy,kvd", "--rounds", "1",
             "--build", str(Path(os.environ["KVDTEST_BIN_DIR"]).parent), "--json"],
            capture_output=True, text=True, timeout=270,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        about = json.loads(done.stdout)
        rows: list[dict[str, Any]] = about.pop("rows")
        of = {row["row"]: row for row in rows if row["system"] == "kvd"}
        self.assertEqual(of["storer killed"]["right"], of["storer killed"]["of"])
        self.assertEqual(of["storer killed"]["false_yes_s"], 0)
        self.assertEqual(of["server restarted"]["right"], of["server restarted"]["of"])
        self.assertEqual(of["pressure, kept"]["gone"], 0)
        self.assertEqual(sum(row.get("wrong", 0) for row in rows), 0)
        text = table.text(about, rows)
        for line in ("load 32 x 2 MiB", "lookup 2048 x 16 tokens, hits", "server killed"):
            self.assertIn(line, text)

    def test_what_did_not_run_is_named(self) -> None:
        about = {"machine": "one", "cores": [0], "rounds": 1, "seconds": 1, "load_average": [0, 0]}
        row = {"system": "kvd", "role": "pressure", "row": "pressure", "failed": "no memory"}
        self.assertIn("did not run: kvd, pressure: no memory", table.text(about, [row]))


if __name__ == "__main__":
    ctest.main()
