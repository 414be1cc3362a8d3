"""What kvd's scheduling is worth to vLLM: an untouched one and the same on kvd, under the same loads.

    vllm_benefit.py MODEL FOLDER OUT [JSON]    JSON: see DEFAULTS
    vllm_benefit.py --knee MODEL FOLDER [JSON] goals and knee alone, as one line of JSON

First the untouched vLLM says what it can do: goals (8 times the first token of a prompt without load,
`tbt` times a step that decodes as many requests as fit), and the knee, the highest rate at which `knee` of
the requests meet both goals, on seeds of its own. Then every mode plays the same requests at each
share of the knee and with each seed. "untouched": no connector, no scheduler class, prefix caching on
as by default. Each mode is one engine process, and on kvd a daemon of its own (the program $BENCH_KVD)
with that rotation policy; two of the processes work at a time. Times are of vllm_load.py's clock "cpu";
on a machine whose cores others use they still grow, as caches and the daemon's core are shared.

Prints a table, writes every figure of every run to OUT, and a picture of it beside that (.svg).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import vllm_benefit_svg
from vllm_load import ON_KVD

DEFAULTS: dict[str, Any] = {
    "modes": ["untouched", "lvf", "unified"], "shares": [0.8, 1.2, 1.5], "seeds": [11, 12, 13, 14, 15],
    "knee_seeds": [1, 2], "knee": 0.975, "knee_from": 1.0, "knee_steps": 6, "requests": 60,
    "prompt": [64, 512], "answer": [64, 400], "blocks": 121, "at_once": 2, "rate": None,
    "ttft_s": None, "tbt_s": None, "tbt": 3, "tell_goals": True,
    "engine": {"max_model_len": 1024, "max_num_seqs": 64, "max_num_batched_tokens": 256,
               "kv_cache_memory_bytes": 128 << 20},
}  # fmt: skip
BLOCK = 32
LOAD = Path(__file__).with_name("vllm_load.py")


class Process:
    """One engine that plays loads, and the daemon that it uses: `kvd` has its flags, None: the engine is
    on its own. A context manager."""

    def __init__(self, mode: str, model: str, folder: Path, engine: dict[str, Any], kvd: list[str] | None) -> None:
        self.mode = mode
        self._lock = threading.Lock()
        variables = dict(os.environ)
        self._daemon: subprocess.Popen[bytes] | None = None
        if kvd is not None:
            home = folder / mode
            home.mkdir(parents=True, exist_ok=True)
            self._daemon = _daemon(home, kvd)
            variables["KVD_ENDPOINT"] = str(home / "attach.sock")
        with (folder / f"{mode}.log").open("w") as log:
            self._engine = subprocess.Popen(
                [sys.executable, str(LOAD), "--serve", model, json.dumps(engine)],
                env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._read()

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            assert self._engine.stdin is not None
            self._engine.stdin.write(json.dumps(what) + "\n")
            self._engine.stdin.flush()
            return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._engine.stdout is not None
        for line in self._engine.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"the engine of {self.mode} ended: see its log")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._engine, self._daemon):
            if process is not None:
                process.terminate()
                process.wait()


def start(mode: str, model: str, folder: Path, given: dict[str, Any]) -> Process:
    engine = {**given["engine"], "num_gpu_blocks_override": given["blocks"]}
    if mode == "untouched":
        return Process(mode, model, folder, engine, None)
    return Process(mode, model, folder, {**engine, **ON_KVD}, ["--rotation.policy", mode, *given.get("kvd", [])])


def _daemon(home: Path, kvd: list[str]) -> subprocess.Popen[bytes]:
    arguments = [
        os.environ["BENCH_KVD"], "--backend", "host", "--pool.hbm", "256MiB", "--pool.dram", "1GiB",
        "--pool.slab", "2MiB", "--paths.runtime_dir", str(home), "--admin.address", "",
        "--metrics.address", "", *kvd,
    ]  # fmt: skip
    with (home / "kvd.log").open("w") as log:
        daemon = subprocess.Popen(arguments, stdout=log, stderr=log)
    deadline = time.monotonic() + 300
    while not (home / "attach.sock").exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"kvd did not start: see {home}/kvd.log")
        time.sleep(0.05)
    return daemon


def load(given: dict[str, Any], rate: float, seed: int, count: int | None = None) -> dict[str, Any]:
    return {
        "rate": rate, "seed": seed, "requests": count or given["requests"],
        "prompt": given["prompt"], "answer": given["answer"],
        "ttft_s": given["ttft_s"], "tbt_s": given["tbt_s"], "tell_goals": given["tell_goals"],
    }  # fmt: skip


def set_goals(untouched: Process, given: dict[str, Any]) -> None:
    """Sets the goals, and warms the engine up."""
    mean = (sum(given["prompt"]) + sum(given["answer"]) / 2) / 2
    batch = max(1, int((given["blocks"] - 1) * BLOCK / mean))
    asked = {"calibrate": True, "batch": batch, "prompt": given["prompt"], "answer": given["answer"]}
    untouched.ask(asked)
    found = untouched.ask(asked)
    given["calibration"] = {**found, "batch": batch}
    given["ttft_s"] = given["ttft_s"] or 8 * found["first_s"]
    given["tbt_s"] = given["tbt_s"] or given["tbt"] * found["step_s"]
    say(f"alone: first token {found['first_s']:.4f} s; a step of {batch}: {found['step_s']:.5f} s; "
        f"goals {given['ttft_s']:.3f} s and {given['tbt_s']:.4f} s")  # fmt: skip


def find_knee(untouched: Process, given: dict[str, Any]) -> float:
    """Doubles the rate, then takes `knee_steps` steps that each halve what is left."""

    def meets(rate: float) -> bool:
        found = [untouched.ask(load(given, rate, seed))["joint"] for seed in given["knee_seeds"]]
        say(f"knee: {rate:.3f} a second: {statistics.mean(found):.3f}")
        return statistics.mean(found) >= given["knee"]

    low, high = 0.0, float(given["knee_from"])
    while meets(high):
        low, high = high, 2 * high
    while low == 0.0:
        high /= 2
        if meets(high):
            low, high = high, 2 * high
    for _ in range(given["knee_steps"]):
        if high - low < 0.05 * low:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def play(processes: dict[str, Process], given: dict[str, Any], knee: float) -> list[dict[str, Any]]:
    """Plays all runs, `at_once` of them with different engines at a time."""
    runs: list[dict[str, Any]] = []
    gate = threading.Semaphore(given["at_once"])

    def work(process: Process) -> None:
        for seed in given["seeds"]:
            for share in given["shares"]:
                with gate:
                    found = process.ask(load(given, share * knee, seed))
                run = {"mode": process.mode, "share": share, "seed": seed, **found}
                runs.append(run)
                say(f"{process.mode} {share} x knee, seed {seed}: joint {found['joint']:.3f}, paced "
                    f"{found['joint_paced']:.3f}, no gap > 1 s {found['joint_gaps']:.3f}, longest "
                    f"{found['longest_gap_s']:.2f} s, {found['tokens_per_s']:.0f} tokens/s, "
                    f"{found['preemptions']:.0f} preemptions, {found['wall_s']:.0f} s")  # fmt: skip

    threads = [threading.Thread(target=work, args=(each,)) for each in processes.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


COLUMNS = (
    ("TTFT", "ttft", "{:.3f}"), ("mean gap", "mean_gap", "{:.3f}"), ("paced", "paced", "{:.3f}"),
    ("joint", "joint", "{:.3f}"), ("joint paced", "joint_paced", "{:.3f}"),
    ("joint, no gap > 1 s", "joint_gaps", "{:.3f}"), ("with a gap > 1 s", "long_gaps", "{:.3f}"),
    ("P99 TTFT s", "p99_ttft_s", "{:.2f}"), ("longest gap s", "longest_gap_s", "{:.2f}"),
    ("tokens/s", "tokens_per_s", "{:.0f}"), ("tokens computed/needed", "recomputed", "{:.3f}"),
    ("preemptions", "preemptions", "{:.1f}"),
)  # fmt: skip


def table(given: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    lines = ["| x knee | engine | " + " | ".join(name for name, _, _ in COLUMNS) + " |",
             "|---|---|" + "---|" * len(COLUMNS)]  # fmt: skip
    for share in given["shares"]:
        for mode in given["modes"]:
            these = [each for each in runs if each["mode"] == mode and each["share"] == share]
            if these:
                means = [form.format(statistics.mean(each[key] for each in these))
                         for _, key, form in COLUMNS]  # fmt: skip
                lines.append(f"| {share} | {mode} | " + " | ".join(means) + " |")
    for row in cost_rows(given, runs):
        lines.append("{row} ({mode}): median {p50_us:.0f} us, P99 {p99_us:.0f} us".format(**row))
    lines += slowest_lines(given, runs) + wall_lines(given, runs)
    return "\n".join([*lines, f"answers that differ between engines: {differing(runs)}"])


def cost_rows(given: dict[str, Any], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The wall time of vLLM's schedule(), and the part of it that kvd's code and the wait for its
    answer take; beside it a bare round trip between two Python processes. Each figure is the median
    over the runs' quantiles."""
    rows = []
    for mode in given["modes"]:
        for row in ("schedule", "schedule_added", "round_trip"):
            found = [each[f"{row}_us"] for each in runs if each["mode"] == mode]
            if found and (row == "schedule" or mode != "untouched"):
                p50, p99 = (statistics.median(each[q] for each in found) for q in ("p50", "p99"))
                rows.append({"row": row, "mode": mode, "p50_us": p50, "p99_us": p99})
    return rows


