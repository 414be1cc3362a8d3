"""Two seconds of vLLM's own scheduler on the kvd that answers, without a model: which level works.

Every slot of the KV cache is looked at before a token is computed from it, so a block that was handed
out too early, or loaded wrong, is found. It takes a slab of kvd's pool, or a few for an elastic KV cache,
and gives them back.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kvd_client

from kvd_vllm import TESTED_VLLM
from kvd_vllm.checks import BLOCKS, ELASTIC, MEMORY, SCHEDULING, Finding
from kvd_vllm.doctor.rig import LAYERS, TOKENS, NoRig, Rig, write_config
from kvd_vllm.memory import KvdRequired
from kvd_vllm.scheduler import KvdAsyncScheduler, KvdScheduler
from kvd_vllm.transfers import Kind

_SEED = 1
_STEPS = 250  # each of both schedulers makes so many
_ELASTIC_BLOCKS = 24  # six chunks of four blocks, each of them two slabs
_MOST_BYTES = 1 << 30  # a trial takes no more: others use the pool
_TESTED = f"take a vLLM that is tested ({', '.join(TESTED_VLLM)})"


class Failed(Exception):
    """vLLM does something else than kvd relies on."""


class NotTried(Exception):
    """kvd could not do its part, which says nothing of vLLM."""


class Place(NamedTuple):
    """Where to try: an endpoint (None: the default one), torch's name of the memory that kvd lends, and
    the size of its slabs."""

    endpoint: str | None
    device: str
    slab: int


class Bench(NamedTuple):
    place: Place
    folder: Path

    def rig(self, scheduler: Any, options: dict[str, Any] | None = None, **given: Any) -> Rig:
        # All of them: what the environment says is for engines.
        usual = {"engine_name": "doctor", "timeout_s": 5.0, "prefixes": True, "parking": True, "elastic": False}
        options = {**usual, **(options or {})}
        return Rig(self.place.endpoint, self.folder, scheduler, _SEED, options=options,
                   device=self.place.device, **given)  # fmt: skip


class _AtRandom:
    """In front of a scheduler, in place of kvd's decisions: more parks than kvd would ever ask for."""

    kvd_random = random.Random(_SEED)

    def kvd_has_a_say(self) -> bool:
        return True

    def kvd_ask(self) -> kvd_client.Decision:
        here: Any = self
        here.kvd_describe()
        pick = self.kvd_random
        victims = [here.kvd_number_of(each) for each in here.running if pick.random() < 0.2]
        admit = [here.kvd_number_of(each) for each in here.waiting if pick.random() < 0.6]
        return kvd_client.Decision(victims[:1], admit, pick.choice([None, 64]))


class _Rotating(_AtRandom, KvdScheduler):
    pass


class _RotatingAsync(_AtRandom, KvdAsyncScheduler):
    pass


def _prompt(tokens: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 1900) for _ in range(tokens)]


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise Failed(f"{what}: {found}, not {expected}")


def _finish(rig: Rig) -> None:
    rig.run_dry()
    rig.check_answers()
    rig.check_blocks()


def _try_memory(bench: Bench) -> None:
    rig = bench.rig(KvdScheduler, {"prefixes": False, "parking": False})
    try:
        rig.add(_prompt(70, 1), 8)
        _finish(rig)
    finally:
        rig.close()


def _try_blocks(bench: Bench) -> None:
    prompt = _prompt(3 * TOKENS + 5, bench.place.slab)
    first = bench.rig(KvdScheduler)
    try:
        first.add(prompt, 4)
        _finish(first)
        if first.counts.get("stored_blocks", 0) == 0:
            raise NotTried("kvd stored no block: look at its pool.dram, and what the user's domain may have of it")
        pool = first.scheduler.kv_cache_manager.block_pool
        cached = pool.cached_block_hash_to_block
        first.scheduler.reset_prefix_cache()
        if pool.cached_block_hash_to_block is cached:
            raise Failed("a prefix cache that was reset is not another one")
    finally:
        first.close()
    second = bench.rig(KvdScheduler)
    try:
        computed = []
        # vLLM takes nothing for the second; what the third finds is gone before it has come.
        for logprobs, gone in ((None, False), (1, False), (None, True)):
            if gone:
                _lose_loads(second, bench.place.endpoint)
            name = second.add(prompt, 4, logprobs)
            _finish(second)
            computed.append(second.scheduled[name] - 3)
        _expect(computed, [5, len(prompt), len(prompt)], "prompt tokens computed behind a stored prefix")
    finally:
        second.close()


