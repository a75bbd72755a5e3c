"""GGUF files of small models, written as llama.cpp's converters write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor
from transformers import PreTrainedModel

LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_1": "attn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "ln_2": "ffn_norm",
    "lm_head": "output",
}


def write_llama(
    path: Path,
    model: PreTrainedModel,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    values: Mapping[str, object] | None = None,
    factors: np.ndarray | None = None,
) -> None:
    """A Llama or Mistral, its matrices quantised."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        new, array = renamed(name, LLAMA), tensor.numpy()
        count = next((count for part, count in heads.items() if f".{part}." in new), 0)
        if count:  # the halves of a head become pairs of neighbours
            shape = (count, 2, len(array) // count // 2, *array.shape[1:])
            array = np.ascontiguousarray(array.reshape(shape).swapaxes(1, 2)).reshape(array.shape)
        add_tensor(writer, new, array, kind)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    finish(writer, values)


def write_gpt2(
    path: Path,
    model: PreTrainedModel,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> None:
    config = model.config
    writer = GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if re.search(r"\.c_\w+\.weight", name):
            array = np.ascontiguousarray(array.T)
        add_tensor(writer, renamed(name, GPT2), array, kind)
    finish(writer, {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2})


NORMS = {**LLAMA, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
GEMMA = {
    **NORMS,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PHI3 = {**LLAMA, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
EXPERTS = {
    **LLAMA,
    "mlp.gate": "ffn_gate_inp",
    "experts.gate_proj": "ffn_gate_exps",
    "experts.up_proj": "ffn_up_exps",
    "experts.down_proj": "ffn_down_exps",
}
FUSED = {
    "embed_in": "token_embd",
    "word_embeddings": "token_embd",
    "word_embeddings_layernorm": "token_embd_norm",
    "final_layer_norm": "output_norm",
    "ln_f": "output_norm",
    "lm_head": "output",
    "embed_out": "output",  # GPT-NeoX in transformers of before
    "query_key_value": "attn_qkv",
    "dense": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
TABLES = {
    "llama": EXPERTS,
    "qwen2": LLAMA,
    "qwen3": NORMS,
    "gemma": LLAMA,
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "phi3": PHI3,
    "smollm3": LLAMA,
    "gptneox": FUSED,
    "bloom": FUSED,
}


def write_decoder(
    path: Path,
    architecture: str,
    model: PreTrainedModel,
    values: Mapping[str, object],
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    factors: Mapping[str, list[float]] | None = None,
) -> None:
    """A decoder of another line; `values` are what its converter says beside the sizes."""
    config, writer = model.config, GGUFWriter(path, architecture)
    heads = config.num_attention_heads
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", heads))
    for name, tensor in unfused(model.state_dict()):
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            array = converted(architecture, name, tensor.numpy(), config)
            add_tensor(writer, renamed(name, TABLES[architecture]), array, kind)
    for name, numbers in (factors or {}).items():
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(numbers, np.float32))
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    finish(writer, {**{f"{architecture}.{key}": value for key, value in values.items()}, **ids})


def unfused(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Weights of experts as files hold them: transformers fuses two of the three in memory."""
    for name, tensor in weights.items():
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                yield name.replace("gate_up_proj", f"{part}_proj.weight"), half
        else:
            yield name + ".weight" * name.endswith("experts.down_proj"), tensor


def converted(architecture: str, name: str, array: np.ndarray, config: object) -> np.ndarray:
    """A tensor as llama.cpp's converter of an architecture changes it."""
    heads = config.num_attention_heads
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    if architecture in ("gptneox", "bloom") and "query_key_value" in name:
        by_head = array.reshape(heads, 3, -1, *array.shape[1:])
        return np.ascontiguousarray(by_head.swapaxes(0, 1)).reshape(array.shape)
    if architecture in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
        count = heads if "q_proj" in name else config.num_key_value_heads
        halves = array.reshape(count, 2, len(array) // count // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
    return array


def renamed(name: str, table: Mapping[str, str]) -> str:
    layer = re.search(r"\.(\d+)\.", name)
    part = next(ours for theirs, ours in table.items() if re.search(rf"(^|\.){theirs}\.", name))
    return (f"blk.{layer[1]}." if layer else "") + part + name[name.rindex(".") :]


def add_tensor(
    writer: GGUFWriter, name: str, array: np.ndarray, kind: GGMLQuantizationType
) -> None:
    if array.ndim == 1 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, np.ascontiguousarray(array))
    else:
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)


def finish(writer: GGUFWriter, values: Mapping[str, object] | None) -> None:
    for name, value in (values or {}).items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
