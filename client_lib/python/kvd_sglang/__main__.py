"""python -m kvd_sglang flags [--json]: the flags by which SGLang keeps its pages in kvd."""

from __future__ import annotations

import argparse
import json
import shlex

EXTRA = {
    "backend_name": "kvd", "module_path": "kvd_sglang", "class_name": "KvdStorage", "interface_v1": 1,
}  # fmt: skip
FLAGS = {
    "--enable-hierarchical-cache": None,
    "--hicache-write-policy": "write_through",
    "--hicache-storage-prefetch-policy": "wait_complete",
    "--hicache-storage-backend": "dynamic",
    "--hicache-storage-backend-extra-config": json.dumps(EXTRA),
    "--page-size": "64",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kvd_sglang", description=__doc__)
    parser.add_argument("command", choices=["flags"])
    parser.add_argument("--json", action="store_true", help="as a list of arguments")
    given = parser.parse_args()
    words = [word for flag in FLAGS.items() for word in flag if word is not None]
    print(json.dumps(words) if given.json else shlex.join(words))


if __name__ == "__main__":
    main()
