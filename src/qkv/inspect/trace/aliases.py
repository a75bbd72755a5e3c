"""The notes' symbols for quantities: "X_emb", "encoder.0.self_attention.Q", "decoder.1.H″" …"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from qkv.inspect.trace.notation import Quantity

TOP = {
    "X": ("source.tokens",),
    "Y_shift": ("target.tokens",),
    "Y_label": ("target.labels",),
    "X_emb": ("source.input",),
    "Y_emb": ("target.input",),
    "PE": ("source.positions", "target.positions"),
    "E_src": ("source.E",),
    "E_tgt": ("target.E",),
    "encoder_outputs": ("encoder.output",),
    "H_enc": ("encoder.output",),
    "H_dec": ("decoder.output",),
    "Logits": ("logits",),
    "P": ("probabilities",),
    "L": ("loss",),
    "L(θ)": ("loss",),
}
ENDINGS = {
    "Q": "query",
    "K": "key",
    "V": "value",
    "M": "mask",
    "A": "heads",  # A = softmax(QKᵀ/√d_k + M)·V
    "QKᵀ": "products",
    "√d_k": "scale",
    "θ": "rotation",
    "PE": "positions",
    "μ": "mean",
    "σ": "deviation",
    "x̂": "normalised",
    "γ": "gamma",
    "β": "beta",
    "W₁": "W_1",
    "b₁": "b_1",
    "W₂": "W_2",
    "b₂": "b_2",
}
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
PRIMES = {"'": "′", "″": "′′", "‴": "′′′", "⁗": "′′′′"}
SHORT = {1: "′", 2: "″", 3: "‴", 4: "⁗", 5: "⁗′"}


def aliases(quantities: Mapping[str, Quantity]) -> dict[str, str]:
    """The notes' symbols that name quantities of a trace, each with its key."""
    return dict(_every(quantities))


def spelled(key: str) -> str:
    """Write the primes of a symbol one by one, however they were typed."""
    return re.sub("['″‴⁗]", lambda found: PRIMES[found.group()], key)


def _every(quantities: Mapping[str, Quantity]) -> Iterator[tuple[str, str]]:
    for symbol, keys in TOP.items():
        yield from ((symbol, key) for key in keys[::-1] if key in quantities)
    symbols = {key: symbol for symbol, key in ENDINGS.items()}
    for key in quantities:
        parent, _, last = key.rpartition(".")
        if parent and last in symbols:
            yield f"{parent}.{symbols[last]}", key
        if key.endswith(".self_attention.output"):
            yield from _streams(quantities, key.removesuffix(".self_attention.output"))
        without_norm = key.endswith(".residual") and f"{parent}.sum" not in quantities
        if without_norm:
            yield f"{parent}.sum", key


def _streams(quantities: Mapping[str, Quantity], layer: str) -> Iterator[tuple[str, str]]:
    """H′, H″ … of a layer: a prime for each sublayer's output and each sum; H is the last one."""
    parts = [
        f"{layer}.{sublayer}.{part}"
        for sublayer in SUBLAYERS
        if f"{layer}.{sublayer}.output" in quantities
        for part in ("output", "residual")
    ]
    for number, key in enumerate(parts[:-1], start=1):
        yield f"{layer}.H{SHORT[number]}", key
    yield f"{layer}.H", parts[-1]
