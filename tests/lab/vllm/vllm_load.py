"""Puts one vLLM engine under a Poisson load and says what its users saw.

    vllm_load.py MODEL OUT JSON     JSON: {"engine": {…LLM's arguments}, "rate": 2.0, "requests": 60,
                                    "seed": 3, "prompt": [64, 512], "answer": [64, 400],
                                    "ttft_s": 0.6, "tbt_s": 0.0315, "clock": "cpu", "repeat": 0,
                                    "tell_goals": true}
    vllm_load.py --serve MODEL JSON JSON: LLM's arguments; then a load a line on stdin, found on stdout
    vllm_load.py --table NAME=OUT…  a table of what was written

Engine and load are one process, so one thread does all. "clock": "wall" is the time of day. "cpu" is
the CPU time of this process, and every wait for kvd, and the idle time that is skipped: what other
jobs of the machine take does not count. With "repeat": n the first n prompts come once more at the
end, each with an answer of one token, for their time to the first token. Without "tell_goals" the
requests name no goals: kvd takes its own, and users are judged by these.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from typing import Any

# Settings that an engine on kvd gets in addition.
ON_KVD: dict[str, Any] = {
    "scheduler_cls": "kvd_vllm.KvdScheduler",
    "kv_transfer_config": {
        "kv_connector": "KvdConnector", "kv_connector_module_path": "kvd_vllm.connector",
        "kv_role": "kv_both",
    },
}  # fmt: skip

BLOCK = 32
LONG_GAP_S = 1.0  # people take this for a standstill
DEFAULTS = {
    "skip_tokenizer_init": True, "load_format": "safetensors", "dtype": "float32",
    "enforce_eager": True, "max_model_len": 1024, "block_size": BLOCK,
    "kv_cache_memory_bytes": 128 << 20, "disable_log_stats": False, "seed": 0,
}  # fmt: skip


class Clock:
    """Returns seconds: those of the CPU, plus waits and skipped time, or those of the wall clock.
    """

    def __init__(self, kind: str) -> None:
        self._of_cpu = kind == "cpu"
        self._added = 0.0
        self._is_waiting = False
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __call__(self) -> float:
        return (time.process_time() + self._added) if self._of_cpu else time.monotonic()

    def skip(self, seconds: float) -> None:
        if self._of_cpu:
            self._added += max(0.0, seconds)
        else:
            time.sleep(max(0.0, seconds))

    def ready(self) -> float:
        """Time in which this thread could have run, but other jobs did."""
        return int(os.pread(self._schedstat, 64, 0).split()[1]) * 1e-9

    def waiting(self, call: Any) -> Any:
        """Wraps the call so that the time in which it only waited is added."""

        def timed(*arguments: Any, **named: Any) -> Any:
            if self._is_waiting:  # the outer call counts it
                return call(*arguments, **named)
            wall, cpu, ready = time.monotonic(), time.process_time(), self.ready()
            self._is_waiting = True
            try:
                return call(*arguments, **named)
            finally:
                self._is_waiting = False
                if self._of_cpu:
                    idle = (time.monotonic() - wall) - (time.process_time() - cpu)
                    self._added += max(0.0, idle - (self.ready() - ready))

        return timed


class Wall:
    """How long a run took by the wall clock, and how much of that its thread did not run: because
    other jobs had the cores, or because it slept, which here is a wait for kvd. Idle time is
    skipped, so it is not included."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = time.monotonic(), time.thread_time(), clock.ready()

    def found(self) -> dict[str, float]:
        wall, cpu, ready = self._begun
        wall, cpu = time.monotonic() - wall, time.thread_time() - cpu
        ready = self._clock.ready() - ready
        return {"wall_s": wall, "core_wait_s": ready, "asleep_s": max(0.0, wall - cpu - ready)}


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
        """Whether a client that shows a token each `goal` seconds had 99 % of the tokens in time.
        """
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

    told = given.get("tell_goals", True)
    goals = {"kvd_ttft_s": given["ttft_s"], "kvd_tbt_s": given["tbt_s"]} if told else {}
    return SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=answer, extra_args=goals
    )


