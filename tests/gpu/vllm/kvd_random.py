"""Models of random weights that nobody has to carry anywhere: vLLM's load format "kvd_random".

A parameter's numbers depend on its name, its shape and the seed alone, so two engines on one kind of
device have the same model. kvd_random.register() makes vLLM know the format; write_config() writes the
one file that a model needs.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

LOAD_FORMAT = "kvd_random"
# Wide enough that greedy answers go on without repeating themselves: a model that says one word proves
# nothing.
SPREAD = 2.4


class Shape(NamedTuple):
    """A Llama's."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    words: int
    longest: int  # tokens
    number: str


SHAPES = {
    "tiny": Shape(256, 4, 4, 4, 64, 688, 2048, 4096, "float32"),
    "1.5b": Shape(2048, 20, 16, 8, 128, 8192, 128256, 65536, "bfloat16"),
    "3b": Shape(3072, 28, 24, 8, 128, 8192, 128256, 65536, "bfloat16"),
}


def token_bytes(shape: Shape) -> int:
    """KV of one token in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head * (4 if shape.number == "float32" else 2)


def config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "intermediate_size": shape.inner,
        "vocab_size": shape.words,
        "max_position_embeddings": shape.longest,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": shape.number,
    }


def write_config(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(SHAPES[name])))
    return folder


def fill(model: Any, seed: int) -> None:
    """Every parameter of a model, on the device where it lies."""
    import torch

    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
            continue
        random = torch.Generator(parameter.device).manual_seed(zlib.crc32(name.encode()) + seed)
        spread = 1.0 if "embed_tokens" in name else SPREAD / parameter.shape[-1] ** 0.5
        parameter.data.normal_(0.0, spread, generator=random)


def register() -> None:
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(LOAD_FORMAT)
    class RandomLoader(BaseModelLoader):
        def download_model(self, model_config: Any) -> None:
            """There is nothing to fetch."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            fill(model, (self.load_config.model_loader_extra_config or {}).get("seed", 1))
