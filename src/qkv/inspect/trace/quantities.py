"""The quantities of a pass in the order of the formulas, for any choice of parts.

A quantity inside the model is one line here and one tap in `hooks.py` or `opened.py`; one that is
computed from others (`made_of`) is one line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from qkv.config import ModelConfig
from qkv.inspect.trace.inputs import Inputs
from qkv.inspect.trace.notation import Quantity
from qkv.inspect.trace.outputs import log_probabilities, loss, probabilities
from qkv.model import pool

Axes = tuple[str, ...]

POOLED = {
    "first": "first token",
    "last": "last token",
    "mean": "mean over tokens",
    "max": "maximum over tokens",
    "weighted": "mean over tokens, the n-th weighing n,",
}

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm", "rms_plus_one": "RMSNorm"}
"""Norms whose steps are known, by the names that formulas give them."""


def activation_name(config: ModelConfig) -> str:
    """Name the activation as formulas do."""
    names = {"relu": "ReLU", "silu": "SiLU", "gelu": "GELU", "gelu_tanh": "GELU"}
    return names.get(config.activation, config.activation)


def pass_quantities(config: ModelConfig, inputs: Inputs) -> dict[str, Quantity]:
    """List every quantity of a pass by its key, in the order of computation."""
    every = [*_source(config, inputs), *_target(config, inputs), *_outputs(config, inputs)]
    return {quantity.key: quantity for quantity in every}


@dataclass(frozen=True)
class Sublayer:
    """One sublayer in symbols: what it reads, gives and leaves in the stream."""

    at: str  # its key
    name: str
    stream: str  # H: what its output is added to
    read: str  # what it reads, before a norm of its own
    output: str  # H′
    after: str  # H″
    n: str  # the letter of its tokens
    has_norm: bool = True  # before it

    def quantity(
        self, part: str, name: str, formula: str, axes: Axes, is_detail: bool = False
    ) -> Quantity:
        """One of its quantities."""
        key, name = f"{self.at}.{part}", f"{self.name}: {name}"
        return Quantity(key, name, formula, axes, is_detail=is_detail)


def _source(config: ModelConfig, inputs: Inputs) -> Iterator[Quantity]:
    source = inputs.source
    if source is None:
        return
    axes = ("B", "channels", "height", "width") if config.patch_size else ("B", "S")
    yield Quantity("source.tokens", "source tokens", "X", axes, make=source.tokens.clone)
    yield from _embedding(config, "source", "X", "S")
    for layer in range(config.n_encoder_layers):
        yield from _block(config, inputs, "encoder", layer, "S")
        if config.convolution and layer == 0:
            yield from _convolution(config)
    yield from _stack_output(config, "encoder", "encoder_outputs", "S")


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
        yield from _block(config, inputs, "decoder", layer, "T")
    yield from _stack_output(config, "decoder", "H_dec", "T")


def _embedding(config: ModelConfig, side: str, symbol: str, n: str) -> Iterator[Quantity]:
    width = "E" if config.d_embedding else "D"
    scale = " · √D" if config.embedding_scale else ""
    embedded = f"Patches({symbol})" if config.patch_size else f"E[{symbol}]{scale}"
    embedded += " + segment" if config.n_segments else ""
    yield Quantity(f"{side}.embedding", "embedding", embedded, ("B", n, width))
    formula = "E"
    if config.positions.startswith(("sinusoidal", "learned")):
        formula = "E + PE"
        yield Quantity(f"{side}.positions", "positions", "PE", (n, width))
        if config.embedding_norm or config.d_embedding:
            name = "embedding: with positions"
            yield Quantity(f"{side}.sum", name, "E + PE", ("B", n, width), is_detail=True)
    if config.embedding_norm:
        axes = ("B", n, width)
        yield from _norm_parts(config, f"{side}.norm", "embedding: norm", formula, axes)
        formula = f"{_norm(config)}({formula})"
        if config.d_embedding:
            yield Quantity(f"{side}.norm", "embedding: norm", formula, axes, is_detail=True)
    formula = f"({formula})·W_E + b_E" if config.d_embedding else formula
    yield Quantity(f"{side}.input", "input", f"{symbol}_emb = {formula}", ("B", n, "D"))


def _norm_parts(config: ModelConfig, at: str, name: str, x: str, axes: Axes) -> Iterator[Quantity]:
    """μ, σ and x̂ of a norm of x; an RMSNorm takes no mean away, and of others we know no steps."""
    if config.norm not in NORMS:
        return
    one = (*axes[:-1], "1")
    x = f"({x})" if " " in x else x
    centred = x
    if config.norm == "layer":
        yield Quantity(f"{at}.mean", f"{name}, mean", f"μ = mean of {x}", one, is_detail=True)
        centred = f"({x} − μ)"
    deviation = f"σ = √(mean of {centred}² + ε)"
    yield Quantity(f"{at}.deviation", f"{name}, deviation", deviation, one, is_detail=True)
    normalised = f"x̂ = {centred}/σ"
    yield Quantity(f"{at}.normalised", f"{name}, normalised", normalised, axes, is_detail=True)


def _block(
    config: ModelConfig, inputs: Inputs, stack: str, layer: int, n: str
) -> Iterator[Quantity]:
    """The sublayers of a block, with the notes' primes: one more for each output and each sum."""
    at, last = f"{stack}.{layer}", "H⁽ˡ⁾"
    normed = config.norm_position != "post"
    has_norm = normed and (config.first_norm or layer > 0)
    own = Sublayer(f"{at}.self_attention", "self-attention", "H", "H", "H′", "H″", n, has_norm)
    causal = stack == "decoder" or config.causal
    turns = config.positions == "rotary" and config.positions_of(layer) != "none"
    rows = _mask_rows(inputs, None if causal else n)
    yield from _attention(config, own, n, rows, turns)
    at_end = f"{at}.feed_forward"
    feed_forward = Sublayer(at_end, "feed-forward", "H″", "H″", "H‴", last, n, normed)
    if config.family == "encoder-decoder" and stack == "decoder":
        across = f"{at}.cross_attention"
        cross = Sublayer(across, "cross-attention", "H″", "H″", "H‴", "H⁗", n, normed)
        yield from _attention(config, cross, "S", _mask_rows(inputs, "S"), False)
        feed_forward = replace(feed_forward, stream="H⁗", read="H⁗", output="H⁗′")
    if config.parallel:
        feed_forward = replace(feed_forward, read="H")
    yield from _feed_forward(config, feed_forward)


