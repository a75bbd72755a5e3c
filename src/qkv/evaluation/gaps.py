"""How well an encoder predicts masked tokens, and tells true pairs of texts from false ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qkv.data import Batch
from qkv.evaluation.perplexity import loss, perplexity
from qkv.evaluation.scores import Score
from qkv.model import evaluating
from qkv.training.objectives import layout_of


def gap_totals(model: Any, batches: Iterable[Batch], device: torch.device) -> list[float]:
    """Sum over batches: −ln P of the masked tokens, those predicted right, all; pairs right, all.

    Sums of parts of the batches can be added before `gap_scores` divides them.
    """
    totals = np.zeros(5)
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            totals += _counts(model, batch.to(device))
    return totals.tolist()


def gap_scores(
    nats: float, right: float, n_tokens: float, right_pairs: float, n_pairs: float
) -> list[Score]:
    """Loss, perplexity and accuracy of masked tokens; the accuracy of pairs where there are any."""
    count = round(n_tokens)
    scores = [loss(nats, count), perplexity(nats, count), Score("accuracy", 100 * right / count)]
    if n_pairs:
        scores.append(Score("pair accuracy", 100 * right_pairs / n_pairs))
    return scores


def _counts(model: Any, batch: Batch) -> tuple[float, int, int, int, int]:
    side = batch.target
    x = model(side.tokens, layout_of(side), side.segments, then=lambda hidden: hidden)
    logits = model.head(x.flatten(0, 1)[batch.positions]).float()
    nats = float(F.cross_entropy(logits, batch.labels, reduction="sum").double())
    right = int((logits.argmax(-1) == batch.labels).sum())
    if batch.pairs is None or model.pair_head is None:
        return nats, right, batch.n_labels, 0, 0
    judged = model.pair_head(model.pooler(x, layout_of(side))).argmax(-1)
    real = batch.pairs >= 0
    right_pairs = int((judged[real] == batch.pairs[real]).sum())
    return nats, right, batch.n_labels, right_pairs, int(real.sum())
