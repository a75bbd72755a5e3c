"""GGUF files of small models, written as llama.cpp's converters write them."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor
from transformers import PreTrainedModel

MIXTRAL = {  # as transformers calls them in memory, and as files do
    "mlp.gate.": "block_sparse_moe.gate.",
    "mlp.experts.gate_proj": "block_sparse_moe.experts.w1",
    "mlp.experts.down_proj": "block_sparse_moe.experts.w2",
    "mlp.experts.up_proj": "block_sparse_moe.experts.w3",
}

IDS = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


def write_llama(
    path: Path,
    model: PreTrainedModel,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    values: Mapping[str, object] | None = None,
    factors: np.ndarray | None = None,
) -> None:
    """A Llama or Mistral, its matrices quantised; `values` are those of its tokenizer."""
    config = model.config
    sizes = {
        "context_length": config.max_position_embeddings,
        "feed_forward_length": config.intermediate_size,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": config.head_dim,
        "attention.key_length": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    slowed = {} if factors is None else {"rope_freqs": factors}
    write_decoder(path, "llama", model, sizes, kind, slowed, values or {})


def write_decoder(
    path: Path,
    architecture: str,
    model: PreTrainedModel,
    values: Mapping[str, object],
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    factors: Mapping[str, object] | None = None,
    others: Mapping[str, object] = IDS,
) -> None:
    """A decoder; `values` are what its converter says beside the sizes, `others` by whole names."""
    config, writer = model.config, GGUFWriter(path, architecture)
    heads = config.num_attention_heads
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", heads))
    for name, tensor in unfused(model.state_dict()):
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            array = converted(architecture, name, tensor.numpy(), config)
            add_tensor(writer, renamed(name, architecture), array, kind)
    for name, numbers in (factors or {}).items():
        writer.add_tensor(f"{name}.weight", np.array(numbers, np.float32))
    finish(writer, {f"{architecture}.{key}": value for key, value in values.items()} | others)


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
    if re.search(r"\.c_\w+\.weight", name):  # GPT-2's
        return np.ascontiguousarray(array.T)
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


@cache
def names(kind: gguf.MODEL_ARCH) -> gguf.TensorNameMap:
    """The table of an architecture, which takes milliseconds to make."""
    return gguf.get_tensor_name_map(kind, 9)


def renamed(name: str, architecture: str) -> str:
    """A tensor's name by the table of llama.cpp's converters, which knows Mixtral's older names."""
    if name == "lm_head.weight":  # which Gemma's table lacks
        return "output.weight"
    known = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    kind = known.get(architecture, gguf.MODEL_ARCH.LLAMA)  # older tables have no SmolLM3
    name = name.replace("transformer.h.", "h.") if architecture == "bloom" else name
    for theirs, file in MIXTRAL.items():
        name = name.replace(theirs, file)
    bare = name.removeprefix("transformer.") if "layernorm" in name else name
    new = names(kind).get_name(bare, try_suffixes=(".weight", ".bias"))
    assert new, name
    return new


def add_tensor(
    writer: GGUFWriter, name: str, array: np.ndarray, kind: GGMLQuantizationType
) -> None:
    if array.ndim == 1 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, np.ascontiguousarray(array))
    else:
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)


def finish(writer: GGUFWriter, values: Mapping[str, object]) -> None:
    for name, value in values.items():
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
