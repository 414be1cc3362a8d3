"""unittest as ctest sees it: a file whose tests are all skipped is a skipped test, with its reason."""

from __future__ import annotations

import sys
import unittest


def main() -> None:
    program = unittest.main(module="__main__", exit=False, verbosity=2)
    result = program.result
    sys.stderr.flush()
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    if len(result.skipped) == result.testsRun:
        print(f"{sys.argv[0]}: Skipped\n{result.skipped[0][1]}")
