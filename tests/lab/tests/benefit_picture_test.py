"""What tests/lab/vllm/vllm_benefit.py makes of its runs: the lines under its table and the picture."""

from __future__ import annotations

import sys
import unittest
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import ctest

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))

import vllm_benefit  # noqa: E402
import vllm_benefit_svg  # noqa: E402

GIVEN = {"modes": ["untouched", "unified"], "requests": 60, "ttft_s": 0.6, "tbt_s": 0.03}
SVG = "{http://www.w3.org/2000/svg}"


def run_of(mode: str, share: float, seed: int, joint: float) -> dict[str, Any]:
    slow = {"kvd_ask": 300, "kvd_apply": 40} if mode == "unified" else {}
    return {"mode": mode, "share": share, "seed": seed, "joint": joint, "tokens_per_s": 200 * share,
            "wall_s": 50.0, "core_wait_s": 4.0, "asleep_s": 1.0, "slowest_us": slow}  # fmt: skip


RUNS = [run_of(mode, share, seed, joint)
        for mode, worst in (("untouched", 0.5), ("unified", 0.9)) for seed in (1, 2)
        for share, joint in ((0.8, 1.0), (1.5, worst - 0.1 * seed))]  # fmt: skip


class Picture(unittest.TestCase):
    def setUp(self) -> None:
        self.root = xml.etree.ElementTree.fromstring(vllm_benefit_svg.picture(GIVEN, 1.03, RUNS))

    def points(self, mode: str) -> list[list[tuple[float, float]]]:
        """The points of each panel's line: the joint ones, then the tokens a second."""
        lines = [each for each in self.root.iter(f"{SVG}polyline") if each.get("class") == f"m-{mode}"]
        return [[tuple(map(float, at.split(","))) for at in (each.get("points") or "").split()]
                for each in lines]  # type: ignore[misc]  # fmt: skip

    def test_each_mode_has_a_line_in_both_panels(self) -> None:
        for mode in GIVEN["modes"]:
            self.assertEqual([len(each) for each in self.points(mode)], [2, 2])

    def test_a_better_mean_stands_higher(self) -> None:
        stock, kvd = self.points("untouched")[0], self.points("unified")[0]
        self.assertEqual(stock[0], kvd[0])
        self.assertLess(kvd[1][1], stock[1][1])
        height = vllm_benefit_svg.HEIGHT
        self.assertAlmostEqual(stock[1][1] - kvd[1][1], 0.4 * height, delta=0.2)

    def test_it_has_colours_for_dark_pages(self) -> None:
        style = self.root.find(f"{SVG}style")
        assert style is not None and style.text is not None
        self.assertEqual(style.text.count("prefers-color-scheme: dark"), 2)

    def test_values_of_one_share_and_of_zero_make_a_picture_too(self) -> None:
        runs = [{**run_of("unified", 0.8, 1, 0.0), "tokens_per_s": 0.0}]
        vllm_benefit_svg.picture(GIVEN, 1.0, runs)


class Lines(unittest.TestCase):
    def test_say_what_a_run_took_by_the_wall_and_what_of_it_was_waiting(self) -> None:
        (stock, kvd) = vllm_benefit.wall_lines(GIVEN, RUNS)
        waits = "50.0 s a run, of which waiting 10.0%: 8.0% for a core, 2.0% asleep"
        self.assertEqual((stock, kvd), (f"wall (untouched): {waits}", f"wall (unified): {waits}"))

    def test_say_where_the_slowest_steps_were(self) -> None:
        self.assertEqual(vllm_benefit.slowest_lines(GIVEN, RUNS),
                         ["slowest 2 % of the steps (unified): kvd_ask 300 us, kvd_apply 40 us"])  # fmt: skip


if __name__ == "__main__":
    ctest.main()
