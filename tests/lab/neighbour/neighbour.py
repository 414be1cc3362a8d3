"""Batch beside chat, on a real kvd: what the dashboard and kvdctl show of it, before and after a setting is turned.

    $(sh deploy/ci/monitoring.sh --fetch)/venv/bin/python tests/lab/neighbour/neighbour.py BIN OUT

BIN has the programs. OUT gets neighbour.svg (docs/neighbour.svg is one), drawn from what a Prometheus answers to queries
of deploy/grafana/glance.json, and neighbour.txt: what kvdctl said. Takes 80 s, and root: each engine runs as a user of
its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[3]
BIN, OUT = sys.argv[1], Path(sys.argv[2])
sys.path += [str(ROOT / "tests/support/python"), str(ROOT / "tests/integration/monitoring")]
os.environ["KVDTEST_BIN_DIR"] = BIN
os.environ["KVDTEST_MONITORING"] = str(Path(sys.executable).parents[2])

from engine_process import KvdEngine  # noqa: E402
from kvd_process import KvdProcess  # noqa: E402
from scrape_test import Prometheus  # noqa: E402

BEGINS, TURNS, ENDS = 15, 40, 80  # seconds: chat begins, the setting is turned, all ends
USERS = {"batch": 2001, "chat": 2002}
# Both have the same goals, as where nobody has said what is urgent.
SETTINGS = "".join(f'[slo.{name}]\nttft = "1s"\ntbt = "200ms"\n' for name in ("default", *USERS)) + "".join(
    f'[[domain]]\nname = "{name}"\nuids = [{uid}]\nslo_class = "{name}"\n' for name, uid in USERS.items()
)
TURNED = "policy set admission.policy=none"
STEP = 1  # s, between two points of a line
WINDOW = "5s"  # of rates

# A panel of the dashboard, which of its series, and how its values are written.
PANELS = {
    "Oldest wait, in goals, by engine": ({}, lambda value: f"{value:g}"),
    "Goals met, by engine": ({"goal": "ttft"}, lambda value: f"{value:.0%}"),
    "Tokens a second, by engine": ({}, lambda value: f"{value:g}"),
    "HBM, by engine": ({}, lambda value: f"{value / (1 << 20):g} MiB"),
}
NOTES = {"Goals met, by engine": ", first tokens"}
LEFT, TOP, WIDTH, HEIGHT, ACROSS, DOWN = 70, 92, 290, 130, 390, 205
STYLE = """
.page{fill:#ffffff}.ink{fill:#222222}.faint{fill:#666666}.axis{stroke:#444444}.grid{stroke:#dddddd}
.mark{stroke:#888888;stroke-dasharray:4 3}.batch{stroke:#bb5500}.chat{stroke:#2266bb}polyline{fill:none;stroke-width:2}
@media (prefers-color-scheme: dark){.page{fill:#16191d}.ink{fill:#e6e6e6}.faint{fill:#a3a3a3}.axis{stroke:#b5b5b5}
.grid{stroke:#383c42}.batch{stroke:#f0a050}.chat{stroke:#66aaf0}}
"""

Line = list[tuple[float, float]]  # seconds since the start, and the value


class Load(threading.Thread):
    """Sends requests from `begin` on, one each `every` seconds, whether or not the others are answered."""

    def __init__(self, engine: KvdEngine, begin: float, every: float, prompt: int, tokens: int) -> None:
        super().__init__(daemon=True)
        self.engine, self.begin, self.every, self.prompt, self.tokens = engine, begin, every, prompt, tokens
        self.random = random.Random(7)

    def send(self, prompt: list[int]) -> None:
        with contextlib.suppress(OSError):  # the engine has enough requests, or all has ended
            self.engine.ask(prompt, max_tokens=self.tokens)

    def run(self) -> None:
        time.sleep(self.begin)
        while True:
            prompt = [self.random.randrange(3, 200) for _ in range(self.prompt)]
            threading.Thread(target=self.send, args=(prompt,), daemon=True).start()
            time.sleep(self.every)


def kvdctl(kvd: KvdProcess, words: str) -> str:
    token = str(Path(kvd.endpoint).with_name("admin.token"))
    command = [f"{BIN}/kvdctl", "--url", f"http://127.0.0.1:{kvd.port}", "--token-file", token, *words.split()]
    return f"$ kvdctl {words}\n" + subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def lines_of(prometheus: Prometheus, title: str, start: float) -> dict[str, Line]:
    """What the panel shows, by the engine's name."""
    dashboard = json.loads((ROOT / "deploy/grafana/glance.json").read_text())
    panel = next(each for each in dashboard["panels"] if each["title"] == title)
    expression = panel["targets"][0]["expr"]
    for word, text in {"$__rate_interval": WINDOW, "$job": "kvd"}.items():
        expression = expression.replace(word, text)
    for variable in ("instance", "engine", "domain", "device"):
        expression = expression.replace(f"${variable}", ".+")
    found = prometheus.ask("query_range", query=expression, start=str(start), end=str(start + ENDS), step=str(STEP))
    wanted, _ = PANELS[title]
    return {series["metric"]["engine"].split("-")[0]: [(at - start, float(value)) for at, value in series["values"]]
            for series in found["result"]
            if all(series["metric"].get(key) == value for key, value in wanted.items())}  # fmt: skip


def ticks_of(most: float, of_bytes: bool) -> list[float]:
    unit = 1 << 20 if of_bytes else 1
    step = next(step for step in (0.25, 0.5, 1, 2, 4, 5, 10, 20, 50, 100, 200, 500, 1000) if step * unit * 4.2 >= most)
    return [at * step * unit for at in range(5)]


def word(x: float, y: float, words: str, kind: str, more: str = "") -> str:
    return f"<text class='{kind}' x='{x:.1f}' y='{y:.1f}' {more}>{escape(words)}</text>"


def stroke(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f"<line class='{kind}' x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'/>"


def drawn(title: str, lines: dict[str, Line], left: float, top: float) -> Iterator[str]:
    written = PANELS[title][1]
    ticks = ticks_of(max(value for line in lines.values() for _, value in line), "HBM" in title)
    bottom, most = top + HEIGHT, ticks[-1]
    yield word(left, top - 12, title + NOTES.get(title, ""), "ink", "font-weight='bold'")
    for tick in ticks:
        y = bottom - HEIGHT * tick / most
        yield stroke(left, y, left + WIDTH, y, "grid")
        yield word(left - 6, y + 4, written(tick), "faint", "text-anchor='end'")
    for at in range(0, ENDS + 1, 20):
        yield word(left + WIDTH * at / ENDS, bottom + 16, f"{at} s", "faint", "text-anchor='middle'")
    for at in (BEGINS, TURNS):
        x = left + WIDTH * at / ENDS
        yield stroke(x, top, x, bottom, "mark")
    for name, line in sorted(lines.items()):
        way = " ".join(f"{left + WIDTH * at / ENDS:.1f},{bottom - HEIGHT * value / most:.1f}" for at, value in line)
        yield f"<polyline class='{name}' points='{way}'/>"
    yield stroke(left, bottom, left + WIDTH, bottom, "axis")


def picture(panels: dict[str, dict[str, Line]]) -> str:
    width, height = LEFT + ACROSS + WIDTH + 25, TOP + DOWN + HEIGHT + 52
    body = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' "
            "font-family='sans-serif' font-size='12'>", f"<style>{STYLE}</style>",
            "<rect class='page' width='100%' height='100%'/>",
            word(LEFT, 26, "Batch beside chat, as the dashboard has it", "ink", "font-size='15'")]  # fmt: skip
    for at, name in enumerate(USERS):
        x = LEFT + 90 * at
        body += [f"<polyline class='{name}' points='{x},46 {x + 24},46'/>", word(x + 30, 50, name, "ink")]
    body.append(word(LEFT + 200, 50, f"dashed: at {BEGINS} s chat begins, at {TURNS} s the setting is turned", "faint"))
    for number, (title, lines) in enumerate(panels.items()):
        body += drawn(title, lines, LEFT + ACROSS * (number % 2), TOP + DOWN * (number // 2))
    return "\n".join([*body, word(LEFT, height - 12, f"kvdctl {TURNED}", "faint"), "</svg>\n"])


def run(kvd: KvdProcess, prometheus: Prometheus) -> tuple[str, dict[str, dict[str, Line]]]:
    Path(kvd.endpoint).parent.chmod(0o755)  # the engines are other users'
    with contextlib.ExitStack() as stack:
        engines = {name: stack.enter_context(KvdEngine(kvd, "--engine-name", name, "--iteration-ms", "20", user=uid))
                   for name, uid in USERS.items()}  # fmt: skip
        start = time.time()
        Load(engines["batch"], 0, every=0.5, prompt=300, tokens=1500).start()
        Load(engines["chat"], BEGINS, every=0.5, prompt=60, tokens=30).start()
        said = []
        for at in (TURNS, ENDS):
            time.sleep(start + at - time.time())
            said += [kvdctl(kvd, words) for words in ("doctor --load", "top --once", *([TURNED] if at == TURNS else []))]
        return "\n".join(said), {title: lines_of(prometheus, title, start) for title in PANELS}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvd-neighbour-") as folder:
        with KvdProcess(slabs=8, dram_slabs=4, metrics=True, extra=SETTINGS) as kvd:
            with Prometheus(Path(folder), f"127.0.0.1:{kvd.metrics_port}") as prometheus:
                said, panels = run(kvd, prometheus)
    (OUT / "neighbour.txt").write_text(said)
    (OUT / "neighbour.svg").write_text(picture(panels))


if __name__ == "__main__":
    main()