def _lose_loads(rig: Rig, endpoint: str | None) -> None:
    """From now on kvd has dropped the blocks of a load by the time its worker asks for them."""
    begin = rig.worker.handle_preemptions

    def lose(transfers: Any) -> None:
        gone = [digest for copy in transfers.copies if copy.kind == Kind.LOAD for digest in copy.digests]
        shape = rig.connector.shape
        if gone and shape is not None:
            with kvd_client.Client(endpoint, memory=kvd_client.Memory.UNMAPPED) as client:
                client.cache(shape.model, block_tokens=shape.block_tokens, block_bytes=shape.block_bytes).drop(gone)
        begin(transfers)

    setattr(rig.worker, "handle_preemptions", lose)


def _try_scheduling(bench: Bench) -> None:
    for scheduler, is_async in ((_Rotating, False), (_RotatingAsync, True)):
        rig = bench.rig(scheduler, {"prefixes": False}, is_async=is_async)
        try:
            _play(rig)
            if rig.counts.get("failed_blocks", 0):
                raise NotTried("kvd parked not all: look at its pool.dram, and what the user's domain may have of it")
            _expect(rig.computed_twice(), {}, "tokens computed twice")
            if rig.preemptions == 0:
                raise Failed("no request was preempted")
        finally:
            rig.close()
    rig = bench.rig(KvdScheduler)
    try:
        _play(rig)
        _expect(rig.counts.get("stock_steps", 0), 0, "steps that kvd did not decide")
    finally:
        rig.close()


def _play(rig: Rig) -> None:
    while rig.steps < _STEPS:
        if len(rig.unfinished) < 10:
            rig.add(_prompt(rig.random.randrange(2, 200), rig.made), rig.random.randrange(2, 60))
        rig.step()
    _finish(rig)


def _try_elastic(bench: Bench) -> None:
    most = LAYERS * _ELASTIC_BLOCKS * bench.place.slab // 4
    if most > _MOST_BYTES:
        raise NotTried(f"with slabs of {bench.place.slab} bytes it might take {most} of kvd's pool")
    rig = bench.rig(
        KvdScheduler, {"elastic": True, "prefixes": False}, blocks=_ELASTIC_BLOCKS, page=bench.place.slab // 4,
        engine={"enable_prefix_caching": True},
    )  # fmt: skip
    try:
        for seed in range(4):
            rig.add(_prompt(100, seed), 20)
        _finish(rig)
        grown = rig.counts.get("grown_blocks", 0)
        if grown == 0:
            raise Failed("it has not grown")
        _expect(rig.counts.get("given_back_blocks", 0), grown, "blocks given back")
    finally:
        rig.close()


class Trial(NamedTuple):
    """`remedy`: what to do without the level."""

    level: str
    what: str
    run: Callable[[Bench], None]
    remedy: str


TRIALS = (
    Trial(MEMORY, "vLLM allocates its KV cache in kvd's pool, and gives it back", _try_memory,
          f"{_TESTED}; this one runs on memory of its own"),
    Trial(BLOCKS, "blocks are stored, found by another engine, and computed where a load fails", _try_blocks,
          f"{_TESTED}, or set KVD_VLLM_PREFIXES=0"),
    Trial(SCHEDULING, "kvd decides, and who is preempted is parked and comes back", _try_scheduling,
          f"{_TESTED}, or leave --scheduler-cls out"),
    Trial(ELASTIC, "the KV cache grows and shrinks", _try_elastic, f"{_TESTED}, or leave `elastic` out"),
)  # fmt: skip


def run(place: Place) -> Iterator[Finding]:
    """A finding for each level. One that kvd has no room for, or that this file cannot make, is not tried."""
    with tempfile.TemporaryDirectory(prefix="kvd-doctor-") as folder:
        bench = Bench(place, write_config(Path(folder)))
        lost = ""
        for trial in TRIALS:
            what = f"{trial.level} runs: {trial.what}"
            if lost:
                yield Finding(what, f"without {lost} there is none", trial.level)
                continue
            found = _outcome(trial, bench)
            yield Finding(what, *found)
            lost = trial.level if found[1] and trial.level == MEMORY else ""


def _outcome(trial: Trial, bench: Bench) -> tuple[str, str]:
    """What is wrong, and what is off by that."""
    try:
        trial.run(bench)
    except Exception as fault:  # an unknown vLLM may raise anything
        kvds = isinstance(fault, kvd_client.KvdError) or (
            isinstance(fault, KvdRequired) and isinstance(fault.__context__, kvd_client.KvdError)
        )
        text = str(fault) or type(fault).__name__
        if kvds or isinstance(fault, (NoRig, NotTried)):
            return f"not tried: {text}", ""
        return f"{type(fault).__name__}: {text}; {trial.remedy}", trial.level
    return "", ""
