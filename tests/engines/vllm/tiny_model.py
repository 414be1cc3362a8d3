"""Writes a LLaMA of random parameters that vLLM loads: tiny_model.py FOLDER [SEED [small|large|windows|deep]].

Small: 4.2 M parameters, whose steps are the engine's Python; large: 21 M, whose steps are computing;
windows: as small, but every other layer looks back at 64 tokens only; deep: as small, of 12 layers.

The embeddings are wide enough, against the layers, that greedy answers of 128 tokens hold more than
100 different ones: a model that repeats itself proves nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

HEAD, WORDS = 64, 2048


class Shape(NamedTuple):
    hidden: int
    layers: int
    heads: int
    inner: int
    spread: float  # of the weights
    window: int = 0  # of every other layer, in tokens; 0: none has one


SHAPES = {
    "small": Shape(256, 4, 4, 688, 0.15),
    "large": Shape(512, 6, 8, 1376, 0.11),
    "windows": Shape(256, 4, 4, 688, 0.15, window=64),
    "deep": Shape(256, 12, 4, 688, 0.09),
}


def config(shape: Shape) -> dict[str, Any]:
    kinds = ["sliding_attention", "full_attention"] * (shape.layers // 2)
    windows = {"sliding_window": shape.window, "layer_types": kinds} if shape.window else {}
    return {
        **windows,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": HEAD,
        "intermediate_size": shape.inner,
        "vocab_size": WORDS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


CONFIG = config(SHAPES["small"])


def weights(seed: int, shape: Shape) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    hidden, inner, width = shape.hidden, shape.inner, shape.heads * HEAD

    def matrix(rows: int, columns: int, spread: float = shape.spread) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * spread

    found = {
        "model.embed_tokens.weight": matrix(WORDS, hidden, 1.0),
        "lm_head.weight": matrix(WORDS, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        for name in ("q", "k", "v"):
            found[f"{at}self_attn.{name}_proj.weight"] = matrix(width, hidden)
        found[f"{at}self_attn.o_proj.weight"] = matrix(hidden, width)
        for name in ("gate", "up"):
            found[f"{at}mlp.{name}_proj.weight"] = matrix(inner, hidden)
        found[f"{at}mlp.down_proj.weight"] = matrix(hidden, inner)
        for name in ("input", "post_attention"):
            found[f"{at}{name}_layernorm.weight"] = torch.ones(hidden)
    return found


def write(folder: Path, seed: int = 1, size: str = "small") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(SHAPES[size])))
    save_file(weights(seed, SHAPES[size]), folder / "model.safetensors", metadata={"format": "pt"})


def write_adapter(folder: Path, seed: int) -> None:
    """A LoRA adapter for the small one, of two matrices of each layer."""
    rank, shape = 8, SHAPES["small"]
    random = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)
    targets = {"q_proj": shape.heads * HEAD, "v_proj": shape.heads * HEAD}
    tensors = {}
    for layer in range(shape.layers):
        for name, width in targets.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(rank, shape.hidden, generator=random) * 0.2
            tensors[f"{at}.lora_B.weight"] = torch.randn(width, rank, generator=random) * 0.2
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(targets), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    write(Path(sys.argv[1]), seed, *sys.argv[3:4])
