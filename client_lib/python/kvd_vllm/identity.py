"""What names the blocks of a model and of its adapters: their content, and never a path, a time or
a name. A byte-equal copy in another folder gets the same name, and changed weights get another one.

The worker computes it from the tensors that it has loaded, so it covers every way to load them.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Change this where bytes that were stored by an older version of this package must not be found.
_FORMAT = "kvd_vllm 3"
# How many numbers of a tensor are looked at, evenly spaced in each dimension: for its identity, and
# to see whether it has changed.
_POINTS, _FEW_POINTS = 4096, 16
# How many columns are read of a matrix that only the layer itself can read.
_COLUMNS = 8
# Tensors up to this size have all their numbers added up, too, on a CPU. A GPU reads its memory in
# a moment, so there is no limit there.
_MOST_SUMMED = 2 << 30
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Settings that say where a model came from, and not what it computes.
_ORIGIN = ("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "auto_map")
# A model's files that say how its processor makes tensors of what is no text.
_PROCESSORS = (
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip


# Errors that another vLLM, or a kind of tensor that was never tried, may raise.
UNEXPECTED = (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)


class NoIdentity(Exception):
    """Says why what was loaded cannot be told apart from other content."""


class Identity(NamedTuple):
    """Everything that the bytes of a block depend on, besides its tokens and what vLLM's hash of
    them includes."""

    model: str  # its architecture, for people
    weights: str
    config: str
    engine: str  # vLLM's minor version and the attention backends

    def name(self) -> str:
        """The name that the cache is opened under."""
        return f"{_FORMAT} {self.model} weights {self.weights} config {self.config} {self.engine}"


def identity_of(
    config: VllmConfig, cache: KVCacheConfig, models: Mapping[str, torch.nn.Module]
) -> Identity:
    """`models`: the modules that compute KV, under names of this package. Raises NoIdentity."""
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise NoIdentity("the scales of its KV cache come from the first request")
    try:
        model = ",".join(getattr(config.model_config.hf_config, "architectures", None) or ["model"])
        return Identity(model, weights_of(models), config_of(config, cache, models), engine_of(config))
    except UNEXPECTED as fault:
        raise NoIdentity(f"its configuration cannot be read: {fault}") from fault


def private(reason: str) -> str:
    """Stands for content that cannot be identified: no other engine has the same identity."""
    return f"private {uuid.uuid4().hex}: {reason}"


def random_content() -> bytes:
    """The same for an adapter."""
    return uuid.uuid4().bytes * 2


def weights_of(models: Mapping[str, torch.nn.Module]) -> str:
    """A digest of all tensors: names, types, shapes, a sample of each, and a sum. Raises
    NoIdentity."""
    if not models:
        raise NoIdentity("the worker's model is not where it is looked for")
    try:
        tensors = [
            (f"{name} {inner}", tensor)
            for name, model in sorted(models.items())
            for inner, tensor in _tensors_of(model)
        ]
        if not tensors:
            raise NoIdentity("the model has no weights")
        size = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
        on_cpu = any(tensor.device.type == "cpu" for _, tensor in tensors)
        return _digest(tensors, summed=not on_cpu or size <= _MOST_SUMMED).hex()[:32]
    except UNEXPECTED as fault:
        raise NoIdentity(f"the weights cannot be read: {fault}") from fault


def _digest(tensors: Iterable[tuple[str, torch.Tensor]], summed: bool) -> bytes:
    """Takes a digest of the tensors; those of one device come in one read."""
    found = hashlib.sha256()
    samples: dict[torch.device, list[torch.Tensor]] = {}
    for name, tensor in sorted(tensors, key=lambda each: each[0]):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found_there = samples.setdefault(tensor.device, [])
        found_there.append(_sample(tensor.detach(), _POINTS))
        if summed and tensor.numel() > _POINTS:
            found_there.append(_sum(tensor.detach()))
    for some in samples.values():
        found.update(torch.cat(some).cpu().numpy())
    return found.digest()


def _sample(tensor: torch.Tensor, points: int) -> torch.Tensor:
    """About `points` numbers of a tensor, as bytes."""
    if tensor.numel() > points:
        each = max(1, round(points ** (1 / tensor.dim())))
        tensor = tensor[tuple(slice(None, None, math.ceil(size / each)) for size in tensor.shape)]
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all numbers, read as integers, as bytes. It does not depend on their order."""
    words = tensor.contiguous().reshape(-1).view(_WORDS.get(tensor.element_size(), torch.uint8))
    return words.sum(dtype=torch.int64).reshape(1).view(torch.uint8)


def _tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Leaves out an adapter's wrapper around a layer, which does not change what the layer is."""
    for name, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for inner, tensor in own:
            full = f"{name}.{inner}".replace(".base_layer.", ".")
            for part, plain in _plain(full, tensor):
                is_there = plain.numel() > 0
                yield part, plain if is_there else _column_sample(module, part, plain.device)


