"""One cell of a quantity, worked out: its formula with the numbers of this pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.trace.quantities import activation_name
from qkv.inspect.trace.trace import Trace
from qkv.model.feed_forward import ACTIVATIONS
from qkv.serve.page.traces import Ask, traced

N_TERMS = 6  # of a sum that are shown, the largest first


class CellAsk(Ask):
    """A cell of a quantity: a token's row and a column (a dimension, a token or an output)."""

    key: str
    head: int | None = None
    row: int = 0
    column: int = 0


@dataclass(frozen=True)
class Line:
    """A step of the calculation: a symbol, what goes into it, and its value."""

    symbol: str
    value: float
    terms: list[tuple[float, float]] = field(default_factory=list)  # of a sum, largest first
    rest: float = 0.0  # sum of the terms that are not shown
    n_rest: int = 0
    operand: float | None = None


@dataclass(frozen=True)
class Cell:
    """Where to look in a pass."""

    trace: Trace
    key: str
    head: int | None
    row: int
    column: int

    @property
    def at(self) -> str:
        """The sublayer, or the stack, that the quantity is part of."""
        return self.key.rpartition(".")[0]

    def has(self, part: str) -> bool:
        """Whether the sublayer has a quantity."""
        return f"{self.at}.{part}" in self.trace

    def of(self, part: str, head: int | None = None) -> Tensor:
        """A quantity of the same sublayer: one head of it, without the batch."""
        return self.named(f"{self.at}.{part}", head)

    def named(self, key: str, head: int | None = None) -> Tensor:
        """A quantity by its whole key, without the batch and the head."""
        axes = self.trace.axes(key)
        value = self.trace.get(key, head).float()
        value = value[0] if axes[:1] in (("B",), ("1",)) else value
        return (
            value[0] if len(axes) > 1 and axes[1] in ("H", "G", "1") and value.dim() == 3 else value
        )


def worked(task: Any, ask: CellAsk) -> dict[str, Any]:
    """Work out one cell."""
    trace = traced(task, ask)
    quantity = trace.find(ask.key)
    head = ask.head if quantity.has_heads else None
    if quantity.has_heads and head is None:
        raise UserError(f"{ask.key} has several heads; choose one.")
    value = _cell_value(trace, ask, head)
    cell = Cell(trace, quantity.key, head, ask.row, ask.column)
    rule = RULES.get(quantity.key.rpartition(".")[2]) if cell.at != "head" else None
    lines = list(rule(cell)) if rule else []
    if lines and isinstance(value, float) and not _is_close(lines[-1].value, value):
        lines.append(Line("≈", value))  # as a model of few bits rounds it
    return {"value": value, "lines": [_finite(asdict(line)) for line in lines]}


def _cell_value(trace: Trace, ask: CellAsk, head: int | None) -> float | str:
    value = trace.get(ask.key, head)
    value = value[0] if trace.axes(ask.key)[:1] == ("B",) else value
    value = value.float().reshape(-1, value.shape[-1]) if value.dim() else value.reshape(1, 1)
    if not (0 <= ask.row < value.shape[0] and 0 <= ask.column < value.shape[1]):
        raise UserError(
            f"{ask.key} has {value.shape[0]} rows and {value.shape[1]} columns, no cell "
            f"{ask.row}, {ask.column}."
        )
    return _number(float(value[ask.row, ask.column]))


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=2e-3, abs_tol=1e-3)


def _number(value: float) -> float | str:
    """A number that JSON can hold."""
    return value if math.isfinite(value) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return _number(value) if isinstance(value, float) else value


def _product(symbol: str, left: Tensor, right: Tensor, bias: float | None = None) -> Line:
    """A dot product: its largest terms, what the others add up to, and a bias."""
    terms = left * right
    order = terms.abs().argsort(descending=True)
    shown, others = order[:N_TERMS], order[N_TERMS:]
    pairs = [(float(left[i]), float(right[i])) for i in shown]
    rest = float(terms[others].sum()) if len(others) else 0.0
    total = float(terms.sum()) + (bias or 0.0)
    return Line(symbol, total, pairs, rest, len(others), bias)


# Attention ---------------------------------------------------------------------------------------


def _projected(cell: Cell) -> list[Line]:
    """Q, K or V: what the attention reads, times a column of its matrix."""
    part = cell.key.rpartition(".")[2]
    letter = {"query": "Q", "key": "K", "value": "V"}[part]
    if cell.head is None or not cell.has(f"W_{letter}"):
        return []
    column = cell.head * cell.trace.sizes["K"] + cell.column
    of_all_heads = replace(cell, column=column)
    lines = _linear(of_all_heads, _read(cell, letter), f"W_{letter}", f"b_{letter}")
    symbol = "↻" if cell.has("rotation") else "norm" if cell.has(f"{part}_norm.deviation") else ""
    if letter != "V" and symbol:
        lines.append(Line(symbol, float(cell.of(part, cell.head)[cell.row, cell.column])))
    return lines