def slowest_lines(given: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    """Where kvd's code spends its time in the slowest 2 % of the steps: means of the runs' means.
    """
    lines = []
    for mode in given["modes"]:
        these = [each["slowest_us"] for each in runs if each["mode"] == mode and each["slowest_us"]]
        parts = {name: sum(each.get(name, 0) for each in these) / len(these)
                 for name in {name for each in these for name in each}}  # fmt: skip
        if parts:
            ordered = sorted(parts.items(), key=lambda part: -part[1])
            lines.append(f"slowest 2 % of the steps ({mode}): "
                         + ", ".join(f"{name} {took:.0f} us" for name, took in ordered))  # fmt: skip
    return lines


def wall_lines(given: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    """Figures by the wall clock, which the others leave out: how long runs took, and how much of
    that was waiting."""
    lines = []
    for mode in given["modes"]:
        these = [each for each in runs if each["mode"] == mode]
        if these:
            wall, core, asleep = (sum(each[key] for each in these)
                                  for key in ("wall_s", "core_wait_s", "asleep_s"))  # fmt: skip
            lines.append(f"wall ({mode}): {wall / len(these):.1f} s a run, of which waiting "
                         f"{(core + asleep) / wall:.1%}: {core / wall:.1%} for a core, "
                         f"{asleep / wall:.1%} asleep")  # fmt: skip
    return lines


def differing(runs: list[dict[str, Any]]) -> int:
    """Requests of a seed whose tokens are not the same everywhere."""
    answers: dict[tuple[int, str], set[str]] = {}
    for run in runs:
        for name, tokens in run["answers"].items():
            answers.setdefault((run["seed"], name), set()).add(json.dumps(tokens))
    return sum(len(each) > 1 for each in answers.values())


def measure_knee(model: str, folder: Path, given: dict[str, Any]) -> dict[str, float]:
    with start("untouched", model, folder, given) as untouched:
        set_goals(untouched, given)
        rate = find_knee(untouched, given)
    return {"rate": rate, "ttft_s": given["ttft_s"], "tbt_s": given["tbt_s"]}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    if sys.argv[1] == "--knee":
        given = {**DEFAULTS, **json.loads("".join(sys.argv[4:]) or "{}")}
        print(json.dumps(measure_knee(sys.argv[2], Path(sys.argv[3]).resolve(), given)))
        return
    model, folder, out = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    given = {**DEFAULTS, **(json.loads(sys.argv[4]) if len(sys.argv) > 4 else {})}
    processes: dict[str, Process] = {}
    try:
        for mode in ("untouched", *(each for each in given["modes"] if each != "untouched")):
            processes[mode] = start(mode, model, folder, given)
        set_goals(processes["untouched"], given)
        knee = given["rate"] or find_knee(processes["untouched"], given)
        say(f"knee: {knee:.3f} requests a second")
        for mode in processes:  # after this they are warm
            processes[mode].ask(load(given, knee, 99, 12))
        wanted = {mode: processes[mode] for mode in given["modes"]}
        runs = play(wanted, given, knee)
    finally:
        for process in processes.values():
            process.__exit__()
    for run in runs:
        run["recomputed"] = run["scheduled_tokens"] / run["needed_tokens"]
    print(table(given, runs))
    for run in runs:
        del run["answers"]
    out.write_text(json.dumps({"given": given, "knee": knee, "rows": cost_rows(given, runs), "runs": runs}, indent=1) + "\n")
    out.with_suffix(".svg").write_text(vllm_benefit_svg.picture(given, knee, runs))


if __name__ == "__main__":
    main()
