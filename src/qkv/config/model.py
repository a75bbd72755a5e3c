"""What a model is: its family, its sizes and its choice of parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qkv.config.fields import check_ranges, from_mapping, setting
from qkv.errors import UserError

Family = Literal["encoder-decoder", "encoder", "decoder"]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides a model's computation; the weights are the only other thing."""

    family: Family = setting("encoder-decoder", "which stacks there are and what they may see")
    vocab_size: int = setting(8000, "V: size of the (target) vocabulary", least=1)
    source_vocab_size: int = setting(
        0, "V_src where the source has its own vocabulary; 0: one shared vocabulary", least=0
    )
    d_model: int = setting(256, "D: width of the residual stream", least=1)
    n_heads: int = setting(4, "H: attention heads; each is d_model / n_heads wide", least=1)
    n_kv_heads: int = setting(
        0, "key/value heads, each shared by n_heads / n_kv_heads query heads; 0: n_heads", least=0
    )
    d_ff: int = setting(1024, "F: inner width of the feed-forward layer", least=1)
    n_encoder_layers: int = setting(3, "blocks in the encoder", least=0)
    n_decoder_layers: int = setting(3, "blocks in the decoder", least=0)
    norm: Literal["layer", "rms"] = setting("layer", "LayerNorm, or RMSNorm (no mean, no bias)")
    norm_position: Literal["post", "pre"] = setting(
        "post", "post: norm(x + f(x)), as in the paper; pre: x + f(norm(x))"
    )
    norm_epsilon: float = setting(1e-5, "added to the variance before the root", least=0)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = setting(
        "relu", "the feed-forward layer's non-linearity"
    )
    gated: bool = setting(False, "feed-forward as (act(x·W_gate) * x·W_1)·W_2")
    bias: bool = setting(True, "biases in projections and feed-forward layers")
    positions: Literal["sinusoidal", "sinusoidal_halves", "learned", "rotary", "none"] = setting(
        "sinusoidal", "how order enters; in halves: all sines first, then all cosines, as Marian"
    )
    max_length: int = setting(1024, "longest sequence in tokens", least=1)
    rotary_base: float = setting(
        10_000.0, "rotary: the slowest pair turns by about 1/this", least=1
    )
    rotary_scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] = setting(
        "none", "rotary: how angles are squeezed for contexts longer than the trained one"
    )
    rotary_factor: float = setting(1.0, "rotary: how many times longer the context is", least=1)
    rotary_trained_length: int = setting(
        0, "rotary: the context before scaling (yarn, llama3); 0: max_length / factor", least=0
    )
    rotary_slow: float = setting(
        1.0, "rotary: pairs that turn fewer times in that context are squeezed in full", least=0
    )
    rotary_fast: float = setting(
        0.0, "rotary: pairs that turn more often are left as they are; 0: 32 (yarn), 4 (llama3)",
        least=0,
    )  # fmt: skip
    window: int = setting(
        0, "a decoder's token sees this many tokens up to itself; 0: all", least=0
    )
    window_layers: Literal["all", "alternate"] = setting(
        "all", "where the window holds; alternate: in every other layer, from the second, as GPT-3"
    )
    init: Literal["glorot", "normal"] = setting(
        "glorot", "first weights: the paper's, or N(0, 0.02) with smaller residual outputs (GPT-2)"
    )
    embedding_scale: bool = setting(True, "multiply embeddings by √d_model, as the paper does")
    tie: Literal["all", "output", "none"] = setting(
        "all", "share one matrix among both embeddings and output, output and its input, or none"
    )
    output_bias: bool = setting(False, "a bias on the logits (Marian)")
    dropout: float = setting(0.1, "on each sublayer's output and on the input", least=0, most=1)
    attention_dropout: float = setting(
        0.0, "on attention weights (not in the paper)", least=0, most=1
    )
    activation_dropout: float = setting(0.0, "inside the feed-forward layer", least=0, most=1)
    pad_id: int = setting(0, "padding token", least=0)
    bos_id: int = setting(2, "the token that starts a target", least=0)
    eos_id: int = setting(3, "the token that ends a sequence", least=0)

    def __post_init__(self) -> None:
        check_ranges(self, "model")
        if self.d_model % self.n_heads:
            raise UserError(
                f"model: d_model ({self.d_model}) is not divisible by n_heads ({self.n_heads}); "
                f"choose n_heads among the divisors of d_model."
            )
        if self.n_heads % self.kv_heads:
            raise UserError(
                f"model: n_heads ({self.n_heads}) is not divisible by n_kv_heads "
                f"({self.n_kv_heads}); each key/value head serves the same number of heads."
            )
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise UserError(
                f"model: sinusoidal positions need an even d_model, but it is {self.d_model}."
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise UserError(
                f"model: rotary positions turn pairs, so a head's width must be even, but d_model "
                f"/ n_heads is {self.d_head}."
            )
        self._check_rotary()
        if self.tie == "all" and self.source_vocab_size:
            raise UserError(
                "model: tie = 'all' needs one shared vocabulary; "
                "set tie = 'output' or 'none', or share the tokenizer."
            )
        self._check_layers()

    def _check_rotary(self) -> None:
        if self.rotary_scaling == "ntk" and self.d_head == 2:
            raise UserError(
                "model: rotary_scaling = 'ntk' squeezes the slower pairs, but a head of width 2 "
                "has one; use 'linear'."
            )
        fast = self.rotary_fast or {"llama3": 4.0}.get(self.rotary_scaling, 32.0)
        if self.rotary_scaling in ("yarn", "llama3") and self.rotary_slow >= fast:
            raise UserError(
                f"model: rotary_slow is {self.rotary_slow}, but must be below rotary_fast ({fast})."
            )

    def _check_layers(self) -> None:
        needed = {
            "encoder-decoder": ("n_encoder_layers", "n_decoder_layers"),
            "encoder": ("n_encoder_layers",),
            "decoder": ("n_decoder_layers",),
        }[self.family]
        for name in needed:
            if getattr(self, name) < 1:
                raise UserError(
                    f"model: {name} is 0, but the {self.family} family needs at least 1."
                )

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default (one for each query head) filled in."""
        return self.n_kv_heads or self.n_heads

    @property
    def d_head(self) -> int:
        """Width of one head: d_k in the paper."""
        return self.d_model // self.n_heads

    @property
    def trained_length(self) -> int:
        """The context that rotary angles were made for, before they were scaled."""
        return self.rotary_trained_length or round(self.max_length / self.rotary_factor)

    def window_of(self, layer: int) -> int:
        """How many tokens a token of this layer sees; 0: all."""
        return 0 if self.window_layers == "alternate" and layer % 2 == 0 else self.window

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for `config.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "model") -> ModelConfig:
        """Read a config from plain values, naming `where` it stands in errors."""
        return from_mapping(cls, values, where)
