"""Where vLLM finds the scheduler classes: kvd's, or vLLM's own in a vLLM that lacks what these need."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvd_vllm.checks import SCHEDULING, version, what_is_off
from kvd_vllm.memory import logger

_STOCK = {"KvdScheduler": Scheduler, "KvdAsyncScheduler": AsyncScheduler}


def find(name: str) -> Any:
    fault = what_is_off().get(SCHEDULING, "")
    try:
        from kvd_vllm import scheduler
    except Exception as error:  # an unknown vLLM may raise anything
        fault = fault or str(error)
    if not fault:
        return getattr(scheduler, name)
    logger.warning(
        "kvd decides nothing: vLLM %s lacks what %s needs: %s; vLLM's own scheduler runs", version(),
        name, fault,
    )  # fmt: skip
    return _STOCK[name]