class Timer:
    """Sums the time of calls by name since the sums were last taken. Of nested calls only the outer
    one counts."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._depth = 0

    def around(self, name: str, call: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            self._depth += 1
            try:
                return call(*arguments, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    took = time.perf_counter() - begun
                    self._seconds[name] = self._seconds.get(name, 0.0) + took

        return timed

    def take(self) -> dict[str, float]:
        taken, self._seconds = self._seconds, {}
        return taken


class RoundTrip:
    """A Python program that sends back what it gets, over a unix socket. This is the least that a
    question to another process costs, on this machine and beside this load."""

    _ECHO = "import socket\nhere = socket.socket(fileno=0)\nwhile got := here.recv(4096): here.send(got)"
    _QUESTION = bytes(1024)

    def __init__(self) -> None:
        self._here, there = socket.socketpair()
        self._echo = subprocess.Popen([sys.executable, "-c", self._ECHO], stdin=there)
        there.close()

    def take(self) -> float:
        """The round trip in seconds."""
        begun = time.perf_counter()
        self._here.send(self._QUESTION)
        self._here.recv(4096)
        return time.perf_counter() - begun


# Parts of kvd's code that run within vLLM's schedule().
OF_SCHEDULER = ("kvd_ask", "kvd_apply", "kvd_has_a_say")
OF_CONNECTOR = (
    "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "has_pending_block_frees", "park",
)  # fmt: skip

# Where any connector of vLLM's may wait for another process: on the scheduler's side, then on a
# worker's.
OF_ANY_CONNECTOR = (
    "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "update_connector_output", "request_finished", "start_load_kv", "wait_for_layer_load",
    "save_kv_layer", "wait_for_save", "get_finished", "get_transfer_results",
)  # fmt: skip
_PAUSE_S = 0.001
_STEPS_A_ROUND_TRIP = 4


class Meter:
    """An engine with its clock, and what its steps did and took. One for each engine."""

    def __init__(self, llm: Any, clock: Clock) -> None:
        self.llm, self.clock = llm, clock
        self.engine = llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.arrivals: dict[str, float] = {}
        self.scheduled = 0
        self.deciding: list[float] = []  # seconds of each schedule()
        self.added: list[dict[str, float]] = []  # the part of that in kvd's code, by what it did
        self.round_trips: list[float] = []  # seconds of a bare round trip, beside some of the steps
        self._preempted = 0.0
        self._kvd = Timer()
        self._pause = clock.waiting(time.sleep)
        self._bare: RoundTrip | None = None
        if hasattr(self.scheduler, "kvd_ask"):
            self._tell_the_clock()
            self._time_kvd()
            self._bare = RoundTrip()
        elif self.scheduler.connector is not None:
            self._wait_for_connector()
        schedule = self.scheduler.schedule

        def counting(*arguments: Any) -> Any:
            self._kvd.take()
            begun = time.perf_counter()
            output = schedule(*arguments)
            self.deciding.append(time.perf_counter() - begun)
            self.added.append(self._kvd.take())
            self.scheduled += output.total_num_scheduled_tokens
            if self._bare is not None and len(self.deciding) % _STEPS_A_ROUND_TRIP == 0:
                self.round_trips.append(self._bare.take())
            return output

        self.scheduler.schedule = counting

    def _tell_the_clock(self) -> None:
        """Gives KvdScheduler the clock, so that ages use the same one, and counts every wait for
        kvd on it."""
        from kvd_client._handle import Handle

        Handle.call = self.clock.waiting(Handle.call)  # type: ignore[method-assign]
        self.scheduler.kvd_clock = self.clock
        self.scheduler.kvd_arrival_of = lambda request, now: self.arrivals.get(
            request.request_id.split("-")[0], now
        )

    def _wait_for_connector(self) -> None:
        """Times a connector of another kind. Time in which its calls only wait counts, too."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        for connector in (self.scheduler.connector, get_kv_transfer_group()):
            for each in OF_ANY_CONNECTOR:
                setattr(connector, each, self.clock.waiting(getattr(connector, each)))

    def step(self) -> list[Any]:
        """Makes one step of the engine. After a step that computed nothing it leaves a moment for
        threads that load and store, as vLLM's own loop does."""
        before = self.scheduled
        outputs: list[Any] = self.engine.step()
        if self.scheduled == before and self.scheduler.has_requests():
            self._pause(_PAUSE_S)
        return outputs

    def _time_kvd(self) -> None:
        for each in OF_CONNECTOR:
            call = getattr(self.scheduler.connector, each)
            setattr(self.scheduler.connector, each, self._kvd.around(each, call))
        for each in OF_SCHEDULER:
            setattr(self.scheduler, each, self._kvd.around(each, getattr(self.scheduler, each)))

    def begin(self) -> None:
        """Begins a new run: nothing of the one before is found again, by vLLM or in kvd."""
        self.arrivals.clear()
        self.scheduled = 0
        self.deciding.clear()
        self.round_trips.clear()
        self.added.clear()
        self._preempted = self.preemptions(0.0)
        self.llm.reset_prefix_cache(reset_connector=True)

    def preemptions(self, before: float | None = None) -> float:
        """Preemptions since the run began."""
        before = self._preempted if before is None else before
        return counter(self.llm, "vllm:num_preemptions") - before


