"""A chat of several turns whose vLLM is ended and started anew before each of them: an untouched one, which
computes all that was said again, and the same on kvd, which finds it there.

    vllm_turns.py MODEL FOLDER OUT [JSON]    JSON: see DEFAULTS; kvd at $KVD_ENDPOINT

Each turn's prompt is what was said so far, and `more` tokens of the user's. Prefix caching is on in both.
Each process first answers something else of the same length, which nobody finds again, so that no turn
pays for a cold engine. Times are of vllm_load.py's clocks: "cpu", where other jobs of the machine do not
count, and the wall's. Prints a table and writes every figure to OUT; logs are in FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vllm_load import ON_KVD, counter, parameters

DEFAULTS: dict[str, Any] = {
    "turns": 4, "first": 768, "more": 64, "answer": 96, "seed": 7,
    "engine": {"max_model_len": 2048, "max_num_batched_tokens": 512,
               "kv_cache_memory_bytes": 128 << 20},
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {"stock": {}, "kvd": ON_KVD}


def words(source: random.Random, count: int) -> list[int]:
    return [source.randrange(3, 2048) for _ in range(count)]


# ---- within an engine's process ----


def answer_one(meter: Any, prompt: list[int], count: int, salt: str = "") -> dict[str, Any]:
    """One request, alone. Returns once all that it leaves behind is stored."""
    given = {"prompt_token_ids": prompt, **({"cache_salt": salt} if salt else {})}
    scheduled, found = meter.scheduled, counter(meter.llm, "vllm:external_prefix_cache_hits")
    begun, begun_wall, tokens = meter.clock(), time.monotonic(), []
    first: dict[str, float] = {}
    meter.engine.add_request("turn" + salt, given, parameters({"ttft_s": 0, "tbt_s": 0}, count))
    while meter.engine.has_unfinished_requests() or meter.scheduler.has_requests():
        for output in meter.engine.step():
            tokens = list(output.outputs[0].token_ids)
            first = first or {"ttft_s": meter.clock() - begun, "ttft_wall_s": time.monotonic() - begun_wall}
    return {**first, "tokens": tokens, "computed": meter.scheduled - scheduled - (count - 1),
            "found": counter(meter.llm, "vllm:external_prefix_cache_hits") - found}  # fmt: skip


def serve_turn(model: str, given: dict[str, Any]) -> None:
    """The turn on stdin, its answer on stdout."""
    from vllm import LLM
    from vllm_load import DEFAULTS as ENGINE
    from vllm_load import Clock, Meter

    meter = Meter(LLM(model=model, **{**ENGINE, **given["engine"]}), Clock("cpu"))
    prompt: list[int] = json.loads(sys.stdin.readline())
    warm = random.Random(f"warm {given['turn']}")
    answer_one(meter, words(warm, len(prompt)), given["answer"], "warm")
    print(json.dumps(answer_one(meter, prompt, given["answer"])), flush=True)
    meter.engine.engine_core.shutdown()


# ---- the chat ----


def chat(mode: str, model: str, folder: Path, given: dict[str, Any]) -> list[dict[str, Any]]:
    source = random.Random(given["seed"])
    said, turns = words(source, given["first"]), []
    for turn in range(1, given["turns"] + 1):
        asked = {**given, "turn": turn, "engine": {**given["engine"], **MODES[mode]}}
        with (folder / f"{mode}-{turn}.log").open("w") as log:
            ended = subprocess.run(
                [sys.executable, __file__, "--turn", model, json.dumps(asked)], text=True,
                input=json.dumps(said) + "\n", stdout=subprocess.PIPE, stderr=log, timeout=600,
            )  # fmt: skip
        lines = [each for each in ended.stdout.splitlines() if each.startswith('{"ttft_s"')]
        if ended.returncode != 0 or not lines:
            raise RuntimeError(f"turn {turn} on {mode} failed: see {folder}/{mode}-{turn}.log")
        turns.append({"turn": turn, "prompt": len(said), **json.loads(lines[0])})
        print(f"{mode}, turn {turn}: first token after {turns[-1]['ttft_s']:.3f} s", file=sys.stderr, flush=True)
        said = said + turns[-1]["tokens"] + words(source, given["more"])
    return turns


def table(chats: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["| turn | tokens so far | stock: first token after | kvd: first token after | found in kvd "
             "| computed by stock | by kvd |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for stock, kvd in zip(chats["stock"], chats["kvd"], strict=True):
        lines.append(f"| {stock['turn']} | {stock['prompt']} | {stock['ttft_s']:.3f} s | {kvd['ttft_s']:.3f} s "
                     f"| {kvd['found']:.0f} | {stock['computed']} | {kvd['computed']} |")  # fmt: skip
    same = is_same(chats)
    return "\n".join([*lines, f"answers: {'the same' if same else 'NOT THE SAME'}"])


def is_same(chats: dict[str, list[dict[str, Any]]]) -> bool:
    answers = [[turn["tokens"] for turn in turns] for turns in chats.values()]
    return all(each == answers[0] for each in answers)


def main() -> None:
    if sys.argv[1] == "--turn":
        serve_turn(sys.argv[2], json.loads(sys.argv[3]))
        return
    model, folder, out = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    given = {**DEFAULTS, **(json.loads(sys.argv[4]) if len(sys.argv) > 4 else {})}
    chats = {mode: chat(mode, model, folder, given) for mode in MODES}
    print(table(chats))
    load = os.getloadavg()[0]
    found = {"given": given, "load": load, "same": is_same(chats), "chats": chats}
    out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if is_same(chats) else 1)


if __name__ == "__main__":
    main()
