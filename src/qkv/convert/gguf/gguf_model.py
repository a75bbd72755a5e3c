"""GGUF files, as llama.cpp writes them: one file, often quantised, in words of its own.

Such a file is translated into the words of a Hugging Face checkpoint, and read as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.architectures.architecture import Values
from qkv.convert.architectures.llama import read_llama
from qkv.convert.gguf.container import GgufFile
from qkv.convert.gguf.gguf_tokenizer import adds_bos, read_tokenizer, token_id
from qkv.convert.huggingface.foreign_checkpoint import ForeignCheckpoint
from qkv.convert.huggingface.foreign_weights import Shape
from qkv.convert.huggingface.importing import as_stored_model
from qkv.convert.model_folder import StoredModel, Tokenizers
from qkv.errors import UserError
from qkv.model.positions.rotary import rates
from qkv.model.quantized_matrix import QuantizedMatrix

# What llama.cpp calls a module, and Hugging Face's classes do
LLAMA_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "attn_norm": "model.layers.{}.input_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
}
GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_qkv": "transformer.h.{}.attn.c_attn",
    "attn_output": "transformer.h.{}.attn.c_proj",
    "attn_norm": "transformer.h.{}.ln_1",
    "ffn_up": "transformer.h.{}.mlp.c_fc",
    "ffn_down": "transformer.h.{}.mlp.c_proj",
    "ffn_norm": "transformer.h.{}.ln_2",
}
NAMES = {"llama": LLAMA_NAMES, "gpt2": GPT2_NAMES}
FREQUENCIES = "rope_freqs.weight"  # by how much Llama 3 slows each pair of a head down
TRAINED_LENGTHS = (8192, *(2**power for power in range(8, 21)))  # Llama 3's own first


class _Tensors:
    """A file's tensors by Hugging Face's names and in its layout, each read when asked for."""

    def __init__(self, file: GgufFile, change: Callable[[str, Tensor], Tensor]) -> None:
        self._change = change
        self._found = {
            _their_name(tensor.name, NAMES[file.kind]): tensor
            for tensor in file.tensors.values()
            if tensor.name != FREQUENCIES
        }
        self.shapes: Mapping[str, Shape] = {
            name: tuple(change(name, torch.empty(tensor.shape, device="meta")).shape)
            for name, tensor in self._found.items()
        }

        self.quantized = frozenset(
            name for name, tensor in self._found.items() if tensor.is_quantized
        )

    def __getitem__(self, name: str) -> Tensor:
        return self._change(name, self._found[name].read())

    def matrix(self, name: str) -> QuantizedMatrix:
        """Read a quantised matrix (out, in); a change may reorder its rows."""
        matrix = self._found[name].matrix()
        return matrix[self._change(name, torch.arange(matrix.shape[0]))]


def open_gguf(path: Path) -> StoredModel:
    """A GGUF file, as a model folder of ours would say it."""
    file = GgufFile(path)
    try:
        _check(file)
        config, change = CONFIGS[file.kind](file)
        tensors = _Tensors(file, change)
    except (ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} has a value of the wrong kind or size ({error}); fetch it again."
        ) from error
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    checkpoint = ForeignCheckpoint(
        path,
        config,
        tensors,
        tokenizer={"add_bos_token": adds_bos(file.get)},
        chat=file.get("tokenizer.chat_template"),
    )

    @cache
    def tokenizers() -> Tokenizers:
        found = read_tokenizer(file.get, path)
        return Tokenizers(found, found)

    return as_stored_model(ARCHITECTURES[config["model_type"]], checkpoint, tokenizers)


def _check(file: GgufFile) -> None:
    parts = file.get("split.count", 1)
    if parts > 1:
        raise UserError(
            f"{file.path} is one of {parts} parts of a model; join them first, with llama.cpp's "
            f"`llama-gguf-split --merge`."
        )
    if file.kind not in CONFIGS:
        raise UserError(
            f"{file.path} is a GGUF file of the architecture {file.kind!r}, but only "
            f"{', '.join(CONFIGS)} can be read."
        )


# Tensors


def _their_name(name: str, table: Mapping[str, str]) -> str:
    """A tensor's name there; one that has none stays as it is, and is then unexpected."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if found is None or found[2] not in table:
        return name
    return f"{table[found[2]].format(found[1])}.{found[3]}"


