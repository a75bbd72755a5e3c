"""The peers in our sizes: torch.nn.Transformer and the models of transformers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)
from transformers.pytorch_utils import Conv1D

from qkv.config import ModelConfig
from qkv.model import Decoder, Encoder, sinusoids

CausalPeer = GPT2LMHeadModel | LlamaForCausalLM
Modules = Iterator[tuple[nn.Module, list[nn.Module]]]
"""Each module of ours with the modules of the peer that it holds, in the order of its rows."""


def marian(config: ModelConfig) -> MarianMTModel:
    """Build Marian with our sizes and special tokens, and random weights."""
    return MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.n_encoder_layers,
            decoder_layers=config.n_decoder_layers,
            encoder_attention_heads=config.n_heads,
            decoder_attention_heads=config.n_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function=config.activation,
            dropout=config.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            max_position_embeddings=config.max_length,
            pad_token_id=config.pad_id,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id,
            forced_eos_token_id=None,
        )
    )


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with an embedding, positions and a tied output, which it lacks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.register_buffer("positions", sinusoids(config.max_length, config.d_model))
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.n_heads,
            config.n_encoder_layers,
            config.n_decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        self.scale = config.d_model**0.5

    def embed(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens) * self.scale
        return self.dropout(embedded + self.positions[: tokens.shape[1]])

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        padding = mask == 0
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], source.device)
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(hidden, self.embedding.weight)


def causal_peer(ours: Decoder) -> CausalPeer:
    """Return GPT-2 or Llama of transformers with our sizes and weights.

    No token ends an output, so that both sides generate as many as they are asked for.
    """
    if ours.config.positions == "rotary":
        return _with_our_weights(ours, llama, _modules_of_llama)
    return _with_our_weights(ours, gpt2, _modules_of_gpt2)


def masked_peer(ours: Encoder) -> BertForMaskedLM:
    """Return BERT of transformers with our sizes and weights."""
    return _with_our_weights(ours, bert, _modules_of_bert)


@torch.no_grad()
def _with_our_weights(
    ours: Decoder | Encoder, build: Callable[[ModelConfig], Any], modules: Callable[..., Modules]
) -> Any:
    """Build a peer on our device and in our dtype, and copy each of our weights into it."""
    weight = ours.embedding.table.weight
    with making(weight.device, weight.dtype):
        theirs = build(ours.config)
    missing = set(theirs.parameters())
    for module, parts in modules(ours, theirs):
        for kind, weight in module.named_parameters():
            values = [getattr(part, kind) for part in parts]
            # Conv1D, which transformers' GPT-2 is made of, stores the transposed matrix.
            transposed = isinstance(parts[0], Conv1D) and kind == "weight"
            pieces = [weight.T] if transposed else weight.split([len(value) for value in values])
            for value, piece in zip(values, pieces, strict=True):
                value.copy_(piece)
                missing.discard(value)
    assert not missing, f"{len(missing)} of their weights have no counterpart in ours"
    return theirs


@contextmanager
def making(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Create weights on this device in this dtype; tables that ask for float32 keep it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def gpt2(config: ModelConfig) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.max_length,
            n_embd=config.d_model,
            n_layer=config.n_decoder_layers,
            n_head=config.n_heads,
            n_inner=config.d_ff,
            layer_norm_epsilon=config.norm_epsilon,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.attention_dropout,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    )


def llama(config: ModelConfig) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=_longest(config),
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_decoder_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.kv_heads,
            rms_norm_eps=config.norm_epsilon,
            rope_parameters=_angles(config),
            tie_word_embeddings=config.tie != "none",
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    )


def _longest(config: ModelConfig) -> int:
    """Return the context length; a scaled one in full, or else transformers warns."""
    scaled = config.rotary_scaling != "none"
    return round(config.trained_length * config.rotary_factor) if scaled else config.max_length


def _angles(config: ModelConfig) -> dict[str, object]:
    if config.rotary_scaling == "none":
        return {"rope_type": "default", "rope_theta": config.rotary_base}
    assert config.rotary_scaling == "llama3", config.rotary_scaling
    return {
        "rope_type": "llama3",
        "rope_theta": config.rotary_base,
        "factor": config.rotary_factor,
        "original_max_position_embeddings": config.trained_length,
        "low_freq_factor": config.rotary_slow,
        "high_freq_factor": config.rotary_fast or 4.0,
    }


def _modules_of_gpt2(ours: Decoder, theirs: GPT2LMHeadModel) -> Modules:
    yield ours.embedding.table, [theirs.transformer.wte]
    yield ours.output.projection, [theirs.lm_head]
    yield ours.decoder.positions.table, [theirs.transformer.wpe]
    yield ours.decoder.norm, [theirs.transformer.ln_f]
    for block, layer in zip(ours.decoder.blocks, theirs.transformer.h, strict=True):
        yield block.self_attention_residual.norm, [layer.ln_1]
        yield block.self_attention.query_key_value, [layer.attn.c_attn]
        yield block.self_attention.output, [layer.attn.c_proj]
        yield block.feed_forward_residual.norm, [layer.ln_2]
        yield block.feed_forward.inner, [layer.mlp.c_fc]
        yield block.feed_forward.outer, [layer.mlp.c_proj]


def _modules_of_llama(ours: Decoder, theirs: LlamaForCausalLM) -> Modules:
    yield ours.embedding.table, [theirs.model.embed_tokens]
    yield ours.output.projection, [theirs.lm_head]
    yield ours.decoder.norm, [theirs.model.norm]
    for block, layer in zip(ours.decoder.blocks, theirs.model.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        yield block.self_attention_residual.norm, [layer.input_layernorm]
        yield block.self_attention.query_key_value, projections
        yield block.self_attention.output, [attention.o_proj]
        yield block.feed_forward_residual.norm, [layer.post_attention_layernorm]
        yield block.feed_forward.inner, [mlp.gate_proj, mlp.up_proj]
        yield block.feed_forward.outer, [mlp.down_proj]


def bert(config: ModelConfig) -> BertForMaskedLM:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_length,
            hidden_size=config.d_model,
            num_hidden_layers=config.n_encoder_layers,
            num_attention_heads=config.n_heads,
            intermediate_size=config.d_ff,
            hidden_act=config.activation,
            type_vocab_size=config.n_segments,
            layer_norm_eps=config.norm_epsilon,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            pad_token_id=config.pad_id,
            attn_implementation="sdpa",
        )
    )


def _modules_of_bert(ours: Encoder, theirs: BertForMaskedLM) -> Modules:
    embeddings, guess = theirs.bert.embeddings, theirs.cls.predictions
    yield ours.embedding.table, [embeddings.word_embeddings]
    yield ours.encoder.positions.table, [embeddings.position_embeddings]
    yield ours.segments, [embeddings.token_type_embeddings]
    yield ours.encoder.input_norm, [embeddings.LayerNorm]
    for block, layer in zip(ours.encoder.blocks, theirs.bert.encoder.layer, strict=True):
        attention = layer.attention
        projections = [attention.self.query, attention.self.key, attention.self.value]
        yield block.self_attention.query_key_value, projections
        yield block.self_attention.output, [attention.output.dense]
        yield block.self_attention_residual.norm, [attention.output.LayerNorm]
        yield block.feed_forward.inner, [layer.intermediate.dense]
        yield block.feed_forward.outer, [layer.output.dense]
        yield block.feed_forward_residual.norm, [layer.output.LayerNorm]
    yield ours.head.dense, [guess.transform.dense]
    yield ours.head.norm, [guess.transform.LayerNorm]
    yield ours.head.projection, [guess.decoder]
