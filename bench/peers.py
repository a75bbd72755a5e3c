"""The peers in our sizes: torch.nn.Transformer and the models of transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import (
    BertForMaskedLM,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.architectures.bert import BERT
from qkv.convert.architectures.gpt import GPT2
from qkv.convert.architectures.llama import LLAMA
from qkv.convert.architectures.marian import MARIAN
from qkv.convert.huggingface.foreign_weights import applicable, write_weights
from qkv.model import Decoder, Encoder, sinusoids

CausalPeer = GPT2LMHeadModel | LlamaForCausalLM


def marian(config: ModelConfig) -> MarianMTModel:
    """Build Marian with our sizes and special tokens, and random weights."""
    ids = {
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.bos_id,
        "forced_eos_token_id": None,
    }
    return MarianMTModel(MarianConfig(**MARIAN.write_config(config), **ids))


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
    config, endless = ours.config, {"bos_token_id": None, "eos_token_id": None}
    if config.positions != "rotary":
        return _with_our_weights(ours, GPT2, "causal", endless)
    if config.rotary_scaling != "none":  # in full, or else transformers warns
        longest = round(config.trained_length * config.rotary_factor)
        endless["max_position_embeddings"] = longest
    return _with_our_weights(ours, LLAMA, "causal", endless)


def masked_peer(ours: Encoder) -> BertForMaskedLM:
    """Return BERT of transformers with our sizes and weights."""
    return _with_our_weights(ours, BERT, "masked", {"pad_token_id": ours.config.pad_id})


def _with_our_weights(
    ours: Decoder | Encoder, architecture: Architecture, head: str, more: dict[str, Any]
) -> Any:
    """Build a peer on our device and in our dtype, with our weights under its names."""
    kind = getattr(transformers, architecture.classes[head])
    values = {**architecture.write_config(ours.config), **more, "attn_implementation": "sdpa"}
    weight = ours.embedding.table.weight
    with making(weight.device, weight.dtype):
        theirs = kind(kind.config_class(**values))
    rules, _ = applicable(architecture, ours.config, head)
    tensors = write_weights(rules, dict(ours.named_parameters()))
    missing, _ = theirs.load_state_dict(tensors, strict=False)  # ours may have a pooler besides
    assert {*missing} <= {*(architecture.copies or ())}, missing
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
