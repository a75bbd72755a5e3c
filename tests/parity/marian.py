"""A small random MarianMTModel and our model with the same weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from qkv.config import ModelConfig
from qkv.model import Attention, Block, EncoderDecoder

EOS = 0  # as in the OPUS-MT checkpoints, where padding is the last id and starts a target
SPREADS = {"bias": 0.05, "q_proj": 0.5, "k_proj": 0.5, "v_proj": 0.3, "shared": 0.3, "": 0.1}
ACTIVATIONS = {"swish": "silu", "relu": "relu", "gelu": "gelu"}


def marian_pair(
    seed: int = 0,
    *,
    vocab_size: int = 100,
    d_model: int = 32,
    heads: int = 4,
    d_ff: int = 64,
    encoder_layers: int = 2,
    decoder_layers: int = 2,
    activation: str = "swish",
    max_length: int = 128,
) -> tuple[MarianMTModel, EncoderDecoder]:
    """Both models with the same random weights, in eval mode and float32."""
    pad = vocab_size - 1
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            max_position_embeddings=max_length,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=d_ff,
            decoder_ffn_dim=d_ff,
            activation_function=activation,
            scale_embedding=True,
            dropout=0.0,
            eos_token_id=EOS,
            forced_eos_token_id=None,
            pad_token_id=pad,
            decoder_start_token_id=pad,
        )
    )
    _draw_weights(marian, seed)
    ours = EncoderDecoder(
        ModelConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            max_length=max_length,
            n_encoder_layers=encoder_layers,
            n_decoder_layers=decoder_layers,
            n_heads=heads,
            d_ff=d_ff,
            activation=ACTIVATIONS[activation],
            positions="sinusoidal_halves",
            tie="all",
            output_bias=True,
            dropout=0.0,
            pad_id=pad,
            bos_id=pad,
            eos_id=EOS,
        )
    )
    copy_weights(marian, ours)
    return marian.eval(), ours.eval()


@torch.no_grad()
def _draw_weights(marian: MarianMTModel, seed: int) -> None:
    """Draw weights of which greedy outputs vary, depend on every part, and end now and then.

    Sharp attention, norms of either sign and weak sublayers keep a decoder from repeating itself;
    a long EOS vector makes EOS now the likeliest token, now the least.
    """
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in marian.named_parameters():
        if "embed_positions" in name:
            continue
        spread = next(spread for part, spread in SPREADS.items() if part in name)
        drawn = torch.randn(parameter.shape, generator=draw)
        signs = drawn.sign() if "norm.weight" in name else 0
        parameter.copy_(signs + spread * drawn)
    marian.model.shared.weight[EOS] *= 3
    bias = marian.final_logits_bias
    bias.copy_(0.1 * torch.randn(bias.shape, generator=draw))
    bias[:, marian.config.pad_token_id] = -20.0  # padding is never an output


@torch.no_grad()
def copy_weights(marian: MarianMTModel, ours: EncoderDecoder) -> None:
    """Give our model the weights of a MarianMTModel that shares its embeddings."""
    ours.source_embedding.table.weight.copy_(marian.model.shared.weight)
    assert ours.output.projection.bias is not None
    ours.output.projection.bias.copy_(marian.final_logits_bias[0])
    for mine, theirs in same_places(marian, ours):
        for kind, parameter in mine.named_parameters():
            parameter.copy_(torch.cat([getattr(part, kind) for part in theirs]))


Places = Iterator[tuple[nn.Module, list[nn.Module]]]


def same_places(marian: MarianMTModel, ours: EncoderDecoder) -> Places:
    """Each module in our blocks and those of Marian that it holds, one under the other."""
    stacks = [(ours.encoder, marian.model.encoder), (ours.decoder, marian.model.decoder)]
    for stack, theirs in stacks:
        for block, layer in zip(stack.blocks, theirs.layers, strict=True):
            yield from _same_in_block(block, layer)


def _same_in_block(block: Block, layer: nn.Module) -> Places:
    yield from _same_attention(block.self_attention, layer.self_attn)
    yield block.self_attention_residual.norm, [layer.self_attn_layer_norm]
    if hasattr(layer, "encoder_attn"):
        yield from _same_attention(block.cross_attention, layer.encoder_attn)
        yield block.cross_attention_residual.norm, [layer.encoder_attn_layer_norm]
    yield block.feed_forward.inner, [layer.fc1]
    yield block.feed_forward.outer, [layer.fc2]
    yield block.feed_forward_residual.norm, [layer.final_layer_norm]


def _same_attention(mine: Attention, theirs: nn.Module) -> Places:
    if hasattr(mine, "query"):
        yield mine.query, [theirs.q_proj]
        yield mine.key_value, [theirs.k_proj, theirs.v_proj]
    else:
        yield mine.query_key_value, [theirs.q_proj, theirs.k_proj, theirs.v_proj]
    yield mine.output, [theirs.out_proj]


def sources(lengths: list[int], vocab_size: int = 100, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random sources that end in EOS, padded to the longest, and their lengths."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.full((len(lengths), max(lengths)), vocab_size - 1)
    for row, length in zip(rows, lengths, strict=True):
        row[: length - 1] = torch.randint(1, vocab_size - 1, (length - 1,), generator=draw)
        row[length - 1] = EOS
    return rows, torch.tensor(lengths)
