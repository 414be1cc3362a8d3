"""Scheduler classes for tests on real engines: KvdScheduler with somebody else's decisions."""

from __future__ import annotations

from typing import Any

import kvd_client
from kvd_vllm.scheduler import KvdScheduler


class StockOrder(KvdScheduler):
    """vLLM's own scheduler decides; whom it preempts is parked."""

    def kvd_has_a_say(self) -> bool:
        return False


class Rotating(KvdScheduler):
    """Preempts one of those that run every third step, turn by turn."""

    kvd_steps = 0

    def kvd_has_a_say(self) -> bool:
        return True

    def kvd_ask(self) -> kvd_client.Decision:
        here: Any = self
        here.kvd_describe()
        self.kvd_steps += 1
        turn = [each for each in here.running if not each.is_prefill_chunk][:1]
        victims = turn if self.kvd_steps % 3 == 0 and len(here.running) > 1 else []
        admit = [here.kvd_number_of(each) for each in reversed(here.waiting)]
        return kvd_client.Decision([here.kvd_number_of(each) for each in victims], admit, None)
