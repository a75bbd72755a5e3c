"""Small random Llama and Mistral models, and ours with the same weights."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from qkv.config import preset
from qkv.model import Decoder
from tests.parity.gpt import Pair, Places, copy_weights, draw_weights

EPSILON = 1e-2  # large enough to show in the logits


def llama_pair(
    seed: int = 0,
    *,
    vocab_size: int = 100,
    d_model: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    d_ff: int = 48,
    layers: int = 2,
    tied: bool = False,
    window: int = 0,
    max_length: int = 1024,
    base: float = 100.0,
    rope: Mapping[str, object] | None = None,
    **differences: object,
) -> Pair:
    """Llama, or Mistral where there is a window; `rope` and `differences` say the same of angles.

    With so small a base, no pair turns so slowly that it stands still over a test's few tokens.
    """
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": d_model,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
        "max_position_embeddings": max_length,
        "rms_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": base} | dict(rope or {}),
    }
    theirs = (
        MistralForCausalLM(MistralConfig(**sizes, sliding_window=window))
        if window
        else LlamaForCausalLM(LlamaConfig(**sizes))
    )
    ours = {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_ff": d_ff,
        "n_decoder_layers": layers,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "tie": "output" if tied else "none",
        "window": window,
        "max_length": max_length,
        "rotary_base": base,
        "norm_epsilon": EPSILON,
    }
    model = Decoder(preset("llama-7b", **{**ours, **differences}))
    draw_weights(theirs, seed)
    copy_weights(model, same_places(theirs, model))
    return theirs.eval(), model.eval()


def same_places(theirs: PreTrainedModel, ours: Decoder) -> Places:
    """Each module of ours and those of theirs that it holds, one under the other."""
    trunk = theirs.model
    yield ours.embedding.table, [trunk.embed_tokens]
    for block, layer in zip(ours.decoder.blocks, trunk.layers, strict=True):
        attention = layer.self_attn
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        yield block.self_attention.query_key_value, projections
        yield block.self_attention.output, [attention.o_proj]
        yield block.self_attention_residual.norm, [layer.input_layernorm]
        yield block.feed_forward.inner, [layer.mlp.gate_proj, layer.mlp.up_proj]
        yield block.feed_forward.outer, [layer.mlp.down_proj]
        yield block.feed_forward_residual.norm, [layer.post_attention_layernorm]
    yield ours.decoder.norm, [trunk.norm]
    if ours.config.tie == "none":
        yield ours.output.projection, [theirs.lm_head]
