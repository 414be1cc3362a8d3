"""Engines of a vLLM that lacks something that kvd_vllm needs, one after the other in one process.

    lacking_engine.py MODEL JSON    JSON: {"engine": {…LLM's arguments}, "lacks": ["level 1", "the package", …]}

Prints a line for each: its answer to one prompt.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from unittest import mock

from engine import DEFAULTS


def answer(model: str, options: dict[str, object], lacks: str) -> list[int]:
    from vllm import LLM, SamplingParams
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kvd_vllm import checks

    needed = {**checks.NEEDED}
    if lacks in needed:
        needed[lacks] = (*needed[lacks], checks.Name("vllm.v1.request", "Request.made_up"))
    checks.what_is_off.cache_clear()
    for each in ("connector", "schedulers"):
        sys.modules.pop(f"kvd_vllm.doors.{each}", None)
    broken = {"kvd_vllm.connector": None} if lacks == "the package" else {}
    with mock.patch.object(checks, "NEEDED", needed), mock.patch.dict(sys.modules, broken):
        KVConnectorFactory._registry.clear()
        importlib.import_module("kvd_vllm").register()
        llm = LLM(model=model, **{**DEFAULTS, **options})
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, detokenize=False)
        (found,) = llm.generate([{"prompt_token_ids": list(range(5, 105))}], params, use_tqdm=False)
        llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return list(found.outputs[0].token_ids)


def main() -> None:
    given = json.loads(sys.argv[2])
    for lacks in given["lacks"]:
        print(f"it lacks {lacks}", flush=True)
        print(json.dumps(answer(sys.argv[1], given["engine"], lacks)), flush=True)


if __name__ == "__main__":
    main()
