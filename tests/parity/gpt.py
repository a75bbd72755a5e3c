"""Small random GPT, GPT-2 and GPT-Neo models, and ours with the same weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from qkv.config import preset
from qkv.model import Decoder, Layout

Pair = tuple[PreTrainedModel, Decoder]
# Sharp attention, and positions that weigh as much as tokens
SPREADS = {
    "bias": 0.1,
    "q_proj": 0.2,
    "k_proj": 0.2,
    "c_attn": 0.3,
    "proj": 0.2,
    "wte": 0.5,
    "wpe": 0.5,
    "embed": 0.5,
    "": 0.2,
}


def gpt_pair(
    seed: int = 0,
    *,
    vocab_size: int = 100,
    d_model: int = 32,
    heads: int = 4,
    layers: int = 2,
    max_length: int = 48,
) -> Pair:
    """OpenAI's first GPT, whose feed-forward layers are always 4·d_model wide."""
    theirs = OpenAIGPTLMHeadModel(
        OpenAIGPTConfig(
            vocab_size=vocab_size,
            n_embd=d_model,
            n_head=heads,
            n_layer=layers,
            n_positions=max_length,
        )
    )
    ours = preset(
        "gpt",
        vocab_size=vocab_size,
        d_model=d_model,
        n_heads=heads,
        n_decoder_layers=layers,
        d_ff=4 * d_model,
        max_length=max_length,
    )
    return same_weights(theirs, Decoder(ours), seed)


def gpt2_pair(
    seed: int = 0,
    *,
    vocab_size: int = 100,
    d_model: int = 32,
    heads: int = 4,
    layers: int = 2,
    d_ff: int = 64,
    max_length: int = 48,
) -> Pair:
    """GPT-2, as its preset has it."""
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab_size,
            n_embd=d_model,
            n_head=heads,
            n_layer=layers,
            n_inner=d_ff,
            n_positions=max_length,
            bos_token_id=2,
            eos_token_id=3,
        )
    )
    ours = preset(
        "gpt2",
        vocab_size=vocab_size,
        d_model=d_model,
        n_heads=heads,
        n_decoder_layers=layers,
        d_ff=d_ff,
        max_length=max_length,
    )
    return same_weights(theirs, Decoder(ours), seed)


def gpt3_pair(
    seed: int = 0,
    *,
    vocab_size: int = 100,
    d_model: int = 32,
    heads: int = 4,
    layers: int = 4,
    d_ff: int = 64,
    window: int = 3,
    max_length: int = 48,
) -> Pair:
    """GPT-3's layers, full and local in turns, as GPT-Neo builds them."""
    theirs = GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=vocab_size,
            hidden_size=d_model,
            num_heads=heads,
            num_layers=layers,
            attention_types=[[["global", "local"], layers // 2]],
            intermediate_size=d_ff,
            window_size=window,
            max_position_embeddings=max_length,
            bos_token_id=2,
            eos_token_id=3,
        )
    )
    ours = preset(
        "gpt3-small",
        vocab_size=vocab_size,
        d_model=d_model,
        n_heads=heads,
        n_decoder_layers=layers,
        d_ff=d_ff,
        window=window,
        max_length=max_length,
    )
    pair = same_weights(theirs, Decoder(ours), seed)
    with torch.no_grad():
        for layer in theirs.transformer.h:  # GPT-Neo does not divide scores by √(D/H)
            layer.attn.attention.q_proj.weight *= ours.d_head**-0.5
    return pair


def same_weights(theirs: PreTrainedModel, ours: Decoder, seed: int) -> Pair:
    """Draw their weights, copy them into ours, and leave both in eval mode."""
    draw_weights(theirs, seed)
    copy_weights(ours, same_places(theirs, ours))
    return theirs.eval(), ours.eval()


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int) -> None:
    """Draw large weights, norms of either sign and biases, so that every part matters."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        spread = next(spread for part, spread in SPREADS.items() if part in name)
        drawn = torch.randn(parameter.shape, generator=draw)
        is_norm = "norm" in name or "ln_" in name
        signs = drawn.sign() if is_norm and name.endswith("weight") else 0
        parameter.copy_(signs + spread * drawn)


Places = Iterator[tuple[nn.Module, list[nn.Module]]]


@torch.no_grad()
def copy_weights(ours: Decoder, places: Places) -> None:
    """Give each of our modules the weights of theirs that it holds."""
    missing = {name for name, _ in ours.named_parameters()}
    names = {module: name for name, module in ours.named_modules()}
    for mine, parts in places:
        for kind, parameter in mine.named_parameters():
            parameter.copy_(laid(parts, kind))
            missing.remove(f"{names[mine]}.{kind}")
    assert not missing, missing


def same_places(theirs: PreTrainedModel, ours: Decoder) -> Places:
    """Each module of ours and those of theirs that it holds, one under the other."""
    trunk = theirs.transformer
    oldest = hasattr(trunk, "tokens_embed")  # the first GPT has other names, and no last norm
    yield ours.embedding.table, [trunk.tokens_embed if oldest else trunk.wte]
    yield ours.decoder.positions.table, [trunk.positions_embed if oldest else trunk.wpe]
    for block, layer in zip(ours.decoder.blocks, trunk.h, strict=True):
        attention = getattr(layer.attn, "attention", layer.attn)
        if hasattr(attention, "c_attn"):
            projections, output = [attention.c_attn], attention.c_proj
        else:
            projections = [attention.q_proj, attention.k_proj, attention.v_proj]
            output = attention.out_proj
        yield block.self_attention.query_key_value, projections
        yield block.self_attention.output, [output]
        yield block.self_attention_residual.norm, [layer.ln_1]
        yield block.feed_forward.inner, [layer.mlp.c_fc]
        yield block.feed_forward.outer, [layer.mlp.c_proj]
        yield block.feed_forward_residual.norm, [layer.ln_2]
    if not oldest:
        yield ours.decoder.norm, [trunk.ln_f]


def laid(parts: list[nn.Module], kind: str, gradient: bool = False) -> Tensor:
    """Weights (or their gradients) of several modules, one under the other, as ours holds them."""
    return torch.cat([_value(part, kind, gradient) for part in parts])


def _value(part: nn.Module, kind: str, gradient: bool) -> Tensor:
    value: Tensor | None = getattr(part, kind)
    if value is None:  # GPT-Neo's projections have no bias, and ours one of zeros
        return torch.zeros(len(part.weight))
    value = value.grad if gradient else value
    assert value is not None
    return value.T if isinstance(part, Conv1D) and kind == "weight" else value


def prompts(lengths: list[int], vocab_size: int = 100, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random prompts, padded in front with anything, and where each begins, (B, 1)."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (len(lengths), max(lengths)), generator=draw)
    return tokens, max(lengths) - torch.tensor(lengths)[:, None]


def both_logits(pair: Pair, lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of both models at the real tokens of padded prompts, end to end, (N, V)."""
    theirs, ours = pair
    tokens, first = prompts(lengths, ours.config.vocab_size, seed)
    column = torch.arange(tokens.shape[1])
    real = column >= first
    mine = ours(tokens, Layout(first=first) if first.any() else Layout())
    other = theirs(
        input_ids=tokens,
        attention_mask=real.long(),
        position_ids=(column - first).clamp(min=0),
        use_cache=False,
    ).logits
    return mine[real], other[real]
