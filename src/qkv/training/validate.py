"""Measuring a model on text it does not train on, and noticing when it does not learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from qkv.data import Batch, EncodedPairs, Side
from qkv.model import Model
from qkv.training.step import LossSum

# Nats by which a true source must beat a wrong one; below this the source is as good as unread.
LEAST_SOURCE_GAIN = 0.05


def mean_loss(model: Model, loss_sum: LossSum, batches: Iterable[Batch]) -> float:
    """Cross-entropy for each label, in nats, without smoothing and without dropout."""
    losses, n_labels = [], 0
    model.eval()
    with torch.no_grad():
        for batch in batches:
            losses.append(loss_sum(batch, 0.0).double())
            n_labels += batch.n_labels
    model.train()
    return float(torch.stack(losses).sum()) / n_labels


def with_wrong_sources(batch: Batch) -> Batch:
    """The same targets, each with its neighbour's source."""
    source = batch.source
    assert source is not None and source.lengths is not None
    rolled = Side(source.tokens.roll(1, 0), source.lengths.roll(1, 0), None, source.longest)
    return dataclasses.replace(batch, source=rolled)


def label_entropy(pairs: EncodedPairs) -> float:
    """The loss of one who knows how frequent each token is and nothing else, in nats."""
    return entropy(np.append(np.bincount(pairs.target.tokens), len(pairs)))  # each target ends once


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """The loss of always giving each token the share that it has among these, in nats."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def complaint(
    valid_loss: float, frequencies_loss: float, wrong_source_loss: float | None = None
) -> str | None:
    """A sentence for a run that should have learnt something by now and has not."""
    remedy = "try a lower learning rate, a longer warm-up or norm_position = 'pre'"
    if valid_loss >= frequencies_loss:
        return (
            f"the model does not learn: its validation loss ({valid_loss:.2f}) is no better than "
            f"knowing how frequent each token is ({frequencies_loss:.2f}); {remedy}"
        )
    if wrong_source_loss is not None and wrong_source_loss - valid_loss < LEAST_SOURCE_GAIN:
        return (
            f"the model does not use the source: with a wrong one its validation loss hardly rises "
            f"({valid_loss:.2f} to {wrong_source_loss:.2f}); check that the files are aligned, or "
            f"{remedy}"
        )
    return None
