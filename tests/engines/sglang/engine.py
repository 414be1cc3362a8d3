"""An SGLang engine for tests: engine.py MODEL OPTIONS. Answers lines of JSON on its input, one after the
other, with lines of JSON on its output; the first line that it writes says that it is ready.

{"prompts": [[token…]…], "answer": tokens, "extra_key": text, "salt": text} is answered by {"tokens",
"cached", "seconds", "cpu_seconds"}, the last of all its processes; {"flush": true} forgets what SGLang
itself keeps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import psutil

BASE = {
    "device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch",
    "grammar_backend": "none", "skip_tokenizer_init": True, "dtype": "float32", "disable_cuda_graph": True,
    "disable_overlap_schedule": True, "max_total_tokens": 4096, "page_size": 16, "mem_fraction_static": 0.1,
    "log_level": "info",
}  # fmt: skip


def cpu_seconds() -> float:
    me = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in [me, *me.children(recursive=True)])


def answer(engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from sglang.srt.managers.io_struct import GenerateReqInput

    if asked.get("flush"):
        engine.flush_cache()
        return {}
    given = GenerateReqInput(
        input_ids=asked["prompts"],
        sampling_params={"max_new_tokens": asked["answer"], "temperature": 0.0, "ignore_eos": True},
        extra_key=asked.get("extra_key"), cache_salt=asked.get("salt"),
    )  # fmt: skip
    begin, cpu = time.monotonic(), cpu_seconds()
    found = engine.loop.run_until_complete(engine.tokenizer_manager.generate_request(given, None).__anext__())
    return {
        "seconds": time.monotonic() - begin,
        "cpu_seconds": cpu_seconds() - cpu,
        "tokens": [each["output_ids"] for each in found],
        "cached": [each["meta_info"]["cached_tokens"] for each in found],
    }


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what SGLang's processes print is its log
    import sglang

    engine = sglang.Engine(model_path=sys.argv[1], **{**BASE, **json.loads(sys.argv[2])})
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), file=replies)
    engine.shutdown()


if __name__ == "__main__":
    main()
