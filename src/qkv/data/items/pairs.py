"""Sentence pairs as token ids: filters, and batches of sources, shifted targets and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from qkv.data.batch import IGNORE, Batch, Packing, Specials, arrange
from qkv.data.corpus.shards import cached_examples
from qkv.data.formats.pairs import Pair
from qkv.data.items.base import VALIDATION, Draw, FilteredItems
from qkv.data.ragged import Indices, Ragged
from qkv.text import Tokenizer


class PairItems(FilteredItems):
    """Pairs without BOS and EOS, which `batch` adds."""

    def __init__(self, source: Ragged, target: Ragged, special: Specials, digest: str = "") -> None:
        if len(source) != len(target):
            raise ValueError(f"{len(source)} sources but {len(target)} targets")
        super().__init__(target.lengths + 1, digest, source.lengths + 1)
        self.source, self.target, self.special = source, target, special

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Lay pairs out; packed, segment m of the target belongs to segment m of the source."""
        rows = self.rows[np.asarray(indices, np.int64)]
        return pair_batch(self.source.take(rows), self.target.take(rows), self.special, shape)

    def label_counts(self) -> npt.NDArray[np.int64]:
        """Count how often each token is a label; EOS is counted once a pair, at the end."""
        return np.append(np.bincount(self.target.tokens), len(self))


def pair_batch(source: Ragged, target: Ragged, special: Specials, shape: Packing = None) -> Batch:
    """Make a batch: the source ends with EOS, the target begins with BOS, the labels with y₁."""
    left = arrange(source.lengths + 1, shape, shape.source_tokens if shape else 0)
    right = arrange(target.lengths + 1, shape)
    sources, labels = left.write(source, special.pad), right.write(target, IGNORE)
    sources[left.starts + source.lengths] = special.eos
    labels[right.starts + target.lengths] = special.eos
    shifted = right.write(target, special.pad, shift=1)
    shifted[right.starts] = special.bos
    return Batch(
        left.side(sources),
        right.side(shifted),
        right.tensor(labels),
        int((target.lengths + 1).sum()),
    )


def encode_pairs(
    pairs: Sequence[Pair],
    source: Tokenizer,
    target: Tokenizer,
    special: Specials,
    first: Sequence[int] = (),
) -> PairItems:
    """Encode both sides without white space around them, each text after `first`.

    The ids are kept in the cache.
    """

    def encode(some: Sequence[Pair]) -> Mapping[str, npt.NDArray[np.int32]]:
        sides = {
            "source": source.encode_many([text.strip() for text, _ in some]),
            "target": target.encode_many([text.strip() for _, text in some]),
        }
        arrays: dict[str, npt.NDArray[np.int32]] = {}
        for name, texts in sides.items():
            arrays |= Ragged.of([[*first, *ids] if ids else [] for ids in texts]).arrays(name)
        return arrays

    key = ["pairs", source.digest, target.digest, list(first)]
    shards = cached_examples(pairs, key, encode)
    return PairItems(shards.ragged("source"), shards.ragged("target"), special, shards.digest)


def filter_pairs(items: PairItems, max_length: int, max_ratio: float) -> tuple[PairItems, str]:
    """Drop pairs that are empty, too long or too unlike in length; say how many of which.

    BOS or EOS counts for `max_length`, so that what passes fits a model of the same limit; the
    ratio is of the text alone.
    """
    source, target = items.source_sizes - 1, items.target_sizes - 1
    reasons = {
        "with an empty source": source == 0,
        "with an empty target": target == 0,
        f"too long (over {max_length} tokens)": np.maximum(source, target) + 1 > max_length,
        f"with a length ratio over {max_ratio:g}": np.maximum(source, target)
        > max_ratio * np.minimum(source, target),
    }
    return items.keep(reasons, "pairs", "max_length or max_ratio")
