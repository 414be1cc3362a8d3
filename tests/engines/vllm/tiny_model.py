"""Writes a LLaMA of 4.2 M random parameters that vLLM loads: tiny_model.py FOLDER [SEED].

The embeddings are wide enough, against the layers, that greedy answers of 128 tokens hold more than
100 different ones: a model that repeats itself proves nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, HEAD, WORDS, INNER = 256, 4, 4, 64, 2048, 688
SPREAD = 0.15

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD,
    "intermediate_size": INNER,
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


def weights(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, spread: float = SPREAD) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * spread

    found = {
        "model.embed_tokens.weight": matrix(WORDS, HIDDEN, 1.0),
        "lm_head.weight": matrix(WORDS, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k", "v"):
            found[f"{at}self_attn.{name}_proj.weight"] = matrix(HEADS * HEAD, HIDDEN)
        found[f"{at}self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD)
        for name in ("gate", "up"):
            found[f"{at}mlp.{name}_proj.weight"] = matrix(INNER, HIDDEN)
        found[f"{at}mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
        for name in ("input", "post_attention"):
            found[f"{at}{name}_layernorm.weight"] = torch.ones(HIDDEN)
    return found


def write(folder: Path, seed: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights(seed), folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
