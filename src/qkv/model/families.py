"""The three families: encoder-decoder, encoder and decoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.cache import NewTokens
from qkv.model.heads import LabelHead, MaskedHead, Pooler, VectorProjection, pool
from qkv.model.initialisation import initialise
from qkv.model.mask import Layout
from qkv.model.patches import Patches
from qkv.model.regions import region
from qkv.model.soft_cap import soft_cap
from qkv.model.stack import Memory, Stack

FULL = Layout()  # rows without padding
Then = Callable[[Tensor], Tensor]
"""Applied to the hidden states inside `forward`, in place of the output projection or head.

A loss computed there belongs to the forward pass, so that hooks around it see all of it.
"""


class Embedding(nn.Module):
    """Token ids to vectors, times √d_model in the paper (section 3.4)."""

    rounded_scale: Tensor | None

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, config.embedding_width)
        self.scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0
        rounded = torch.tensor(self.scale) if config.round_embedding_scale else None
        self.register_buffer("rounded_scale", rounded, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) to (B, T, D)."""
        x: Tensor = self.table(tokens)
        return x * (self.scale if self.rounded_scale is None else self.rounded_scale.to(x.dtype))


class Output(nn.Module):
    """Vectors to logits: H·W_out, where W_out may be the embedding itself."""

    def __init__(self, config: ModelConfig, tied_to: Embedding | None) -> None:
        super().__init__()
        self.projection = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.scale = config.d_model**-0.5 if config.output_scale else 1.0
        self.cap = config.logit_cap
        if tied_to is not None:
            self.projection.weight = tied_to.table.weight

    def hidden(self, x: Tensor) -> Tensor:
        """Scale the vectors that W_out projects, (B, T, D)."""
        return x * self.scale if self.scale != 1.0 else x

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, V)."""
        return soft_cap(self.projection(self.hidden(x)), self.cap)


@dataclass(frozen=True)
class AdaptedFrom:
    """The model whose frozen weights an adapted one has."""

    base: str  # a folder or a name
    model_type: str = ""  # of its architecture, where another library has one for it
    saved_as: str = ""  # the digest of its save, where the folder is one of ours


class Transformer(nn.Module):
    """What the three families share."""

    config: ModelConfig
    adapted_from: AdaptedFrom | None = None


class EncoderDecoder(Transformer):
    """The original Transformer: an encoder, and a causal decoder that attends to its output."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = Embedding(config, config.source_vocab_size or config.vocab_size)
        self.target_embedding = (
            self.source_embedding
            if config.tie in ("all", "inputs")
            else Embedding(config, config.vocab_size)
        )
        self.encoder = Stack(config, config.n_encoder_layers, causal=False)
        self.decoder = Stack(config, config.n_decoder_layers, causal=True, cross=True)
        alone = config.tie in ("inputs", "none")
        self.output = Output(config, None if alone else self.target_embedding)
        initialise(self, config)

    def encode(self, source: Tensor, layout: Layout = FULL) -> Tensor:
        """Source tokens (B, S) to the encoder's output (B, S, D)."""
        return self.encoder(self.source_embedding(source), layout)

    def remember(self, source: Tensor, layout: Layout = FULL) -> Memory:
        """Encode a source and project it to K and V, once for all decoding steps."""
        return self.decoder.remember(self.encode(source, layout), layout)

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        layout: Layout = FULL,
        cache: NewTokens | None = None,
    ) -> Tensor:
        """Shifted target tokens (B, T) to the decoder's output (B, T, D)."""
        return self.decoder(self.target_embedding(target), layout, cache, memory)

    def hidden(
        self, source: Tensor, target: Tensor, source_layout: Layout, target_layout: Layout
    ) -> Tensor:
        """Run encoder and decoder, teacher-forced, up to the output projection, (B, T, D)."""
        return self.decode(target, self.remember(source, source_layout), target_layout)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_layout: Layout = FULL,
        target_layout: Layout = FULL,
        *,
        then: Then | None = None,
    ) -> Tensor:
        """Logits for each target position, (B, T, V), or the result of `then`."""
        x = self.hidden(source, target, source_layout, target_layout)
        return self.output(x) if then is None else region(then)(x)


class Encoder(Transformer):
    """Encoder-only: each token sees all but padding; a head predicts from the vectors.

    The config names the head, so that a model folder tells what it is for. A `causal` encoder is a
    decoder's stack under such a head (Radford et al. 2018).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        words = None if config.patch_size else Embedding(config, config.vocab_size)
        self.embedding = words or Patches(config)
        width = config.embedding_width
        self.segments = nn.Embedding(config.n_segments, width) if config.n_segments else None
        self.encoder = Stack(config, config.n_encoder_layers, causal=config.causal)
        self.pooler = Pooler(config)
        self.head: nn.Module = nn.Identity()
        if config.head == "masked":
            assert words is not None
            self.head = MaskedHead(config, words.table)
        elif config.head != "none":
            self.head = LabelHead(config, config.n_labels)
        self.pair_head = LabelHead(config, 2) if config.pair_head else None
        self.vector = VectorProjection(config) if config.d_vector else None
        initialise(self, config)

    def hidden(
        self, tokens: Tensor, layout: Layout = FULL, segments: Tensor | None = None
    ) -> Tensor:
        """Tokens (B, S), or an image's pixels, to contextual vectors (B, S, D)."""
        x = self.embedding(tokens)
        if self.segments is not None:
            if segments is None or self.config.n_segments == 1:  # RoBERTa has one segment
                segments = torch.zeros_like(tokens)
            x = x + self.segments(segments)
        return self.encoder(x, layout)

    def embed(self, x: Tensor, layout: Layout, how: str) -> Tensor:
        """Contextual vectors (B, S, D) to one vector a text, (M, d_vector or D), in float32."""
        vector = pool(x.to(torch.promote_types(x.dtype, torch.float32)), layout, how)
        return vector if self.vector is None else self.vector(vector.to(x.dtype)).to(vector.dtype)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout = FULL,
        segments: Tensor | None = None,
        *,
        then: Then | None = None,
    ) -> Tensor:
        """The head's output for tokens (B, S, …) or sequences (M, …), or the result of `then`."""
        x = self.hidden(tokens, layout, segments)
        if then is not None:
            return region(then)(x)
        return self.head(self.pooler(x, layout) if self.config.head == "sequence" else x)


class Decoder(Transformer):
    """Decoder-only: each token sees itself and those before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, config.vocab_size)
        self.decoder = Stack(config, config.n_decoder_layers, causal=True)
        alone = config.tie in ("inputs", "none")
        self.output = Output(config, None if alone else self.embedding)
        initialise(self, config)

    def hidden(
        self, tokens: Tensor, layout: Layout = FULL, cache: NewTokens | None = None
    ) -> Tensor:
        """Tokens (B, T) to vectors (B, T, D), as a continuation of the cache."""
        return self.decoder(self.embedding(tokens), layout, cache)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout = FULL,
        cache: NewTokens | None = None,
        *,
        then: Then | None = None,
    ) -> Tensor:
        """Logits of each next token, (B, T, V), or the result of `then`."""
        x = self.hidden(tokens, layout, cache)
        return self.output(x) if then is None else region(then)(x)


Model = EncoderDecoder | Encoder | Decoder


def build_model(config: ModelConfig) -> Model:
    """Build the family that the config names, with fresh weights."""
    families: dict[str, type[Model]] = {
        "encoder-decoder": EncoderDecoder,
        "encoder": Encoder,
        "decoder": Decoder,
    }
    return families[config.family](config)
