"""Draws 40 comments, 15 paragraphs of documents, 15 error messages and 15 log lines of the tree, to be read aloud.

    python3 tests/lint/draw.py SEED

The same seed draws the same from the same tree. Each comes with its file and line.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SLASHED = {".cpp", ".hpp", ".h", ".c", ".cu", ".js"}
HASHED = {".py", ".sh", ".cmake"}
LEAST_WORDS = 6
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
ERROR = re.compile(r"\b(?:[Ee]rror|refuse|invalid|fail|fault|usage)[({]|\braise \w+\(|\bthrow \w+")
LOG = re.compile(r"\blog(?:ger)?_?(?:\.|->|\(\)\.)(?:info|warn|warning|error|debug|exception)\(")


class Text(NamedTuple):
    file: str
    line: int
    words: str


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def texts_of(name: str, pieces: list[tuple[int, str]]) -> Iterator[Text]:
    """One text out of the lines that belong together."""
    words = " ".join(" ".join(piece for _, piece in pieces).split())
    if len(words.split()) >= LEAST_WORDS:
        yield Text(name, pieces[0][0], words)


def comments(name: str, lines: list[str]) -> Iterator[Text]:
    marker = "//" if Path(name).suffix in SLASHED else "#"
    comment = re.compile(rf'^(?P<code>[^"\']*?){marker}+[!<]*\s?(?P<words>.*)$')
    pieces: list[tuple[int, str]] = []
    block = ""  # what ends the docstring or the comment of several lines
    for number, line in enumerate(lines, 1):
        opens = re.match(r'\s*(r?"""|/\*\*?)', line)
        match = comment.match(line)
        if block or opens:
            end = block or ("*/" if "/*" in line else '"""')
            rest = line if block else line[opens.end() :] if opens else ""
            pieces.append((number, rest.split(end)[0].strip(" *")))
            block = "" if end in rest else end
        elif match and (pieces == [] or not match["code"].strip()):
            pieces.append((number, match["words"]))
            if not match["code"].strip():
                continue
        elif not pieces:
            continue
        if not block:
            yield from texts_of(name, pieces)
            pieces = []
    yield from texts_of(name, pieces) if pieces else ()


def paragraphs(name: str, lines: list[str]) -> Iterator[Text]:
    pieces: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate([*lines, ""], 1):
        fenced ^= line.startswith("```")
        other = fenced or line == "" or line.startswith(("```", "#", "|", "!["))
        if (other or re.match(r"\s*(?:[-*]|\d+\.) ", line)) and pieces:
            yield from texts_of(name, pieces)
            pieces = []
        if not other:
            pieces.append((number, line))


def messages(name: str, lines: list[str], call: re.Pattern[str]) -> Iterator[Text]:
    """The literals of each statement that `call` begins, joined; what is computed between them is "…"."""
    for number, line in enumerate(lines, 1):
        begin = call.search(line)
        if not begin:
            continue
        statement = line[begin.start() :]
        for following in lines[number : number + 8]:
            closed = statement.count("(") == statement.count(")")
            if closed or statement.rstrip().endswith((";", "{", "}")):
                break
            statement += " " + following.strip()
        said = " … ".join(LITERAL.findall(re.sub(r'"\s*"', "", statement)))
        yield from texts_of(name, [(number, said)])


def main(seed: str) -> None:
    drawn: dict[str, list[Text]] = {"comments": [], "paragraphs": [], "errors": [], "log lines": []}
    for name in tracked():
        suffix = Path(name).suffix
        if suffix not in SLASHED | HASHED | {".md"} or name.startswith("deploy/gpu-reports/"):
            continue
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        if suffix == ".md":
            drawn["paragraphs"] += paragraphs(name, lines)
            continue
        drawn["comments"] += comments(name, lines)
        if not name.startswith("tests/"):
            drawn["errors"] += messages(name, lines, ERROR)
            drawn["log lines"] += messages(name, lines, LOG)
    for kind, count in {"comments": 40, "paragraphs": 15, "errors": 15, "log lines": 15}.items():
        print(f"== {count} of {len(drawn[kind])} {kind}\n")
        for text in random.Random(f"{seed} {kind}").sample(drawn[kind], count):
            print(f"{text.file}:{text.line}")
            print(textwrap.indent(textwrap.fill(text.words, 100), "  "), end="\n\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: draw.py SEED: the same seed draws the same texts")
    main(sys.argv[1])