def _mask_rows(inputs: Inputs, hidden: str | None) -> str:
    """Whether a mask differs from row to row: where padding of one side is hidden."""
    side = {"S": inputs.source, "T": inputs.target}.get(hidden or "")
    return "B" if side is not None and side.layout.lengths is not None else "1"


def _before(config: ModelConfig, sublayer: Sublayer) -> Iterator[Quantity]:
    """The norm before a sublayer, where it has one."""
    if sublayer.has_norm:
        axes, name = ("B", sublayer.n, "D"), f"{sublayer.name}: norm before it"
        yield from _norm_parts(config, f"{sublayer.at}.norm", name, sublayer.read, axes)
        yield sublayer.quantity("norm", "norm before it", _reads(config, sublayer), axes)


def _reads(config: ModelConfig, sublayer: Sublayer) -> str:
    """What a sublayer's first product is made of."""
    return f"{_norm(config)}({sublayer.read})" if sublayer.has_norm else sublayer.read


def _after(config: ModelConfig, sublayer: Sublayer) -> Iterator[Quantity]:
    """A norm after the sublayer, the residual connection, and the norm of the sum."""
    axes, at, name = ("B", sublayer.n, "D"), sublayer.at, sublayer.name
    stream, added, norm = sublayer.stream, sublayer.output, _norm(config)
    kind = "residual (norm before)" if sublayer.has_norm else "residual (no norm)"
    if config.norm_position == "both":
        kind = "residual (two norms)"
        yield from _norm_parts(config, f"{at}.output_norm", f"{name}: norm after it", added, axes)
        added = f"{norm}({added})"
        yield sublayer.quantity("output_norm", "norm after it", added, axes)
    yield sublayer.quantity("skip", "residual connection", stream, axes, is_detail=True)
    total = f"{stream} + {added}"
    if config.norm_position == "post":
        kind = "residual and norm"
        yield sublayer.quantity("sum", "sum before the norm", total, axes, is_detail=True)
        yield from _norm_parts(config, f"{at}.norm", f"{name}: norm", total, axes)
        total = f"{norm}({total})"
    yield sublayer.quantity("residual", kind, f"{sublayer.after} = {total}", axes)


