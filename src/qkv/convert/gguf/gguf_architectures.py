"""What GGUF files say of each architecture, in the words of Hugging Face's checkpoints.

llama.cpp's converters rename tensors, and change some: Llama's queries and keys turn neighbouring
dimensions, Gemma's norms hold their 1, and fused matrices hold queries, keys and values in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.config.presets import preset
from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.architectures.architecture import Values
from qkv.convert.architectures.llama import LLAMA
from qkv.convert.architectures.name_tables import by_head
from qkv.convert.gguf.container import GgufFile
from qkv.convert.gguf.gguf_tokenizer import token_id
from qkv.errors import UserError
from qkv.model.positions.rotary import rates

Change = Callable[[str, Tensor], Tensor]
"""A tensor, by its name there, in their layout; indices of rows are reordered as rows are."""


def hugging_face_names(kind: str, model_type: str) -> dict[str, str]:
    """What Hugging Face calls llama.cpp's modules; {} is a layer, and a second {} an expert.

    It is the library's table, by which llama.cpp's converters name tensors, read backwards.
    """
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

    known = {name: known for known, name in MODEL_ARCH_NAMES.items()}
    table = get_tensor_name_map(known.get(kind, MODEL_ARCH.LLAMA), 1)  # older ones know fewer
    architecture, names = ARCHITECTURES[model_type], {}
    one_layer = preset("llama-tiny", n_decoder_layers=1, n_experts=1, n_experts_used=1)
    for rule in architecture.rules(one_layer, "causal"):
        for part in rule.parts:
            module = part.name.rpartition(".")[0]
            joined = module.replace("experts.0.", "experts.")  # the experts' are one there
            bare = joined.removeprefix(architecture.prefix)
            found = table.get_name(joined) or table.get_name(bare)
            if rule.ours.startswith("output."):  # which Gemma's table lacks
                found = "output"
            if found:
                names[found.removeprefix("blk.0.")] = module.replace(".0.", ".{}.")
    return names


FREQUENCIES = "rope_freqs.weight"  # by how much Llama 3 slows each pair of a head down
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"  # Phi-3's
ANGLES = (FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)  # tensors that hold nothing learnt
TRAINED_LENGTHS = (8192, *(2**power for power in range(8, 21)))  # Llama 3's own first


# Tensors


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


def _as_it_is(name: str, tensor: Tensor) -> Tensor:
    return tensor


def _without_one(name: str, tensor: Tensor) -> Tensor:
    """Gemma's norms add 1 to their weights, which the converter has done."""
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _by_head(n_heads: int, name: str, tensor: Tensor) -> Tensor:
    """Fused queries, keys and values with those of a head together."""
    return by_head(n_heads).write(tensor) if ".query_key_value." in name else tensor


# Configs


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
    plain = rates(ModelConfig.from_dict(LLAMA.read_config(config, (), "causal")))
    for length in TRAINED_LENGTHS:
        rope = {
            **config["rope_parameters"],
            **bounds,
            "factor": round(float(slowed.max()), 4),
            "original_max_position_embeddings": length,
        }
        scaled = LLAMA.read_config({**config, "rope_parameters": rope}, (), "causal")
        expected = plain / rates(ModelConfig.from_dict(scaled))
        if expected.shape == slowed.shape and torch.allclose(expected, slowed, rtol=1e-4):
            return rope
    raise UserError(
        f"{file.path} slows pairs down by a {FREQUENCIES} that is not Llama 3's, and no other can "
        f"be read."
    )


SIZES = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}


def _sized(file: GgufFile, model_type: str, sizes: Mapping[str, str]) -> Values:
    """The class, the sizes by their names there and in the file, and the tokens."""
    return {
        "model_type": model_type,
        "architectures": [ARCHITECTURES[model_type].classes["causal"]],
        **{name: file.count(own) for name, own in sizes.items()},
        **_tokens(file),
    }


