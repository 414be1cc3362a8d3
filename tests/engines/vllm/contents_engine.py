"""A stock vLLM in one process that is given other content while it runs; nothing of kvd in it but the flags.

    contents_engine.py MODEL OUT JSON      JSON: {"engine": {…LLM's arguments}, "steps": [{…}]}

A step copies files ({"copy": [[from, to]]}), asks ({"prompts": [[…]], "lora": [name, path, number]}), loads an
adapter again ({"reload": [name, path, number]}), scales the weights of the living model ({"scale": 1.5}), or
empties the prefix cache ({"reset": true}), in this order. For each, what was asked goes to OUT: the tokens, and
how many came from a connector.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from engine import DEFAULTS, counters


def scale(worker: Any, factor: float) -> None:
    """Changes weights as an update from elsewhere does: no function of vLLM's is called."""
    for parameter in worker.model_runner.get_model().parameters():
        parameter.data.mul_(factor)


def lora(given: list[Any], again: bool = False) -> Any:
    from vllm.lora.request import LoRARequest

    name, path, number = given
    return LoRARequest(name, number, path, load_inplace=again)


def ask(llm: Any, step: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    before = counters(llm)
    params = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=step["answer"])
    prompts = [{"prompt_token_ids": each} for each in step["prompts"]]
    adapter = lora(step["lora"]) if "lora" in step else None
    found = llm.generate(prompts, params, lora_request=adapter, use_tqdm=False)
    hits = "external_prefix_cache_hits"
    return {
        "tokens": [list(each.outputs[0].token_ids) for each in found],
        "found": counters(llm).get(hits, 0) - before.get(hits, 0),
    }


def play(llm: Any, step: dict[str, Any]) -> dict[str, Any]:
    for source, target in step.get("copy", []):
        shutil.copy2(source, target)
    if "reload" in step:
        llm.llm_engine.add_lora(lora(step["reload"], again=True))
    if "scale" in step:
        llm.collective_rpc(scale, args=(step["scale"],))
    if step.get("reset"):
        assert llm.reset_prefix_cache()
    return ask(llm, step) if "prompts" in step else {}


def main() -> None:
    from vllm import LLM

    model, out, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    llm = LLM(model=model, **{**DEFAULTS, "disable_log_stats": False, **given.get("engine", {})})
    results = [play(llm, step) for step in given["steps"]]
    llm.llm_engine.engine_core.shutdown()
    with open(out, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
