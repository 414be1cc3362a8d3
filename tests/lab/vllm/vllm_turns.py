"""A chat of several turns whose vLLM is ended and started anew before each of them: an untouched one, which
computes all that was said again, and the same on kvd, which finds it there.

    vllm_turns.py MODEL FOLDER OUT [JSON]    JSON: see DEFAULTS; kvd at $KVD_ENDPOINT

Each turn's prompt is what was said so far, and `more` tokens of the user's. Prefix caching is on in all.
Each process first answers something else of the same length, which nobody finds again, so that no turn
pays for a cold engine. `beside` names other caches that take part behind vLLM's own connectors, "mooncake"
and "lmcache" (vllm_beside.py); all of them play a turn before any plays the next. `rounds` chats are held,
each of other words; the table has their medians. With `streams` requests at once, of which nothing is
found, it also says how many tokens a second each engine makes.

Times are of vllm_load.py's clocks: "cpu", where other jobs of the machine do not count, and the wall's.
Prints a table and writes every figure to OUT; logs are in FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import vllm_beside
from vllm_load import ON_KVD, counter, parameters

DEFAULTS: dict[str, Any] = {
    "turns": 4, "first": 768, "more": 64, "answer": 96, "seed": 7, "rounds": 1,
    "beside": [], "lmcache_chunk": 256,
    "streams": 0, "stream_rounds": 5, "stream_prompt": 256, "stream_answer": 96,
    "engine": {"max_model_len": 2048, "max_num_batched_tokens": 512,
               "kv_cache_memory_bytes": 128 << 20},
}  # fmt: skip
NO_GOALS = {"ttft_s": 0, "tbt_s": 0}


def words(source: random.Random, count: int) -> list[int]:
    return [source.randrange(3, 2048) for _ in range(count)]


# ---- within an engine's process ----


def meter_of(model: str, given: dict[str, Any]) -> Any:
    vllm_beside.admit(given["mode"])
    from vllm import LLM
    from vllm_load import DEFAULTS as ENGINE
    from vllm_load import Clock, Meter

    return Meter(LLM(model=model, **{**ENGINE, **given["engine"]}), Clock("cpu"))


def answer_one(meter: Any, prompt: list[int], count: int, salt: str = "") -> dict[str, Any]:
    """Answers one request, alone. Returns once everything that it leaves behind is stored."""
    given: dict[str, Any] = {"prompt_token_ids": prompt, **({"cache_salt": salt} if salt else {})}
    scheduled, found = meter.scheduled, counter(meter.llm, "vllm:external_prefix_cache_hits")
    begun, begun_wall, tokens = meter.clock(), time.monotonic(), []
    first: dict[str, float] = {}
    meter.engine.add_request("turn" + salt, given, parameters(NO_GOALS, count))
    while meter.engine.has_unfinished_requests() or meter.scheduler.has_requests():
        for output in meter.step():
            tokens = list(output.outputs[0].token_ids)
            first = first or {"ttft_s": meter.clock() - begun, "ttft_wall_s": time.monotonic() - begun_wall}
    return {**first, "tokens": tokens, "computed": meter.scheduled - scheduled - (count - 1),
            "found": counter(meter.llm, "vllm:external_prefix_cache_hits") - found}  # fmt: skip


def serve_turn(model: str, given: dict[str, Any]) -> None:
    """Reads the turn from stdin and prints its answer."""
    meter = meter_of(model, given)
    prompt: list[int] = json.loads(sys.stdin.readline())
    warm = random.Random(f"warm {given['seed']} {given['turn']}")
    answer_one(meter, words(warm, len(prompt)), given["answer"], "warm")
    print(json.dumps(answer_one(meter, prompt, given["answer"])), flush=True)
    meter.engine.engine_core.shutdown()


def answer_streams(meter: Any, given: dict[str, Any], seed: str) -> dict[str, Any]:
    """Plays `streams` requests that come at once, until the last token; then waits until what they
    leave is stored."""
    source, tokens = random.Random(seed), {}
    found = counter(meter.llm, "vllm:external_prefix_cache_hits")
    begun, begun_wall = meter.clock(), time.monotonic()
    for number in range(given["streams"]):
        prompt = {"prompt_token_ids": words(source, given["stream_prompt"])}
        meter.engine.add_request(f"{seed} {number}", prompt, parameters(NO_GOALS, given["stream_answer"]))
    while meter.engine.has_unfinished_requests():
        for output in meter.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
    took, took_wall = meter.clock() - begun, time.monotonic() - begun_wall
    while meter.scheduler.has_requests():
        meter.step()
    count = sum(map(len, tokens.values()))
    return {"tokens_per_s": count / took, "tokens_per_s_wall": count / took_wall,
            "found": counter(meter.llm, "vllm:external_prefix_cache_hits") - found,
            "tokens": [tokens[name] for name in sorted(tokens)]}  # fmt: skip


def serve_streams(model: str, given: dict[str, Any]) -> None:
    """Reads one seed a line from stdin, and prints the results on one line for each."""
    meter = meter_of(model, given)
    for line in sys.stdin:
        print(json.dumps(answer_streams(meter, given, line.strip())), flush=True)
    meter.engine.engine_core.shutdown()


# ---- the engines' processes ----


class Engines:
    """Starts the engines of a mode, each under the name of its log."""

    def __init__(self, model: str, folder: Path, given: dict[str, Any]) -> None:
        self.modes = ["stock", "kvd", *given["beside"]]
        self._model, self._folder, self._given = model, folder, given
        self._plain = dict(os.environ)
        self._peers: dict[str, vllm_beside.Beside] = {}

    def __enter__(self) -> Engines:
        """Also starts the servers of the other caches."""
        try:
            for name in self._given["beside"]:
                self._peers[name] = vllm_beside.begin(name, self._folder, self._given)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers.values():
            peer.system.stop()

    def start(self, what: str, mode: str, log: str, **more: Any) -> subprocess.Popen[str]:
        with (self._folder / log).open("w") as out:
            return subprocess.Popen(
                [sys.executable, __file__, what, self._model, json.dumps({**self._asked(mode), **more})],
                env=vllm_beside.variables_of(mode, self._plain, self._peers),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True,
            )  # fmt: skip

    def _asked(self, mode: str) -> dict[str, Any]:
        own = ON_KVD if mode == "kvd" else self._peers[mode].engine if mode in self._peers else {}
        return {**self._given, "mode": mode, "engine": {**self._given["engine"], **own}}


def first_found(lines: Iterable[str]) -> dict[str, Any] | None:
    """The first result line of an engine, past whatever libraries print."""
    for line in lines:
        if line.startswith('{"t'):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


# ---- the chat ----


def turn_of(engine: subprocess.Popen[str], said: list[int], log: str) -> dict[str, Any]:
    try:
        out, _ = engine.communicate(json.dumps(said) + "\n", timeout=600)
    finally:
        engine.kill()
    found = first_found(out.splitlines())
    if engine.returncode != 0 or found is None:
        raise RuntimeError(f"a turn failed: see {log}")
    return found


def chat(engines: Engines, given: dict[str, Any], seed: int) -> dict[str, list[dict[str, Any]]]:
    """Holds one chat in every mode, turn by turn. No mode hears another mode's answers."""
    sources = {mode: random.Random(seed) for mode in engines.modes}
    said = {mode: words(source, given["first"]) for mode, source in sources.items()}
    turns: dict[str, list[dict[str, Any]]] = {mode: [] for mode in engines.modes}
    for turn in range(1, given["turns"] + 1):
        for mode in engines.modes:
            log = f"{mode}-{seed}-{turn}.log"
            with engines.start("--turn", mode, log, turn=turn, seed=seed) as engine:
                answer: dict[str, Any] = turn_of(engine, said[mode], log)
            answer = {"turn": turn, "prompt": len(said[mode]), **answer}
            turns[mode].append(answer)
            print(f"{mode}, turn {turn}: first token after {answer['ttft_s']:.3f} s", file=sys.stderr, flush=True)
            said[mode] = said[mode] + answer["tokens"] + words(sources[mode], given["more"])
    return turns


