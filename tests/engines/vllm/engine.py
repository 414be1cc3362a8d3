"""A stock vLLM in one process, driven step by step; nothing of kvd in it but the flags it is given.

    engine.py MODEL OUT JSON        JSON: {"engine": {…LLM's arguments}, "seed": 1, "pause_at": 40,
                                    "rounds": 1}

Answers six prompts of random tokens greedily, 128 tokens each, and writes tokens and logprobs to
OUT. With pause_at it stands still after so many steps, once: it prints {"event":"paused", …} with
where its KV tensors lie, and goes on after a line on stdin. Each round makes an engine of its own.
"""

from __future__ import annotations

import gc
import json
import random
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


def run(llm: Any, seed: int, pause_at: int) -> dict[str, Any]:
    from vllm import SamplingParams

    engine = llm.llm_engine
    params = SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=ANSWER, logprobs=3
    )
    for number, prompt in enumerate(prompts(seed)):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    done: dict[str, Any] = {}
    steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs[0]
        steps += 1
        if steps == pause_at:
            where = llm.collective_rpc(tensors)[0]
            print(json.dumps({"event": "paused", "tensors": where}), flush=True)
            sys.stdin.readline()
    answers = [done[str(number)] for number in range(PROMPTS)]
    return {
        "tokens": [list(answer.token_ids) for answer in answers],
        "logprobs": [
            [sorted((token, value.logprob) for token, value in step.items()) for step in a.logprobs]
            for a in answers
        ],
    }


def main() -> None:
    from vllm import LLM

    model, out, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    results = []
    for _ in range(given.get("rounds", 1)):
        llm = LLM(model=model, **{**DEFAULTS, **given.get("engine", {})})
        results.append(run(llm, given.get("seed", 1), given.get("pause_at", 0)))
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
    with open(out, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
