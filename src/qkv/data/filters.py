"""Which pairs are fit to train on, and an account of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qkv.data.encoded import EncodedPairs, Indices
from qkv.errors import UserError


@dataclass(frozen=True)
class FilterReport:
    """How many pairs were kept, and how many dropped for which reason (the first that held)."""

    kept: int
    dropped: Mapping[str, int]
    max_length: int
    max_ratio: float

    @property
    def total(self) -> int:
        """How many pairs there were."""
        return self.kept + sum(self.dropped.values())

    def describe(self) -> str:
        """One sentence for people."""
        if self.kept == self.total:
            return f"kept all {self.total:,} pairs"
        return f"kept {self.kept:,} of {self.total:,} pairs; dropped {self.describe_dropped()}"

    def describe_dropped(self) -> str:
        """The reasons that occurred, each with its count."""
        limits = {
            "too long": f" (over {self.max_length} tokens)",
            "length ratio": f" over {self.max_ratio:g}",
        }
        return ", ".join(
            f"{count:,} {reason}{limits.get(reason, '')}"
            for reason, count in self.dropped.items()
            if count
        )


def filter_pairs(
    pairs: EncodedPairs, max_length: int, max_ratio: float
) -> tuple[EncodedPairs, FilterReport]:
    """Keep the pairs that `kept_indices` finds fit."""
    indices, report = kept_indices(pairs, max_length, max_ratio)
    return pairs.take(indices), report


def kept_indices(
    pairs: EncodedPairs, max_length: int, max_ratio: float
) -> tuple[Indices, FilterReport]:
    """Find the pairs with text on both sides that are neither too long nor too unlike in length.

    BOS or EOS counts for `max_length`, so that what passes fits a model of the same limit; the
    ratio is of the text alone.
    """
    source, target = pairs.source.lengths, pairs.target.lengths
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    reasons = {
        "empty source": source == 0,
        "empty target": target == 0,
        "too long": np.maximum(pairs.source_sizes, pairs.target_sizes) > max_length,
        "length ratio": longer > max_ratio * shorter,
    }
    fit = np.ones(len(pairs), bool)
    dropped = {}
    for reason, holds in reasons.items():
        dropped[reason] = int((fit & holds).sum())
        fit &= ~holds
    report = FilterReport(int(fit.sum()), dropped, max_length, max_ratio)
    if not report.kept:
        raise UserError(
            f"data: all {report.total:,} pairs were dropped ({report.describe_dropped()}); correct "
            f"the text, or raise max_length or max_ratio under [data]."
        )
    return np.flatnonzero(fit), report
