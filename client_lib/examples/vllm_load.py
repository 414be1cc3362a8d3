"""Puts one vLLM engine under a Poisson load and says what its users saw.

    vllm_load.py MODEL OUT JSON     JSON: {"engine": {…LLM's arguments}, "rate": 2.0, "requests": 60,
                                    "seed": 3, "prompt": [64, 512], "answer": [64, 400],
                                    "ttft_s": 0.6, "tbt_s": 0.0315, "clock": "cpu", "repeat": 0}
    vllm_load.py --table NAME=OUT…  a table of what was written

Engine and load are one process, so one thread does all. "clock": "wall" is the time of day. "cpu" is
the CPU time of this process, and every wait for kvd, and the idle time that is skipped: what other
jobs of the machine take does not count. With "repeat": n the first n prompts come once more at the
end, each with an answer of one token, for their time to the first token.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

BLOCK = 32
DEFAULTS = {
    "skip_tokenizer_init": True, "load_format": "safetensors", "dtype": "float32",
    "enforce_eager": True, "max_model_len": 1024, "block_size": BLOCK,
    "kv_cache_memory_bytes": 128 << 20, "disable_log_stats": False, "seed": 0,
}  # fmt: skip


class Clock:
    """Seconds. The CPU's, with what was waited and skipped, or the wall's."""

    def __init__(self, kind: str) -> None:
        self._of_cpu = kind == "cpu"
        self._added = 0.0

    def __call__(self) -> float:
        return (time.process_time() + self._added) if self._of_cpu else time.monotonic()

    def skip(self, seconds: float) -> None:
        if self._of_cpu:
            self._added += max(0.0, seconds)
        else:
            time.sleep(max(0.0, seconds))

    def waiting(self, call: Any) -> Any:
        """The call, with the time in which it only waited added."""

        def timed(*arguments: Any, **named: Any) -> Any:
            wall, cpu = time.monotonic(), time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                if self._of_cpu:
                    idle = (time.monotonic() - wall) - (time.process_time() - cpu)
                    self._added += max(0.0, idle)

        return timed


class Seen:
    """What the user of one request saw."""

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.tokens: list[float] = []

    def ttft(self) -> float:
        return self.tokens[0] - self.arrived

    def mean_gap(self) -> float:
        count = len(self.tokens) - 1
        return (self.tokens[-1] - self.tokens[0]) / count if count else 0.0

    def longest_gap(self) -> float:
        return max((b - a for a, b in zip(self.tokens, self.tokens[1:])), default=0.0)

    def is_paced(self, goal: float) -> bool:
        """Whether a client that shows a token each `goal` seconds had 99 % of them in time."""
        shown, late = self.tokens[0], 0
        for token in self.tokens[1:]:
            late += token > shown + goal
            shown = max(token, shown + goal)
        return late <= 0.01 * len(self.tokens)


def load_of(given: dict[str, Any]) -> list[tuple[float, list[int], int]]:
    """Arrival, prompt and length of the answer of each request."""
    source, at, out = random.Random(given["seed"]), 0.0, []
    for _ in range(given["requests"]):
        at += source.expovariate(1.0) / given["rate"]
        prompt = [source.randrange(3, 2048) for _ in range(source.randint(*given["prompt"]))]
        out.append((at, prompt, source.randint(*given["answer"])))
    return out


def parameters(given: dict[str, Any], answer: int) -> Any:
    from vllm import SamplingParams

    goals = {"kvd_ttft_s": given["ttft_s"], "kvd_tbt_s": given["tbt_s"]}
    return SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=answer, extra_args=goals
    )


def tell_the_clock(scheduler: Any, clock: Clock, arrivals: dict[str, float]) -> None:
    """To KvdScheduler, so that ages are of the same clock; and its waits to the clock."""
    connector = scheduler.connector
    if connector is None:
        return
    connector.schedule = clock.waiting(connector.schedule)
    connector.get_num_new_matched_tokens = clock.waiting(connector.get_num_new_matched_tokens)
    connector.build_connector_meta = clock.waiting(connector.build_connector_meta)
    scheduler.kvd_clock = clock
    scheduler.kvd_arrival_of = lambda request, now: arrivals.get(
        request.request_id.split("-")[0], now
    )


def run(llm: Any, given: dict[str, Any]) -> dict[str, Any]:
    engine, clock = llm.llm_engine, Clock(given.get("clock", "wall"))
    scheduler = engine.engine_core.engine_core.scheduler
    coming, seen, arrivals = load_of(given), {}, {}
    tell_the_clock(scheduler, clock, arrivals)
    scheduled, schedule, deciding = [0], scheduler.schedule, []

    def counting(*arguments: Any) -> Any:
        begun = time.perf_counter()
        output = schedule(*arguments)
        deciding.append(time.perf_counter() - begun)
        scheduled[0] += output.total_num_scheduled_tokens
        return output

    scheduler.schedule = counting
    start, coming = clock(), coming[::-1]
    counts: dict[str, int] = {}
    tokens: dict[str, list[int]] = {}
    while coming or engine.has_unfinished_requests():
        if coming and not engine.has_unfinished_requests():
            clock.skip(start + coming[-1][0] - clock())
        while coming and start + coming[-1][0] <= clock():
            at, prompt, answer = coming.pop()
            name = str(len(seen))
            arrivals[name], seen[name], counts[name] = start + at, Seen(start + at), 0
            engine.add_request(name, {"prompt_token_ids": prompt}, parameters(given, answer))
        for output in engine.step():
            made = len(output.outputs[0].token_ids)
            seen[output.request_id].tokens += [clock()] * (made - counts[output.request_id])
            counts[output.request_id] = made
            tokens[output.request_id] = list(output.outputs[0].token_ids)
    took, in_all = clock() - start, scheduled[0]
    repeated = [ttft_of(engine, given, clock, prompt) for _, prompt, _ in
                load_of(given)[: given.get("repeat", 0)]]  # fmt: skip
    needed = sum(len(prompt) + answer - 1 for _, prompt, answer in load_of(given))
    return {**report(list(seen.values()), given, took), "scheduled_tokens": in_all,
            "needed_tokens": needed, "repeated_ttft_s": repeated, "schedule_us": quantiles(deciding),
            "preemptions": counter(llm, "vllm:num_preemptions"), "answers": tokens,
            "external_hits": counter(llm, "vllm:external_prefix_cache_hits")}  # fmt: skip


def ttft_of(engine: Any, given: dict[str, Any], clock: Clock, prompt: list[int]) -> float:
    begun = clock()
    engine.add_request("again", {"prompt_token_ids": prompt}, parameters(given, 1))
    while engine.has_unfinished_requests():
        engine.step()
    return clock() - begun


def report(seen: list[Seen], given: dict[str, Any], took: float) -> dict[str, Any]:
    in_time = [each.ttft() <= given["ttft_s"] for each in seen]
    even = [each.mean_gap() <= given["tbt_s"] for each in seen]
    paced = [each.is_paced(given["tbt_s"]) for each in seen]
    share = lambda flags: sum(flags) / len(seen)  # noqa: E731
    return {
        "ttft": share(in_time), "mean_gap": share(even), "paced": share(paced),
        "joint": share(a and b for a, b in zip(in_time, even)),
        "joint_paced": share(a and b for a, b in zip(in_time, paced)),
        "p50_ttft_s": quantile([each.ttft() for each in seen], 0.5),
        "p99_ttft_s": quantile([each.ttft() for each in seen], 0.99),
        "longest_gap_s": max(each.longest_gap() for each in seen),
        "tokens_per_s": sum(len(each.tokens) for each in seen) / took,
        "seconds": took,
    }  # fmt: skip


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def quantiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}": round(quantile(seconds, share / 100) * 1e6) for share in (50, 99)}


def counter(llm: Any, name: str) -> float:
    return sum(getattr(each, "value", 0) for each in llm.get_metrics() if each.name == name)


ROWS = (
    ("requests whose first token was in time", "ttft", "{:.0%}"),
    ("requests whose mean gap was within its goal", "mean_gap", "{:.0%}"),
    ("requests that met both", "joint", "{:.0%}"),
    ("requests that met both, paced", "joint_paced", "{:.0%}"),
    ("P50 time to the first token, s", "p50_ttft_s", "{:.3f}"),
    ("P99 time to the first token, s", "p99_ttft_s", "{:.3f}"),
    ("longest gap, s", "longest_gap_s", "{:.2f}"),
    ("tokens a second", "tokens_per_s", "{:.0f}"),
    ("preemptions", "preemptions", "{:.0f}"),
    ("tokens computed, for each needed", "recomputed", "{:.2f}"),
    ("the same prompts again: time to the first token, s", "again", "{:.3f}"),
    ("prompt tokens found in kvd", "external_hits", "{:.0f}"),
)


def table(named: dict[str, dict[str, Any]]) -> str:
    for found in named.values():
        found["recomputed"] = found["scheduled_tokens"] / found["needed_tokens"]
        again = found["repeated_ttft_s"]
        found["again"] = sum(again) / len(again) if again else float("nan")
    width = max(len(text) for text, _, _ in ROWS)
    lines = [" " * width + "".join(f"{name:>14}" for name in named)]
    for text, key, form in ROWS:
        lines.append(f"{text:<{width}}" + "".join(f"{form.format(v[key]):>14}" for v in named.values()))
    same = len({json.dumps(v["answers"], sort_keys=True) for v in named.values()}) == 1
    return "\n".join([*lines, f"answers: {'the same' if same else 'NOT THE SAME'}"])


def main() -> None:
    if sys.argv[1] == "--table":
        pairs = [each.split("=", 1) for each in sys.argv[2:]]
        named = {}
        for name, path in pairs:
            with open(path) as file:
                named[name] = json.load(file)
        print(table(named))
        return
    from vllm import LLM

    model, out, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    llm = LLM(model=model, **{**DEFAULTS, **given.get("engine", {})})
    found = run(llm, given)
    llm.llm_engine.engine_core.shutdown()
    with open(out, "w") as file:
        json.dump({"given": given, **found}, file)


if __name__ == "__main__":
    main()
