"""What logits mean: probabilities, loss, entropy, and the names of outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data import IGNORE
from qkv.inspect.trace.inputs import Inputs

if TYPE_CHECKING:
    from qkv.inspect.trace.trace import Trace


WHOLE_TEXT = "the text"  # the name of the position of an output that is about all of it


def probabilities(logits: Tensor, inputs: Inputs) -> Tensor:
    """P of the logits: softmax over outputs, over tokens for spans, a sigmoid for each class."""
    logits = _exact(logits)
    if inputs.output_kind == "classes":
        return logits.sigmoid()
    if inputs.output_kind == "span":
        return _over_tokens(logits, inputs).softmax(dim=-1).transpose(1, 2)
    return logits.softmax(dim=-1)


def log_probabilities(logits: Tensor, labels: Tensor, inputs: Inputs) -> Tensor:
    """Log P of each label, 0 where there is none; of classes by themselves, of each yes or no."""
    logits = _exact(logits)
    if inputs.output_kind == "classes":
        return F.logsigmoid(torch.where(labels.bool(), logits, -logits))
    if inputs.output_kind == "span":
        logits = _over_tokens(logits, inputs)
    return _of_labels(logits.log_softmax(dim=-1), labels)


def loss_of_probabilities(probable: Tensor, labels: Tensor, inputs: Inputs) -> Tensor:
    """L(θ) as a function of P, whose gradient is that of the loss by P."""
    if inputs.output_kind == "classes":
        return -torch.where(labels.bool(), probable, 1 - probable).log().mean()
    if inputs.output_kind == "span":
        probable = probable.transpose(1, 2)
    chosen = probable.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return -chosen[labels != IGNORE].log().mean()


def loss_of_log_probabilities(log_probable: Tensor, labels: Tensor, inputs: Inputs) -> Tensor:
    """L(θ) as a function of the labels' log P."""
    given = torch.ones_like(labels, dtype=torch.bool)
    given = given if inputs.output_kind == "classes" else labels != IGNORE
    return -log_probable[given].mean()


def loss(logits: Tensor, labels: Tensor, inputs: Inputs) -> Tensor:
    """L(θ): the mean of −log P of the labels, or the squared error of a number."""
    logits = _exact(logits)
    if inputs.output_kind == "number":
        return F.mse_loss(logits, labels.to(logits))
    if inputs.output_kind == "classes":
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits))
    if inputs.output_kind == "span":
        logits = _over_tokens(logits, inputs)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE)


def entropy(probable: Tensor, inputs: Inputs) -> Tensor:
    """Entropy of each row in nats; for classes by themselves, summed over their yes and no."""
    terms = torch.special.entr(probable)
    if inputs.output_kind == "classes":
        terms = terms + torch.special.entr(1 - probable)
    return terms.sum(dim=-1)


def by_position(trace: Trace, values: Tensor, row: int) -> Tensor:
    """Lay out one row's logits or probabilities as (outputs, choices), without padding."""
    if values.dim() == 1:
        return values[None]
    values = values[: len(_output_tokens(trace, row))]
    # The start and the end of a span choose among tokens.
    return values.T if trace.inputs.output_kind == "span" else values


def position_names(trace: Trace, row: int) -> list[str]:
    """Names of the positions that have an output: tokens, or one for the whole text."""
    if trace.inputs.output_kind == "span":
        return ["start", "end"]
    return _output_tokens(trace, row) if len(trace.axes("logits")) == 3 else [WHOLE_TEXT]


def output_names(
    trace: Trace, ids: list[int], row: int = 0, position: int | None = None
) -> list[str]:
    """Names of outputs: tokens, labels or, for spans, tokens with their positions.

    A token after the one at `position` that completes a character bears that character's name.
    """
    spell, target = trace.inputs.spell, trace.inputs.target
    if spell is not None and target is not None and position is not None:
        before = target.tokens[row, max(0, position - 2) : position + 1].tolist()
        return [spell([*before, id])[-1] for id in ids]
    if trace.inputs.output_kind == "span":
        tokens = trace.tokens("source", row)
        return [f"{tokens[id]} ({id})" for id in ids]
    return trace.inputs.name(ids)


def label_name(trace: Trace, id: int, row: int, position: int) -> str:
    """Name of the label after a position, as part of a character that later tokens complete."""
    target = trace.inputs.target
    has_next = target is not None and position + 1 < target.row_length(row)
    if target is not None and has_next and int(target.tokens[row, position + 1]) == id:
        return target.names[row][position + 1]
    return output_names(trace, [id], row, position)[0]


def row_labels(trace: Trace, row: int, count: int) -> list[int]:
    """One label per output of a row, IGNORE where there is no single one."""
    labels = trace.inputs.labels
    if labels is None or trace.inputs.output_kind in ("classes", "number"):
        return [IGNORE] * count
    flat: list[int] = labels[row].reshape(-1)[:count].tolist()
    return flat


def _of_labels(log_probable: Tensor, labels: Tensor) -> Tensor:
    chosen = log_probable.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return chosen.masked_fill(labels == IGNORE, 0.0)


def _exact(logits: Tensor) -> Tensor:
    """Logits in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _output_tokens(trace: Trace, row: int) -> list[str]:
    return trace.tokens("source" if trace.inputs.target is None else "target", row)


def _over_tokens(logits: Tensor, inputs: Inputs) -> Tensor:
    """(B, S, 2) to (B, 2, S) with padding masked: start and end each choose a token."""
    lengths = inputs.source.layout.lengths if inputs.source else None
    if lengths is not None:
        padding = torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None]
        logits = logits.masked_fill(padding[:, :, None], float("-inf"))
    return logits.transpose(1, 2)
