"""tests/lab/vllm/vllm_turns.py without vLLM: whose prompt has which answers in it, and the tables."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, cast

import ctest

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))

import vllm_beside  # noqa: E402
import vllm_turns  # noqa: E402

GIVEN: dict[str, Any] = {**vllm_turns.DEFAULTS, "turns": 3, "first": 5, "more": 2, "streams": 2}

# Says first what libraries say, then the length of the prompt, twice.
ENGINE = """
import json, sys
said = json.loads(sys.stdin.readline())
print("a library was here")
print(json.dumps({"ttft_s": 1.0, "tokens": [len(said)] * 2}))
"""


class FakeEngines:
    modes = ("stock", "kvd")

    def __init__(self, program: str) -> None:
        self._program = program
        self.started: list[tuple[str, str, dict[str, Any]]] = []

    def start(self, what: str, mode: str, log: str, **more: Any) -> subprocess.Popen[str]:
        self.started.append((what, mode, more))
        return subprocess.Popen([sys.executable, "-c", self._program], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)  # fmt: skip


def row(turn: int, first: float, found: int, tokens: list[int]) -> dict[str, Any]:
    return {"turn": turn, "prompt": 700 + turn, "ttft_s": first, "ttft_wall_s": 2 * first,
            "found": found, "computed": 700 + turn - found, "tokens": tokens}  # fmt: skip


def chats(last: list[int]) -> dict[str, list[dict[str, Any]]]:
    """Three rounds of one turn each."""
    return {"stock": [row(1, first, 0, [5]) for first in (0.9, 0.5, 0.6)],
            "kvd": [row(1, first, 640, [5]) for first in (0.1, 0.2, 0.4)],
            "lmcache": [row(1, 0.3, 512, [5]), row(1, 0.2, 512, [5]), row(1, 0.1, 512, last)]}  # fmt: skip


class Turns(unittest.TestCase):
    def test_are_played_in_turn_and_each_has_its_own_answers_in_its_prompt(self) -> None:
        engines = FakeEngines(ENGINE)
        played = vllm_turns.chat(cast(vllm_turns.Engines, engines), GIVEN, 7)
        self.assertEqual([mode for _, mode, _ in engines.started], ["stock", "kvd"] * 3)
        self.assertEqual([more["turn"] for _, _, more in engines.started], [1, 1, 2, 2, 3, 3])
        for rows in played.values():
            self.assertEqual([each["prompt"] for each in rows], [5, 9, 13])
            self.assertEqual([each["tokens"] for each in rows], [[5, 5], [9, 9], [13, 13]])

    def test_an_engine_that_ends_without_an_answer_is_named_by_its_log(self) -> None:
        for program in ("", ENGINE + "sys.exit(3)"):
            with self.assertRaisesRegex(RuntimeError, "stock-7-1.log"):
                vllm_turns.chat(cast(vllm_turns.Engines, FakeEngines(program)), GIVEN, 7)

    def test_the_table_has_columns_for_each_cache_and_medians_of_the_rounds(self) -> None:
        lines = vllm_turns.table(chats([5])).splitlines()
        self.assertIn("lmcache: first token after (by the wall)", lines[0])
        self.assertEqual(lines[0].count("|"), lines[1].count("|"))
        self.assertEqual(lines[2], "| 1 | 701 | 0.600 s (1.200 s) | 0.200 s (0.400 s) | 0.200 s (0.400 s) "
                                   "| 640 | 512 | 701 | 61 | 189 |")  # fmt: skip
        self.assertEqual(lines[3], "answers: the same")

    def test_one_wrong_answer_of_one_cache_is_said(self) -> None:
        self.assertEqual(vllm_turns.table(chats([6])).splitlines()[-1], "answers: NOT THE SAME")

    def test_speed_with_nothing_to_find_is_a_share_of_stocks(self) -> None:
        of = {"stock": (100.0, 200.0, 300.0), "mooncake": (90.0, 150.0, 310.0)}
        found = {mode: [{"tokens_per_s": each, "tokens_per_s_wall": each / 2, "found": 0, "tokens": [[1]]}
                        for each in speeds] for mode, speeds in of.items()}  # fmt: skip
        lines = vllm_turns.stream_table(GIVEN, found).splitlines()
        self.assertIn("| mooncake | 150 (90 to 310) | 0.750 | 75 | 0 |", lines)

    def test_what_an_engine_finds_its_cache_by_is_only_in_its_own_environment(self) -> None:
        peers = {"mooncake": vllm_beside.Beside(None, {}, {"MOONCAKE_CONFIG_PATH": "here"})}
        of = {mode: vllm_beside.variables_of(mode, {"PATH": "there"}, peers) for mode in ("kvd", "mooncake")}
        self.assertEqual(of["kvd"], {"PATH": "there"})
        self.assertEqual(of["mooncake"]["MOONCAKE_CONFIG_PATH"], "here")


if __name__ == "__main__":
    ctest.main()
