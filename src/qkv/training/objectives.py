"""Training objectives: one function each, from a model and a batch to a summed loss.

Each calls the model itself, never a part of it, and computes on the hidden states in `then`, inside
of the model's forward pass: hooks around that pass (parallel training) and compilers see all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import TeacherConfig
from qkv.data.batch import IGNORE, Batch, Side
from qkv.model import Encoder, Layout, MaskedHead, Output
from qkv.model.families import Then
from qkv.training.distribution import ALONE, Distribution
from qkv.training.loss import consistent_cross_entropy, cross_entropy

Objective = Callable[[Any, Batch, float], Tensor]
"""Maps a model, a batch and the label smoothing to the loss summed over the batch's labels."""
NO_TEACHER = TeacherConfig()


def layout_of(side: Side) -> Layout:
    """Describe to the model how the sequences of one side lie in its tensor."""
    return Layout(side.lengths, side.offsets, side.longest, side.first)


def encoded(model: Encoder, side: Side, then: Then = lambda x: x) -> Tensor:
    """Run an encoder on one side: its hidden states (B, T, D), or what `then` makes of them."""
    return model(side.tokens, layout_of(side), side.segments, then=then)


def head_logits(model: Encoder, batch: Batch) -> Tensor:
    """Run an encoder and its head on a batch, in float32 at least."""
    side = batch.target
    return _exact(model(side.tokens, layout_of(side), side.segments))


def at_places(x: Tensor, batch: Batch) -> Tensor:
    """Select the vectors of the tokens that have labels, (B, T, D) to (K, D)."""
    return x.flatten(0, 1)[batch.positions]


def _exact(x: Tensor) -> Tensor:
    """Convert to float32 at least, because losses are long sums."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _projected_loss(
    head: Output | MaskedHead, x: Tensor, labels: Tensor, smoothing: float
) -> Tensor:
    """Cross-entropy of a head's logits, which are never in memory whole."""
    weight, bias = head.projection.weight, head.projection.bias
    return cross_entropy(head.hidden(x), weight, bias, labels, smoothing, head.cap)


def _decoded(model: Any, batch: Batch, then: Then) -> Tensor:
    """Run a decoder, or an encoder-decoder, on a batch: what `then` makes of its hidden states."""
    sides = [side for side in (batch.source, batch.target) if side is not None]
    return model(*(side.tokens for side in sides), *map(layout_of, sides), then=then)


def next_token(model: Any, batch: Batch, smoothing: float) -> Tensor:
    """Loss of predicting each next token from those before it, and from the source if any."""

    def loss(x: Tensor) -> Tensor:
        return _projected_loss(model.output, x, batch.labels, smoothing)

    return _decoded(model, batch, loss)


def consistent_next_token(consistency: float) -> Objective:
    """Next-token loss with R-Drop, as in `consistent`, over logits never in memory whole.

    One pass reads each sequence twice: half the kernels to launch and half the code to compile.
    """

    def objective(model: Any, batch: Batch, smoothing: float) -> Tensor:
        if not model.training:
            return next_token(model, batch, smoothing)

        def loss(x: Tensor) -> Tensor:
            head = model.output
            passes, projection = head.hidden(x).view(2, -1, x.shape[-1]), head.projection
            weight, bias = projection.weight, projection.bias
            return consistent_cross_entropy(
                passes, weight, bias, batch.labels, smoothing, head.cap, consistency
            )

        return _decoded(model, batch.twice(), loss)

    return objective if consistency else next_token


def answer_log_probabilities(model: Any, batch: Batch) -> Tensor:
    """log P of the labels of each row, given what comes before them, (B,)."""
    labelled = batch.labels != IGNORE

    def log_probabilities(x: Tensor) -> Tensor:
        losses = F.cross_entropy(
            _exact(model.output(x[labelled])), batch.labels[labelled], reduction="none"
        )
        rows = labelled.nonzero()[:, 0]
        return -losses.new_zeros(len(x)).index_add(0, rows, losses)

    return model(batch.target.tokens, layout_of(batch.target), then=log_probabilities)


def preference(beta: float) -> Objective:
    """DPO (Rafailov et al. 2023, equation 7): chosen answers shall gain more than rejected ones.

    -log σ(β·(log π(c)/π₀(c) - log π(r)/π₀(r))), where π₀ is the model before training; rows of a
    batch are chosen and rejected answers by turns. Label smoothing assumes that so large a fraction
    of the pairs is the wrong way round.
    """

    def objective(model: Any, batch: Batch, smoothing: float) -> Tensor:
        assert batch.opinions is not None
        ratios = answer_log_probabilities(model, batch).view(-1, 2) - batch.opinions
        margin = beta * (ratios[:, 0] - ratios[:, 1])
        right, wrong = F.logsigmoid(margin), F.logsigmoid(-margin)
        return -((1 - smoothing) * right + smoothing * wrong).sum()

    return objective