def _as_halves(heads: Mapping[str, int], name: str, tensor: Tensor) -> Tensor:
    """Queries and keys as Hugging Face turns them.

    Both turn pairs of a head's dimensions; here neighbours are a pair, there one of either half.
    """
    count = next((count for part, count in heads.items() if f".{part}." in name), None)
    if count is None:
        return tensor
    pairs = tensor.view(count, tensor.shape[0] // count // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _on_its_side(name: str, tensor: Tensor) -> Tensor:
    """GPT-2's matrices multiply from the right there; indices of rows stay as they are."""
    return tensor.t() if re.search(r"\.(attn|mlp)\.c_\w+\.weight$", name) else tensor


# Configs


def _llama(file: GgufFile) -> tuple[Values, Callable[[str, Tensor], Tensor]]:
    heads = file.count("attention.head_count")
    groups = file.get("attention.head_count_kv", heads)
    if isinstance(groups, list) or file.get("expert_count", 0):
        raise UserError(
            f"{file.path} has layers of several kinds or a mixture of experts, which cannot be "
            f"read; take a model whose layers are all alike."
        )
    width = file.count("embedding_length")
    turned = file.get("rope.dimension_count", width // heads)
    key = file.get("attention.key_length", turned)
    window = file.get("attention.sliding_window")
    config: Values = {
        "model_type": "mistral" if window else "llama",
        "architectures": ["MistralForCausalLM" if window else "LlamaForCausalLM"],
        "sliding_window": window,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": key,
        "partial_rotary_factor": turned / key,
        "num_hidden_layers": file.count("block_count"),
        "intermediate_size": file.count("feed_forward_length"),
        "max_position_embeddings": file.count("context_length"),
        "rms_norm_eps": file.need("attention.layer_norm_rms_epsilon"),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        **_tokens(file),
    }
    rope = {"rope_theta": file.get("rope.freq_base", 10_000.0), **_scaling(file)}
    config["rope_parameters"] = rope
    if FREQUENCIES in file.tensors:
        rope |= _llama3(file, config)
    return config, partial(_as_halves, {"q_proj": heads, "k_proj": int(groups)})


def _gpt2(file: GgufFile) -> tuple[Values, Callable[[str, Tensor], Tensor]]:
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": file.count("embedding_length"),
        "n_head": file.count("attention.head_count"),
        "n_layer": file.count("block_count"),
        "n_inner": file.count("feed_forward_length"),
        "n_positions": file.count("context_length"),
        "layer_norm_epsilon": file.need("attention.layer_norm_epsilon"),
        **_tokens(file),
    }
    return config, _on_its_side


CONFIGS = {"llama": _llama, "gpt2": _gpt2}


def _tokens(file: GgufFile) -> Values:
    """The size of the vocabulary, and the ids of tokens that are not text."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise UserError(f"{file.path} has no token_embd.weight; fetch it again.")
    roles = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {f"{theirs}_token_id": token_id(file.get, name) for theirs, name in roles.items()}
    return {"vocab_size": table.shape[0], **ids}


def _scaling(file: GgufFile) -> Values:
    """How angles are scaled, where it is not by a tensor."""
    kind = file.get("rope.scaling.type", "none")
    factor = file.get("rope.scaling.factor", file.get("rope.scale_linear", 1.0))
    if kind == "none" and factor == 1.0:
        return {"rope_type": "default"}
    found = {
        "factor": factor,
        "original_max_position_embeddings": file.get("rope.scaling.original_context_length"),
        "beta_fast": file.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": file.get("rope.scaling.yarn_beta_slow"),
    }
    return {"rope_type": "linear" if kind == "none" else kind, **found}


def _llama3(file: GgufFile, config: Values) -> Values:
    """The scaling that a tensor amounts to: Llama 3's, with its usual bounds."""
    slowed = file.tensors[FREQUENCIES].read()
    if torch.equal(slowed, torch.ones_like(slowed)):
        return {}
    bounds = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    plain = rates(ModelConfig.from_dict(read_llama(config, (), "causal")))
    for length in TRAINED_LENGTHS:
        rope = {
            **config["rope_parameters"],
            **bounds,
            "factor": round(float(slowed.max()), 4),
            "original_max_position_embeddings": length,
        }
        scaled = read_llama({**config, "rope_parameters": rope}, (), "causal")
        expected = plain / rates(ModelConfig.from_dict(scaled))
        if expected.shape == slowed.shape and torch.allclose(expected, slowed, rtol=1e-4):
            return rope
    raise UserError(
        f"{file.path} slows pairs down by a {FREQUENCIES} that is not Llama 3's, and no other can "
        f"be read."
    )
