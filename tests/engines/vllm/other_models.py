"""Models of random parameters that are no LLaMA: what vLLM computes otherwise, or without a KV cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny_model
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel

HIDDEN, LAYERS, HEADS, INNER, WORDS = 256, 2, 4, 512, 2048
LATENT, NOPE, ROPE, VALUE = 512, 128, 64, 128  # the sizes that vLLM's MLA for CPUs takes
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def write_latent(folder: Path) -> None:
    """Writes a model shaped like DeepSeek's: attention to a latent (MLA), here without experts."""
    config = {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", **ENDS,
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "intermediate_size": INNER, "moe_intermediate_size": 64,
        "q_lora_rank": None, "kv_lora_rank": LATENT, "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "head_dim": ROPE, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
        "topk_method": "greedy", "first_k_dense_replace": LAYERS, "moe_layer_freq": 1,
        "vocab_size": WORDS, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }  # fmt: skip
    _write_config(folder, config)
    source = torch.Generator().manual_seed(1)

    def matrix(rows: int, columns: int, spread: float = 0.15) -> torch.Tensor:
        return torch.randn(rows, columns, generator=source) * spread

    found = {
        "model.embed_tokens.weight": matrix(WORDS, HIDDEN, 1.0),
        "lm_head.weight": matrix(WORDS, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        found |= {
            f"{at}self_attn.q_proj.weight": matrix(HEADS * (NOPE + ROPE), HIDDEN),
            f"{at}self_attn.kv_a_proj_with_mqa.weight": matrix(LATENT + ROPE, HIDDEN),
            f"{at}self_attn.kv_a_layernorm.weight": torch.ones(LATENT),
            f"{at}self_attn.kv_b_proj.weight": matrix(HEADS * (NOPE + VALUE), LATENT),
            f"{at}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * VALUE),
            f"{at}mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            f"{at}mlp.up_proj.weight": matrix(INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": matrix(HIDDEN, INNER),
            f"{at}input_layernorm.weight": torch.ones(HIDDEN),
            f"{at}post_attention_layernorm.weight": torch.ones(HIDDEN),
        }
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


def write_encoder(folder: Path) -> None:
    """A BERT, for vLLM's load_format "dummy", with a tokenizer, without which vLLM makes no embeddings."""
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "pad_token_id": 0,
        "hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
        "intermediate_size": 128, "vocab_size": WORDS, "max_position_embeddings": 512,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        "torch_dtype": "float32",
    }  # fmt: skip
    _write_config(folder, config)
    words = Tokenizer(WordLevel({f"t{number}": number for number in range(WORDS)}, unk_token="t0"))
    _write_tokenizer(folder, words, {"unk_token": "t0", "pad_token": "t0"})


def write_speaking(folder: Path) -> None:
    """The small LLaMA with a tokenizer, as a user's model has one: a token for each byte, and made-up words."""
    tiny_model.write(folder)
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*signs, *(f"Ġw{number}" for number in range(len(signs), WORDS))]
    words = Tokenizer(BPE({name: number for number, name in enumerate(names)}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    _write_tokenizer(folder, words, {})


def _write_tokenizer(folder: Path, words: Tokenizer, signs: dict[str, str]) -> None:
    words.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", **signs}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