def run(meter: Meter, given: dict[str, Any]) -> dict[str, Any]:
    """Plays one load, from its first arrival to its last token."""
    meter.begin()
    engine, clock = meter.engine, meter.clock
    loads = load_of(given)
    seen: dict[str, Seen] = {}
    tokens: dict[str, list[int]] = {}
    fetched = counter(meter.llm, "vllm:kvd_layer_blocks_fetched")
    start, wall, coming = clock(), Wall(clock), loads[::-1]
    while coming or engine.has_unfinished_requests():
        if coming and not engine.has_unfinished_requests():
            clock.skip(start + coming[-1][0] - clock())
        while coming and start + coming[-1][0] <= clock():
            at, prompt, answer = coming.pop()
            name = str(len(seen))
            meter.arrivals[name], seen[name], tokens[name] = start + at, Seen(start + at), []
            engine.add_request(name, {"prompt_token_ids": prompt}, parameters(given, answer))
        for output in engine.step():
            made = list(output.outputs[0].token_ids)
            more = len(made) - len(tokens[output.request_id])
            seen[output.request_id].tokens += [clock()] * more
            tokens[output.request_id] = made
    took, by_wall = clock() - start, wall.found()
    in_all, preempted = meter.scheduled, meter.preemptions()
    times = {"schedule_us": quantiles(meter.deciding),
             "schedule_added_us": quantiles([sum(each.values()) for each in meter.added]),
             "round_trip_us": quantiles(meter.round_trips), "slowest_us": slowest(meter.added)}  # fmt: skip
    repeated = [ttft_of(meter, given, prompt) for _, prompt, _ in loads[: given.get("repeat", 0)]]
    needed = sum(len(prompt) + answer - 1 for _, prompt, answer in loads)
    return {**report(list(seen.values()), given, took), **by_wall, "scheduled_tokens": in_all,
            "needed_tokens": needed, "repeated_ttft_s": repeated, **times,
            "preemptions": preempted, "answers": tokens,
            "external_hits": counter(meter.llm, "vllm:external_prefix_cache_hits"),
            "fetched": counter(meter.llm, "vllm:kvd_layer_blocks_fetched") - fetched}  # fmt: skip