def _attention(
    config: ModelConfig, sublayer: Sublayer, keys: str, mask_rows: str, turns: bool
) -> Iterator[Quantity]:
    at, name, n = sublayer.at, sublayer.name, sublayer.n
    own = at.endswith("self_attention")
    yield from _before(config, sublayer)
    x = _reads(config, sublayer)
    memory = x if own else "encoder_outputs"
    turned = f"{_norm(config)}({{}})" if own and config.query_key_norm else "{}"
    turned = f"turn({turned})" if turns else turned
    groups = "H" if config.kv_heads == config.n_heads else "G"
    queries, grid = ("B", "H", n, "K"), ("B", "H", n, keys)
    if turns:
        angles = "θ = position · rate of each pair, mod 2π"
        yield sublayer.quantity("rotation", "angles", angles, (n, "R"), is_detail=True)
    if own and config.query_key_norm:
        for side, letter, axes in (("query", "Q", queries), ("key", "K", ("B", groups, n, "K"))):
            norm, plain = f"{at}.{side}_norm", f"{x}·W_{letter}"
            yield from _norm_parts(config, norm, f"{name}: norm of {letter}", plain, axes)
    products = {
        letter: f"{read}·W_{letter}{' + b_' + letter if _has_bias(config, own, letter) else ''}"
        for letter, read in (("Q", x), ("K", memory), ("V", memory))
    }
    query, key = (f"{letter} = {turned.format(products[letter])}" for letter in "QK")
    yield sublayer.quantity("query", "queries", query, queries)
    yield sublayer.quantity("key", "keys", key, ("B", groups, keys, "K"))
    yield sublayer.quantity("value", "values", f"V = {products['V']}", ("B", groups, keys, "K"))
    yield from _scores(config, sublayer, grid, mask_rows)
    yield sublayer.quantity("heads", "heads", "head_i = weights_i · V_i", queries)
    output = f"{sublayer.output} = Concat(head_1 … head_h)·W_O{' + b_O' if config.bias else ''}"
    yield sublayer.quantity("output", "output", output, ("B", n, "D"))
    yield from _after(config, sublayer)


def _has_bias(config: ModelConfig, own: bool, letter: str) -> bool:
    return config.has_qkv_bias and (letter != "K" or not own or config.key_bias)


def _scores(
    config: ModelConfig, sublayer: Sublayer, grid: Axes, mask_rows: str
) -> Iterator[Quantity]:
    """The chain from products to weights: QKᵀ, its scale, a bias by position, M, softmax."""
    own, disentangled = sublayer.at.endswith("self_attention"), config.positions == "disentangled"
    yield sublayer.quantity("products", "products", "QKᵀ", grid)
    root = "√(3·d_k)" if disentangled else "√d_k"
    root = f"√{config.score_divisor:g}" if config.score_divisor else root
    root = root if config.score_division else "1"
    yield sublayer.quantity("scale", "scale", root, (), is_detail=True)
    scores = f"QKᵀ/{root}" if config.score_division else "QKᵀ"
    scores = _capped(scores, config.score_cap)
    if config.biases_scores and own:
        axes = grid if disentangled else ("1", *grid[1:])
        formula = "(Q·K_rᵀ + Q_r·Kᵀ)/√(3·d_k)" if disentangled else "bias of each distance"
        yield sublayer.quantity("bias", "position bias", formula, axes)
        scores += " + bias"
    yield sublayer.quantity("mask", "mask", "M: 0 or −∞", (mask_rows, "1", *grid[2:]))
    scores += " + M"
    yield sublayer.quantity("scores", "scores, masked", scores, grid)
    yield sublayer.quantity("weights", "attention weights", f"softmax({scores})", grid)


def _feed_forward(config: ModelConfig, sublayer: Sublayer) -> Iterator[Quantity]:
    yield from _before(config, sublayer)
    x, output, n = _reads(config, sublayer), sublayer.output, sublayer.n
    inner, formula = ("B", n, "F"), f"{output} = FFN({x}) = hidden·W₂"
    first, second, of_gate = ("+b₁", "+b₂", "+b_gate") if config.bias else ("", "", "")
    if config.n_experts:  # each has its own inner layer, of the tokens that go to it
        shares = f"the {config.n_experts_used} largest of softmax({x}·W_R), renormalised"
        yield sublayer.quantity("shares", "shares of the experts", shares, ("B", n, "X"))
        formula, second = f"{output} = Σ share_i · FFN_i({x})", ""
    else:
        activation, plain = activation_name(config), f"{x}W₁{first}"
        hidden = f"{activation}({plain})"
        if config.gated:
            gate = f"{x}W_gate{of_gate}"
            yield sublayer.quantity("gate", "gate", gate, inner, is_detail=True)
            hidden = f"{activation}({gate}) * ({plain})"
        yield sublayer.quantity("inner", "before the activation", plain, inner, is_detail=True)
        yield sublayer.quantity("hidden", "inner layer", hidden, inner)
    yield sublayer.quantity("output", "output", f"{formula}{second}", ("B", n, "D"))
    yield from _after(config, sublayer)


