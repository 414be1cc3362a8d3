"""quarter.sh's program: play.py --programs FOLDER --packages A:B --python FILE [--seconds S] …"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from bench import Bench
from items import TABLE
from quarter import Report, check_size, gather_logs, machine_facts, not_passed, run_all


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quarter.sh")
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--packages", default="")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--failed", type=Path)
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> list[str]:
    every = [item.id for item in TABLE]
    if given.failed:
        return not_passed(given.failed)
    asked = [word for word in given.only.split(",") if word] or every
    unknown = sorted(set(asked) - set(every))
    if unknown:
        sys.exit(f"quarter.sh: there is no {', '.join(unknown)}; there are {', '.join(every)}")
    return asked


def main() -> int:
    given = parsed()
    asked = chosen(given)
    given.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="kvd-quarter-"))
    logs = work / "logs"
    logs.mkdir()
    packages = [Path(each) for each in given.packages.split(os.pathsep) if each]
    report = Report(TABLE, machine_facts(["quarter.sh", *os.environ.get("QUARTER_SAID", "").split()]))
    bench = Bench(given.programs.resolve(), packages, given.python, given.device == "cuda", work, logs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    try:
        patience = 1.0 if bench.gpu else 3.0
        run_all(TABLE, asked, bench, report, given.out, given.seconds, bench.end_engines, patience)
    finally:
        bench.close()
        gather_logs(sorted(logs.iterdir()), given.out / "logs.txt")
        for each in (work / "experiments").glob("gpu-report.*"):
            shutil.copy(each, given.out)
        shutil.rmtree(work, ignore_errors=True)
    check_size(given.out)
    print(f"{'passed' if report.passed else 'FAILED'}: {given.out}/quarter.md")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
