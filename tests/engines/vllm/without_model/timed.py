"""What users would see of a real vLLM scheduler on a real kvd, without a model: steps take no time but
that of a clock of their own, so that a minute of load takes a second, and is the same each time.

The steps' costs are those that were measured on a model of 21 M parameters; figures are simulated.
"""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

from model_free import Rig

from kvd_vllm.scheduler import KvdScheduler

PATIENCE_S = 60.0
LONG_GAP = 1.0  # seconds; what people take for a standstill


class Setup(NamedTuple):
    """Lengths in tokens, times in seconds."""

    blocks: int
    prompt: tuple[int, int]
    answer: tuple[int, int]
    ttft: float
    tbt: float
    step: float  # one of no requests
    decode: float  # more for each that decodes
    prefill: float  # and for each prompt token
    question: float = 0.0002  # to kvd
    told: bool = True  # requests name their goals
    others: tuple[float, float] | None = None  # ttft and tbt of every other request
    mixed: float = 0.0  # more time for a step with prompt tokens, whatever their number
    longest: int = 1024  # tokens of a request


# Room for nine; computing binds nearly as early as memory.
LARGE = Setup(121, (64, 512), (64, 400), 0.6, 0.0315, 0.0058, 0.00055, 0.00024)
# Room for six; memory binds long before computing does.
SMALL = Setup(48, (64, 256), (64, 200), 0.5, 0.02, 0.0044, 0.00017, 0.00006)
# Room for twelve requests on a GPU. Steps take as long as those of deploy/gpu-reports/h200-2026-11-29, with CUDA
# graphs for decoding alone. No client gives goals.
GPU = Setup(1441, (3584, 3584), (256, 256), 0.8, 0.03, 0.0033, 0.00003, 0.000009, told=False, mixed=0.03, longest=4096)


class Stock(KvdScheduler):
    """vLLM's own decisions. With parking off nothing of kvd is left."""

    def kvd_has_a_say(self) -> bool:
        return False


class Seen(NamedTuple):
    """Shares of requests, and what the run took."""

    ttft: float
    mean_gap: float
    joint: float
    joint_paced: float
    joint_gaps: float  # joint, with every gap of LONG_GAP at most
    long_gaps: float
    longest_gap: float  # seconds
    p99_ttft: float
    tokens_per_s: float
    preemptions: int
    recomputed: float  # tokens computed for each needed


class TimedRig(Rig):
    """Plays one load. The copies of a step have ended with it, however busy the machine is."""

    def __init__(self, endpoint: str, folder: Path, on_kvd: bool, seed: int, setup: Setup) -> None:
        super().__init__(
            endpoint, folder, KvdScheduler if on_kvd else Stock, seed, blocks=setup.blocks,
            options={"prefixes": False, "parking": on_kvd},
            engine={"enable_prefix_caching": True, "max_num_seqs": 64, "max_model_len": setup.longest,
                    "max_num_batched_tokens": max(2048, 2 * setup.longest)},
        )  # fmt: skip
        self.setup = setup
        self.now = 100.0
        self.arrived: dict[str, float] = {}
        self.goals: dict[str, tuple[float, float]] = {}
        self.times: dict[str, list[float]] = {}
        self.scheduler.kvd_clock = lambda: self.now
        self.scheduler.kvd_arrival_of = lambda request, _: self.arrived[request.request_id]
        ask, self.scheduler.kvd_ask = self.scheduler.kvd_ask, lambda: self._asked(ask)
        results = self.worker.get_transfer_results
        self.worker.get_transfer_results = lambda names: self._drained() or results(names)

    def _asked(self, ask: Any) -> Any:
        self.now += self.setup.question
        return ask()

    def _drained(self) -> None:
        copier, deadline = self.worker._copier, time.monotonic() + PATIENCE_S
        copier.advance()
        while copier._begun or copier._queue:
            assert time.monotonic() < deadline, "a copy does not end"
            time.sleep(1e-4)
            copier.advance()

    def compute(self, name: str, count: int) -> list[int]:
        """Nothing is copied: other tests look at the bytes."""
        self.scheduled[name] += count
        return [] if self.scheduler.requests[name].is_prefill_chunk else [3]

    def play(self, rate: float, seed: int, requests: int = 60) -> Seen:
        source, at, coming = random.Random(seed), self.now, []
        for _ in range(requests):
            at += source.expovariate(1.0) / rate
            prompt = [source.randrange(3, 2048) for _ in range(source.randint(*self.setup.prompt))]
            coming.append((at, prompt, source.randint(*self.setup.answer)))
        needed = sum(len(prompt) + answer - 1 for _, prompt, answer in coming)
        coming.reverse()
        begun = self.now
        while coming or self.unfinished:
            if not self.unfinished:
                self.now = max(self.now, coming[-1][0])
            while coming and coming[-1][0] <= self.now:
                self._arrive(*coming.pop())
            self._step()
        return self._seen(self.now - begun, needed)

    def _arrive(self, at: float, prompt: list[int], answer: int) -> None:
        name = f"r{self.made}"
        self.arrived[name], self.times[name] = at, []
        other = self.setup.others if self.made % 2 else None
        ttft, tbt = self.goals[name] = other or (self.setup.ttft, self.setup.tbt)
        self.add(prompt, answer, **({"kvd_ttft_s": ttft, "kvd_tbt_s": tbt} if self.setup.told else {}))

    def _step(self) -> None:
        output = self.scheduler.schedule()
        self.preemptions += len(output.preempted_req_ids or ())
        self.flying.append((output, self.execute(output)))
        scheduled = output.num_scheduled_tokens
        decodes = sum(count == 1 for count in scheduled.values())
        prompts = sum(scheduled.values()) - decodes
        self.now += self.setup.step + self.setup.decode * decodes + self.setup.prefill * prompts
        self.now += self.setup.mixed if prompts else 0.0
        self.take_in()
        for name in scheduled:
            self.times[name] += [self.now] * (len(self.given[name]) - len(self.times[name]))

    def _seen(self, took: float, needed: int) -> Seen:
        ttft, mean, paced, first, gap = [], [], [], [], []
        for name, times in self.times.items():
            ttft_goal, tbt = self.goals[name]
            first.append(times[0] - self.arrived[name])
            ttft.append(first[-1] <= ttft_goal)
            mean.append(times[-1] - times[0] <= tbt * (len(times) - 1))
            paced.append(_is_paced(times, tbt))
            gap.append(max((b - a for a, b in itertools.pairwise(times)), default=0.0))
        count = len(ttft)
        return Seen(
            sum(ttft) / count, sum(mean) / count,
            sum(a and b for a, b in zip(ttft, mean, strict=True)) / count,
            sum(a and b for a, b in zip(ttft, paced, strict=True)) / count,
            sum(a and b and c <= LONG_GAP for a, b, c in zip(ttft, mean, gap, strict=True)) / count,
            sum(each > LONG_GAP for each in gap) / count, max(gap),
            sorted(first)[min(count - 1, int(0.99 * count))],
            sum(map(len, self.times.values())) / took, self.preemptions,
            sum(self.scheduled.values()) / needed,
        )  # fmt: skip


def _is_paced(times: list[float], goal: float) -> bool:
    """A client that shows a token every `goal` gets 99 % of them in time."""
    shown, late = times[0], 0
    for each in times[1:]:
        late += each > shown + goal
        shown = max(each, shown + goal)
    return late <= 0.01 * len(times)
