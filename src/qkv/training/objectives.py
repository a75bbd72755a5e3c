"""What a model is taught: one function for each objective, from a batch to a summed loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import TeacherConfig
from qkv.data import IGNORE, Batch, Side
from qkv.model import Encoder, Layout, MaskedHead, pool
from qkv.training.loss import cross_entropy

Objective = Callable[[Any, Batch, float], Tensor]
"""A model, a batch and the label smoothing in; the loss summed over the batch's labels out."""
NO_TEACHER = TeacherConfig()


def layout_of(side: Side) -> Layout:
    """How the model is to read one side of a batch."""
    return Layout(side.lengths, side.offsets, side.longest, side.first)


def next_token(model: Any, batch: Batch, smoothing: float) -> Tensor:
    """Each next token, from those before it (and from the source): the whole pass in parallel."""
    sides = [side for side in (batch.source, batch.target) if side is not None]
    hidden = model.hidden(*(side.tokens for side in sides), *map(layout_of, sides))
    output = model.output
    weight, bias = output.projection.weight, output.projection.bias
    return cross_entropy(output.hidden(hidden), weight, bias, batch.labels, smoothing)


def encoded(model: Encoder, side: Side) -> Tensor:
    """An encoder's vectors of one side, (B, T, D)."""
    return model.hidden(side.tokens, layout_of(side), side.segments)


def at_places(x: Tensor, batch: Batch) -> Tensor:
    """The vectors of the tokens that have labels, (K, D)."""
    return x.flatten(0, 1)[batch.places]


def hidden_tokens(pair_weight: float = 0.0) -> Objective:
    """The tokens that were hidden, computed at their places only; and which pairs are true.

    `pair_weight` is how many hidden tokens a pair counts for. It is a constant, so that the loss
    does not depend on how a step is split into batches.
    """

    def loss(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        head = model.head
        assert isinstance(head, MaskedHead)
        x = encoded(model, batch.target)
        projection = head.projection
        total = cross_entropy(
            head.hidden(at_places(x, batch)),
            projection.weight,
            projection.bias,
            batch.labels,
            smoothing,
        )
        if batch.pairs is None or model.pair_head is None or not pair_weight:
            return total
        logits = model.pair_head(model.pooler(x, layout_of(batch.target)))
        wrong = F.cross_entropy(_exact(logits), batch.pairs, reduction="sum", ignore_index=IGNORE)
        return total + pair_weight * wrong

    return loss


def agreeing(
    model: Encoder,
    say: Callable[[], Tensor],
    loss_of: Callable[[Tensor], Tensor],
    consistency: float,
) -> Tensor:
    """Logits (N, C) right; in training said twice, with other dropout, both right and alike.

    R-Drop (Liang et al. 2021): half of each, and `consistency` times the divergence, both ways.
    """
    first = say()
    if not consistency or not model.training:
        return loss_of(first)
    second = say()
    one, other = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
    unlike = ((one.exp() - other.exp()) * (one - other)).sum()  # KL(p, q) + KL(q, p)
    return (loss_of(first) + loss_of(second)) / 2 + consistency * unlike / 4


def one_class(
    weights: Tensor | None = None,
    consistency: float = 0.0,
    teacher: TeacherConfig = NO_TEACHER,
) -> Objective:
    """One class of several for each sequence; rare classes may weigh more.

    Where the batch has teachers' opinions, these are learnt from too.
    """

    def loss(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        def wrong(logits: Tensor) -> Tensor:
            scale = None if weights is None else weights.to(logits)
            labelled = F.cross_entropy(
                logits,
                batch.labels,
                scale,
                ignore_index=IGNORE,
                label_smoothing=smoothing,
                reduction="sum" if batch.opinions is None else "none",
            )
            if batch.opinions is None:
                return labelled
            taught = apart(logits, batch.opinions, teacher.temperature)
            both = teacher.weight * taught + (1 - teacher.weight) * labelled
            return torch.where(batch.labels == IGNORE, taught, both).sum()

        return agreeing(model, lambda: _said(model, batch), wrong, consistency)

    return loss


def apart(logits: Tensor, opinions: Tensor, temperature: float) -> Tensor:
    """The cross-entropy (N,) from teachers' probabilities, which have that temperature already.

    Times its square, gradients are as large as those of labels (Hinton et al. 2015).
    """
    said = (logits / temperature).log_softmax(dim=-1)
    return -(opinions * said).sum(dim=-1) * temperature**2


def many_classes(weights: Tensor | None = None) -> Objective:
    """Any number of classes at once for each sequence: a yes or no to each."""

    def loss(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        logits = _said(model, batch)
        wanted = batch.labels.to(logits) * (1 - smoothing) + smoothing / 2
        scale = None if weights is None else weights.to(logits)
        each = F.binary_cross_entropy_with_logits(
            logits, wanted, reduction="none", pos_weight=scale
        )
        return each.mean(dim=-1).sum()

    return loss


def number(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
    """A number for each sequence: the squared distance from it."""
    said = _said(model, batch)[:, 0]
    return F.mse_loss(said, batch.labels.to(said), reduction="sum")


def token_labels(consistency: float = 0.0) -> Objective:
    """A label for each of some tokens, computed at their places only."""

    def loss(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        def say() -> Tensor:
            return _exact(model.head(at_places(encoded(model, batch.target), batch)))

        def wrong(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)

        return agreeing(model, say, wrong, consistency)

    return loss


def spans(consistency: float = 0.0) -> Objective:
    """Where an answer starts and ends: two softmaxes over the tokens of each sequence."""

    def loss(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        lengths = batch.target.lengths
        assert lengths is not None

        def say() -> Tensor:
            logits = _said(model, batch)  # (B, T, 2)
            place = torch.arange(logits.shape[1], device=logits.device)
            hidden = (place >= lengths[:, None])[:, :, None]
            logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
            return logits.transpose(1, 2).flatten(0, 1)  # (2·B, T)

        def wrong(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, batch.labels.flatten(), reduction="sum")

        return agreeing(model, say, wrong, consistency) / 2

    return loss


def contrast(pooling: str, temperature: float) -> Objective:
    """Each first text is nearer to its own second than to the others of the batch, and back."""

    def loss(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        assert batch.source is not None
        first, second = (
            F.normalize(_exact(pool(encoded(model, side), layout_of(side), pooling)), dim=-1)
            for side in (batch.source, batch.target)
        )
        # Likenesses near 1 are steps of 1/256 apart in bfloat16, and the temperature widens them.
        with torch.autocast(first.device.type, enabled=False):
            likeness = first @ second.T / temperature  # (M, M)
        groups = batch.labels
        own = torch.eye(len(groups), dtype=torch.bool, device=groups.device)
        same = (groups[:, None] == groups) & ~own
        likeness = likeness.masked_fill(same, float("-inf"))
        right = torch.arange(len(groups), device=groups.device)
        there = F.cross_entropy(likeness, right, reduction="sum")
        return (there + F.cross_entropy(likeness.T, right, reduction="sum")) / 2

    return loss


def _said(model: Encoder, batch: Batch) -> Tensor:
    """What the head says."""
    side = batch.target
    return _exact(model(side.tokens, layout_of(side), side.segments))


def _exact(x: Tensor) -> Tensor:
    """In float32 at the least, for a loss is a sum of many."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