def _read(cell: Cell, letter: str) -> Tensor:
    """What an attention's matrix is multiplied with."""
    if letter in "KV" and cell.at.endswith("cross_attention"):
        return cell.named("encoder.output")
    return _sublayer_input(cell)


def _sublayer_input(cell: Cell) -> Tensor:
    """What a sublayer reads: its norm, where norms come first, or the stream."""
    return cell.of("norm" if cell.has("norm") else "skip")


def _group(cell: Cell) -> int:
    """The head of keys and values that a head of queries uses."""
    sizes = cell.trace.sizes
    assert cell.head is not None
    return cell.head * cell.trace.shape(f"{cell.at}.key")[1] // sizes["H"]


def _products(cell: Cell) -> list[Line]:
    query, key = cell.of("query", cell.head), cell.of("key", _group(cell))
    return [_product("q·k", query[cell.row], key[cell.column])]


def _scores(cell: Cell) -> list[Line]:
    """q·k, ÷ √d_k, + b, + M."""
    lines = _products(cell)
    value = lines[0].value
    scale = float(cell.of("scale")) if cell.has("scale") else 1.0
    if scale != 1.0:
        value /= scale
        lines.append(Line("÷ √d_k", value, operand=scale))
    lines += _capped(value, cell.trace.model.config.score_cap)
    value = lines[-1].value
    if cell.has("bias"):
        bias = float(cell.of("bias", cell.head)[cell.row, cell.column])
        value += bias
        lines.append(Line("+ b", value, operand=bias))
    mask = float(cell.of("mask")[cell.row, cell.column]) if cell.has("mask") else 0.0
    lines.append(Line("+ M", value + mask, operand=mask))
    return lines


def _weights(cell: Cell) -> list[Line]:
    """The score, its exponential, and the share of it in the row."""
    lines = _softmax("exp(s − max)", cell.of("scores", cell.head)[cell.row], cell.column)
    weight = float(cell.of("weights", cell.head)[cell.row, cell.column])
    if not _is_close(lines[-1].value, weight):  # by a change
        lines.append(Line("≔", weight))
    return [*_scores(cell), *lines]


def _softmax(symbol: str, row: Tensor, column: int) -> list[Line]:
    """The exponential of a number, and its share in those of the row."""
    powers, most = (row - row.max()).exp(), float(row.max())
    power, total = float(powers[column]), float(powers.sum())
    return [Line(symbol, power, operand=most), Line("÷ Σ", power / total, operand=total)]


def _heads(cell: Cell) -> list[Line]:
    weights, values = cell.of("weights", cell.head), cell.of("value", _group(cell))
    return [_product("Σ a·v", weights[cell.row], values[:, cell.column])]


def _output(cell: Cell) -> list[Line]:
    """An attention's or a feed-forward layer's last product."""
    if cell.has("heads"):
        heads = cell.trace[f"{cell.at}.heads"][0].float()  # (H, N, K)
        left, names = heads.transpose(0, 1).flatten(1), ("W_O", "b_O")
    elif cell.has("hidden"):
        left, names = cell.of("hidden"), ("W_2", "b_2")
    else:
        return []
    return _linear(cell, left, *names)


# Stream, norms, feed-forward ---------------------------------------------------------------------


def _linear(cell: Cell, left: Tensor, matrix: str, bias: str) -> list[Line]:
    if not cell.has(matrix):
        return []
    own = float(cell.of(bias)[cell.column]) if cell.has(bias) else None
    return [_product(f"x·{matrix}", left[cell.row], cell.of(matrix)[:, cell.column], own)]


def _sum(cell: Cell) -> list[Line]:
    """The stream, or the embedding, and what is added to it."""
    if cell.at in ("source", "target"):
        return _added("E", cell.of("embedding"), "+ PE", cell.of("positions"), cell)
    if not cell.has("skip"):
        return []
    output = cell.of("output_norm" if cell.has("output_norm") else "output")
    return _added("h", cell.of("skip"), "+ h′", output, cell)


def _added(symbol: str, stream: Tensor, plus: str, more: Tensor, cell: Cell) -> list[Line]:
    """A number of the stream, and one that is added to it."""
    one, other = (float(value[cell.row, cell.column]) for value in (stream, more))
    return [Line(symbol, one), Line(plus, one + other, operand=other)]


def _residual(cell: Cell) -> list[Line]:
    """The sum with the stream and, where norms come after it, the norm."""
    is_post = cell.trace.model.config.norm_position == "post"
    lines = _sum(cell)
    return lines + (_norm_lines(cell, f"{cell.at}.norm") if lines and is_post else [])


