"""A stock vLLM in one process, driven step by step; nothing of kvd in it but the flags it is given.

    engine.py MODEL OUT JSON        JSON: {"engine": {…LLM's arguments}, "seed": 1, "pause_at": 40,
                                    "pause_on": "load", "rounds": 1, "each": [{…}],
                                    "prompts": [[…]], "answer": 128, "prompt_logprobs": 1}

Answers six prompts of random tokens greedily, 128 tokens each, and writes tokens, logprobs, the
tokens that were scheduled and vLLM's own counters to OUT. It stands still once, after pause_at steps
that computed something (a request that waits for an answer of kvd's makes empty ones),
or with pause_on "load" when a request waits for a load, "preempted" when two that were preempted wait at
a time: it prints {"event":"paused", …} with where its KV tensors lie and kvd's names of a request's blocks,
and goes on after a line on stdin.
Each round makes an engine of its own, but one that says "same"; "each" says what is otherwise in each.
With "tells" it prints after each step what tokens came, {"event":"told","tokens":[[request, [token, …]], …]}, and
a line on stdin ends all requests, as where those who asked are gone. "answer" may be a list, by prompt.
With "embed" it says the vectors of its prompts instead.
"""

from __future__ import annotations

import gc
import json
import random
import select
import sys
from typing import Any

PROMPTS, ANSWER = 6, 128
DEFAULTS = {
    "skip_tokenizer_init": True,
    "load_format": "safetensors",
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "block_size": 32,
    "kv_cache_memory_bytes": 16 << 20,
    "enable_prefix_caching": False,
    "disable_log_stats": True,
    "seed": 0,
}


def prompts(seed: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(3, 2048) for _ in range(70 + 3 * i)] for i in range(PROMPTS)]


def tensors(worker: Any) -> list[tuple[int, int]]:
    """Address and size of each KV tensor."""
    found = worker.model_runner.kv_caches
    return [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in found]


def names(scheduler: Any) -> list[str]:
    """What kvd calls the blocks of a request, where the engine stores any."""
    planner = getattr(scheduler.connector, "_planner", None)
    request = next(iter(scheduler.requests.values()))
    places = [(0, at) for at in range(len(request.block_hashes))]
    return [each.hex() for each in planner.names.digests(request, places)] if planner else []


def counters(llm: Any) -> dict[str, float]:
    """vLLM's own, by name without "vllm:", where it keeps them."""
    if not llm.llm_engine.log_stats:
        return {}
    found = {each.name: getattr(each, "value", None) for each in llm.get_metrics()}
    return {name.removeprefix("vllm:"): value for name, value in found.items() if value is not None}


def tell(outputs: list[Any], told: list[int]) -> None:
    """What is new of the answers; `told` counts what was said before."""
    news = []
    for output in outputs:
        number, tokens = int(output.request_id), list(output.outputs[0].token_ids)
        news.append((number, tokens[told[number] :]))
        told[number] = len(tokens)
    print(json.dumps({"event": "told", "tokens": news}), flush=True)


def end_all(engine: Any, scheduler: Any, count: int) -> None:
    """Ends so many requests, and makes the steps that are left to do then."""
    engine.abort_request([str(number) for number in range(count)])
    while scheduler.has_requests():
        engine.step()


def run(llm: Any, given: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.v1.request import RequestStatus

    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    asked = given.get("prompts") or prompts(given.get("seed", 1))
    length = given.get("answer", ANSWER)
    lengths = length if isinstance(length, list) else [length] * len(asked)
    for number, prompt in enumerate(asked):
        tokens = {"prompt_token_ids": prompt}
        salt = {"cache_salt": given["salt"]} if "salt" in given else {}
        params = SamplingParams(
            temperature=0, ignore_eos=True, detokenize=False, logprobs=3,
            max_tokens=lengths[number], extra_args=given.get("arguments"),
            prompt_logprobs=given.get("prompt_logprobs"),
        )  # fmt: skip
        engine.add_request(str(number), {**tokens, **salt}, params)
    done: dict[str, Any] = {}
    told = [0] * len(asked)
    scheduled, steps, schedule = [0], [0], scheduler.schedule

    def counting(*arguments: Any) -> Any:
        output = schedule(*arguments)
        scheduled[0] += output.total_num_scheduled_tokens
        steps[0] += output.total_num_scheduled_tokens > 0
        return output

    def is_time_to_pause() -> bool:
        if given.get("pause_on") == "load":
            states = [each.status for each in scheduler.requests.values()]
            return RequestStatus.WAITING_FOR_REMOTE_KVS in states
        if given.get("pause_on") == "preempted":
            states = [each.status for each in scheduler.requests.values()]
            return states.count(RequestStatus.PREEMPTED) >= 2
        return 0 < steps[0] == given.get("pause_at")

    scheduler.schedule = counting
    paused = False
    while engine.has_unfinished_requests():
        outputs = engine.step()
        for output in outputs:
            if output.finished:
                done[output.request_id] = output.outputs[0]
        if given.get("tells"):
            tell(outputs, told)
            if select.select([sys.stdin], [], [], 0)[0]:
                end_all(engine, scheduler, len(asked))
                return {}
        if not paused and is_time_to_pause():
            paused = True
            where = llm.collective_rpc(tensors)[0]
            print(json.dumps({"event": "paused", "tensors": where, "names": names(scheduler)}), flush=True)
            sys.stdin.readline()
    answers = [done[str(number)] for number in range(len(asked))]
    return {
        "tokens": [list(answer.token_ids) for answer in answers],
        "logprobs": [
            [sorted((token, value.logprob) for token, value in step.items()) for step in a.logprobs]
            for a in answers
        ],
        "scheduled": scheduled[0],
        "needed": sum(map(len, asked)) + sum(lengths) - len(asked),
        "counters": counters(llm),
    }


def embed(llm: Any, given: dict[str, Any]) -> dict[str, Any]:
    asked = [{"prompt_token_ids": each} for each in given["prompts"]]
    return {"vectors": [each.outputs.embedding for each in llm.embed(asked, use_tqdm=False)]}


def main() -> None:
    from vllm import LLM

    model, out, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    results = []
    rounds = given.get("each") or [{}] * given.get("rounds", 1)
    for at, one in enumerate(rounds):
        options = {**DEFAULTS, **given.get("engine", {}), **one.get("engine", {})}
        if not one.get("same"):
            llm = LLM(model=model, **options)
        results.append((embed if given.get("embed") else run)(llm, {**given, **one}))
        if at + 1 == len(rounds) or not rounds[at + 1].get("same"):
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
    with open(out, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
