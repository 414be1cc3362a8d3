"""A stock vLLM in one process that answers one prompt a line, as a router sends it to a server.

    handoff_engine.py MODEL JSON    JSON: LLM's arguments

A line of stdin is {"prompt": [1, …], "answer": 32, "params": {…}}, with kv_transfer_params. Each answer is a
line: the tokens, how many tokens were computed, and the answer's own kv_transfer_params.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from engine import DEFAULTS


def ask(llm: Any, number: int, given: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    scheduled, schedule = [0], scheduler.schedule

    def counting(*arguments: Any) -> Any:
        output = schedule(*arguments)
        scheduled[0] += output.total_num_scheduled_tokens
        return output

    extra = {"kv_transfer_params": given["params"]} if given.get("params") else None
    params = SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=given["answer"], extra_args=extra
    )
    scheduler.schedule = counting
    engine.add_request(str(number), {"prompt_token_ids": given["prompt"]}, params)
    answer: Any = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            answer = output if output.finished else answer
    while scheduler.has_requests():  # a server keeps making steps while a connector has work
        engine.step()
    scheduler.schedule = schedule
    return {
        "tokens": list(answer.outputs[0].token_ids), "computed": scheduled[0],
        "params": answer.kv_transfer_params,
    }  # fmt: skip


def main() -> None:
    from vllm import LLM

    llm = LLM(model=sys.argv[1], **{**DEFAULTS, **json.loads(sys.argv[2])})
    for number, line in enumerate(sys.stdin):
        print(json.dumps(ask(llm, number, json.loads(line))), flush=True)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
