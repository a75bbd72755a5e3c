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
from qkv.data.documents import Piece, read_documents, sample_text
from qkv.data.encoded import EncodedPairs, Indices, Ragged
from qkv.data.examples import (
    Examples,
    ExampleStream,
    encode_examples,
    example_batches,
    kept_examples,
    packed_examples,
    padded_examples,
)
from qkv.data.filters import FilterReport, filter_pairs, kept_indices
from qkv.data.order import packed_plan, packed_shape, padded_plan, validation_plan
from qkv.data.prefetch import prefetch
from qkv.data.readers import Pair, lines_of, read_lines, read_pairs
from qkv.data.records import Conversations, read_conversations, read_records
from qkv.data.sequences import (
    Framed,
    Sequences,
    SequenceStream,
    Twins,
    TwinStream,
    frame,
    sequence_batches,
    twin_batches,
)
from qkv.data.shards import Corpus, load_corpus
from qkv.data.shuffle import permuted
from qkv.data.stream import BatchStream, Mode, validation_batches
from qkv.data.table import read_examples
from qkv.data.tokens import Tokens
from qkv.data.windows import WindowBatches, WindowMode, WindowStream, window_batches

__all__ = [
    "IGNORE",
    "Batch",
    "BatchStream",
    "Conversations",
    "Corpus",
    "EncodedPairs",
    "ExampleStream",
    "Examples",
    "FilterReport",
    "Framed",
    "Indices",
    "Mode",
    "PackedShape",
    "Pair",
    "ParallelText",
    "Piece",
    "Ragged",
    "SequenceStream",
    "Sequences",
    "Side",
    "Specials",
    "Tokens",
    "TwinStream",
    "Twins",
    "WindowBatches",
    "WindowMode",
    "WindowStream",
    "encode_examples",
    "example_batches",
    "filter_pairs",
    "frame",
    "kept_examples",
    "kept_indices",
    "lines_of",
    "load_corpus",
    "packed_batch",
    "packed_examples",
    "packed_plan",
    "packed_shape",
    "padded_batch",
    "padded_examples",
    "padded_plan",
    "permuted",
    "prefetch",
    "read_conversations",
    "read_documents",
    "read_examples",
    "read_lines",
    "read_pairs",
    "read_parallel",
    "read_records",
    "sample_text",
    "sequence_batches",
    "twin_batches",
    "validation_batches",
    "validation_plan",
    "window_batches",
]