def _norm(cell: Cell) -> list[Line]:
    """The norm before a sublayer."""
    return _norm_lines(cell, cell.key)


def _stack_output(cell: Cell) -> list[Line]:
    """A stack's last norm or, without one, its last layer's sum; or a sublayer's output."""
    if cell.at not in ("encoder", "decoder"):
        return _output(cell)
    *_, last = cell.trace.names(f"{cell.at}.*.residual")
    return _norm_lines(cell, f"{cell.at}.norm") or _residual(replace(cell, key=last))


def _norm_lines(cell: Cell, at: str) -> list[Line]:
    """μ, σ, x̂, γ, β."""
    trace, row, column = cell.trace, cell.row, cell.column
    if f"{at}.normalised" not in trace:
        return []
    normalised = float(cell.named(f"{at}.normalised")[row, column])
    deviation = float(cell.named(f"{at}.deviation")[row, 0])
    has_mean = f"{at}.mean" in trace
    mean = float(cell.named(f"{at}.mean")[row, 0]) if has_mean else 0.0
    lines = [Line("x", normalised * deviation + mean)]
    lines += [Line("μ", mean)] if has_mean else []
    gain = float(cell.named(f"{at}.gamma")[column]) if f"{at}.gamma" in trace else 1.0
    value = normalised * gain
    lines += [Line("σ", deviation), Line("x̂", normalised), Line("· γ", value, operand=gain)]
    if f"{at}.beta" in trace:
        shift = float(cell.named(f"{at}.beta")[column])
        lines.append(Line("+ β", value + shift, operand=shift))
    return lines


def _inner(cell: Cell) -> list[Line]:
    return _linear(cell, _sublayer_input(cell), "W_1", "b_1")


def _gate(cell: Cell) -> list[Line]:
    return _linear(cell, _sublayer_input(cell), "W_gate", "b_gate")


def _hidden(cell: Cell) -> list[Line]:
    """The activation and, where there is a gate, its product."""
    config = cell.trace.model.config
    name, act = activation_name(config), ACTIVATIONS[config.activation]
    if not cell.has("inner"):
        return []
    inner = cell.of("inner")[cell.row, cell.column]
    if not cell.has("gate"):
        return [*_inner(cell), Line(name, float(act(inner)))]
    bent = float(act(cell.of("gate")[cell.row, cell.column]))
    return [
        *_gate(cell),
        Line(name, bent),
        *_inner(cell),
        Line("⊙", bent * float(inner), operand=bent),
    ]


# Ends --------------------------------------------------------------------------------------------


def _input(cell: Cell) -> list[Line]:
    """The embedding plus its position, normalised where the model does."""
    if cell.trace.model.config.d_embedding:  # and then made as wide as the model
        return []
    if cell.has("norm.normalised"):
        return _norm_lines(cell, f"{cell.at}.norm")
    return _sum(cell) if cell.has("positions") else []


def _logits(cell: Cell) -> list[Line]:
    """The last product: of a head's layer, of one vector for a text, or of a stack's output."""
    trace, config = cell.trace, cell.trace.model.config
    if "W_out" not in trace:
        return []
    sources = ("head.hidden", "pooled", "decoder.output", "encoder.output")
    vectors = cell.named(next(key for key in sources if key in trace))
    vector = vectors if vectors.dim() == 1 else vectors[cell.row]
    if config.output_scale:
        vector = vector / config.d_model**0.5
    bias = float(cell.named("b_out")[cell.column]) if "b_out" in trace else None
    line = _product("h·W_out", vector, cell.named("W_out")[:, cell.column], bias)
    return [line, *_capped(line.value, config.logit_cap)]


def _capped(value: float, cap: float) -> list[Line]:
    """A number kept below a cap, where the model has one."""
    return [Line("c·tanh(z/c)", cap * math.tanh(value / cap))] if cap else []


def _probabilities(cell: Cell) -> list[Line]:
    logits = cell.named("logits").reshape(-1, cell.trace.shape("logits")[-1])[cell.row]
    if cell.trace.inputs.output_kind not in ("tokens", "class"):
        return []
    return [*_logits(cell), *_softmax("exp(z − max)", logits, cell.column)]


Rule = Callable[[Cell], Sequence[Line]]
RULES: dict[str, Rule] = {
    "query": _projected,
    "key": _projected,
    "value": _projected,
    "products": _products,
    "scores": _scores,
    "weights": _weights,
    "heads": _heads,
    "output": _stack_output,
    "sum": _sum,
    "residual": _residual,
    "norm": _norm,
    "inner": _inner,
    "gate": _gate,
    "hidden": _hidden,
    "input": _input,
    "logits": _logits,
    "probabilities": _probabilities,
}
"""How a cell is worked out, by the last part of its key."""
