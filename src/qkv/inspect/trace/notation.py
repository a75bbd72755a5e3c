"""What a quantity is: its key, name, formula and shape, and how keys are found by patterns.

Letters of shapes: B batch, S source length, T target length, D d_model, H heads, G key/value heads,
F d_ff, V vocabulary, C labels, E width of a narrower embedding, K = D/H width of a head, X experts,
R pairs that rotary positions turn, L positions of a table, N buckets of distances.

The quantities of a pass are listed in `quantities.py`, the weights of a model in `weights.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torch import Tensor

from qkv.config import ModelConfig
from qkv.errors import UserError
from qkv.inspect.trace.inputs import Inputs

if TYPE_CHECKING:
    from qkv.inspect.answers.comparison import Comparison

BY_HEAD = ("query", "key", "value", "products", "bias", "scores", "weights", "heads")
GRADIENT = "gradient."


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
    is_weight: bool = False
    is_detail: bool = False  # a step within a formula, which the flow chart leaves out

    @property
    def has_heads(self) -> bool:
        """Whether the second dimension counts heads."""
        return self.key.rpartition(".")[2] in BY_HEAD

    @property
    def token_axis(self) -> int | None:
        """The first dimension that counts tokens."""
        return next((axis for axis, letter in enumerate(self.axes) if letter in ("S", "T")), None)

    @property
    def symbol(self) -> str:
        """The symbol that the formula defines, or the whole formula where it defines none."""
        return self.formula.partition(" = ")[0]

    @property
    def gradient(self) -> Quantity:
        """The gradient of the loss with respect to this quantity."""
        name = f"gradient of the loss by: {self.name}"
        return Quantity(f"{GRADIENT}{self.key}", name, f"∂L/∂({self.symbol})", self.axes)


class Quantities(ABC):
    """Named quantities with their formulas and shapes; what `Trace` and `SavedTrace` share."""

    def __init__(self, quantities: Mapping[str, Quantity], sizes: Mapping[str, int]) -> None:
        self.quantities, self.sizes = quantities, sizes

    def names(self, pattern: str | None = None) -> list[str]:
        """Keys of the quantities in the order of the formulas, then those of the weights.

        In a pattern `*` stands for anything, but at the end not for weights: `encoder.*` are the
        quantities of the encoder's pass, `encoder.*.W_Q` and `encoder.*.W_*` its weights.
        """
        if pattern is None:
            return list(self.quantities)
        return [
            key
            for key, quantity in self.quantities.items()
            if fnmatchcase(key, pattern) and (not quantity.is_weight or _names_end(pattern, key))
        ]

    def keys(self, pattern: str | None = None) -> list[str]:
        """Return `names`, so that a trace reads like a dict."""
        return self.names(pattern)

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

    def compare(self, other: Quantities, pattern: str = "*") -> Comparison:
        """How each quantity differs from that of another trace."""
        from qkv.inspect.answers.comparison import compare

        return compare(self, other, pattern)

    @abstractmethod
    def peek(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """Compute or read several quantities."""

    def find(self, key: str) -> Quantity:
        """The quantity with a key."""
        if key not in self.quantities:
            near = get_close_matches(key, self.quantities, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see trace.names()."
            raise UserError(f"This trace has no quantity {key!r}; {hint}")
        return self.quantities[key]


def _names_end(pattern: str, key: str) -> bool:
    """Whether a pattern says something of the end of a key."""
    end = pattern.rpartition(".")[2]
    return bool(end.strip("*")) and fnmatchcase(key.rpartition(".")[2], end)


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
        "H·K": config.n_heads * config.d_head,
        "G·K": config.kv_heads * config.d_head,
        "R": config.d_rotary // 2,
        "V": config.vocab_size,
        "V_src": config.source_vocab_size or config.vocab_size,
        "X": config.n_experts,
        "C": config.n_labels,
        "L": config.n_positions,
        "N": config.relative_buckets,
        "2N": 2 * config.relative_buckets,
        "1": 1,
        "2": 2,
        "channels": config.n_channels,
        "height": config.image_size,
        "width": config.image_size,
        "pixels": config.n_channels * config.patch_size**2,
        "segments": config.n_segments,
        "taps": config.convolution,
        "d_vector": config.d_vector,
    }
