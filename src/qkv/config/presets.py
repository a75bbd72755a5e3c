"""Architectures by name: a choice of parts and sizes, never a file of layers."""

from __future__ import annotations

from typing import Any

from qkv.config.fields import suggestion
from qkv.config.model import ModelConfig
from qkv.errors import UserError

Values = dict[str, Any]


def _decoder(layers: int, d_model: int, n_heads: int, d_ff: int = 0) -> Values:
    """Sizes of a decoder; a feed-forward layer is usually four times as wide."""
    return {
        "n_decoder_layers": layers,
        "d_model": d_model,
        "n_heads": n_heads,
        "d_ff": d_ff or 4 * d_model,
    }


def _both(layers: int, d_model: int, n_heads: int, d_ff: int = 0) -> Values:
    """Sizes of an encoder and a decoder that are equally deep."""
    return {**_decoder(layers, d_model, n_heads, d_ff), "n_encoder_layers": layers}


def _encoder(layers: int, d_model: int, n_heads: int) -> Values:
    return {**_both(layers, d_model, n_heads), "n_decoder_layers": 0}


# Raffel et al. 2020: the scores know distances; nothing has a bias, and scores are not divided
_T5: Values = {
    "norm": "rms",
    "norm_position": "pre",
    "norm_epsilon": 1e-6,
    "positions": "relative",
    "relative_buckets": 32,
    "relative_length": 128,
    "bias": False,
    "score_division": False,
    "embedding_scale": False,
    "output_scale": True,
    "tie": "all",  # not only by default: two vocabularies are refused
    "init": "normal",
    "max_length": 512,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
}
# Its version 1.1: a gated feed-forward layer, and an output of its own
_T5_GATED: Values = {
    **_T5,
    "gated": True,
    "activation": "gelu_tanh",
    "output_scale": False,
    "tie": "inputs",
}
# Lewis et al. 2020
_BART: Values = {
    "positions": "learned",
    "activation": "gelu",
    "embedding_scale": False,
    "embedding_norm": True,
    "tie": "all",
    "output_bias": True,
    "init": "normal",
}
# Radford et al. 2018: post-norm, learned positions
_GPT: Values = {
    "family": "decoder",
    "n_encoder_layers": 0,
    "positions": "learned",
    "activation": "gelu_tanh",
    "embedding_scale": False,
    "tie": "output",
    "init": "normal",
    "max_length": 512,
    "attention_dropout": 0.1,
}
# Radford et al. 2019: the norm moves to the front of each sublayer, and one stands at the end
_GPT2: Values = {**_GPT, "norm_position": "pre", "max_length": 1024}
# Brown et al. 2020: every other layer looks at its neighbourhood only
_GPT3: Values = {**_GPT2, "max_length": 2048, "window": 256, "window_layers": "alternate"}
# Touvron et al. 2023
_LLAMA: Values = {
    "family": "decoder",
    "n_encoder_layers": 0,
    "norm": "rms",
    "norm_position": "pre",
    "positions": "rotary",
    "activation": "silu",
    "gated": True,
    "bias": False,
    "embedding_scale": False,
    "tie": "none",
    "init": "normal",
    "max_length": 2048,
    "dropout": 0.0,
}
# Llama 3.2 and others: the output is the embedding, as in all small ones
_SMALL_LLAMA: Values = {**_LLAMA, "tie": "output"}
# Devlin et al. 2019: what a text's two parts are is told by segments, and a norm comes first
_BERT: Values = {
    "family": "encoder",
    "positions": "learned",
    "activation": "gelu",
    "norm_epsilon": 1e-12,
    "embedding_scale": False,
    "embedding_norm": True,
    "n_segments": 2,
    "tie": "output",
    "init": "normal",
    "max_length": 512,
    "pooler": "tanh",
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
# Liu et al. 2019: no next-sentence prediction, so no segments
_ROBERTA: Values = {**_BERT, "n_segments": 0, "pair_separators": 2, "norm_epsilon": 1e-5}
# Lan et al. 2020: one block for all layers, narrow embeddings
_ALBERT: Values = {
    **_BERT,
    "shared_layers": True,
    "d_embedding": 128,
    "activation": "gelu_tanh",
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
# He et al. 2021 and 2023: distances instead of places
_DEBERTA: Values = {
    **_BERT,
    "positions": "disentangled",
    "n_segments": 0,
    "norm_epsilon": 1e-7,
    "pooler": "gelu",
}
# Dosovitskiy et al. 2021
_VIT: Values = {
    "family": "encoder",
    "positions": "learned",
    "activation": "gelu",
    "norm_position": "pre",
    "norm_epsilon": 1e-12,
    "embedding_scale": False,
    "tie": "none",
    "init": "normal",
    "dropout": 0.0,
    "vocab_size": 1,
}
# The same architectures for less text
_SHORT: Values = {"max_length": 256}
_MINI: Values = {**_SHORT, "attention_dropout": 0.0}

PRESETS: dict[str, Values] = {
    # Vaswani et al. 2017, table 3
    "transformer-base": _both(6, 512, 8),
    "transformer-big": {**_both(6, 1024, 16), "dropout": 0.3},
    # The same architecture for less data
    "transformer-small": _both(3, 256, 4),
    "transformer-tiny": _both(2, 128, 4),
    "t5-small": {**_T5, **_both(6, 512, 8)},
    "t5-base": {**_T5, **_both(12, 768, 12)},
    "t5-gated-small": {**_T5_GATED, **_both(8, 512, 6, 1024), "d_key": 64},
    "t5-gated-base": {**_T5_GATED, **_both(12, 768, 12, 2048)},
    "bart-base": {**_BART, **_both(6, 768, 12)},
    "bart-large": {**_BART, **_both(12, 1024, 16)},
    "gpt": {**_GPT, **_decoder(12, 768, 12)},
    "gpt2": {**_GPT2, **_decoder(12, 768, 12)},
    "gpt2-medium": {**_GPT2, **_decoder(24, 1024, 16)},
    "gpt2-large": {**_GPT2, **_decoder(36, 1280, 20)},
    "gpt2-xl": {**_GPT2, **_decoder(48, 1600, 25)},
    "gpt3-small": {**_GPT3, **_decoder(12, 768, 12)},
    "gpt3": {**_GPT3, **_decoder(96, 12288, 96)},
    "llama-7b": {**_LLAMA, **_decoder(32, 4096, 32, 11008)},
    # Llama 3.2, whose angles were scaled from 8,192 tokens to 131,072
    "llama-1b": {
        **_SMALL_LLAMA,
        **_decoder(16, 2048, 32, 8192),
        "n_kv_heads": 8,
        "max_length": 131_072,
        "rotary_base": 500_000.0,
        "rotary_scaling": "llama3",
        "rotary_factor": 32.0,
        "rotary_trained_length": 8192,
    },
    "smollm2-135m": {
        **_SMALL_LLAMA,
        **_decoder(30, 576, 9, 1536),
        "n_kv_heads": 3,
        "rotary_base": 100_000.0,
        "max_length": 8192,
    },
    "gpt2-mini": {**_GPT2, **_decoder(6, 384, 6), **_SHORT, "dropout": 0.2},
    "llama-mini": {**_SMALL_LLAMA, **_decoder(6, 384, 6, 1024), **_SHORT, "dropout": 0.2},
    "llama-tiny": {**_SMALL_LLAMA, **_decoder(4, 128, 4, 384), **_SHORT},
    "bert-base": {**_BERT, **_encoder(12, 768, 12)},
    "bert-large": {**_BERT, **_encoder(24, 1024, 16)},
    "roberta-base": {**_ROBERTA, **_encoder(12, 768, 12)},
    "albert-base": {**_ALBERT, **_encoder(12, 768, 12)},
    "deberta-base": {**_DEBERTA, **_encoder(12, 768, 12)},
    "vit-base": {
        **_VIT,
        **_encoder(12, 768, 12),
        "image_size": 224,
        "patch_size": 16,
        "n_channels": 3,
    },
    "bert-mini": {**_BERT, **_encoder(4, 256, 4), **_MINI},
    "bert-small": {**_BERT, **_encoder(4, 512, 8), **_MINI},
    "bert-tiny": {**_BERT, **_encoder(2, 128, 2), **_MINI},
    "roberta-mini": {**_ROBERTA, **_encoder(4, 256, 4), **_MINI},
    "t5-mini": {**_T5, **_both(4, 256, 4), **_MINI},
    "bart-mini": {**_BART, **_both(4, 256, 4), **_MINI},
    "albert-mini": {**_ALBERT, **_encoder(4, 256, 4), **_MINI, "d_embedding": 64},
    "deberta-mini": {**_DEBERTA, **_encoder(4, 256, 4), **_MINI, "relative_buckets": 64},
    # Smaller images
    "vit-tiny": {**_VIT, **_encoder(4, 64, 4), "image_size": 8, "patch_size": 2, "dropout": 0.1},
}


def preset(name: str, **differences: Any) -> ModelConfig:
    """Build a preset's config, with what differs from it."""
    if name not in PRESETS:
        raise UserError(f"model: unknown preset {name!r}{suggestion(name, PRESETS)}")
    return ModelConfig.from_dict({**PRESETS[name], **differences})
