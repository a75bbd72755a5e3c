"""Text and token ids → batches: readers, filters, shift and padding, order, the demo corpus."""

from qkv.data.batch import (
    IGNORE,
    Batch,
    PackedShape,
    Side,
    Specials,
    packed_batch,
    padded_batch,
)
from qkv.data.corpus import ParallelText, read_parallel
from qkv.data.encoded import EncodedPairs, Indices, Ragged
from qkv.data.filters import FilterReport, filter_pairs, kept_indices
from qkv.data.order import packed_plan, packed_shape, padded_plan, validation_plan
from qkv.data.prefetch import prefetch
from qkv.data.readers import Pair, lines_of, read_lines, read_pairs
from qkv.data.stream import BatchStream, Mode, validation_batches

__all__ = [
    "IGNORE",
    "Batch",
    "BatchStream",
    "EncodedPairs",
    "FilterReport",
    "Indices",
    "Mode",
    "PackedShape",
    "Pair",
    "ParallelText",
    "Ragged",
    "Side",
    "Specials",
    "filter_pairs",
    "kept_indices",
    "lines_of",
    "packed_batch",
    "packed_plan",
    "packed_shape",
    "padded_batch",
    "padded_plan",
    "prefetch",
    "read_lines",
    "read_pairs",
    "read_parallel",
    "validation_batches",
    "validation_plan",
]
