"""Sentence pairs as token ids: filters, and batches of sources, shifted targets and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

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
        super().__init__(target.lengths + 1, digest, source.lengths + 1)
        self.source, self.target, self.special = source, target, special
        self.words: tuple[Ragged, Ragged] | None = None  # tokens of each word of both sides

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
    by_word: bool = False,
) -> PairItems:
    """Encode both sides without white space around them, each text after `first`.

    The ids are kept in the cache; `by_word`, the number of tokens of each word too.
    """

    def encode(some: Sequence[Pair]) -> Mapping[str, npt.NDArray[np.int32]]:
        arrays: dict[str, npt.NDArray[np.int32]] = {}
        for name, tokenizer, side in (("source", source, 0), ("target", target, 1)):
            texts = [pair[side].strip() for pair in some]
            if by_word:
                words = [
                    [*([id] for id in first), *text] if text else []
                    for text in tokenizer.encode_by_word(texts)
                ]
                ids = [list(chain(*text)) for text in words]
                sizes = [list(map(len, text)) for text in words]
                arrays |= Ragged.of(sizes).arrays(f"{name}_words")
            else:
                ids = [[*first, *text] if text else [] for text in tokenizer.encode_many(texts)]
            arrays |= Ragged.of(ids).arrays(name)
        return arrays

    kind = "pairs by word" if by_word else "pairs"
    shards = cached_examples(pairs, [kind, source.digest, target.digest, list(first)], encode)
    items = PairItems(shards.ragged("source"), shards.ragged("target"), special, shards.digest)
    if by_word:
        items.words = shards.ragged("source_words"), shards.ragged("target_words")
    return items


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
