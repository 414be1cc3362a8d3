"""A stock vLLM in one process that answers requests until its stdin ends; nothing of kvd in it but the
flags it is given.

    soak_engine.py MODEL JSON       JSON: LLM's arguments beside those of engine.py

A line on stdin is a request {"name": …, "prompt": […], "answer": 96, "arguments": {…}, "salt": …} or
{"abort": NAME}; a line on stdout an answer {"name": …, "tokens": […]}, and at the start {"ready": true}.
With "margins" a request's answer says of each token, too, how far its logprob lies above the next one's.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from typing import Any

from engine import DEFAULTS


def read(lines: queue.Queue[str]) -> None:
    """"": the end."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")


def take(engine: Any, given: dict[str, Any]) -> None:
    from vllm import SamplingParams

    if "abort" in given:
        engine.abort_request([given["abort"]])
        return
    params = SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=given["answer"],
        logprobs=2 if given.get("margins") else None, extra_args=given.get("arguments"),
    )  # fmt: skip
    salt = {"cache_salt": given["salt"]} if given.get("salt") else {}
    engine.add_request(given["name"], {"prompt_token_ids": given["prompt"], **salt}, params)


def told(output: Any) -> dict[str, Any]:
    answer = output.outputs[0]
    found = {"name": output.request_id, "tokens": list(answer.token_ids)}
    if answer.logprobs:
        ordered = [sorted((each.logprob for each in step.values()), reverse=True) for step in answer.logprobs]
        found["margins"] = [each[0] - each[1] for each in ordered]
    return found


def serve(llm: Any) -> None:
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=read, args=(lines,), daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    while True:
        # Goes on making steps while a copy is open, as vLLM's own loop does.
        is_idle = not engine.has_unfinished_requests() and not scheduler.has_requests()
        while is_idle or not lines.empty():
            line = lines.get()
            if not line:
                return
            take(engine, json.loads(line))
            is_idle = False
        for output in engine.step():
            if output.finished and output.outputs[0].finish_reason == "length":
                print(json.dumps(told(output)), flush=True)


def main() -> None:
    from vllm import LLM

    llm = LLM(model=sys.argv[1], **{**DEFAULTS, **json.loads(sys.argv[2])})
    serve(llm)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
