"""Classes for tests on real engines: a KvdScheduler with other decisions than kvd's, and vLLM's worker as a stage of a
pipeline."""

from __future__ import annotations

from typing import Any

import kvd_client
from kvd_vllm.scheduler import KvdScheduler
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class StockOrder(KvdScheduler):
    """vLLM's own scheduler decides; the requests that it preempts are parked."""

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


class StagedWorker(CPUWorker):
    """vLLM makes the tensors between two stages when it warms up, which on a CPU it does only where it compiles."""

    def compile_or_warm_up_model(self) -> Any:
        runner: Any = self.model_runner
        if not get_pp_group().is_first_rank:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return super().compile_or_warm_up_model()