def _plain(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Some tensors keep their bytes in others, which are returned here."""
    if is_traceable_wrapper_subclass(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            yield from _plain(f"{name}.{inner}", getattr(tensor, inner))
    elif isinstance(parts := getattr(tensor, "partitions", None), dict):
        for at, part in parts.items():
            yield from _plain(f"{name}.{at}", part)
    else:
        yield name, tensor


def _column_sample(module: Any, name: str, device: torch.device) -> torch.Tensor:
    """On a CPU vLLM packs the matrix of a linear layer so that only the layer's own code can read
    it. If the layer is given a vector with a single 1, it returns exactly one column of the matrix.
    Raises NoIdentity."""
    width = getattr(module, "input_size_per_partition", 0)
    method = getattr(module, "quant_method", None)
    if not width or method is None:
        raise NoIdentity(f"vLLM has packed {name} where it cannot be read")
    dtype = getattr(module, "params_dtype", torch.get_default_dtype())
    rows = min(_COLUMNS, width)
    vectors = torch.zeros(rows, width, dtype=dtype, device=device)
    vectors[range(rows), [at * width // rows for at in range(rows)]] = 1
    try:
        with torch.inference_mode():
            return torch.Tensor(method.apply(module, vectors, None)).contiguous()
    except Exception as fault:
        raise NoIdentity(f"vLLM has packed {name} where it cannot be read: {fault}") from fault


# A tensor of a model: its module, and its name there.
Part = tuple[torch.nn.Module, str]


def parts_of(models: Mapping[str, torch.nn.Module]) -> list[Part]:
    return [
        (module, name)
        for model in models.values()
        for module in model.modules()
        for name, _ in [
            *module.named_parameters(recurse=False), *module.named_buffers(recurse=False)
        ]
    ]  # fmt: skip


def samples_of(part: Part) -> list[torch.Tensor]:
    """A few numbers of a tensor, as bytes, which change when it is written over. For a packed tensor it
    is enough that the same object reads it."""
    module, name = part
    found = []
    for _, plain in _plain(name, getattr(module, name)):
        if (packed := getattr(module, "cpu_linear", None)) is not None:
            found.append(torch.tensor([id(packed)]).view(torch.uint8))
        found.append(_sample(plain.detach(), _FEW_POINTS))
    return found


def config_of(
    config: VllmConfig, cache: KVCacheConfig, models: Mapping[str, torch.nn.Module]
) -> str:
    """A digest of all other settings that KV depends on: positions, windows, types and the like."""
    model, parallel = config.model_config, config.parallel_config
    facts = {
        "config": without_origin(model.hf_config.to_dict()),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "hash": str(config.cache_config.prefix_caching_hash_algo),
        "groups": [
            (sorted(each.layer_names), repr(each.kv_cache_spec)) for each in cache.kv_cache_groups
        ],
        "layout": str(cache.kv_cache_layout),
        # Its tensors hold the factors for short and for long texts; --max-model-len chooses between
        # them.
        "long_rope": sorted(
            {
                str(module.use_long_rope)
                for each in models.values()
                for module in each.modules()
                if hasattr(module, "use_long_rope")
            }
        ),
        "processor": processor_of(model),
        "ranks": [parallel.rank, parallel.world_size, parallel.tensor_parallel_size],
    }
    draft = getattr(getattr(config, "speculative_config", None), "draft_model_config", None)
    if draft is not None:
        facts["draft"] = without_origin(draft.hf_config.to_dict())
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def processor_of(model: Any) -> list[Any]:
    """What turns images, sound and video into tensors. vLLM's hash covers the input itself."""
    chosen = model.multimodal_config
    if chosen is None:
        return []
    from vllm.transformers_utils.repo_utils import try_get_local_file

    files = [try_get_local_file(model.model, name, model.revision) for name in _PROCESSORS]
    given = [getattr(chosen, name, None) for name in ("mm_processor_kwargs", "media_io_kwargs")]
    there = [each.read_bytes() if isinstance(each, Path) else b"" for each in files]
    return given + [hashlib.sha256(each).hexdigest() for each in there]


def without_origin(facts: Any) -> Any:
    if isinstance(facts, Mapping):
        kept = {str(key): value for key, value in facts.items() if key not in _ORIGIN}
        return {key: without_origin(value) for key, value in kept.items()}
    if isinstance(facts, (list, tuple)):
        return [without_origin(each) for each in facts]
    if isinstance(facts, (set, frozenset)):
        return sorted(map(str, facts))
    return facts


def engine_of(config: VllmConfig) -> str:
    """Another version or backend may order the bytes of a block differently, under the same layout.
    """
    import vllm

    layers = config.compilation_config.static_forward_context.values()
    backends = {
        f"{layer.attn_backend.get_name()} {getattr(layer, 'isa', None) or ''}".strip()
        for layer in layers
        if getattr(layer, "attn_backend", None) is not None
    }
    version = ".".join(str(vllm.__version__).split("+")[0].split(".")[:2])
    return f"vllm {version} attention {', '.join(sorted(backends)) or 'none'}"


def adapter_of(adapter: Any) -> bytes:
    """32 bytes that stand for the whole content of a LoRA adapter as it was loaded. Raises
    NoIdentity."""
    found = hashlib.sha256()
    for kind in ("loras", "modules_to_save"):
        for name, layer in sorted((getattr(adapter, kind, None) or {}).items()):
            found.update(f"{kind} {name}\n".encode())
            _add(found, {key: value for key, value in vars(layer).items() if key != "module_name"})
    found.update(str(bool(getattr(adapter, "is_3d_lora_weight", False))).encode())
    return found.digest()


def tensors_of(item: Any) -> bytes:
    """32 bytes that stand for what a processor made of an image, sound or video: everything that
    the model is given of it, whatever it was called and whichever code made it. Raises NoIdentity.
    """
    if item is None or "address" in item:
        raise NoIdentity("its tensors are elsewhere")
    found = hashlib.sha256()
    _add(found, {key: each.data for key, each in item.items()})
    return found.digest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        for key, inner in sorted(value.items()):
            found.update(f"{key}\n".encode())
            _add(found, inner)
    elif isinstance(value, (list, tuple)):
        found.update(f"{len(value)}\n".encode())
        for inner in value:
            _add(found, inner)
    elif value is None or isinstance(value, (bool, int, float, str)):
        found.update(f"{value!r}\n".encode())
    else:
        raise NoIdentity(f"a {type(value).__name__} cannot be told by its content")
