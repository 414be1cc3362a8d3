"""What streaming layers is worth to vLLM where single requests are large: OrbitFlow's figure on real engines.

    vllm_layers.py MODEL FOLDER OUT [JSON]    JSON: see DEFAULTS

Four engines with the same HBM play the same requests: "untouched" queues what does not fit; "rotation" is
KvdScheduler, which parks whole requests; "uniform" streams the same layers of all requests, as FlexGen and
Select-N do; "planned" streams those that kvd's placement policy names. The link has `link` bytes a second.
Times are of vllm_load.py's clock "cpu", to which every wait for a copy counts.

The goals are those of vllm_benefit.py: 8 times the first token without load, `tbt` times a step that decodes
as many requests as fit. Prints a table, and writes every figure to OUT.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from vllm_benefit import Process, load, say, set_goals
from vllm_load import ON_KVD

DEFAULTS: dict[str, Any] = {
    "modes": ["untouched", "rotation", "uniform", "planned"], "rates": [0.2, 0.4], "seeds": [11, 12, 13, 14, 15],
    "requests": 16, "prompt": [400, 2000], "answer": [100, 300], "layers": 12, "page": 64 << 10,
    "blocks": 100, "names": 180, "link": "1GiB/s", "tbt": 3, "ttft_s": None, "tbt_s": None, "tell_goals": True,
    "engine": {"max_model_len": 3000, "max_num_seqs": 8, "max_num_batched_tokens": 512},
}  # fmt: skip
STREAMED = {"kv_connector_extra_config": {"layers": True, "load_timeout_s": 120}}
COLUMNS = (
    ("TTFT", "ttft", "{:.3f}"), ("mean gap", "mean_gap", "{:.3f}"), ("paced", "paced", "{:.3f}"),
    ("joint", "joint", "{:.3f}"), ("joint paced", "joint_paced", "{:.3f}"), ("P99 TTFT s", "p99_ttft_s", "{:.2f}"),
    ("longest gap s", "longest_gap_s", "{:.2f}"), ("tokens/s", "tokens_per_s", "{:.0f}"),
    ("preemptions", "preemptions", "{:.1f}"), ("blocks fetched", "fetched", "{:.0f}"),
)  # fmt: skip


def start(mode: str, model: str, folder: Path, given: dict[str, Any]) -> Process:
    hbm = {**given["engine"], "kv_cache_memory_bytes": given["blocks"] * given["layers"] * given["page"]}
    alike = {**hbm, "num_gpu_blocks_override": given["blocks"]}
    kvd = ["--link.bandwidth", given["link"]]
    if mode == "untouched":
        return Process(mode, model, folder, alike, None)
    if mode == "rotation":
        return Process(mode, model, folder, {**alike, **ON_KVD}, kvd)
    names = {
        "num_gpu_blocks_override": given["names"], "async_scheduling": False,
        "kv_transfer_config": {**ON_KVD["kv_transfer_config"], **STREAMED},
    }  # fmt: skip
    policy = "none" if mode == "uniform" else "orbitflow"
    return Process(mode, model, folder, {**hbm, **names}, [*kvd, "--placement.policy", policy])


def main() -> None:
    model, folder, out = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    given = {**DEFAULTS, **(json.loads(sys.argv[4]) if len(sys.argv) > 4 else {})}
    processes: dict[str, Process] = {}
    runs: list[dict[str, Any]] = []
    try:
        for mode in ("untouched", *(each for each in given["modes"] if each != "untouched")):
            processes[mode] = start(mode, model, folder, given)
        set_goals(processes["untouched"], given)
        for each in processes.values():  # after this they are warm
            each.ask(load(given, given["rates"][0], 99, 4))
        for seed in given["seeds"]:
            for rate in given["rates"]:
                for mode in given["modes"]:
                    found = processes[mode].ask(load(given, rate, seed))
                    runs.append({"mode": mode, "rate": rate, "seed": seed, **found})
                    say(f"{mode} {rate} a second, seed {seed}: joint {found['joint']:.3f}, paced "
                        f"{found['joint_paced']:.3f}, {found['tokens_per_s']:.0f} tokens/s, {found['wall_s']:.0f} s")
    finally:
        for each in processes.values():
            each.__exit__()
    print("| a second | engine | " + " | ".join(name for name, _, _ in COLUMNS) + " |")
    print("|---|---|" + "---|" * len(COLUMNS))
    for rate in given["rates"]:
        for mode in given["modes"]:
            these = [each for each in runs if each["mode"] == mode and each["rate"] == rate]
            means = [form.format(statistics.mean(each[key] for each in these)) for _, key, form in COLUMNS]
            print(f"| {rate} | {mode} | " + " | ".join(means) + " |")
    answers = {(each["seed"], each["rate"]): set() for each in runs}
    for each in runs:
        answers[each["seed"], each["rate"]].add(json.dumps(each.pop("answers")))
    print("runs whose answers differ between engines:", sum(len(each) > 1 for each in answers.values()))
    out.write_text(json.dumps({"given": given, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
