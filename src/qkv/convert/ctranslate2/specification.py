"""A model as a CTranslate2 folder: the same numbers from an engine that needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.ctranslate2.usage import set_vocabularies, write_usage
from qkv.convert.model_folder import StoredModel, fitting_weights, load_config, load_tokenizers
from qkv.errors import UserError, missing_package
from qkv.model.positions import sinusoid_table
from qkv.model.positions.rotary import loudness, rates

# What CTranslate2 calls our activations
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
SINUSOIDAL = "sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq"
POSITIONS = *SINUSOIDAL, "learned", "rotary", "relative", "none"
KINDS = torch.float32, torch.float16, torch.bfloat16  # of numbers that it reads

Read = Callable[[str], Tensor]
"""A weight by our name, read once; a tensor that is asked for twice is written once."""


def write_ctranslate2(stored: StoredModel, folder: Path) -> None:
    """Write a model into a folder that CTranslate2 loads."""
    _, config, _ = load_config(stored)
    if part := lacking(config):
        raise UserError(
            f"{stored} cannot be written for CTranslate2, which has no {part}; run it with qkv, "
            f"or write it in another format."
        )
    if "languages" in stored.content:
        raise UserError(
            f"{stored} is told languages by tokens, which are not written for CTranslate2 yet; run "
            f"it with qkv, or write it in another format."
        )
    _library()
    tokenizers = load_tokenizers(stored, config)
    parts = {"encoder-decoder": _both, "decoder": _decoder_alone, "encoder": _encoder_alone}
    spec = parts[config.family](config, _reader(stored, config))
    spec.config.layer_norm_epsilon = config.norm_epsilon
    set_vocabularies(spec, config, tokenizers)
    spec.validate()
    spec.optimize()  # tensors that are there twice are written once
    spec.save(str(folder))
    tokenizers.save(folder)
    write_usage(folder, config, tokenizers, stored.content)


def _library() -> Any:
    """The package's specifications, by their modules."""
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise missing_package("Writing for CTranslate2", "ctranslate2", "ctranslate2") from error
    return specs


