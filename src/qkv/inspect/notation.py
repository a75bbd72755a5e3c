"""The notes' symbols: every quantity of a model by its name, in the order of the formulas.

Letters of shapes: B batch, S source length, T target length, D d_model, H heads, G key/value heads,
F d_ff, V vocabulary, C labels, E width of a narrower embedding, K = D/H width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qkv.config import ModelConfig
from qkv.inspect.reading import Reading

ATTENTION = ("query", "key", "value", "scores", "weights", "heads", "output", "residual")
BY_HEAD = ("query", "key", "value", "scores", "weights", "heads")


@dataclass(frozen=True)
class Quantity:
    """One quantity of a pass: its name, its formula, and what its dimensions are."""

    key: str
    formula: str
    axes: tuple[str, ...]

    @property
    def part(self) -> str:
        """The last word of the name."""
        return self.key.rpartition(".")[2]


def quantities(config: ModelConfig, reading: Reading) -> dict[str, Quantity]:
    """Everything that can be asked of a pass, in the order in which it is computed."""
    found = [*_source(config, reading), *_target(config, reading), *_said(config, reading)]
    return {one.key: one for one in found}


def sizes(config: ModelConfig, reading: Reading) -> dict[str, int]:
    """What the letters stand for in this pass."""
    return {
        "B": reading.n_rows,
        "S": reading.source.length if reading.source else 0,
        "T": reading.target.length if reading.target else 0,
        "D": config.d_model,
        "E": config.embedding_width,
        "F": config.d_ff,
        "H": config.n_heads,
        "G": config.kv_heads,
        "K": config.d_head,
        "V": config.vocab_size,
        "C": config.n_labels,
        "1": 1,
        "channels": config.n_channels,
        "height": config.image_size,
        "width": config.image_size,
    }


def _source(config: ModelConfig, reading: Reading) -> Iterator[Quantity]:
    if reading.source is None:
        return
    pixels = ("B", "channels", "height", "width")
    yield Quantity("source.tokens", "X", pixels if config.patch_size else ("B", "S"))
    yield from _input(config, "source", "X", "S")
    for layer in range(config.n_encoder_layers):
        at = f"encoder.{layer}"
        yield from _attention(config, f"{at}.self_attention", "S", "S")
        yield from _feed_forward(config, f"{at}.feed_forward", "S")
        if config.convolution and layer == 0:
            formula = f"{_norm(config)}(H + GELU(Conv(X_emb)))"
            yield Quantity(f"{at}.convolution.residual", formula, ("B", "S", "D"))
    formula = f"encoder_outputs = {_last(config)}"
    yield Quantity("encoder.output", formula, ("B", "S", "D"))


def _target(config: ModelConfig, reading: Reading) -> Iterator[Quantity]:
    if reading.target is not None:
        yield Quantity("target.tokens", "Y_shift", ("B", "T"))
    if reading.labels is not None:
        yield Quantity("target.labels", "Y_label", _label_axes(config, reading))
    if reading.target is None:
        return
    yield from _input(config, "target", "Y", "T")
    for layer in range(config.n_decoder_layers):
        at = f"decoder.{layer}"
        yield from _attention(config, f"{at}.self_attention", "T", "T")
        if config.family == "encoder-decoder":
            yield from _attention(config, f"{at}.cross_attention", "T", "S")
        yield from _feed_forward(config, f"{at}.feed_forward", "T")
    formula = f"H_dec = {_last(config)}"
    yield Quantity("decoder.output", formula, ("B", "T", "D"))


def _said(config: ModelConfig, reading: Reading) -> Iterator[Quantity]:
    if config.family == "encoder" and config.head in ("none", "sequence"):
        pooling = config.pooling if config.head == "sequence" else reading.pooling
        how = {"mean": "mean over tokens of"}.get(pooling, f"{pooling} token of")
        dense = config.pooler if config.head == "sequence" else "none"
        formula = f"{how} encoder_outputs"
        formula = formula if dense == "none" else f"{dense}(({formula})·W_P + b_P)"
        yield Quantity("pooled", formula, ("B", "D"))
    if reading.says == "nothing":
        return
    axes = logit_axes(config)
    if config.family == "encoder":
        yield Quantity("logits", "Logits = Head(encoder_outputs)", axes)
    else:
        divided = "/√D" if config.output_scale else ""
        yield Quantity("logits", f"Logits = H_dec{divided} · W_out", axes)
    if reading.says != "number":
        how = {"each": "sigmoid", "spans": "softmax over tokens"}.get(reading.says, "softmax")
        yield Quantity("probabilities", f"P = {how}(Logits)", axes)
    if reading.labels is not None:
        formula = "L(θ) = mean of −log P(Y_label)"
        yield Quantity("loss", "L(θ) = (Logits − Y)²" if reading.says == "number" else formula, ())


def logit_axes(config: ModelConfig) -> tuple[str, ...]:
    """What the dimensions of the logits are."""
    if config.family != "encoder":
        return ("B", "T", "V")
    return {"masked": ("B", "S", "V"), "token": ("B", "S", "C")}.get(config.head, ("B", "C"))


def _label_axes(config: ModelConfig, reading: Reading) -> tuple[str, ...]:
    if reading.says in ("each", "spans", "number"):
        return ("B", {"each": "C", "spans": "C", "number": "1"}[reading.says])
    return logit_axes(config)[:-1]


def _input(config: ModelConfig, side: str, symbol: str, n: str) -> Iterator[Quantity]:
    scale = " · √D" if config.embedding_scale else ""
    embedded = f"Patches({symbol})" if config.patch_size else f"E[{symbol}]{scale}"
    embedded += " + segment" if config.n_segments else ""
    yield Quantity(f"{side}.embedding", embedded, ("B", n, "E" if config.d_embedding else "D"))
    added = config.positions in ("sinusoidal", "sinusoidal_halves", "learned")
    formula = "E + PE" if added else "E"
    formula = f"{_norm(config)}({formula})" if config.embedding_norm else formula
    formula = f"{formula} · W_E" if config.d_embedding else formula
    yield Quantity(f"{side}.input", f"{symbol}_emb = {formula}", ("B", n, "D"))


def _attention(config: ModelConfig, at: str, queries: str, keys: str) -> Iterator[Quantity]:
    x = f"{_norm(config)}(H)" if _pre(config) else "H"
    memory = "encoder_outputs" if at.endswith("cross_attention") else x
    own = at.endswith("self_attention")
    turned = ("turn(", ")") if config.positions == "rotary" and own else ("", "")
    groups = "H" if config.kv_heads == config.n_heads else "G"
    root = "√(3·d_k)" if config.positions == "disentangled" else "√d_k"
    scale = f"QKᵀ/{root}" if config.score_division else "QKᵀ"
    bias = " + bias" if config.positions in ("relative", "disentangled") and own else ""
    formulas = {
        "query": f"Q = {x}·W_Q".replace(x, turned[0] + x, 1) + turned[1],
        "key": f"K = {memory}·W_K".replace(memory, turned[0] + memory, 1) + turned[1],
        "value": f"V = {memory}·W_V",
        "scores": f"{scale}{bias} + M",
        "weights": f"softmax({scale}{bias} + M)",
        "heads": "head_i = weights_i · V_i",
        "output": "H′ = Concat(head_1 … head_h)·W_O",
        "residual": "H″ = H + H′" if _pre(config) else f"H″ = {_norm(config)}(H + H′)",
    }
    axes = {
        "query": ("B", "H", queries, "K"),
        "key": ("B", groups, keys, "K"),
        "value": ("B", groups, keys, "K"),
        "scores": ("B", "H", queries, keys),
        "weights": ("B", "H", queries, keys),
        "heads": ("B", "H", queries, "K"),
        "output": ("B", queries, "D"),
        "residual": ("B", queries, "D"),
    }
    for part in ATTENTION:
        yield Quantity(f"{at}.{part}", formulas[part], axes[part])


def _feed_forward(config: ModelConfig, at: str, n: str) -> Iterator[Quantity]:
    x = f"{_norm(config)}(H″)" if _pre(config) else "H″"
    name = {"relu": "ReLU", "silu": "SiLU"}.get(config.activation, "GELU")
    bias = ("+b₁", "+b₂") if config.bias else ("", "")
    inner = f"{name}({x}W₁{bias[0]})"
    if config.gated:
        inner = f"{name}({x}W_gate) * {x}W₁"
    yield Quantity(f"{at}.hidden", inner, ("B", n, "F"))
    yield Quantity(f"{at}.output", f"FFN = hidden·W₂{bias[1]}", ("B", n, "D"))
    last = "H = H″ + FFN" if _pre(config) else f"H = {_norm(config)}(H″ + FFN)"
    yield Quantity(f"{at}.residual", last, ("B", n, "D"))


def _norm(config: ModelConfig) -> str:
    return "RMSNorm" if config.norm == "rms" else "LayerNorm"


def _last(config: ModelConfig) -> str:
    return f"{_norm(config)}(H)" if _pre(config) else "H"


def _pre(config: ModelConfig) -> bool:
    return config.norm_position == "pre"
