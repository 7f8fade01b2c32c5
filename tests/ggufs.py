"""GGUF files, written from tiny Llama models by the library that llama.cpp publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from transformers import PreTrainedModel, PreTrainedTokenizerFast

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    architecture: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    without: str | None = None,
) -> Path:
    """Write a Llama model and its byte-level tokenizer as one file.

    Args:
        path: The file.
        model: A model as `tiny_model` makes it.
        tokenizer: A tokenizer as `byte_tokenizer` makes it.
        architecture: What the file says it is.
        kind: How its matrices are stored.
        without: A tensor that is left out.
    """
    writer = GGUFWriter(path, architecture)
    config: Any = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer, config.vocab_size)
    for name, tensor in model.state_dict().items():
        values = tensor.float()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = _as_llama_cpp_rotates(values, heads)
        theirs = _llama_cpps(name)
        if theirs == without:
            continue
        stored = kind if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(theirs, quantize(values.numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _llama_cpps(name: str) -> str:
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _as_llama_cpp_rotates(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of a projection in llama.cpp's order: pairs that are rotated together stand side by side."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape).contiguous()


def _add_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerFast, size: int) -> None:
    vocabulary = tokenizer.get_vocab()
    special = set(tokenizer.all_special_tokens)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    unused = [f"[PAD{n}]" for n in range(len(tokens), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens + unused)
    writer.add_token_types(types + [TokenType.UNUSED] * len(unused))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
        writer.add_add_bos_token(tokenizer("")["input_ids"] == [tokenizer.bos_token_id])
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