def masked_tokens(pair_weight: float = 0.0) -> Objective:
    """Masked language modelling, and next-sentence prediction where batches have pairs.

    The head runs on masked tokens only. `pair_weight` is how many masked tokens a pair counts for:
    a constant, so that the loss does not depend on how a step is split into batches.
    """

    def objective(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            assert isinstance(model.head, MaskedHead)
            total = _projected_loss(model.head, at_places(x, batch), batch.labels, smoothing)
            if batch.pairs is None or model.pair_head is None or not pair_weight:
                return total
            logits = _exact(model.pair_head(model.pooler(x, layout_of(batch.target))))
            pair_loss = F.cross_entropy(logits, batch.pairs, reduction="sum", ignore_index=IGNORE)
            return total + pair_weight * pair_loss

        return encoded(model, batch.target, loss)

    return objective


def consistent(
    model: Encoder,
    forward: Callable[[], Tensor],
    loss_of: Callable[[Tensor], Tensor],
    consistency: float,
) -> Tensor:
    """R-Drop (Liang et al. 2021): two passes with different dropout must be right and agree.

    Half of the paper's loss, so that it is one loss for each label: L₁ + L₂ + α (KL(p, q) +
    KL(q, p)) / 2, where α is `consistency`. Without it, or in validation, one pass and its loss.
    """
    first = forward()
    if not consistency or not model.training:
        return loss_of(first)
    second = forward()
    log_p, log_q = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()  # KL(p, q) + KL(q, p)
    return (loss_of(first) + loss_of(second)) / 2 + consistency * divergence / 4


def one_class(
    weights: Tensor | None = None, consistency: float = 0.0, teacher: TeacherConfig = NO_TEACHER
) -> Objective:
    """Single-label classification of sequences, with class weights and teachers' probabilities."""

    def objective(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        def loss(logits: Tensor) -> Tensor:
            by_label = F.cross_entropy(
                logits,
                batch.labels,
                None if weights is None else weights.to(logits),
                ignore_index=IGNORE,
                label_smoothing=smoothing,
                reduction="sum" if batch.opinions is None else "none",
            )
            if batch.opinions is None:
                return by_label
            by_teacher = distillation(logits, batch.opinions, teacher.temperature)
            both = teacher.weight * by_teacher + (1 - teacher.weight) * by_label
            return torch.where(batch.labels == IGNORE, by_teacher, both).sum()

        return consistent(model, lambda: head_logits(model, batch), loss, consistency)

    return objective


def distillation(logits: Tensor, opinions: Tensor, temperature: float) -> Tensor:
    """Cross-entropy (N,) with teachers' probabilities, softened by `temperature` beforehand.

    Times its square, so that gradients are as large as those of labels (Hinton et al. 2015).
    """
    return -(opinions * (logits / temperature).log_softmax(dim=-1)).sum(dim=-1) * temperature**2


def many_classes(weights: Tensor | None = None) -> Objective:
    """Multi-label classification of sequences: a yes or no to each class, with class weights."""

    def objective(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        logits = head_logits(model, batch)
        target = batch.labels.to(logits) * (1 - smoothing) + smoothing / 2
        scale = None if weights is None else weights.to(logits)
        losses = F.binary_cross_entropy_with_logits(
            logits, target, reduction="none", pos_weight=scale
        )
        return losses.mean(dim=-1).sum()

    return objective


def number(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
    """Regression of a number for each sequence: squared error."""
    predicted = head_logits(model, batch)[:, 0]
    return F.mse_loss(predicted, batch.labels.to(predicted), reduction="sum")


def token_labels(consistency: float = 0.0) -> Objective:
    """Token classification; the head runs on labelled tokens only."""

    def objective(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        def logits_of(x: Tensor) -> Tensor:
            return _exact(model.head(at_places(x, batch)))

        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)

        def forward() -> Tensor:
            return encoded(model, batch.target, logits_of)

        return consistent(model, forward, loss, consistency)

    return objective


def spans(consistency: float = 0.0) -> Objective:
    """Start and end of an answer: two softmaxes over the tokens of each sequence."""

    def objective(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        lengths = batch.target.lengths
        assert lengths is not None

        def forward() -> Tensor:
            logits = head_logits(model, batch)  # (B, T, 2)
            positions = torch.arange(logits.shape[1], device=logits.device)
            padding = (positions >= lengths[:, None])[:, :, None]
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
            return logits.transpose(1, 2).flatten(0, 1)  # (2·B, T)

        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, batch.labels.flatten(), reduction="sum")

        return consistent(model, forward, loss, consistency) / 2

    return objective


def contrast(pooling: str, temperature: float, workers: Distribution = ALONE) -> Objective:
    """Contrastive learning of pairs of texts: the others of the batch are negatives.

    Labels (M, 2) number the distinct first and the distinct second texts: a pair that shares either
    with another is no negative of it. In training, the vectors of all workers' shares of the batch
    are compared, and each worker has the loss of its own pairs.
    """

    def objective(model: Encoder, batch: Batch, smoothing: float) -> Tensor:
        def vectors(side: Side) -> Tensor:
            return encoded(
                model,
                side,
                lambda x: F.normalize(_exact(model.embed(x, layout_of(side), pooling)), dim=-1),
            )

        assert batch.source is not None
        first, second = vectors(batch.source), vectors(batch.target)
        groups, begin, count = batch.labels, 0, len(first)
        if model.training:
            first, begin = workers.gather_rows(first, batch.stand_in)
            second, _ = workers.gather_rows(second, batch.stand_in)
            groups, _ = workers.gather_rows(groups, batch.stand_in)
        # Similarities near 1 are steps of 1/256 apart in bfloat16, and the temperature widens them.
        with torch.autocast(first.device.type, enabled=False):
            similarity = first @ second.T / temperature  # (M, M)
        own = torch.arange(len(first), device=first.device)
        alike = (groups[:, None] == groups).any(dim=-1) & (own[:, None] != own)
        similarity = similarity.masked_fill(alike, float("-inf"))
        rows = slice(begin, begin + count)
        forth = F.cross_entropy(similarity[rows], own[rows], reduction="sum")
        return (forth + F.cross_entropy(similarity.T[rows], own[rows], reduction="sum")) / 2

    return objective
