"""A picture of what vllm_benefit.py measured: over the share of the knee, the requests that met both
goals and the tokens a second, a line for each mode. For light and dark pages.

    vllm_benefit_svg.py OUT.json    writes OUT.svg anew
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

LEFT, TOP, WIDTH, HEIGHT, GAP = 62, 78, 270, 220, 90
COLOURS = {"untouched": ("#8a8a8a", "#a8a8a8"), "unified": ("#228833", "#4cc26a"),
           "lvf": ("#2266bb", "#66aaf0")}  # fmt: skip
OTHERS = (("#aa5500", "#e09a50"), ("#8833aa", "#c583e0"), ("#aa3377", "#ee88bb"))
NAMES = {"untouched": "vLLM untouched", "unified": "on kvd, unified", "lvf": "on kvd, lvf"}
STYLE = """
.page{fill:#ffffff}.ink{fill:#222222}.faint{fill:#666666}.axis{stroke:#444444}.grid{stroke:#dddddd}
@media (prefers-color-scheme: dark){.page{fill:#16191d}.ink{fill:#e6e6e6}.faint{fill:#a3a3a3}
.axis{stroke:#b5b5b5}.grid{stroke:#383c42}}
"""


class Panel:
    """One set of axes: shares from left to right, values from 0 up to `most`."""

    def __init__(self, left: float, shares: list[float], most: float, ticks: list[float]) -> None:
        self.left, self.most, self.ticks = left, most, ticks
        self.shares = shares
        self._low, self._high = min(shares), max(shares)

    def x(self, share: float) -> float:
        span = self._high - self._low
        at = (share - self._low) / span if span else 0.5
        return self.left + WIDTH * (0.06 + 0.88 * at)

    def y(self, value: float) -> float:
        return TOP + HEIGHT * (1.0 - value / self.most)

    def axes(self, title: str, form: Callable[[float], str]) -> list[str]:
        right, bottom = self.left + WIDTH, TOP + HEIGHT
        out = [text(self.left, TOP - 14, title, "ink", "font-weight='bold'")]
        for tick in self.ticks:
            y = self.y(tick)
            out.append(line(self.left, y, right, y, "grid"))
            out.append(text(self.left - 7, y + 4, form(tick), "faint", "text-anchor='end'"))
        out.append(line(self.left, bottom, right, bottom, "axis"))
        for share in self.shares:
            out.append(text(self.x(share), bottom + 17, f"{share:g}", "faint", "text-anchor='middle'"))
        middle = self.left + WIDTH / 2
        return [*out, text(middle, bottom + 36, "x knee", "faint", "text-anchor='middle'")]

    def curve(self, mode: str, values: dict[float, list[float]]) -> list[str]:
        """Draws the means as a line with a dot for each, and a thin line from the lowest to the
        highest seed."""
        out, points = [], []
        for share, found in sorted(values.items()):
            x, mean = self.x(share), self.y(statistics.mean(found))
            low, high = self.y(min(found)), self.y(max(found))
            out.append(f"<line class='m-{mode}' x1='{x:.1f}' y1='{low:.1f}' x2='{x:.1f}' "
                       f"y2='{high:.1f}' stroke-width='1'/>")  # fmt: skip
            out.append(f"<circle class='d-{mode}' cx='{x:.1f}' cy='{mean:.1f}' r='3.5'/>")
            points.append(f"{x:.1f},{mean:.1f}")
        way = " ".join(points)
        return [*out, f"<polyline class='m-{mode}' points='{way}' fill='none' stroke-width='2'/>"]


def text(x: float, y: float, words: str, kind: str, more: str = "") -> str:
    return f"<text class='{kind}' x='{x:.1f}' y='{y:.1f}' {more}>{escape(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f"<line class='{kind}' x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'/>"


def round_up(value: float) -> tuple[float, list[float]]:
    """The top of an axis that starts at 0 and includes this value, and its ticks."""
    step = 1.0
    while 5 * step < value:
        step *= 2 if f"{step:g}"[0] != "2" else 2.5
    count = max(1, -(-int(value + 0.999) // int(step)))
    return count * step, [at * step for at in range(count + 1)]


def style_of(modes: list[str]) -> str:
    light, dark, others = "", "", list(OTHERS)
    for mode in modes:
        colours = COLOURS.get(mode) or others[0]
        others = others if mode in COLOURS else [*others[1:], others[0]]
        form = ".m-{0}{{stroke:{1}}}.d-{0}{{fill:{1}}}\n"
        light += form.format(mode, colours[0])
        dark += form.format(mode, colours[1])
    return f"<style>{STYLE}{light}@media (prefers-color-scheme: dark){{{dark}}}</style>"


def legend(modes: list[str]) -> list[str]:
    out, x = [], float(LEFT)
    for mode in modes:
        words = NAMES.get(mode, f"on kvd, {mode}")
        out.append(f"<line class='m-{mode}' x1='{x:.1f}' y1='42' x2='{x + 22:.1f}' y2='42' stroke-width='2'/>")
        out.append(f"<circle class='d-{mode}' cx='{x + 11:.1f}' cy='42' r='3.5'/>")
        out.append(text(x + 28, 46, words, "ink"))
        x += 52 + 7 * len(words)
    return out


def by_share(runs: list[dict[str, Any]], mode: str, key: str) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for run in runs:
        if run["mode"] == mode:
            found.setdefault(run["share"], []).append(run[key])
    return found


def picture(given: dict[str, Any], knee: float, runs: list[dict[str, Any]]) -> str:
    modes = [mode for mode in given["modes"] if any(run["mode"] == mode for run in runs)]
    shares = sorted({run["share"] for run in runs})
    most, ticks = round_up(max(run["tokens_per_s"] for run in runs))
    joint = Panel(LEFT, shares, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0])
    speed = Panel(LEFT + WIDTH + GAP, shares, most, ticks)
    body = [*joint.axes("requests that met both goals", lambda at: f"{at:.0%}"),
            *speed.axes("tokens a second", lambda at: f"{at:.0f}")]  # fmt: skip
    for mode in modes:
        body += joint.curve(mode, by_share(runs, mode, "joint"))
        body += speed.curve(mode, by_share(runs, mode, "tokens_per_s"))
    seeds = len({run["seed"] for run in runs})
    notes = [f"Means of {seeds} seeds of {given['requests']} requests each; thin lines: from the lowest "
             "seed to the highest.",
             f"The knee: {knee:.2f} requests a second. Goals: first token {given['ttft_s']:.2f} s, mean "
             f"gap {given['tbt_s'] * 1e3:.1f} ms."]  # fmt: skip
    width, height = 2 * WIDTH + LEFT + GAP + 30, TOP + HEIGHT + 92
    head = (f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
            f"viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='12'>")  # fmt: skip
    title = text(LEFT, 24, "An untouched vLLM and the same one on kvd, under the same load", "ink",
                 "font-size='15'")  # fmt: skip
    foot = [text(LEFT, TOP + HEIGHT + 62 + 16 * at, note, "faint", "font-size='11'")
            for at, note in enumerate(notes)]  # fmt: skip
    page = "<rect class='page' width='100%' height='100%' fill='white'/>"
    return "\n".join([head, style_of(modes), page, title, *legend(modes), *body, *foot, "</svg>\n"])


def main() -> None:
    out = Path(sys.argv[1])
    found = json.loads(out.read_text())
    out.with_suffix(".svg").write_text(picture(found["given"], found["knee"], found["runs"]))


if __name__ == "__main__":
    main()