def _decoder(file: GgufFile, model_type: str) -> Values:
    """The values that Llama and all that follow it share."""
    config = _sized(file, model_type, SIZES)
    heads, width = config["num_attention_heads"], config["hidden_size"]
    groups = file.get("attention.head_count_kv", heads)
    if isinstance(groups, list):
        raise UserError(
            f"{file.path} has layers of several kinds, which cannot be read; take a model whose "
            f"layers are all alike."
        )
    turned = file.get("rope.dimension_count", width // heads)
    key = file.get("attention.key_length", turned)
    return {
        **config,
        "sliding_window": file.get("attention.sliding_window"),
        "num_key_value_heads": groups,
        "head_dim": key,
        "partial_rotary_factor": turned / key if file.get("rope.dimension_count") else 1.0,
        "rms_norm_eps": file.need("attention.layer_norm_rms_epsilon"),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "rope_parameters": {"rope_theta": file.get("rope.freq_base", 10_000.0), **_scaling(file)},
    }


def _halves_of(config: Values) -> Change:
    counts = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    return partial(_as_halves, {part: int(config[name]) for part, name in counts.items()})


def _llama(file: GgufFile) -> tuple[Values, Change]:
    window = file.get("attention.sliding_window")
    kind = "mistral" if window else "llama"
    experts: Values = {}
    if file.get("expert_count"):
        kind = "mixtral"
        experts["num_local_experts"] = file.count("expert_count")
        experts["num_experts_per_tok"] = file.get("expert_used_count", 2)
    config = _decoder(file, kind) | experts
    if FREQUENCIES in file.tensors:
        config["rope_parameters"] |= _llama3(file, config)
    return config, _halves_of(config)


def _smollm3(file: GgufFile) -> tuple[Values, Change]:
    config = _decoder(file, "smollm3")
    return {**config, "no_rope_layer_interval": 4}, _halves_of(config)  # as llama.cpp has it


def _gemma2(file: GgufFile) -> tuple[Values, Change]:
    config = _decoder(file, "gemma2")
    return {**config, **_caps(file, config, largest=46)}, _without_one


def _gemma3(file: GgufFile) -> tuple[Values, Change]:
    config = _decoder(file, "gemma3_text")
    local = {"rope_theta": file.get("rope.freq_base_swa", 10_000.0)}
    return {
        **config,
        **_caps(file, config, largest=62),
        "attn_logit_softcapping": None,
        "rope_parameters": {
            "full_attention": config["rope_parameters"],
            "sliding_attention": local,
        },
    }, _without_one


def _caps(file: GgufFile, config: Values, largest: int) -> Values:
    """The soft caps, and what scores are divided by, which no file says.

    In the largest model of 27B, known by its layers, it is d_model / n_heads; in others, d_k.
    """
    by_width = config["num_hidden_layers"] == largest
    width = config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": width if by_width else config["head_dim"],
        "attn_logit_softcapping": file.get("attn_logit_softcapping"),
        "final_logit_softcapping": file.get("final_logit_softcapping"),
    }


def _phi3(file: GgufFile) -> tuple[Values, Change]:
    config = _decoder(file, "phi3")
    key = config["hidden_size"] // config["num_attention_heads"]
    rope: Values = {"rope_theta": file.get("rope.freq_base", 10_000.0), "rope_type": "default"}
    rope["partial_rotary_factor"] = file.get("rope.dimension_count", key) / key
    trained = file.get("rope.scaling.original_context_length", config["max_position_embeddings"])
    if LONG_FACTORS in file.tensors and SHORT_FACTORS in file.tensors:
        rope |= {
            "rope_type": "longrope",
            "long_factor": file.tensors[LONG_FACTORS].read().tolist(),
            "short_factor": file.tensors[SHORT_FACTORS].read().tolist(),
            "attention_factor": file.get("rope.scaling.attn_factor"),
        }
    more = {"original_max_position_embeddings": trained, "rope_parameters": rope}
    return {**config, **more, "head_dim": key}, _as_it_is


def _gptneox(file: GgufFile) -> tuple[Values, Change]:
    config = _sized(file, "gpt_neox", SIZES)
    heads = config["num_attention_heads"]
    key = config["hidden_size"] // heads
    return {
        **config,
        "layer_norm_eps": file.need("attention.layer_norm_epsilon"),
        "use_parallel_residual": file.get("use_parallel_residual", True),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": file.get("rope.freq_base", 10_000.0),
            "partial_rotary_factor": file.get("rope.dimension_count", key) / key,
        },
    }, partial(_by_head, heads)


def _bloom(file: GgufFile) -> tuple[Values, Change]:
    config = _sized(
        file,
        "bloom",
        {
            "hidden_size": "embedding_length",
            "n_head": "attention.head_count",
            "n_layer": "block_count",
            "seq_length": "context_length",
        },
    )
    config["layer_norm_epsilon"] = file.need("attention.layer_norm_epsilon")
    return config, partial(_by_head, config["n_head"])


def _gpt2(file: GgufFile) -> tuple[Values, Change]:
    names = ("n_embd", "n_head", "n_layer", "n_inner", "n_positions")
    config = _sized(file, "gpt2", dict(zip(names, SIZES.values(), strict=True)))
    config["layer_norm_epsilon"] = file.need("attention.layer_norm_epsilon")
    return config, _on_its_side


def _like_llama(
    model_type: str, file: GgufFile, change: Change = _as_it_is
) -> tuple[Values, Change]:
    """An architecture that says of itself what Llama does."""
    return _decoder(file, model_type), change


GGUF_ARCHITECTURES: Mapping[str, Callable[[GgufFile], tuple[Values, Change]]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "qwen2": partial(_like_llama, "qwen2"),
    "qwen3": partial(_like_llama, "qwen3"),
    "gemma": partial(_like_llama, "gemma", change=_without_one),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "smollm3": _smollm3,
    "gptneox": _gptneox,
    "bloom": _bloom,
}
"""By llama.cpp's names: a file's config as Hugging Face says it, and what is done to tensors."""
