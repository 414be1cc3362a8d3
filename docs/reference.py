"""Writes the tables of docs/configuration.md and docs/metrics.md out of the programs themselves.

    python3 docs/reference.py build/release/bin

A table stands between two comments that name it. A test compares the pages with what this makes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def keys_table(binaries: str) -> str:
    """The keys of kvd --help: `  --pool.hbm 256MiB   what it is`, and a line that says when to set it."""
    text = output(f"{binaries}/kvd", "--help").partition("\nKeys, with their defaults.")[2]
    keys = re.findall(r"^  --([a-z_.0-9]+) (\S+) +(\S.*)\n +when: (.*)$", text, re.M)
    rows = [f"| `{key}` | `{default}` | {text} | {when} |" for key, default, text, when in keys]
    return "\n".join(["| key | default | what it is | when to set it |", "|---|---|---|---|", *rows])


def metrics_table(binaries: str) -> str:
    """The catalogue, by the rows of the dashboard."""
    lines = [line.split("\t") for line in output(f"{binaries}/kvd-metric-list").splitlines()]
    parts: list[str] = []
    for row in sorted({line[4] for line in lines}):
        parts += [f"### {row}", "", "| metric | type | labels | what it is |", "|---|---|---|---|"]
        parts += [f"| `{name}` | {kind} | {labels.replace(',', ', ')} | {text} |"
                  for name, kind, _, labels, of, text in lines if of == row]  # fmt: skip
        parts.append("")
    return "\n".join(parts).rstrip()


TABLES = {"configuration.md": ("keys", keys_table), "metrics.md": ("metrics", metrics_table)}


def page(name: str, binaries: str) -> str:
    """The page with its table as the programs say it is."""
    mark, table = TABLES[name]
    begin, end = f"<!-- {mark}: made by docs/reference.py -->\n", f"\n<!-- end of {mark} -->"
    before, _, rest = (DOCS / name).read_text().partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + table(binaries) + end + after


if __name__ == "__main__":
    for name in TABLES:
        text = page(name, sys.argv[1])
        (DOCS / name).write_text(text)
