"""A real vLLM scheduler and KvdConnector on a real kvd, without a model: where a forward would
compute, each token's slot gets a number that all tokens before it decide, and before that every
earlier slot is looked at. A block handed out too early, or loaded wrong, is a number that is not right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, SlidingWindowSpec,
)  # fmt: skip
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.utils import allocate_kv_cache

import kvd_client
from kvd_vllm.connector import KvdConnector
from kvd_vllm.scheduler import KvdScheduler

TOKENS = 32  # a block has so many
LAYERS = 2  # a block is more than one piece
PAGE = 8 * TOKENS
LONGEST = 512
# What vLLM wants to know of a model. Nothing here computes with it.
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 688,
    "vocab_size": 2048, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "torch_dtype": "float32",
}  # fmt: skip


def chain(tokens: list[int]) -> numpy.ndarray[Any, Any]:
    """What the slot of each token holds: all tokens up to it decide."""
    out, value = numpy.empty(len(tokens), numpy.int64), 1
    for at, token in enumerate(tokens):
        value = (value * 6364136223846793005 + token + 1442695040888963407) % (1 << 63)
        out[at] = value
    return out


def answer_to(prompt: list[int], count: int) -> list[int]:
    """All tokens, of prompt and answer, whoever schedules them."""
    tokens = list(prompt)
    value = int(chain(prompt)[-1])
    for _ in range(count):
        token = 3 + (value >> 20) % 1900
        tokens.append(token)
        value = (value * 6364136223846793005 + token + 1442695040888963407) % (1 << 63)
    return tokens


class DeviceSlots:
    """Slots in a GPU's memory, read and written by numpy's indices."""

    def __init__(self, slots: torch.Tensor) -> None:
        self._slots = slots

    def __getitem__(self, at: Any) -> numpy.ndarray[Any, Any]:
        return self._slots[self._there(at)].cpu().numpy()

    def __setitem__(self, at: Any, values: Any) -> None:
        self._slots[self._there(at)] = torch.as_tensor(values, device=self._slots.device)

    def _there(self, at: Any) -> Any:
        if at is Ellipsis:
            return at
        return tuple(torch.as_tensor(each, device=self._slots.device) for each in at)


class WrongBytes(AssertionError):
    """A slot holds what no token wrote there."""


class NoRig(Exception):
    """This vLLM's own classes cannot be made as this file makes them: it says nothing of kvd."""


def _check(holds: bool, what: str) -> None:
    """As `assert`, which `python -O` leaves out."""
    if not holds:
        raise AssertionError(what)


