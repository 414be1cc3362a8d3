"""One vLLM of its own process, which answers loads: engine.py JSON      JSON: arguments of vllm.LLM

Prints {"event": "ready"}; then for each line of JSON on stdin one line of JSON. {"do": "run", …} plays
requests (class Load) and answers what became of each; {"do": "reset"} empties vLLM's own prefix cache;
{"do": "scale", "by": F} multiplies all weights, in place.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import time
from typing import Any, NamedTuple


class Load(NamedTuple):
    """Requests whose prompts are random token ids: the same for the same numbers."""

    count: int
    prompt: int  # tokens of its own
    answer: int
    seed: int = 1
    shared: int = 0  # tokens before them, the same in all
    rate: float = 0.0  # requests a second, Poisson; 0: all at once
    words: int = 2048

    def requests(self) -> list[tuple[float, list[int]]]:
        """When each comes, in seconds, and what it asks."""
        source, at = random.Random(self.seed), 0.0
        head = [source.randrange(3, self.words) for _ in range(self.shared)]
        made = []
        for _ in range(self.count):
            at += source.expovariate(self.rate) if self.rate else 0.0
            made.append((at, head + [source.randrange(3, self.words) for _ in range(self.prompt)]))
        return made


class Player:
    """Plays one load on an engine, step by step."""

    def __init__(self, llm: Any, load: Load) -> None:
        from vllm import SamplingParams

        self._engine = llm.llm_engine
        self._load = load
        self._waiting = load.requests()
        self._came: dict[str, float] = {}
        self._times: dict[str, list[float]] = {}
        self._done: dict[str, Any] = {}
        self._scheduled = 0
        self._params = SamplingParams(
            temperature=0, ignore_eos=True, detokenize=False, logprobs=1, max_tokens=load.answer
        )

    def play(self) -> dict[str, Any]:
        scheduler = self._engine.engine_core.engine_core.scheduler
        schedule = scheduler.schedule

        def counting(*arguments: Any, **named: Any) -> Any:
            output = schedule(*arguments, **named)
            self._scheduled += output.total_num_scheduled_tokens
            return output

        scheduler.schedule = counting
        began = time.monotonic()
        try:
            while self._waiting or self._engine.has_unfinished_requests():
                self._admit(time.monotonic() - began)
                if self._engine.has_unfinished_requests():
                    self._step(began)
                else:
                    time.sleep(0.001)
        finally:
            scheduler.schedule = schedule
        return self._result(time.monotonic() - began)

    def _admit(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            at, prompt = self._waiting.pop(0)
            name = f"{self._load.seed}-{len(self._came)}-{time.monotonic_ns()}"
            self._came[name] = at
            self._engine.add_request(name, {"prompt_token_ids": prompt}, self._params.clone())

    def _step(self, began: float) -> None:
        for output in self._engine.step():
            times = self._times.setdefault(output.request_id, [])
            fresh = len(output.outputs[0].token_ids) - len(times)
            times += [time.monotonic() - began] * fresh
            if output.finished:
                self._done[output.request_id] = output.outputs[0]

    def _result(self, seconds: float) -> dict[str, Any]:
        load = self._load
        asked = load.count * (load.shared + load.prompt)
        gaps = [b - a for times in self._times.values() for a, b in zip(times, times[1:])]
        return {
            "tokens": [list(self._done[name].token_ids) for name in self._came],
            "logprobs": [
                [step[token].logprob for token, step in zip(done.token_ids, done.logprobs)]
                for done in (self._done[name] for name in self._came)
            ],
            "first_s": [self._times[name][0] - at for name, at in self._came.items()],
            "gaps_s": sorted(gaps),
            "seconds": seconds,
            "scheduled": self._scheduled,
            "needed": asked + load.count * (load.answer - 1),
        }


def counters(llm: Any) -> dict[str, float]:
    """vLLM's own, by name without "vllm:"."""
    found = {each.name: getattr(each, "value", None) for each in llm.get_metrics()}
    return {name.removeprefix("vllm:"): value for name, value in found.items() if value is not None}


def scale(worker: Any, by: float) -> None:
    """As training in place does it: nobody is told."""
    for parameter in worker.model_runner.get_model().parameters():
        parameter.data.mul_(by)


def main() -> None:
    said = sys.stdout
    sys.stdout = sys.stderr  # vLLM's own lines go to the log
    import kvd_random

    kvd_random.register()
    from vllm import LLM

    began = time.monotonic()
    llm = LLM(**json.loads(sys.argv[1]))

    def say(what: dict[str, Any]) -> None:
        said.write(json.dumps(what) + "\n")
        said.flush()

    say({"event": "ready", "seconds": time.monotonic() - began})
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "reset":
            say({"reset": llm.reset_prefix_cache()})
            continue
        if order["do"] == "scale":
            llm.collective_rpc(functools.partial(scale, by=order["by"]))
            say({"scaled": order["by"]})
            continue
        before = counters(llm)
        result = Player(llm, Load(**order["load"])).play()
        after = counters(llm)
        result["counters"] = {name: after[name] - before.get(name, 0) for name in after}
        say(result)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
