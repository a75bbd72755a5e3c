"""Validation loss, its baselines, and warnings for a run that does not learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.data.batch import Batch, Side
from qkv.model import Model
from qkv.training.step import LossSum

# Nats by which a true source must beat a wrong one; below this the source is as good as unread.
LEAST_SOURCE_GAIN = 0.05


def mean_loss(model: Model, loss_sum: LossSum, batches: Iterable[Batch]) -> float:
    """Mean loss per label over batches, in nats, without smoothing and without dropout."""
    total, n_labels = total_loss(model, loss_sum, batches)
    return total / n_labels


def total_loss(model: Model, loss_sum: LossSum, batches: Iterable[Batch]) -> tuple[float, int]:
    """Loss summed over all labels of batches, in nats, and their number."""
    losses, n_labels = [], 0
    model.eval()
    with torch.no_grad():
        for batch in batches:
            losses.append(loss_sum(batch, 0.0).double())
            n_labels += batch.n_labels
    model.train()
    return float(torch.stack(losses).sum()) if losses else 0.0, n_labels


def with_wrong_sources(batches: Sequence[Batch]) -> list[Batch]:
    """Replace each source of padded batches by the next one that differs, across all batches.

    Returns no batches where all sources are equal, so that none is wrong.
    """
    sources = [
        row[:length]
        for side in (batch.source for batch in batches if batch.source)
        for row, length in zip(side.tokens, cast(Tensor, side.lengths).tolist(), strict=True)
    ]
    texts = [tuple(source.tolist()) for source in sources]
    if len(set(texts)) < 2:
        return []
    wrong = [0] * len(sources)
    for index in reversed(range(2 * len(sources))):  # twice round, for the last ones' next is first
        row, after = index % len(sources), (index + 1) % len(sources)
        wrong[row] = after if texts[after] != texts[row] else wrong[after]
    replaced, rest = [], iter(wrong)
    for batch in batches:
        rows = [sources[next(rest)] for _ in range(len(batch.target.tokens))]
        tokens = pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
        side = Side(tokens, lengths, None, tokens.shape[1])
        replaced.append(dataclasses.replace(batch, source=side))
    return replaced


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """Cross-entropy of predicting these frequencies, in nats: the baseline of a loss."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def complaint(
    valid_loss: float, baseline: float, wrong_source_loss: float | None = None
) -> str | None:
    """Say what is wrong with a run that should have learnt something by now and has not."""
    remedy = (
        "try a lower learning rate, a longer warm-up or, from fresh weights, norm_position = 'pre'"
    )
    if valid_loss >= baseline:
        return (
            f"the model does not learn: its validation loss ({valid_loss:.2f}) is no better than "
            f"that of a guess that reads nothing ({baseline:.2f}); {remedy}"
        )
    if wrong_source_loss is not None and wrong_source_loss - valid_loss < LEAST_SOURCE_GAIN:
        return (
            f"the model does not use the source: with a wrong one its validation loss hardly rises "
            f"({valid_loss:.2f} to {wrong_source_loss:.2f}); check that the files are aligned, or "
            f"{remedy}"
        )
    return None