class Rig:
    """One engine without a model. `options`: the connector's options; `engine`: EngineArgs; `page`: bytes
    of a block's layer, whose first ones hold its tokens; `windows`: how many tokens each KV cache group
    looks back, 0: to the first; `device`: torch's name of where the KV cache lies."""

    def __init__(
        self,
        endpoint: str | None,
        folder: Path,
        scheduler: Callable[..., Any],
        seed: int,
        blocks: int = 40,
        is_async: bool = False,
        options: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        page: int = PAGE,
        windows: tuple[int, ...] = (0,),
        device: str = "cpu",
    ) -> None:
        self.random = random.Random(seed)
        try:
            config = _config(endpoint, folder, blocks, is_async, options or {}, engine or {})
            cache = _cache(blocks, page, windows)
            init_none_hash(sha256)
            self.hasher = get_request_block_hasher(TOKENS, sha256)
        except Exception as fault:  # an unknown vLLM may raise anything
            raise NoRig(f"{type(fault).__name__}: {fault}") from fault
        self.windows = windows
        self.blocks = blocks
        self.device = device
        self.model_runner = ModelRunner()  # as a worker has it
        self.make_worker(config, cache)
        self.scheduler = scheduler(
            vllm_config=config, kv_cache_config=cache, block_size=TOKENS, log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )  # fmt: skip
        self.connector: KvdConnector = self.scheduler.connector
        opened = self.worker.get_handshake_metadata()
        self.connector.set_xfer_handshake_metadata_pp_aware(
            {(0, 0): opened} if opened is not None else {}
        )
        self.counts: dict[str, int] = {}
        self._stats = self.connector.get_kv_connector_stats
        setattr(self.connector, "get_kv_connector_stats", self.count)
        self.depth = 2 if is_async else 1
        self.flying: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.truth: dict[str, list[int]] = {}
        self.expected: dict[str, numpy.ndarray[Any, Any]] = {}
        self.given: dict[str, list[int]] = {}
        self.prompts: dict[str, int] = {}
        self.scheduled: dict[str, int] = {}
        self.handed: dict[str, dict[str, Any] | None] = {}  # kv_transfer_params of its answer
        self.aborted: set[str] = set()
        self.unfinished: set[str] = set()
        self.made = self.steps = self.preemptions = 0

    def make_worker(self, config: Any, cache: KVCacheConfig) -> None:
        """Makes the worker that computes from now on, with a KV cache of its own."""
        self.worker = KvdConnector(config, KVConnectorRole.WORKER, cache)
        context = self.worker.get_mem_pool_context()
        if context is None:
            raise AssertionError("the connector has no memory pool")
        with context:
            tensors = allocate_kv_cache(cache, torch.device(self.device), KVCacheLayout.LBNHC)
        self.worker.register_kv_caches(tensors)
        self.kv: list[torch.Tensor] = []
        for tensor in list(tensors.values())[:1]:  # the groups share their memory; none has no KV cache
            page = cache.kv_cache_groups[0].kv_cache_spec.page_size_bytes
            whole = torch.empty(0, dtype=torch.int64, device=self.device)
            self.kv = list(whole.set_(tensor.untyped_storage(), 0, (LAYERS, self.blocks, page // 8)))
        self.slots = [each.numpy() if self.device == "cpu" else DeviceSlots(each) for each in self.kv]

    def add(
        self, prompt: list[int], count: int, prompt_logprobs: int | None = None,
        trace_headers: dict[str, str] | None = None, **extra: Any,
    ) -> str:  # fmt: skip
        name = f"r{self.made}"
        self.made += 1
        self.truth[name] = answer_to(prompt, count)
        self.expected[name] = chain(self.truth[name])
        self.given[name], self.scheduled[name], self.prompts[name] = [], 0, len(prompt)
        self.unfinished.add(name)
        parameters = SamplingParams(
            max_tokens=count, ignore_eos=True, temperature=0, extra_args=extra or None,
            prompt_logprobs=prompt_logprobs,
        )  # fmt: skip
        self.scheduler.add_request(
            Request(request_id=name, prompt_token_ids=prompt, sampling_params=parameters,
                    pooling_params=None, block_hasher=self.hasher, trace_headers=trace_headers)
        )  # fmt: skip
        return name

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.aborted.add(name)
        self.unfinished.discard(name)

    def step(self) -> None:
        self.steps += 1
        output = self.scheduler.schedule()
        self.preemptions += len(output.preempted_req_ids or ())
        self.flying.append((output, self.execute(output)))
        if len(self.flying) >= self.depth or not output.num_scheduled_tokens:
            self.take_in()
        running, waiting = self.scheduler.get_request_counts()
        _check(running + waiting == len(self.unfinished), "a request is not counted")

    def take_in(self) -> None:
        """The output of the oldest step that is in flight."""
        output, made = self.flying.popleft()
        for each in self.scheduler.update_from_output(output, made).get(0, _Nothing()).outputs:
            self.given[each.request_id] += each.new_token_ids
            if each.finish_reason is not None:
                self.unfinished.discard(each.request_id)
                self.handed[each.request_id] = each.kv_transfer_params

    def execute(self, output: Any) -> ModelRunnerOutput:
        """What a worker does in a step, in its order."""
        worker, meta = self.worker, output.kv_connector_metadata
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        names = list(output.num_scheduled_tokens)
        sampled = [self.compute(name, output.num_scheduled_tokens[name]) for name in names]
        worker.wait_for_save()
        results = worker.get_transfer_results(output.finished_req_ids)
        transfers = KVConnectorOutput(
            finished_sending=results.finished_sending or None,
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled, logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
            kv_connector_output=transfers,
        )  # fmt: skip

    def compute(self, name: str, count: int) -> list[int]:
        """Looks at all slots before the new ones, writes those, and samples if that was the last."""
        request = self.scheduler.requests[name]
        end = request.num_computed_tokens
        tables = self.scheduler.kv_cache_manager.get_block_ids(name)
        for group, window in enumerate(self.windows):
            blocks = numpy.array(tables[group])
            position = numpy.arange(end)
            rows, columns = blocks[position // TOKENS], position % TOKENS
            begin = end - count
            first = max(0, begin - window + 1) if window else 0
            for layer, slots in enumerate(self.slots):
                expected = self.expected[name][:end] + LAYERS * group + layer
                seen = slots[rows[first:begin], columns[first:begin]]
                if not numpy.array_equal(seen, expected[first:begin]):
                    bad = first + int(numpy.flatnonzero(seen != expected[first:begin])[0])
                    raise WrongBytes(
                        f"{name}: token {bad} of {begin}, group {group}, step {self.steps}"
                    )
                slots[rows[begin:], columns[begin:]] = expected[begin:]
        self.scheduled[name] += count
        return [] if request.is_prefill_chunk else [self.truth[name][end]]

    def count(self) -> None:
        """What the connector has counted, in all."""
        for name, more in getattr(self._stats(), "data", {}).items():
            self.counts[name] = self.counts.get(name, 0) + more

    def ask(self) -> Any:
        """One question to kvd's policy; None: no answer."""
        self.scheduler.kvd_describe()
        return KvdScheduler.kvd_ask(self.scheduler)

    def run_dry(self, most: int = 20000) -> None:
        """Makes steps until nothing is left; raises if a request never comes to its end."""
        for _ in range(most):
            if not self.scheduler.has_requests() and not self.flying:
                return
            if self.scheduler.has_requests():
                self.step()
            else:
                self.take_in()
        counts = self.scheduler.get_request_counts()
        raise AssertionError(f"{counts} running and waiting, {len(self.unfinished)} never ended")

    def check_answers(self) -> None:
        """Each answer is what it has to be, whatever happened to its request."""
        for name, truth in self.truth.items():
            answer = truth[self.prompts[name] :]
            if name in self.aborted:
                answer = answer[: len(self.given[name])]
            got = self.given[name]
            _check(got == answer, f"{name} was given {len(got)} tokens of {len(answer)}: {got}")

    def computed_twice(self) -> dict[str, int]:
        """Tokens that requests had scheduled beyond what they needed."""
        extra = {
            name: self.scheduled[name] - (len(truth) - 1)
            for name, truth in self.truth.items()
            if name not in self.aborted
        }
        return {name: count for name, count in extra.items() if count > 0}

    def check_blocks(self) -> None:
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        balloon = self.connector.balloon
        granted = balloon.granted_blocks if balloon is not None else self.blocks - 1
        _check(free == granted, f"{granted - free} blocks leaked")

    def close(self) -> None:
        self.kv, self.slots = [], []  # so that kvd has its memory back at once
        with contextlib.suppress(kvd_client.KvdError):
            self.scheduler.shutdown()
        self.worker.shutdown()


class ModelRunner:
    """With a model that no two engines could tell apart; LoRA adapters are whatever is put there."""

    def __init__(self) -> None:
        self._model = torch.nn.Linear(4, 4)
        for tensor in self._model.parameters():
            torch.nn.init.ones_(tensor)

    def get_model(self) -> torch.nn.Module:
        return self._model


class _Nothing:
    outputs: tuple[Any, ...] = ()


def _spec(page: int, window: int) -> Any:
    given: dict[str, Any] = {
        "block_size": TOKENS, "num_kv_heads": 1, "head_size": page // PAGE, "dtype": torch.float32,
    }  # fmt: skip
    spec = SlidingWindowSpec(**given, sliding_window=window) if window else FullAttentionSpec(**given)
    _check(spec.page_size_bytes == page, f"a page has {spec.page_size_bytes} bytes, not {page}")
    return spec


def _cache(blocks: int, page: int, windows: tuple[int, ...]) -> KVCacheConfig:
    names = [[f"layer{LAYERS * group + at}" for at in range(LAYERS)] for group in range(len(windows))]
    # The groups share their memory, as vLLM has it: a block belongs to one of them at a time.
    tensors = [
        KVCacheTensor(size=LAYERS * blocks * page, layers=layers, layer_stride=blocks * page, block_stride=page)
        for layers in names
    ]
    groups = [
        KVCacheGroupSpec(layers, _spec(page, window))
        for layers, window in zip(names, windows, strict=True)
    ]
    known = {each.name for each in dataclasses.fields(KVCacheConfig)}
    newer = {"hash_block_size": TOKENS} if "hash_block_size" in known else {}  # from 0.32 on
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=groups, **newer)


def write_config(folder: Path) -> Path:
    """A model's folder of which only the configuration is there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def _config(
    endpoint: str | None, folder: Path, blocks: int, is_async: bool, options: dict[str, Any],
    engine: dict[str, Any],
) -> Any:  # fmt: skip
    given = {
        "enable_prefix_caching": False, "max_num_seqs": 8, "max_num_batched_tokens": 256,
        "max_model_len": LONGEST, **engine,
    }  # fmt: skip
    where: dict[str, Any] = {"endpoint": endpoint} if endpoint is not None else {}
    config = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
        block_size=TOKENS, num_gpu_blocks_override=blocks,
        kv_transfer_config={
            "kv_connector": "KvdConnector", "kv_connector_module_path": "kvd_vllm.connector",
            "kv_role": "kv_both",
            # The machine may be busy, and here a thousand steps take a second.
            "kv_connector_extra_config": {
                **where, "required": True, "step_budget_s": 5.0, **options,
            },
        },
        **given,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = blocks
    config.scheduler_config.async_scheduling = is_async
    return config
