"""The peers, in the size that ours has: transformers' MarianMTModel and torch.nn.Transformer."""

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from qkv.config import ModelConfig
from qkv.model import sinusoids


def marian(config: ModelConfig) -> MarianMTModel:
    """The same sizes, random weights; its special tokens are ours."""
    return MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size, d_model=config.d_model,
            encoder_layers=config.n_encoder_layers, decoder_layers=config.n_decoder_layers,
            encoder_attention_heads=config.n_heads, decoder_attention_heads=config.n_heads,
            encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff,
            activation_function=config.activation, dropout=config.dropout,
            attention_dropout=0.0, activation_dropout=0.0, scale_embedding=True,
            max_position_embeddings=config.max_length, pad_token_id=config.pad_id,
            bos_token_id=config.bos_id, eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id, forced_eos_token_id=None,
        )
    )  # fmt: skip


def marian_logits(model: MarianMTModel, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    return model(
        input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False
    ).logits


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with the embedding, positions and tied output that it leaves out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.register_buffer("positions", sinusoids(config.max_length, config.d_model))
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model, config.n_heads, config.n_encoder_layers, config.n_decoder_layers,
            config.d_ff, config.dropout, batch_first=True,
        )  # fmt: skip
        self.scale = config.d_model**0.5

    def embed(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens) * self.scale
        return self.dropout(embedded + self.positions[: tokens.shape[1]])

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        padding = mask == 0
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], source.device)
        hidden = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return F.linear(hidden, self.embedding.weight)


def peer_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