def ttft_of(meter: Meter, given: dict[str, Any], prompt: list[int]) -> float:
    """The time to the first token of this prompt, with nothing else running."""
    begun = meter.clock()
    meter.engine.add_request("again", {"prompt_token_ids": prompt}, parameters(given, 1))
    while meter.engine.has_unfinished_requests():
        meter.engine.step()
    return meter.clock() - begun


def calibrate(meter: Meter, given: dict[str, Any]) -> dict[str, float]:
    """Measures an engine without load: the time to the first token of a prompt of the middle
    length, and the time of a step that decodes `batch` requests. Both are medians in seconds."""
    goals = {**given, "ttft_s": 0.0, "tbt_s": 0.0}
    source = random.Random(0)
    length = sum(given["prompt"]) // 2
    firsts = []
    for _ in range(9):
        meter.begin()
        prompt = [source.randrange(3, 2048) for _ in range(length)]
        firsts.append(ttft_of(meter, goals, prompt))
    meter.begin()
    for number in range(given["batch"]):
        prompt = [source.randrange(3, 2048) for _ in range(length)]
        meter.engine.add_request(
            str(number), {"prompt_token_ids": prompt}, parameters(goals, sum(given["answer"]) // 2)
        )
    steps: list[float] = []
    while meter.engine.has_unfinished_requests():
        begun, scheduled = meter.clock(), meter.scheduled
        meter.engine.step()
        if meter.scheduled - scheduled == given["batch"]:
            steps.append(meter.clock() - begun)
    return {"first_s": quantile(firsts, 0.5), "step_s": quantile(steps, 0.5)}


def serve(llm: Any) -> None:
    """Reads loads or calibrations from stdin, one on each line, and prints one line of results for
    each."""
    clock = Clock("cpu")
    meter = Meter(llm, clock)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        found = calibrate(meter, given) if given.get("calibrate") else run(meter, given)
        print(json.dumps(found), flush=True)


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
        "long_gaps": share(each.longest_gap() > LONG_GAP_S for each in seen),
        "joint_gaps": share(a and b and each.longest_gap() <= LONG_GAP_S
                            for a, b, each in zip(in_time, even, seen)),
        "tokens_per_s": sum(len(each.tokens) for each in seen) / took,
        "seconds": took,
    }  # fmt: skip


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def quantiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}": round(quantile(seconds, share / 100) * 1e6) for share in (50, 99)}


def slowest(added: list[dict[str, float]]) -> dict[str, float]:
    """What each part of kvd's code took in the slowest 2 % of the steps: means, the largest first.
    """
    steps = sorted(added, key=lambda each: -sum(each.values()))[: max(1, len(added) // 50)]
    parts = {name: sum(each.get(name, 0.0) for each in steps) / len(steps)
             for name in {name for each in steps for name in each}}  # fmt: skip
    return {name: round(took * 1e6) for name, took in sorted(parts.items(), key=lambda at: -at[1])}


def counter(llm: Any, name: str) -> float:
    return sum(getattr(each, "value", 0) for each in llm.get_metrics() if each.name == name)


ROWS = (
    ("requests whose first token was in time", "ttft", "{:.0%}"),
    ("requests whose mean gap was within its goal", "mean_gap", "{:.0%}"),
    ("requests that met both", "joint", "{:.0%}"),
    ("requests that met both, paced", "joint_paced", "{:.0%}"),
    ("requests that met both, no gap above 1 s", "joint_gaps", "{:.0%}"),
    ("requests with a gap above 1 s", "long_gaps", "{:.0%}"),
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

    if sys.argv[1] == "--serve":
        serve(LLM(model=sys.argv[2], **{**DEFAULTS, **json.loads(sys.argv[3])}))
        return
    model, out, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    llm = LLM(model=model, **{**DEFAULTS, **given.get("engine", {})})
    found = run(Meter(llm, Clock(given.get("clock", "wall"))), given)
    llm.llm_engine.engine_core.shutdown()
    with open(out, "w") as file:
        json.dump({"given": given, **found}, file)


if __name__ == "__main__":
    main()