def lacking(config: ModelConfig) -> str | None:
    """The first part of a model that CTranslate2 does not have, or None."""
    relative, alone = config.positions == "relative", config.family == "decoder"
    buckets, farthest = config.relative_buckets, config.relative_length or config.n_positions
    parts = {
        "images as inputs": config.patch_size,
        f"positions of the kind {config.positions!r}": config.positions not in POSITIONS,
        "convolution beside the first layer": config.convolution,
        "encoder that sees backwards only": config.causal,
        "embeddings that are narrower than the model (d_embedding)": config.d_embedding,
        f"head of the kind {config.head!r} on an encoder": config.head != "none",
        "head for pairs of texts": config.pair_head,
        "projection of a text's vector (d_vector)": config.d_vector,
        "pooler after the mean of all tokens": config.pooler != "none" and config.pooling == "mean",
        "window in some layers only": _window(config) and config.window_layers != "all",
        "norm of queries and keys": config.query_key_norm,
        "sublayers in parallel": config.parallel,
        "norms on both sides of a sublayer": config.norm_position == "both",
        f"norm of the kind {config.norm!r}": config.norm not in ("layer", "rms"),
        f"activation {config.activation!r}": config.activation not in ACTIVATIONS,
        "rotary positions in some layers only": config.rotary_layers != "all",
        "angles scaled by longrope": config.rotary_scaling == "longrope",
        "feed-forward layer of experts": config.n_experts,
        "LayerNorm without a bias": config.norm == "layer" and not config.norm_bias,
        "first layer without a norm": not config.first_norm,
        "encoder with windows": config.family == "encoder" and config.window,
        "soft cap": config.score_cap or config.logit_cap,
        "rotary base of its own for layers with a window": config.rotary_window_base,
        "turning of a part of each head (rotary_share)": config.d_rotary != config.d_head,
        "window in a decoder that has an encoder": _window(config) and not alone,
        # After a prompt that it reads at once, it counts distances anew.
        "relative positions in a decoder without an encoder": relative and alone,
        # A decoder tells half of the buckets' distances apart.
        f"relative positions in {buckets} buckets for distances up to {farthest}": (
            relative and (buckets < 4 or farthest <= buckets // 2)
        ),
    }
    return next((name for name, there in parts.items() if there), None)


def _window(config: ModelConfig) -> int:
    """How many tokens a decoder's token sees, where it does not see all; else 0."""
    narrow = config.family != "encoder" and config.window < config.max_length
    return config.window if narrow else 0


def _reader(stored: StoredModel, config: ModelConfig) -> Read:
    weights = fitting_weights(stored, config)

    @cache
    def read(name: str) -> Tensor:
        tensor = weights[name]
        return tensor if tensor.dtype in KINDS else tensor.float()

    return read


def _both(config: ModelConfig, read: Read) -> Any:
    specs = _library()
    source = read("source_embedding.table.weight")
    apart = config.tie in ("output", "none")
    target = read("target_embedding.table.weight") if apart else source
    encoder = _encoder(config, read, source)
    decoder = _decoder(config, read, target, cross=True)
    return specs.transformer_spec.TransformerSpec(encoder, decoder)


def _decoder_alone(config: ModelConfig, read: Read) -> Any:
    decoder = _decoder(config, read, read("embedding.table.weight"), cross=False)
    return _library().transformer_spec.TransformerDecoderModelSpec(decoder)


def _encoder_alone(config: ModelConfig, read: Read) -> Any:
    specs = _library()
    encoder = _encoder(config, read, read("embedding.table.weight"))
    if config.n_segments:
        kinds = read("segments.weight")
        # It scales both embeddings, we scale those of tokens.
        scale = config.d_model**0.5 if config.embedding_scale else 1.0
        encoder.embeddings[1].weight = kinds / scale
    names = {"none": "Tanh", "tanh": "Tanh", "gelu": "GELU", "relu": "RELU"}
    spec = specs.transformer_spec.TransformerEncoderModelSpec(
        encoder,
        pooling_layer=config.pooler != "none",
        pooling_activation=specs.common_spec.Activation[names[config.pooler]],
    )
    if config.pooler != "none":
        _set_linear(spec.pooler_dense, read, "pooler.dense")
    return spec


def _encoder(config: ModelConfig, read: Read, table: Tensor) -> Any:
    specs = _library()
    spec = specs.transformer_spec.TransformerEncoderSpec(
        config.n_encoder_layers,
        config.n_heads,
        **_common(config),
        num_source_embeddings=2 if config.n_segments else 1,
        embeddings_merge=specs.common_spec.EmbeddingsMerge.ADD,
    )
    spec.embeddings[0].weight = table
    _set_stack(spec, config, read, "encoder")
    return spec


def _decoder(config: ModelConfig, read: Read, table: Tensor, cross: bool) -> Any:
    spec = _library().transformer_spec.TransformerDecoderSpec(
        config.n_decoder_layers,
        config.n_heads,
        **_common(config),
        with_encoder_attention=cross,
        num_heads_kv=config.kv_heads,
        sliding_window=_window(config) or None,
    )
    spec.embeddings.weight = table
    _set_stack(spec, config, read, "decoder")
    tied = config.tie in ("all", "output")
    spec.projection.weight = table if tied else read("output.projection.weight")
    if config.output_bias:
        spec.projection.bias = read("output.projection.bias")
    if config.output_scale:
        spec.scale_outputs = config.d_model**-0.5
    return spec


def _common(config: ModelConfig) -> dict[str, Any]:
    """What an encoder and a decoder are both told."""
    return {
        "pre_norm": config.norm_position == "pre",
        "activation": _library().common_spec.Activation[ACTIVATIONS[config.activation]],
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.gated,
        "rms_norm": config.norm == "rms",
    }


def _set_stack(spec: Any, config: ModelConfig, read: Read, name: str) -> None:
    spec.scale_embeddings = config.embedding_scale
    spec.position_encodings.encodings = _table(config, read, name)
    if config.embedding_norm:
        _set_norm(spec.layernorm_embedding, read, f"{name}.input_norm", config)
    if config.norm_position == "pre":
        _set_norm(spec.layer_norm, read, f"{name}.norm", config)
    for number, layer in enumerate(spec.layer):
        block = f"{name}.blocks.{0 if config.shared_layers else number}"
        layer.self_attention = _self_attention(config, read, block, f"{name}.positions")
        _set_norm(
            layer.self_attention.layer_norm, read, f"{block}.self_attention_residual.norm", config
        )
        if hasattr(layer, "attention"):
            layer.attention = _cross_attention(config, read, block)
            norm = f"{block}.cross_attention_residual.norm"
            _set_norm(layer.attention.layer_norm, read, norm, config)
        _set_feed_forward(layer.ffn, config, read, block)


def _table(config: ModelConfig, read: Read, name: str) -> Any:
    """The table that is added to the input; without one, the engine would add sines of its own."""
    if config.positions == "learned":
        return read(f"{name}.positions.table.weight")
    if config.positions.startswith("sinusoidal"):
        return sinusoid_table(config)
    if config.positions == "none":
        return torch.zeros(config.max_length, config.d_model)
    return _library().model_spec.OPTIONAL  # not there: attention knows the order


def _self_attention(config: ModelConfig, read: Read, block: str, positions: str) -> Any:
    relative, rotary = config.positions == "relative", config.positions == "rotary"
    spec = _attention(
        config,
        self_attention=True,
        relative_attention_bias=relative,
        sliding_window=_window(config) or None,
        **(_rotary(config) if rotary else {}),
    )
    if relative:
        # It adds to scores that are divided already.
        spec.relative_attention_bias = read(f"{positions}.table.weight") * config.score_scale
        farthest = config.relative_length or config.n_positions
        spec.relative_attention_max_distance = torch.tensor(farthest, dtype=torch.int32).numpy()
    if rotary:
        spec.queries_scale = config.score_scale * loudness(config) ** 2
        _set_scaling(spec, config)
    attention = f"{block}.self_attention"
    _set_linear(spec.linear[0], read, f"{attention}.query_key_value", config.has_qkv_bias)
    _set_linear(spec.linear[1], read, f"{attention}.output", config.bias)
    return spec


def _cross_attention(config: ModelConfig, read: Read, block: str) -> Any:
    spec = _attention(config)
    for linear, name in zip(spec.linear, ("query", "key_value", "output"), strict=True):
        biased = config.bias if name == "output" else config.has_qkv_bias
        _set_linear(linear, read, f"{block}.cross_attention.{name}", biased)
    return spec


def _attention(config: ModelConfig, **parts: Any) -> Any:
    grouped = config.kv_heads != config.n_heads
    spec = _library().attention_spec.MultiHeadAttentionSpec(
        rms_norm=config.norm == "rms",
        head_dim=config.d_head,
        num_heads_kv=config.kv_heads if grouped else None,
        **parts,
    )
    spec.queries_scale = config.score_scale
    return spec


def _rotary(config: ModelConfig) -> dict[str, Any]:
    """How queries and keys are turned; YaRN is told as one factor for each pair's rate."""
    kinds = _library().attention_spec.RotaryScalingType
    kind = {"linear": kinds.Linear, "llama3": kinds.Llama3, "yarn": kinds.Su}
    scaling, width = config.rotary_scaling, config.d_head
    grown = config.rotary_factor ** (width / (width - 2)) if scaling == "ntk" else 1.0
    return {
        "rotary_dim": 0,
        "rotary_interleave": False,
        "rotary_base": config.rotary_base * grown,
        "rotary_scaling_type": kind.get(scaling),
        "rotary_scaling_factor": config.rotary_factor,
        # To any other it would be a reason to make the scores larger.
        "original_max_position_embeddings": config.trained_length if scaling == "llama3" else 0,
    }


def _set_scaling(spec: Any, config: ModelConfig) -> None:
    if config.rotary_scaling == "llama3":
        spec.rotary_low_freq_factor = config.rotary_slow
        spec.rotary_high_freq_factor = config.rotary_fast or 4.0
        # The engine reads the factor, but the specification has no place for it.
        vars(spec)["rotary_scaling_factor"] = config.rotary_factor
    if config.rotary_scaling == "yarn":
        width = config.d_head
        plain = config.rotary_base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        slower = (plain / rates(config)).float()
        spec.rotary_scaling_long_factor = spec.rotary_scaling_short_factor = slower


def _set_feed_forward(spec: Any, config: ModelConfig, read: Read, block: str) -> None:
    name = f"{block}.feed_forward"
    _set_norm(spec.layer_norm, read, f"{name}_residual.norm", config)
    _set_linear(spec.linear_1, read, f"{name}.outer", config.bias)
    if not config.gated:
        _set_linear(spec.linear_0, read, f"{name}.inner", config.bias)
        return
    halves = spec.linear_0, spec.linear_0_noact
    for half, weight in zip(halves, read(f"{name}.inner.weight").chunk(2), strict=True):
        half.weight = weight
    if config.bias:
        for half, bias in zip(halves, read(f"{name}.inner.bias").chunk(2), strict=True):
            half.bias = bias


def _set_linear(spec: Any, read: Read, name: str, bias: bool = True) -> None:
    spec.weight = read(f"{name}.weight")
    if bias:
        spec.bias = read(f"{name}.bias")


def _set_norm(spec: Any, read: Read, name: str, config: ModelConfig) -> None:
    spec.gamma = read(f"{name}.weight")
    if config.norm == "layer":
        spec.beta = read(f"{name}.bias")