def stream_of(engine: subprocess.Popen[str], seed: str, log: str) -> dict[str, Any]:
    assert engine.stdin is not None and engine.stdout is not None
    engine.stdin.write(seed + "\n")
    engine.stdin.flush()
    found = first_found(engine.stdout)
    if found is None:
        raise RuntimeError(f"an engine ended: see {log}")
    return found


def streams(engines: Engines, given: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Plays streams in every mode, round by round; the first round of each mode does not count."""
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in engines.modes}
    with ExitStack() as running:
        started = {mode: running.enter_context(engines.start("--streams", mode, f"{mode}-streams.log"))
                   for mode in engines.modes}  # fmt: skip
        for number in range(given["stream_rounds"] + 1):
            for mode, engine in started.items():
                answer = stream_of(engine, f"streams-{given['seed']}-{number}", f"{mode}-streams.log")
                if number > 0:
                    found[mode].append(answer)
                    print(f"{mode}: {answer['tokens_per_s']:.0f} tokens a second", file=sys.stderr, flush=True)
    return found


# ---- what is said of it ----


def median(rows: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


def table(chats: dict[str, list[dict[str, Any]]]) -> str:
    others = [mode for mode in chats if mode != "stock"]
    titles = ["turn", "tokens so far", *(f"{mode}: first token after (by the wall)" for mode in chats),
              *(f"found in {mode}" for mode in others), "computed by stock",
              *(f"by {mode}" for mode in others)]  # fmt: skip
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for turn in sorted({row["turn"] for row in chats["stock"]}):
        of = {mode: [row for row in rows if row["turn"] == turn] for mode, rows in chats.items()}
        cells = [f"{turn}", f"{of['stock'][0]['prompt']}"]
        firsts = [(median(rows, "ttft_s"), median(rows, "ttft_wall_s")) for rows in of.values()]
        cells += [f"{of_cpu:.3f} s ({of_wall:.3f} s)" for of_cpu, of_wall in firsts]
        cells += [f"{median(of[mode], 'found'):.0f}" for mode in others]
        cells += [f"{median(of[mode], 'computed'):.0f}" for mode in chats]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, f"answers: {'the same' if is_same(chats) else 'NOT THE SAME'}"])


def stream_table(given: dict[str, Any], found: dict[str, list[dict[str, Any]]]) -> str:
    lines = [f"{given['streams']} at once, {given['stream_prompt']} tokens of prompt and {given['stream_answer']} of "
             "answer each, nothing to find: tokens a second, median and range", "",
             "| engine | tokens a second | of stock's | by the wall | found |", "|---|---|---|---|---|"]  # fmt: skip
    for mode, rows in found.items():
        speeds = [row["tokens_per_s"] for row in rows]
        middle, by_wall = statistics.median(speeds), median(rows, "tokens_per_s_wall")
        share, hits = middle / median(found["stock"], "tokens_per_s"), sum(row["found"] for row in rows)
        lines.append(f"| {mode} | {middle:.0f} ({min(speeds):.0f} to {max(speeds):.0f}) | {share:.3f} "
                     f"| {by_wall:.0f} | {hits:.0f} |")  # fmt: skip
    return "\n".join([*lines, f"answers: {'the same' if is_same(found) else 'NOT THE SAME'}"])


def is_same(answered: dict[str, list[dict[str, Any]]]) -> bool:
    answers = [[row["tokens"] for row in rows] for rows in answered.values()]
    return all(each == answers[0] for each in answers)


def main() -> None:
    served = {"--turn": serve_turn, "--streams": serve_streams}.get(sys.argv[1])
    if served is not None:
        served(sys.argv[2], json.loads(sys.argv[3]))
        return
    model, folder, out = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    given = {**DEFAULTS, **(json.loads(sys.argv[4]) if len(sys.argv) > 4 else {})}
    load = [os.getloadavg()[0]]
    with Engines(model, folder, given) as engines:
        chats: dict[str, list[dict[str, Any]]] = {mode: [] for mode in engines.modes}
        for number in range(given["rounds"]):
            for mode, turns in chat(engines, given, given["seed"] + number).items():
                chats[mode] += turns
        at_once = streams(engines, given) if given["streams"] else {}
    load.append(os.getloadavg()[0])
    print(table(chats))
    if at_once:
        print("\n" + stream_table(given, at_once))
    same = is_same(chats) and is_same(at_once)
    found = {"given": given, "load": load, "same": same, "chats": chats, "streams": at_once}
    out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