def _convolution(config: ModelConfig) -> Iterator[Quantity]:
    at, axes = "encoder.0.convolution", ("B", "S", "D")
    inner = "Conv(X_emb)"
    yield Quantity(f"{at}.inner", "convolution: before the activation", inner, axes, is_detail=True)
    total = f"H⁽ˡ⁾ + GELU({inner})"
    yield Quantity(f"{at}.sum", "convolution: sum before the norm", total, axes, is_detail=True)
    yield from _norm_parts(config, f"{at}.norm", "convolution: norm", total, axes)
    formula = f"{_norm(config)}({total})"
    yield Quantity(f"{at}.residual", "convolution: residual and norm", formula, axes)


def _stack_output(config: ModelConfig, stack: str, symbol: str, n: str) -> Iterator[Quantity]:
    """A stack's output, with its last norm where norms come before sublayers."""
    formula, axes = "H⁽ᴺ⁾", ("B", n, "D")
    if config.norm_position != "post":
        yield from _norm_parts(config, f"{stack}.norm", f"{stack}: last norm", formula, axes)
        formula = f"{_norm(config)}({formula})"
    yield Quantity(f"{stack}.output", f"{stack} output", f"{symbol} = {formula}", axes)


def _outputs(config: ModelConfig, inputs: Inputs) -> Iterator[Quantity]:
    kind, labels = inputs.output_kind, inputs.labels
    if config.family == "encoder" and config.head in ("none", "sequence"):
        yield _pooled(config, inputs)
    if kind == "none":
        return
    axes = _logit_axes(config)
    yield from _head(config, axes)
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
    if labels is None:
        return
    if kind != "number":
        yield Quantity(
            "target.log_probabilities",
            "log P of each label, 0 where there is none",
            "log P(Y_label)",
            _label_axes(config, inputs),
            ("logits",),
            lambda logits: log_probabilities(logits, labels, inputs),
            is_detail=True,
        )
    formula = "(Logits − Y)²" if kind == "number" else "mean of −log P(Y_label)"
    yield Quantity(
        "loss",
        "loss",
        f"L(θ) = {formula}",
        (),
        ("logits",),
        lambda logits: loss(logits, labels, inputs),
    )


def _head(config: ModelConfig, axes: Axes) -> Iterator[Quantity]:
    """Logits, and what a head computes before its output matrix."""
    bias = " + b_out"
    if config.family != "encoder":
        vectors = f"H_dec{'/√D' if config.output_scale else ''}"
        bias = bias if config.output_bias else ""
    else:
        vectors = "pooled" if config.head == "sequence" else "encoder_outputs"
        bias = bias if config.head == "masked" or not config.causal else ""
    if config.family == "encoder" and (config.head == "masked" or config.head_layer):
        width = "E" if config.head == "masked" and config.d_embedding else "D"
        wide = (*axes[:-1], width)
        dense = f"{vectors}·W_head{' + b_head' if config.head_bias else ''}"
        yield Quantity("head.inner", "head: before the activation", dense, wide, is_detail=True)
        activated = f"act({dense})"
        yield from _norm_parts(config, "head.norm", "head: norm", activated, wide)
        vectors = f"{_norm(config)}({activated})"
        yield Quantity("head.hidden", "head: inner layer", vectors, wide, is_detail=True)
        vectors = "hidden"
    formula = _capped(f"{vectors} · W_out{bias}", config.logit_cap)
    yield Quantity("logits", "logits", f"Logits = {formula}", axes)


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


def _logit_axes(config: ModelConfig) -> Axes:
    if config.family != "encoder":
        return ("B", "T", "V")
    return {"masked": ("B", "S", "V"), "token": ("B", "S", "C")}.get(config.head, ("B", "C"))


def _label_axes(config: ModelConfig, inputs: Inputs) -> Axes:
    if inputs.output_kind == "number":
        return ("B", "1")
    return ("B", "C") if inputs.output_kind in ("classes", "span") else _logit_axes(config)[:-1]


def _norm(config: ModelConfig) -> str:
    return NORMS.get(config.norm, config.norm)


def _capped(formula: str, cap: float) -> str:
    return f"{cap:g}·tanh(({formula})/{cap:g})" if cap else formula
