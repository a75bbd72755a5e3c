"""The quantities of a pass in the order of the formulas: keys, names, formulas and shapes.

Letters of shapes: B batch, S source length, T target length, D d_model, H heads, G key/value heads,
F d_ff, V vocabulary, C labels, E width of a narrower embedding, K = D/H width of a head, X experts.

A quantity inside the model is one line here and one tap in `probe.py`; one that is computed from
others (`made_of`) is one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor

from qkv.config import ModelConfig
from qkv.errors import UserError
from qkv.inspect.trace.inputs import Inputs
from qkv.inspect.trace.outputs import loss, probabilities
from qkv.model import pool

BY_HEAD = ("query", "key", "value", "scores", "weights", "heads")


@dataclass(frozen=True)
class Quantity:
    """One quantity of a pass: its key, its name, its formula and the letters of its shape."""

    key: str
    name: str
    formula: str
    axes: tuple[str, ...]
    made_of: tuple[str, ...] = ()
    make: Callable[..., Tensor] | None = (
        None  # from `made_of`; None: the probe sees it in the model
    )

    @property
    def has_heads(self) -> bool:
        """Whether the second dimension counts heads."""
        return self.key.rpartition(".")[2] in BY_HEAD

    @property
    def token_axis(self) -> int | None:
        """The first dimension that counts tokens."""
        return next((axis for axis, letter in enumerate(self.axes) if letter in ("S", "T")), None)


class Quantities:
    """Named quantities with their formulas and shapes; what `Trace` and `SavedTrace` share."""

    def __init__(self, quantities: Mapping[str, Quantity], sizes: Mapping[str, int]) -> None:
        self.quantities, self.sizes = quantities, sizes

    def names(self, pattern: str = "*") -> list[str]:
        """Keys of the quantities in the order of the formulas; `*` matches anything."""
        return [key for key in self.quantities if fnmatchcase(key, pattern)]

    keys = names  # so that a trace reads like a dict

    def __iter__(self) -> Iterator[str]:
        return iter(self.quantities)

    def __len__(self) -> int:
        return len(self.quantities)

    def __contains__(self, key: object) -> bool:
        return key in self.quantities

    def axes(self, key: str) -> tuple[str, ...]:
        """Letters of a quantity's dimensions, as in the notation."""
        return self.find(key).axes

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of a quantity, known before it is computed."""
        return tuple(self.sizes[letter] for letter in self.axes(key))

    def formula(self, key: str) -> str:
        """Formula of a quantity in the notation's symbols."""
        return self.find(key).formula

    def find(self, key: str) -> Quantity:
        """The quantity with a key."""
        if key not in self.quantities:
            near = get_close_matches(key, self.quantities, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see trace.names()."
            raise UserError(f"This trace has no quantity {key!r}; {hint}")
        return self.quantities[key]


def quantities(config: ModelConfig, inputs: Inputs) -> dict[str, Quantity]:
    """List every quantity of a pass by its key, in the order of computation."""
    every = [*_source(config, inputs), *_target(config, inputs), *_outputs(config, inputs)]
    return {quantity.key: quantity for quantity in every}


def sizes(config: ModelConfig, inputs: Inputs) -> dict[str, int]:
    """The numbers that the letters of shapes stand for in a pass."""
    return {
        "B": inputs.n_rows,
        "S": inputs.source.length if inputs.source else 0,
        "T": inputs.target.length if inputs.target else 0,
        "D": config.d_model,
        "E": config.embedding_width,
        "F": config.d_ff,
        "H": config.n_heads,
        "G": config.kv_heads,
        "K": config.d_head,
        "V": config.vocab_size,
        "X": config.n_experts,
        "C": config.n_labels,
        "1": 1,
        "channels": config.n_channels,
        "height": config.image_size,
        "width": config.image_size,
    }


def _source(config: ModelConfig, inputs: Inputs) -> Iterator[Quantity]:
    source = inputs.source
    if source is None:
        return
    axes = ("B", "channels", "height", "width") if config.patch_size else ("B", "S")
    yield Quantity("source.tokens", "source tokens", "X", axes, make=source.tokens.clone)
    yield from _embedding(config, "source", "X", "S")
    for layer in range(config.n_encoder_layers):
        at = f"encoder.{layer}"
        yield from _attention(config, f"{at}.self_attention", "S", "S")
        yield from _feed_forward(config, f"{at}.feed_forward", "S")
        if config.convolution and layer == 0:
            formula = f"{_norm(config)}(H + GELU(Conv(X_emb)))"
            key = f"{at}.convolution.residual"
            yield Quantity(key, "convolution: residual and norm", formula, ("B", "S", "D"))
    formula = f"encoder_outputs = {_last(config)}"
    yield Quantity("encoder.output", "encoder output", formula, ("B", "S", "D"))


def _target(config: ModelConfig, inputs: Inputs) -> Iterator[Quantity]:
    target, labels = inputs.target, inputs.labels
    if target is not None:
        name = "target tokens, shifted"
        yield Quantity("target.tokens", name, "Y_shift", ("B", "T"), make=target.tokens.clone)
    if labels is not None:
        axes = _label_axes(config, inputs)
        yield Quantity("target.labels", "labels", "Y_label", axes, make=labels.clone)
    if target is None:
        return
    yield from _embedding(config, "target", "Y", "T")
    for layer in range(config.n_decoder_layers):
        at = f"decoder.{layer}"
        yield from _attention(config, f"{at}.self_attention", "T", "T")
        if config.family == "encoder-decoder":
            yield from _attention(config, f"{at}.cross_attention", "T", "S")
        yield from _feed_forward(config, f"{at}.feed_forward", "T")
    yield Quantity("decoder.output", "decoder output", f"H_dec = {_last(config)}", ("B", "T", "D"))


def _outputs(config: ModelConfig, inputs: Inputs) -> Iterator[Quantity]:
    kind, labels = inputs.output_kind, inputs.labels
    if config.family == "encoder" and config.head in ("none", "sequence"):
        yield _pooled(config, inputs)
    if kind == "none":
        return
    axes = _logit_axes(config)
    formula = f"H_dec{'/√D' if config.output_scale else ''} · W_out"
    formula = _capped(formula, config.logit_cap)
    formula = "Head(encoder_outputs)" if config.family == "encoder" else formula
    yield Quantity("logits", "logits", f"Logits = {formula}", axes)
    if kind != "number":
        how = {"classes": "sigmoid", "span": "softmax over tokens"}.get(kind, "softmax")
        yield Quantity(
            "probabilities",
            "probabilities",
            f"P = {how}(Logits)",
            axes,
            ("logits",),
            lambda logits: probabilities(logits, inputs),
        )
    if labels is not None:
        formula = "(Logits − Y)²" if kind == "number" else "mean of −log P(Y_label)"
        yield Quantity(
            "loss",
            "loss",
            f"L(θ) = {formula}",
            (),
            ("logits",),
            lambda logits: loss(logits, labels, inputs),
        )


POOLED = {
    "first": "first token",
    "last": "last token",
    "mean": "mean over tokens",
    "max": "maximum over tokens",
    "weighted": "mean over tokens, the n-th weighing n,",
}


def _pooled(config: ModelConfig, inputs: Inputs) -> Quantity:
    """One vector per text: by the model's own pooler, or as its embeddings are made."""
    own = config.head == "sequence"
    pooling = config.pooling if own else inputs.pooling
    formula = f"{POOLED[pooling]} of encoder_outputs"
    if own and config.pooler != "none":
        formula = f"{config.pooler}(({formula})·W_P + b_P)"

    def make(encoder_outputs: Tensor) -> Tensor:
        assert inputs.source is not None
        return pool(encoder_outputs, inputs.source.layout, inputs.pooling)

    made_of, maker = ((), None) if own else (("encoder.output",), make)
    return Quantity("pooled", "text as one vector", formula, ("B", "D"), made_of, maker)


def _logit_axes(config: ModelConfig) -> tuple[str, ...]:
    if config.family != "encoder":
        return ("B", "T", "V")
    return {"masked": ("B", "S", "V"), "token": ("B", "S", "C")}.get(config.head, ("B", "C"))


def _label_axes(config: ModelConfig, inputs: Inputs) -> tuple[str, ...]:
    if inputs.output_kind == "number":
        return ("B", "1")
    return ("B", "C") if inputs.output_kind in ("classes", "span") else _logit_axes(config)[:-1]


def _embedding(config: ModelConfig, side: str, symbol: str, n: str) -> Iterator[Quantity]:
    scale = " · √D" if config.embedding_scale else ""
    embedded = f"Patches({symbol})" if config.patch_size else f"E[{symbol}]{scale}"
    embedded += " + segment" if config.n_segments else ""
    axes = ("B", n, "E" if config.d_embedding else "D")
    yield Quantity(f"{side}.embedding", "embedding", embedded, axes)
    added = config.positions.startswith(("sinusoidal", "learned"))
    formula = "E + PE" if added else "E"
    formula = f"{_norm(config)}({formula})" if config.embedding_norm else formula
    formula = f"{formula} · W_E" if config.d_embedding else formula
    yield Quantity(f"{side}.input", "input", f"{symbol}_emb = {formula}", ("B", n, "D"))


def _attention(config: ModelConfig, at: str, queries: str, keys: str) -> Iterator[Quantity]:
    pre, own = config.norm_position != "post", at.endswith("self_attention")
    x = f"{_norm(config)}(H)" if pre else "H"
    memory = x if own else "encoder_outputs"
    turned = "{}"
    if own:
        turned = f"{_norm(config)}({{}})" if config.query_key_norm else "{}"
        turned = f"turn({turned})" if config.positions == "rotary" else turned
    groups = "H" if config.kv_heads == config.n_heads else "G"
    root = "√(3·d_k)" if config.positions == "disentangled" else "√d_k"
    root = f"√{config.score_divisor:g}" if config.score_divisor else root
    scores = f"QKᵀ/{root}" if config.score_division else "QKᵀ"
    scores = _capped(scores, config.score_cap)
    scores += " + bias" if config.biases_scores and own else ""
    scores += " + M"
    stream = ("B", queries, "D")
    rows = {
        "query": ("queries", f"Q = {turned.format(f'{x}·W_Q')}", ("B", "H", queries, "K")),
        "key": ("keys", f"K = {turned.format(f'{memory}·W_K')}", ("B", groups, keys, "K")),
        "value": ("values", f"V = {memory}·W_V", ("B", groups, keys, "K")),
        "scores": ("scores, masked", scores, ("B", "H", queries, keys)),
        "weights": ("attention weights", f"softmax({scores})", ("B", "H", queries, keys)),
        "heads": ("heads", "head_i = weights_i · V_i", ("B", "H", queries, "K")),
        "output": ("output", "H′ = Concat(head_1 … head_h)·W_O", stream),
        "residual": (_residual_name(config), f"H″ = {_residual(config, 'H', 'H′')}", stream),
    }
    sublayer = "self-attention" if own else "cross-attention"
    for part, (name, formula, axes) in rows.items():
        yield Quantity(f"{at}.{part}", f"{sublayer}: {name}", formula, axes)


def _feed_forward(config: ModelConfig, at: str, n: str) -> Iterator[Quantity]:
    x = "H" if config.parallel else "H″"
    x = x if config.norm_position == "post" else f"{_norm(config)}({x})"
    activation = {"relu": "ReLU", "silu": "SiLU"}.get(config.activation, "GELU")
    bias = ("+b₁", "+b₂") if config.bias else ("", "")
    hidden = f"{activation}({x}W₁{bias[0]})"
    if config.gated:
        hidden = f"{activation}({x}W_gate) * {x}W₁"
    residual = f"H = {_residual(config, 'H″', 'FFN')}"
    rows = {
        "hidden": ("inner layer", hidden, ("B", n, "F")),
        "output": ("output", f"FFN = hidden·W₂{bias[1]}", ("B", n, "D")),
        "residual": (_residual_name(config), residual, ("B", n, "D")),
    }
    if config.n_experts:
        shares = f"the {config.n_experts_used} largest of softmax({x}·W_R), renormalised"
        rows["output"] = ("output", "FFN = Σ share_i · FFN_i", ("B", n, "D"))
        rows = {"shares": ("shares of the experts", shares, ("B", n, "X")), **rows}
        del rows["hidden"]  # each expert has its own, of the tokens that go to it
    for part, (name, formula, axes) in rows.items():
        yield Quantity(f"{at}.{part}", f"feed-forward: {name}", formula, axes)


def _norm(config: ModelConfig) -> str:
    return "LayerNorm" if config.norm == "layer" else "RMSNorm"


def _last(config: ModelConfig) -> str:
    return "H" if config.norm_position == "post" else f"{_norm(config)}(H)"


def _residual(config: ModelConfig, stream: str, added: str) -> str:
    if config.norm_position == "both":
        return f"{stream} + {_norm(config)}({added})"
    total = f"{stream} + {added}"
    return total if config.norm_position == "pre" else f"{_norm(config)}({total})"


def _residual_name(config: ModelConfig) -> str:
    return "residual" if config.norm_position == "pre" else "residual and norm"


def _capped(formula: str, cap: float) -> str:
    return f"{cap:g}·tanh(({formula})/{cap:g})" if cap else formula
